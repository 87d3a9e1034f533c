// Streams under many interleavings: a client that joins late, resumes, reads a stream or lags has
// the text of each stream exactly as the store has it.

import type { Test } from "tap";
import {
  type Conversation,
  channelKey,
  GROUP_CHANNEL,
  type Message,
} from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";
import { volume } from "../support/volume.ts";
import { operator } from "./operation-world.ts";
import { type Random, seeded } from "./random.ts";
import type { Producer } from "./stream-log.ts";
import { streamName, streamView } from "./stream-view.ts";
import { group, type Joiner, person, World } from "./world.ts";

const ROUNDS = volume(400, "JINDOU_TEST_ROUNDS");
const PLACES: readonly Producer[] = [
  { channel: group("g1"), fromUid: "bob" },
  { channel: group("g2"), fromUid: "bob" },
  { channel: person("alice"), fromUid: "bob" },
  { channel: person("alice"), fromUid: "carol" },
];

/** Runs one random action of a producer or a member. */
function produce(world: World, random: Random, places = PLACES): void {
  const place = random.pick(places);
  const key = channelKey(place.channel, place.fromUid);
  const { streams } = world.server;
  if (streams.active(key) === undefined && random.chance(0.5)) streams.start(place);
  else {
    const dice = random.next();
    if (dice < 0.05) streams.end(key);
    else if (dice < 0.1) streams.start(place);
    else if (dice < 0.2) streams.note(key, `note ${random.below(1000)}`);
    else if (dice < 0.3) world.server.append(place);
    else streams.content(key, `${random.below(1000)} `);
  }
}

/** Creates a world in which alice and carol are in both groups. Channels may have history. */
function populated(random: Random): World {
  const world = new World(random);
  world.server.answersSynchronously = random.chance(0.5);
  for (const uid of ["alice", "carol"])
    for (const id of ["g1", "g2"]) world.server.setMember(id, uid, true);
  for (let count = random.below(60); count > 0; count--) produce(world, random);
  return world;
}

/** Returns the conversation of a member in a channel with an active stream. */
function conversationWith({ server }: World, { channel, fromUid }: Producer): Conversation {
  const key = channelKey(channel, fromUid);
  const stream = server.streams.active(key);
  const last: Message = {
    ...{ messageId: 1, messageSeq: 1, key, channel, fromUid, stream },
    ...{ clientMsgNo: stream?.clientMsgNo ?? "", timestampMs: 0, expireS: 0 },
    ...{ streamNo: undefined, tagKey: undefined, payload: new Uint8Array() },
    header: { noPersist: false, redDot: true },
  };
  const read = { headSeq: 1, readSeq: 1, unread: 0, deletedSeq: 0 };
  return { channel, ...read, changedAtMs: 0, last };
}

function joiners(world: World, random: Random): readonly Joiner[] {
  return ["alice", "alice", "carol"].map((uid) => {
    const named = [group("g1"), group("g2"), person("bob")];
    const points = named
      .filter(() => random.chance(0.5))
      .map((channel) => ({
        channel,
        lastSeq: random.below(world.headSeq(channel, uid) + 1),
      }));
    return world.session({
      uid,
      points,
      format: random.pick(["a", "b", "private"]),
    });
  });
}

/** Stops reading, so that the connection lags, or continues reading. */
function lagSometimes(world: World, { connection, session }: Joiner, random: Random): void {
  if (connection.unread === 0 && random.chance(0.05)) {
    connection.unread = 1000;
    world.catchUps.lag(session);
  } else if (connection.unread > 0 && random.chance(0.1)) {
    connection.unread = 0;
    session.drained();
  }
}

/** Sometimes reads a stream that the client may see. */
function readSometimes(world: World, joiner: Joiner, random: Random): Promise<void> | undefined {
  const { all } = world.server.streams;
  if (!joiner.isLive || all.length === 0 || !random.chance(0.05)) return undefined;
  const { channel, clientMsgNo, fromUid } = random.pick(all);
  if (channel.type !== GROUP_CHANNEL && fromUid !== "bob") return undefined;
  const named = channel.type === GROUP_CHANNEL ? channel : person("bob");
  const operation = { kind: "stream", ref: 1, clientMsgNo } as const;
  const asking = operator(world)(joiner, { ...operation, channel: named });
  return asking.catch((error) => {
    if (error.code !== "stream_unknown") throw error; // carol reads a stream of alice
  });
}

/**
 * Sometimes changes a conversation. The reply contains its stream, and may arrive before events that
 * the stream contains.
 */
function changeSometimes(world: World, joiner: Joiner, random: Random): void {
  const { session } = joiner;
  if (!session.hasConnack || !random.chance(0.1)) return;
  const place = random.pick(PLACES);
  const { channel, fromUid } = place;
  if (channel.type !== GROUP_CHANNEL && !channelKey(channel, fromUid).includes(session.uid)) return;
  const conversations = {
    list: () => Promise.reject(new Error("this test lists no conversations")),
    change: async () => conversationWith(world, place),
  };
  const operation = { kind: "conversation", ref: 1, channel, change: { kind: "delete" } } as const;
  void operator(world, { conversations })(joiner, operation);
}

/**
 * Checks that the streams of the client equal those in the store. The client must have all active
 * streams, and all streams from index `knownFrom`, which started after it was live.
 */
function checkViewer(
  t: Test,
  world: World,
  { session, connection }: Joiner,
  { round, knownFrom }: { readonly round: string; readonly knownFrom: number },
): void {
  const label = `${round}, ${session.sessionId} of ${session.uid}`;
  const view = streamView(connection.seen);
  if (view.problems.length > 0) t.fail(`${label}: ${view.problems.join("; ")}`);
  for (const [at, snapshot] of world.server.streams.all.entries()) {
    const { key, state, text, nextIndex, endData, channel } = snapshot;
    const viewed = view.streams.get(streamName(snapshot));
    const isMine = channel.type === GROUP_CHANNEL || key.includes(session.uid);
    if (viewed === undefined) {
      if (isMine && (state === "active" || at >= knownFrom))
        t.fail(`${label}: stream ${at} of channel ${key} is missing`);
      continue;
    }
    const notes = snapshot.notes.map(({ data }) => data);
    const expected = { state, text, nextIndex, endData, notes };
    if (JSON.stringify(viewed) !== JSON.stringify(expected))
      t.same(
        viewed,
        expected,
        `${label}: stream ${snapshot.clientMsgNo} of channel ${key} equals the server's`,
      );
  }
}

async function finish(world: World, all: readonly Joiner[]): Promise<void> {
  for (const { connection, session } of all) {
    connection.unread = 0;
    session.drained();
  }
  await world.server.settle();
}

t.test(
  "a session that joins or resumes at a random moment has the text of every stream without a gap or a repeat, even if it also changes conversations",
  async (t) => {
    for (let seed = 1; seed <= ROUNDS; seed++) {
      const random = seeded(seed);
      const world = populated(random);
      const sessions = joiners(world, random);
      const joining: Promise<void>[] = [];
      for (const joiner of sessions) {
        joining.push(world.join(joiner));
        for (let steps = random.below(40); steps > 0; steps--) {
          if (random.chance(0.5)) produce(world, random);
          for (const other of sessions) changeSometimes(world, other, random);
          await world.server.step();
        }
      }
      for (let steps = 60; steps > 0; steps--) {
        if (random.chance(0.5)) produce(world, random);
        for (const joiner of sessions) changeSometimes(world, joiner, random);
        await world.server.step();
      }
      await world.server.settle();
      await Promise.all(joining);
      const knownFrom = world.server.streams.all.length;
      for (const place of PLACES)
        for (let count = 0; count < 3; count++) produce(world, random, [place]);
      await finish(world, sessions);
      const round = `seed ${seed}`;
      for (const joiner of sessions) checkViewer(t, world, joiner, { round, knownFrom });
      t.same(world.bugs, []);
    }
  },
);

/**
 * Sometimes publishes an event outside of streams. The events of all channels are numbered
 * together.
 */
function publishSometimes(world: World, random: Random, published: string[]): void {
  if (!random.chance(0.1)) return;
  const { channel, fromUid } = random.pick(PLACES.slice(0, 2));
  const data = `${channel.id} ${published.length}`;
  published.push(data);
  const key = channelKey(channel, fromUid);
  const clientMsgNo = world.server.streams.active(key)?.clientMsgNo ?? "";
  world.server.publishEvent({
    ...{ key, channel, fromUid, data },
    ...{ clientMsgNo, eventId: data, type: "x", timestampMs: 0 },
    stream: undefined,
  });
}

t.test(
  "a lagging session receives missed stream content in merged form and every other event once, even if it reads streams while it lags",
  async (t) => {
    let merged = 0;
    for (let seed = 1; seed <= ROUNDS; seed++) {
      const random = seeded(seed);
      const world = populated(random);
      const sessions = joiners(world, random);
      const joining = sessions.map((joiner) => world.join(joiner));
      const published: string[] = [];
      const since = new Map<Joiner, { streams: number; customs: number }>();
      for (let steps = 250; steps > 0; steps--) {
        produce(world, random);
        for (const joiner of sessions) {
          lagSometimes(world, joiner, random);
          void readSometimes(world, joiner, random)?.catch((e) => t.error(e));
          const streams = world.server.streams.all.length;
          if (joiner.isLive && !since.has(joiner))
            since.set(joiner, { streams, customs: published.length });
        }
        publishSometimes(world, random, published);
        await world.server.step();
      }
      await finish(world, sessions);
      await Promise.all(joining);
      produce(world, random);
      await finish(world, sessions);
      for (const joiner of sessions) {
        const { streams = 1e9, customs = 1e9 } = since.get(joiner) ?? {};
        const round = `seed ${seed}`;
        checkViewer(t, world, joiner, { round, knownFrom: streams });
        const view = streamView(joiner.connection.seen);
        merged += view.merged;
        for (const id of ["g1 ", "g2 "]) {
          const expected = published.slice(customs).filter((it) => it.startsWith(id));
          const received = view.customs.filter((it) => it.startsWith(id));
          t.same(received.slice(-expected.length || received.length), expected);
        }
      }
      t.same(world.bugs, []);
    }
    t.ok(merged > ROUNDS, `${merged} events were merged`);
  },
);

t.test(
  "a lagging session gets no event of a stream twice, even if it reads an older snapshot of the stream",
  async (t) => {
    const world = new World(seeded(1));
    world.server.setMember("g1", "alice", true);
    const alice = await world.live({ uid: "alice" });
    const key = "2:g1";
    const { streams } = world.server;
    const clientMsgNo = streams.start({ channel: group("g1"), fromUid: "bob" });
    streams.content(key, "one ");
    await world.server.settle();
    const older = streams.active(key);
    streams.content(key, "two ");
    await world.server.settle();
    alice.connection.unread = 1000;
    world.catchUps.lag(alice.session);
    world.catchUps.recordSnapshot(alice.session, older);
    streams.content(key, "three ");
    await finish(world, [alice]);
    const view = streamView(alice.connection.seen);
    t.same(view.problems, []);
    t.equal(view.streams.get(`${key} ${clientMsgNo}`)?.text, "one two three ");
  },
);

t.test(
  "stream events that arrive while personal channels resume do not count towards `maxHeldBytes`, and their text is pushed when the client reads",
  async (t) => {
    for (const endsBefore of [false, true]) {
      const world = new World(seeded(9));
      const place: Producer = { channel: person("alice"), fromUid: "bob" };
      const key = channelKey(place.channel, place.fromUid);
      const { streams } = world.server;
      for (let count = 0; count < 9; count++) world.server.append(place);
      streams.start(place);
      streams.content(key, "before ");
      const alice = world.session({
        ...{ uid: "alice", maxHeldBytes: 5000 },
        points: [{ channel: person("bob"), lastSeq: 0 }],
      });
      alice.connection.unread = 1000;
      const joining = world.join(alice);
      await world.server.settle();
      const pushed = alice.connection.seen.length;
      for (let count = 0; count < 200; count++) streams.content(key, "more ");
      if (endsBefore) streams.end(key);
      await world.server.settle();
      t.equal(alice.session.ended, undefined);
      t.equal(alice.connection.seen.length, pushed, "nothing is pushed until the client reads");
      alice.connection.unread = 0;
      alice.session.drained();
      await world.server.settle();
      await joining;
      const text = `before ${"more ".repeat(200)}`;
      const [stream] = streamView(alice.connection.seen).streams.values();
      t.match(stream, { text });
      t.same(world.bugs, []);
    }
  },
);

t.test(
  "after a lagging session was pushed a conversation with a stream, it gets only the later events of the stream",
  async (t) => {
    for (const place of [PLACES[0], PLACES[2]] as Producer[]) {
      const world = new World(seeded(5));
      const { channel, fromUid } = place;
      const key = channelKey(channel, fromUid);
      const { streams } = world.server;
      world.server.setMember("g1", "alice", true);
      const alice = await world.live({ uid: "alice" });
      const say = async (text: string): Promise<void> => {
        streams.content(key, text);
        await world.server.settle();
      };
      streams.start(place);
      await say("live ");
      alice.connection.unread = 1000;
      world.catchUps.lag(alice.session);
      await say("missed ");
      const shown = conversationWith(world, place);
      world.hub.deliver({
        ...{ kind: "conversation", uid: "alice", change: "read" },
        ...{ conversation: shown, origin: undefined },
      });
      await say("after ");
      alice.connection.unread = 0;
      alice.session.drained();
      await world.server.settle();
      await say("live");
      const view = streamView(alice.connection.seen);
      t.same(view.problems, [], key);
      const [stream] = view.streams.values();
      t.equal(stream?.text, "live missed after live");
    }
  },
);
