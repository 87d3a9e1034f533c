// Issue 3, line 3: a producer that dies leaves an interrupted stream: viewers are told within the
// time-out and a second, the text is kept, a new stream can start; also when the broker itself was
// killed in between.

import t, { type Test } from "tap";
import { type ChannelRef, GROUP_CHANNEL, PERSON_CHANNEL } from "../../src/broker/model.ts";
import { measureStalls, type StallMeter } from "../support/stalls.ts";
import { SseReader } from "./sse-reader.ts";
import { Stage } from "./stage.ts";
import { StreamViewer } from "./stream-viewer.ts";

const IDLE_MS = 1200;
/** [issue 3, line 3] */
const SLACK_MS = 1000;
const PRODUCER = "bot";
const GROUP = { id: "team", type: GROUP_CHANNEL } as const;
const PERSON = { id: "ann", type: PERSON_CHANNEL } as const;
const PIECES = ["The answer", " is 😀", "", " forty-"];
const TEXT = PIECES.join("");

const stage = await Stage.open(t, {
  JINDOU_STREAMS_IDLE_TIMEOUT_MS: String(IDLE_MS),
});
await stage.createGroup(GROUP.id, [PRODUCER, "ann", "ben"]);

for (const channel of [GROUP, PERSON])
  t.test(`a silent producer's stream in channel type ${channel.type}`, (t) =>
    fallSilent(t, channel),
  );

t.test("a silent producer over a restart of the broker", async (t) => {
  const viewer = await watch(t, "ann", GROUP);
  await begin(GROUP, "before the kill");
  await begin(PERSON, "beside it");
  await stage.restart();
  const stalls = measureStalls(t);
  const backMs = performance.now();
  await viewer.until("the cut", () => !viewer.isOpen);
  await viewer.connect(stage.clientPort);
  await viewer.until("the stream", () => Boolean(viewer.view("before the kill")));
  t.equal(viewer.view("before the kill")?.picture.state, "active");
  await viewer.ended("before the kill");
  const tookMs = performance.now() - backMs;
  t.equal(viewer.view("before the kill")?.picture.state, "interrupted");
  t.ok(tookMs <= inTime(stalls), `it was told after ${tookMs} ms`);
  await afterwards(t, GROUP, "before the kill");
  await stage.restart();
  await afterwards(t, GROUP, "before the kill");
  await nextStream(t, GROUP);
});

t.test("a producer that goes on after a restart is not silent", async (t) => {
  await begin(GROUP, "goes on");
  await stage.restart();
  const { status, body } = await post(GROUP, "goes on", {
    type: "___TextMessageContent",
    data: "two",
  });
  t.equal(status, 200);
  t.same(body, { status: "ok", stream: { state: "active" } });
  const end = { type: "___TextMessageEnd", data: "" };
  t.same((await post(GROUP, "goes on", end)).body.stream.state, "closed");
  const read = await stage.ok(pathOf(GROUP, "goes on"));
  t.equal(read.text, `${TEXT}two`);
  t.equal(read.state, "closed");
});

async function fallSilent(t: Test, channel: ChannelRef): Promise<void> {
  const name = `silent in ${channel.type}`;
  const early = await watch(t, "ann", seenBy("ann", channel));
  const beganMs = performance.now();
  await begin(channel, name);
  const stalls = measureStalls(t);
  const lastMs = performance.now();
  const late = await watch(t, PRODUCER, channel);
  const reader = new SseReader(0);
  const read = reader.read(stage.apiPort, pathOf(channel, name));
  for (const viewer of [early, late]) {
    await viewer.ended(name);
    const picture = viewer.view(name)?.picture;
    t.equal(picture?.state, "interrupted", viewer.name);
    t.equal(picture?.text, TEXT);
    t.equal(picture?.endData, "");
  }
  await read;
  const nowMs = performance.now();
  t.ok(nowMs - beganMs >= IDLE_MS, `not before its time: ${nowMs - beganMs}`);
  t.ok(nowMs - lastMs <= inTime(stalls), `told in ${nowMs - lastMs} ms`);
  t.ok(reader.isDone, "who reads server-sent events is told, too");
  t.equal(reader.text, TEXT);
  await afterwards(t, channel, name);
  await nextStream(t, channel);
}

const inTime = (stalls: StallMeter) => IDLE_MS + SLACK_MS + 10 * stalls.totalMs();

/** What holds from then on: the text, and what its producer hears if it wakes up. */
async function afterwards(t: Test, channel: ChannelRef, name: string): Promise<void> {
  const read = await stage.ok(pathOf(channel, name));
  t.equal(read.state, "interrupted");
  t.equal(read.text, TEXT);
  const end = await post(channel, name, {
    type: "___TextMessageEnd",
    data: "late",
  });
  t.equal(end.status, 200, "a late end is answered ok");
  t.same(end.body, { status: "ok", stream: { state: "interrupted" } });
  const content = await post(channel, name, {
    type: "___TextMessageContent",
    data: "late",
  });
  t.equal(content.status, 400);
  t.equal(content.body.code, "stream_closed");
  t.equal(content.body.error, "Stream is already closed");
  const again = await stage.ok(pathOf(channel, name));
  t.same(again, read, "neither changed anything");
}

async function nextStream(t: Test, channel: ChannelRef): Promise<void> {
  const name = `next in ${channel.type} ${performance.now()}`;
  const start = { type: "___TextMessageStart", data: "" };
  t.equal((await post(channel, name, start)).status, 200);
  const end = { type: "___TextMessageEnd", data: "" };
  t.equal((await post(channel, name, end)).body.stream.state, "closed");
}

/** A start and all pieces, and nothing more. */
async function begin(channel: ChannelRef, name: string): Promise<void> {
  const contents = PIECES.map((data) => ({
    type: "___TextMessageContent",
    data,
  }));
  for (const event of [{ type: "___TextMessageStart", data: "" }, ...contents]) {
    const { status, body } = await post(channel, name, event);
    if (status !== 200) throw new Error(`${status} ${body.code}`);
  }
}

function post(
  { id, type }: ChannelRef,
  clientMsgNo: string,
  event: { readonly type: string; readonly data: string },
) {
  return stage.insist("/event", {
    client_msg_no: clientMsgNo,
    channel_id: id,
    channel_type: type,
    from_uid: PRODUCER,
    event,
  });
}

function pathOf({ id, type }: ChannelRef, name: string): string {
  const uid = type === PERSON_CHANNEL ? `?uid=${PRODUCER}` : "";
  return `/stream/${type}/${id}/${encodeURIComponent(name)}${uid}`;
}

function seenBy(uid: string, channel: ChannelRef): ChannelRef {
  return channel.type === PERSON_CHANNEL && uid === channel.id
    ? { id: PRODUCER, type: PERSON_CHANNEL }
    : channel;
}

async function watch(t: Test, uid: string, channel: ChannelRef): Promise<StreamViewer> {
  const viewer = new StreamViewer(uid, uid, channel);
  t.teardown(() => viewer.drop());
  await viewer.connect(stage.clientPort);
  return viewer;
}
