// Issue 3, line 2: whoever joins a stream late, drops, lags or asks has in the end exactly the text
// that is stored and was acknowledged, also when the broker is killed in the middle.
// JINDOU_TEST_VIEWERS and JINDOU_TEST_CHUNKS scale it, JINDOU_TEST_SEED repeats its choices.

import t, { type Test } from "tap";
import { type ChannelRef, GROUP_CHANNEL, PERSON_CHANNEL } from "../../src/broker/model.ts";
import type { Settings } from "../support/broker.ts";
import { Random } from "../support/random.ts";
import { volume } from "../support/volume.ts";
import { Stage } from "./stage.ts";
import { HABITS, preparePadding, readOverHttp, Spectator } from "./stream-audience.ts";
import { differenceOf, pictureOf, pictureOfJson, writeScript } from "./stream-picture.ts";
import { Show } from "./stream-show.ts";
import { StreamViewer } from "./stream-viewer.ts";

const VIEWERS = volume(200, "JINDOU_TEST_VIEWERS");
const CHUNKS = Number(process.env.JINDOU_TEST_CHUNKS ?? 2000);
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
const HTTP_READERS = 3;

/**
 * From a quarter of it on a connection lags, and only then its reads wait: with more, they would
 * wait earlier.
 */
const SETTINGS: Settings = { JINDOU_CLIENT_MAX_BUFFERED_BYTES: "524288" };
const PRODUCER = "bot";

interface Hall {
  readonly channel: ChannelRef;
  /** Whoever watches, and how they call the channel. */
  readonly seats: readonly {
    readonly uid: string;
    readonly sees: ChannelRef;
  }[];
  readonly maxUnits: number;
}

const HALLS: readonly Hall[] = [
  group("wide", 40),
  group("narrow", 12),
  group("medium", 32),
  pair("ann", 24),
  pair("ben", 24),
];

t.test(`${VIEWERS} viewers who come late, drop, lag and ask see exactly the stored text`, (t) =>
  perform(t, SEED, []),
);

t.test("they do when the broker is killed in the middle", (t) => perform(t, SEED + 1, [0.35, 0.7]));

/**
 * All streams at once, with their audiences; the broker is killed when the first show is so far.
 */
async function perform(t: Test, seed: number, kills: readonly number[]): Promise<void> {
  t.comment(`seed ${seed}`);
  const random = new Random(seed);
  const stage = await Stage.open(t, SETTINGS);
  for (const { channel, seats } of HALLS)
    if (channel.type === GROUP_CHANNEL)
      await stage.createGroup(channel.id, [PRODUCER, ...uidsOf(seats)]);
  const uids = HALLS.flatMap(({ seats }) => uidsOf(seats));
  await preparePadding(stage, [...new Set(uids)]);
  const shows = HALLS.map((hall) => showIn(hall, stage, random));
  const spectators = shows.flatMap((show, at) => seat(show, at, random));
  const readers = shows.flatMap((show) => addReaders(show, random));
  const losses = planKills(shows, stage, kills);
  await Promise.all(shows.map((show) => show.play()));
  const verdicts = await Promise.all([
    ...losses(),
    ...spectators.map((spectator) => spectator.verdict()),
    ...readers.map((reader) => reader()),
    ...shows.map((show) => judgeStored(show)),
  ]);
  t.same(verdicts.filter(Boolean).slice(0, 10), [], "all saw the same");
  const merged = spectators.reduce((sum, one) => sum + one.mergedCount, 0);
  t.comment(`${merged} merged events`);
  if (kills.length === 0)
    // a kill frees those who lag
    t.ok(merged > 0, "some lagged so far that chunks were merged");
  t.equal(stage.kills, kills.length);
  t.notMatch(stage.output(), /"level":"(error|fatal)"/, "no error was logged");
  for (const spectator of spectators) spectator.leave();
}

function group(id: string, maxUnits: number): Hall {
  const channel = { id, type: GROUP_CHANNEL } as const;
  const seats = Array.from({ length: 20 }, (_, i) => ({
    uid: `${id}-${i}`,
    sees: channel,
  }));
  return { channel, seats, maxUnits };
}

/** Between the producer and one user, both with many devices. */
function pair(uid: string, maxUnits: number): Hall {
  const channel = { id: uid, type: PERSON_CHANNEL } as const;
  const seats: Hall["seats"] = [
    { uid, sees: { id: PRODUCER, type: PERSON_CHANNEL } },
    { uid, sees: { id: PRODUCER, type: PERSON_CHANNEL } },
    { uid: PRODUCER, sees: channel },
  ];
  return { channel, seats, maxUnits };
}

function uidsOf(seats: Hall["seats"]): readonly string[] {
  return seats.map(({ uid }) => uid);
}

function showIn(hall: Hall, stage: Stage, random: Random): Show {
  const { channel, maxUnits } = hall;
  const script = writeScript(random, { chunks: CHUNKS, maxUnits });
  const name = { fromUid: PRODUCER, clientMsgNo: `show-${channel.id}` };
  return new Show({ stage, random, channel, script, ...name });
}

function seat(show: Show, hallAt: number, random: Random): Spectator[] {
  const seats = HALLS[hallAt]?.seats ?? [];
  const count = Math.max(1, Math.round(VIEWERS / HALLS.length));
  return Array.from({ length: count }, (_, i) => {
    const { uid, sees } = random.pick(seats);
    const habit = HABITS[i % HABITS.length] ?? "stays";
    const viewer = new StreamViewer(`${uid} (${i}, ${habit})`, uid, sees);
    const spectator = new Spectator(viewer, habit, show);
    spectator.plan(random);
    return spectator;
  });
}

/**
 * Readers of server-sent events, from the first event and from random ones on; each begins when the
 * stream is there.
 */
function addReaders(show: Show, random: Random): (() => Promise<string | undefined>)[] {
  return Array.from({ length: HTTP_READERS }, (_, i) => {
    const from = i === 0 ? 0 : random.below(show.length - 1);
    const drops = [random.below(show.length), random.below(show.length)];
    let result: Promise<string | undefined> | undefined;
    show.cue(from + 1, () => {
      result = readOverHttp(show, { from, drops });
      result.catch(() => undefined); // it is awaited at the end
    });
    return async () => (result === undefined ? "never began" : result);
  });
}

/** Before anybody goes on after a kill, all that was acknowledged has to be there. */
function planKills(
  shows: readonly Show[],
  stage: Stage,
  kills: readonly number[],
): () => Promise<string | undefined>[] {
  const found: (string | undefined)[] = [];
  const restarts: Promise<void>[] = [];
  const [first] = shows;
  for (const share of kills)
    first?.cue(Math.floor(first.length * share), () => {
      const look = async () => {
        for (const show of shows) found.push(await show.lossOf());
      };
      restarts.push(stage.restart(look));
    });
  return () => [Promise.all(restarts).then(() => found.find((loss) => loss !== undefined))];
}

/** GET /stream and history show what was played. */
async function judgeStored(show: Show): Promise<string | undefined> {
  const { stage, channel, fromUid, script } = show.parts;
  const wanted = pictureOf(script);
  const read = await stage.ok(show.path);
  const query = new URLSearchParams({
    channel_id: channel.id,
    channel_type: String(channel.type),
    ...(channel.type === PERSON_CHANNEL ? { uid: fromUid } : {}),
  });
  const history = await stage.ok(`/channel/messages?${query}`);
  const [message] = history.messages;
  const payload = Buffer.from(message.payload, "base64").toString();
  if (JSON.parse(payload).content !== wanted.text)
    return `${channel.id}: the message in history has another text`;
  if (history.messages.length !== 1) return `${channel.id}: several messages`;
  return (
    differenceOf(pictureOfJson(read), wanted) ?? differenceOf(pictureOfJson(message.stream), wanted)
  );
}
