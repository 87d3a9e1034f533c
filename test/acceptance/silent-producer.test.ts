// A producer that stops sending leaves an interrupted stream. Viewers are notified within the idle
// time-out plus one second, the text is kept, and a new stream can start. The same holds if the
// broker was killed in the meantime.

import t, { type Test } from "tap";
import { type ChannelRef, GROUP_CHANNEL, PERSON_CHANNEL } from "../../src/broker/model.ts";
import { measureStalls, type StallMeter } from "../support/stalls.ts";
import { RestartableBroker } from "./restartable-broker.ts";
import { SseReader } from "./sse-reader.ts";
import { StreamViewer } from "./stream-viewer.ts";

const IDLE_MS = 1200;
/** Time after the idle time-out within which viewers must be notified. */
const SLACK_MS = 1000;
const PRODUCER = "bot";
const GROUP = { id: "team", type: GROUP_CHANNEL } as const;
const PERSON = { id: "ann", type: PERSON_CHANNEL } as const;
const PIECES = ["The answer", " is 😀", "", " forty-"];
const TEXT = PIECES.join("");

const broker = await RestartableBroker.open(t, {
  JINDOU_STREAMS_IDLE_TIMEOUT_MS: String(IDLE_MS),
});
await broker.createGroup(GROUP.id, [PRODUCER, "ann", "ben"]);

for (const channel of [GROUP, PERSON])
  t.test(
    `a stream in a channel of type ${channel.type} is interrupted when its producer is silent`,
    (t) => assertInterrupted(t, channel),
  );

t.test(
  "a stream of a silent producer is interrupted even after a restart of the broker",
  async (t) => {
    const viewer = await watch(t, "ann", GROUP);
    await begin(GROUP, "before the kill");
    await begin(PERSON, "another stream");
    await broker.restart();
    const stalls = measureStalls(t);
    const backMs = performance.now();
    await viewer.until("the end of the connection", () => !viewer.isOpen);
    await viewer.connect(broker.clientPort);
    await viewer.until("the stream", () => Boolean(viewer.view("before the kill")));
    t.equal(viewer.view("before the kill")?.picture.state, "active");
    await viewer.ended("before the kill");
    const tookMs = performance.now() - backMs;
    t.equal(viewer.view("before the kill")?.picture.state, "interrupted");
    t.ok(tookMs <= maxMs(stalls), `the viewer is notified after ${tookMs} ms`);
    await assertStaysInterrupted(t, GROUP, "before the kill");
    await broker.restart();
    await assertStaysInterrupted(t, GROUP, "before the kill");
    await assertNextStream(t, GROUP);
  },
);

t.test("a producer that continues after a restart of the broker keeps its stream", async (t) => {
  await begin(GROUP, "goes on");
  await broker.restart();
  const { status, body } = await post(GROUP, "goes on", {
    type: "___TextMessageContent",
    data: "two",
  });
  t.equal(status, 200);
  t.same(body, { status: "ok", stream: { state: "active" } });
  const end = { type: "___TextMessageEnd", data: "" };
  t.same((await post(GROUP, "goes on", end)).body.stream.state, "closed");
  const read = await broker.ok(pathOf(GROUP, "goes on"));
  t.equal(read.text, `${TEXT}two`);
  t.equal(read.state, "closed");
});

async function assertInterrupted(t: Test, channel: ChannelRef): Promise<void> {
  const name = `silent in ${channel.type}`;
  const early = await watch(t, "ann", seenBy("ann", channel));
  const beganMs = performance.now();
  await begin(channel, name);
  const stalls = measureStalls(t);
  const lastMs = performance.now();
  const late = await watch(t, PRODUCER, channel);
  const reader = new SseReader(0);
  const read = reader.read(broker.apiPort, pathOf(channel, name));
  for (const viewer of [early, late]) {
    await viewer.ended(name);
    const picture = viewer.view(name)?.picture;
    t.equal(picture?.state, "interrupted", `${viewer.name} sees the stream as interrupted`);
    t.equal(picture?.text, TEXT);
    t.equal(picture?.endData, "");
  }
  await read;
  const nowMs = performance.now();
  t.ok(nowMs - beganMs >= IDLE_MS, `the stream is not interrupted early: ${nowMs - beganMs} ms`);
  t.ok(nowMs - lastMs <= maxMs(stalls), `viewers are notified after ${nowMs - lastMs} ms`);
  t.ok(reader.isDone, "a reader of server-sent events gets the end");
  t.equal(reader.text, TEXT);
  await assertStaysInterrupted(t, channel, name);
  await assertNextStream(t, channel);
}

const maxMs = (stalls: StallMeter) => IDLE_MS + SLACK_MS + 10 * stalls.totalMs();

/**
 * Asserts that the text is kept, that a late end is acknowledged, and that late content is refused.
 */
async function assertStaysInterrupted(t: Test, channel: ChannelRef, name: string): Promise<void> {
  const read = await broker.ok(pathOf(channel, name));
  t.equal(read.state, "interrupted");
  t.equal(read.text, TEXT);
  const end = await post(channel, name, {
    type: "___TextMessageEnd",
    data: "late",
  });
  t.equal(end.status, 200, "a late end is acknowledged");
  t.same(end.body, { status: "ok", stream: { state: "interrupted" } });
  const content = await post(channel, name, {
    type: "___TextMessageContent",
    data: "late",
  });
  t.equal(content.status, 400);
  t.equal(content.body.code, "stream_closed");
  t.equal(content.body.error, "Stream is already closed");
  const later = await broker.ok(pathOf(channel, name));
  t.same(later, read, "late events do not change the stream");
}

async function assertNextStream(t: Test, channel: ChannelRef): Promise<void> {
  const name = `next in ${channel.type} ${performance.now()}`;
  const start = { type: "___TextMessageStart", data: "" };
  t.equal((await post(channel, name, start)).status, 200);
  const end = { type: "___TextMessageEnd", data: "" };
  t.equal((await post(channel, name, end)).body.stream.state, "closed");
}

/** Starts a stream and sends all pieces of its text, without an end. */
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
  return broker.callUntilAnswered("/event", {
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
  await viewer.connect(broker.clientPort);
  return viewer;
}
