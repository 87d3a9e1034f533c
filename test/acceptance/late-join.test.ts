// A viewer that joins a stream late, disconnects, lags or requests the stream ends up with exactly
// the stored and acknowledged text, even if the broker is killed in the meantime.
// JINDOU_TEST_VIEWERS and JINDOU_TEST_CHUNKS set the size, and JINDOU_TEST_SEED repeats a run.

import t, { type Test } from "tap";
import { type ChannelRef, GROUP_CHANNEL, PERSON_CHANNEL } from "../../src/broker/model.ts";
import type { Settings } from "../support/broker.ts";
import { Random } from "../support/random.ts";
import { volume } from "../support/volume.ts";
import { RestartableBroker } from "./restartable-broker.ts";
import { ScriptedStream } from "./scripted-stream.ts";
import { HABITS, preparePadding, readOverHttp, Spectator } from "./stream-audience.ts";
import { differenceOf, pictureOf, pictureOfJson, writeScript } from "./stream-picture.ts";
import { StreamViewer } from "./stream-viewer.ts";

const VIEWERS = volume(200, "JINDOU_TEST_VIEWERS");
const CHUNKS = volume(2000, "JINDOU_TEST_CHUNKS", 700);
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
const HTTP_READERS = 3;

/**
 * Buffer size with which slow viewers soon count as lagging, because a connection lags above a
 * quarter of the buffer.
 */
const SETTINGS: Settings = { JINDOU_CLIENT_MAX_BUFFERED_BYTES: "524288" };
const PRODUCER = "bot";

interface StreamChannel {
  readonly channel: ChannelRef;
  /** Users who watch the stream, each with the channel as that user addresses it. */
  readonly watchers: readonly {
    readonly uid: string;
    readonly sees: ChannelRef;
  }[];
  /** Maximum length of a chunk in UTF-16 code units. */
  readonly maxUnits: number;
}

const CHANNELS: readonly StreamChannel[] = [
  group("wide", 40),
  group("narrow", 12),
  group("medium", 32),
  pair("ann", 24),
  pair("ben", 24),
];

t.test(
  `${VIEWERS} viewers that join streams late, disconnect, lag or request the state get exactly the stored text`,
  (t) => perform(t, SEED, []),
);

t.test(
  "late and lagging viewers of streams get exactly the stored text even if the broker is killed",
  (t) => perform(t, SEED + 1, [0.35, 0.7]),
);

/**
 * Plays all streams at once, each with its viewers. Kills the broker whenever the first stream has
 * reached one of the shares in `kills`.
 */
async function perform(t: Test, seed: number, kills: readonly number[]): Promise<void> {
  t.comment(`seed ${seed}`);
  const random = new Random(seed);
  const broker = await RestartableBroker.open(t, SETTINGS);
  for (const { channel, watchers } of CHANNELS)
    if (channel.type === GROUP_CHANNEL)
      await broker.createGroup(channel.id, [PRODUCER, ...uidsOf(watchers)]);
  const uids = CHANNELS.flatMap(({ watchers }) => uidsOf(watchers));
  await preparePadding(broker, [...new Set(uids)]);
  const streams = CHANNELS.map((place) => streamIn(place, broker, random));
  const spectators = streams.flatMap((stream, at) => spectatorsOf(stream, at, random));
  const readers = streams.flatMap((stream) => addReaders(stream, random));
  const losses = planKills(streams, broker, kills);
  await Promise.all(streams.map((stream) => stream.play()));
  const problems = await Promise.all([
    ...losses(),
    ...spectators.map((spectator) => spectator.problem()),
    ...readers.map((reader) => reader()),
    ...streams.map((stream) => checkStored(stream)),
  ]);
  t.same(problems.filter(Boolean).slice(0, 10), [], "all viewers end up with the stored text");
  const merged = spectators.reduce((sum, spectator) => sum + spectator.mergedCount, 0);
  t.comment(`viewers received ${merged} merged events`);
  if (kills.length === 0)
    // a restart ends the lag of every viewer
    t.ok(merged > 0, "some viewers lagged so far that chunks were merged");
  t.equal(broker.kills, kills.length);
  t.notMatch(broker.output(), /"level":"(error|fatal)"/, "no error was logged");
  for (const spectator of spectators) spectator.leave();
}

function group(id: string, maxUnits: number): StreamChannel {
  const channel = { id, type: GROUP_CHANNEL } as const;
  const watchers = Array.from({ length: 20 }, (_, i) => ({
    uid: `${id}-${i}`,
    sees: channel,
  }));
  return { channel, watchers, maxUnits };
}

/** Creates a personal channel between the producer and one user, both with many devices. */
function pair(uid: string, maxUnits: number): StreamChannel {
  const channel = { id: uid, type: PERSON_CHANNEL } as const;
  const watchers: StreamChannel["watchers"] = [
    { uid, sees: { id: PRODUCER, type: PERSON_CHANNEL } },
    { uid, sees: { id: PRODUCER, type: PERSON_CHANNEL } },
    { uid: PRODUCER, sees: channel },
  ];
  return { channel, watchers, maxUnits };
}

function uidsOf(watchers: StreamChannel["watchers"]): readonly string[] {
  return watchers.map(({ uid }) => uid);
}

function streamIn(place: StreamChannel, broker: RestartableBroker, random: Random): ScriptedStream {
  const { channel, maxUnits } = place;
  const script = writeScript(random, { chunks: CHUNKS, maxUnits });
  const name = { fromUid: PRODUCER, clientMsgNo: `show-${channel.id}` };
  return new ScriptedStream({ broker, random, channel, script, ...name });
}

function spectatorsOf(stream: ScriptedStream, at: number, random: Random): Spectator[] {
  const watchers = CHANNELS[at]?.watchers ?? [];
  const count = Math.max(1, Math.round(VIEWERS / CHANNELS.length));
  return Array.from({ length: count }, (_, i) => {
    const { uid, sees } = random.pick(watchers);
    const habit = HABITS[i % HABITS.length] ?? "stays";
    const viewer = new StreamViewer(`${uid} (${i}, ${habit})`, uid, sees);
    const spectator = new Spectator(viewer, habit, stream);
    spectator.plan(random);
    return spectator;
  });
}

/**
 * Adds readers of server-sent events: one from the first event, the others from random events. Each
 * reader begins when its first event exists.
 */
function addReaders(stream: ScriptedStream, random: Random): (() => Promise<string | undefined>)[] {
  return Array.from({ length: HTTP_READERS }, (_, i) => {
    const from = i === 0 ? 0 : random.below(stream.length - 1);
    const drops = [random.below(stream.length), random.below(stream.length)];
    let result: Promise<string | undefined> | undefined;
    stream.cue(from + 1, () => {
      result = readOverHttp(stream, { from, drops });
      result.catch(() => undefined); // the result is awaited at the end
    });
    return async () => (result === undefined ? "the reader did not begin" : result);
  });
}

/**
 * Plans the kills. After each restart, before any client continues, all acknowledged events must be
 * stored.
 */
function planKills(
  streams: readonly ScriptedStream[],
  broker: RestartableBroker,
  kills: readonly number[],
): () => Promise<string | undefined>[] {
  const problems: (string | undefined)[] = [];
  const restarts: Promise<void>[] = [];
  const [first] = streams;
  for (const share of kills)
    first?.cue(Math.floor(first.length * share), () => {
      const check = async () => {
        for (const stream of streams) problems.push(await stream.storedDifference());
      };
      restarts.push(broker.restart(check));
    });
  return () => [
    Promise.all(restarts).then(() => problems.find((problem) => problem !== undefined)),
  ];
}

/** Checks that GET /stream and history show the played stream. Returns the difference. */
async function checkStored(stream: ScriptedStream): Promise<string | undefined> {
  const { broker, channel, fromUid, script } = stream.options;
  const expected = pictureOf(script);
  const read = await broker.ok(stream.path);
  const query = new URLSearchParams({
    channel_id: channel.id,
    channel_type: String(channel.type),
    ...(channel.type === PERSON_CHANNEL ? { uid: fromUid } : {}),
  });
  const history = await broker.ok(`/channel/messages?${query}`);
  const [message] = history.messages;
  const payload = Buffer.from(message.payload, "base64").toString();
  if (JSON.parse(payload).content !== expected.text)
    return `${channel.id}: the text in history differs from the script`;
  if (history.messages.length !== 1) return `${channel.id}: history has several messages`;
  return (
    differenceOf(pictureOfJson(read), expected) ??
    differenceOf(pictureOfJson(message.stream), expected)
  );
}
