// Streams under every interleaving: who joins late, resumes, asks or lags has each stream's text
// exactly as the store has it.

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

/** One thing a producer or a member does somewhere. */
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

/** Alice and carol are in both groups; some of it has history. */
function populated(random: Random): World {
  const world = new World(random);
  world.server.answersNow = random.chance(0.5);
  for (const uid of ["alice", "carol"])
    for (const id of ["g1", "g2"]) world.server.setMember(id, uid, true);
  for (let count = random.below(60); count > 0; count--) produce(world, random);
  return world;
}

/** How the members of a channel with an active stream stand to it. */
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

/** Stops reading, so that the transport finds it lagging, and reads on later. */
function lagSometimes(world: World, { connection, session }: Joiner, random: Random): void {
  if (connection.unread === 0 && random.chance(0.05)) {
    connection.unread = 1000;
    world.catchUps.lag(session);
  } else if (connection.unread > 0 && random.chance(0.1)) {
    connection.unread = 0;
    session.drained();
  }
}

/** Asks now and then how a stream stands that the client may know. */
function askSometimes(world: World, one: Joiner, random: Random): Promise<void> | undefined {
  const { all } = world.server.streams;
  if (!one.isLive || all.length === 0 || !random.chance(0.05)) return undefined;
  const { channel, clientMsgNo, fromUid } = random.pick(all);
  if (channel.type !== GROUP_CHANNEL && fromUid !== "bob") return undefined;
  const named = channel.type === GROUP_CHANNEL ? channel : person("bob");
  const operation = { kind: "stream", ref: 1, clientMsgNo } as const;
  const asking = operator(world)(one, { ...operation, channel: named });
  return asking.catch((error) => {
    if (error.code !== "stream_unknown") throw error; // carol asks for alice's
  });
}

/**
 * What the viewer has is what the store has, and it has all that is active, and all of the server's
 * streams from the `knownFrom`th on: those that began after it was live.
 */
function checkViewer(
  t: Test,
  world: World,
  { session, connection }: Joiner,
  { round, knownFrom }: { readonly round: string; readonly knownFrom: number },
): void {
  const who = `${round}, ${session.sessionId} of ${session.uid}`;
  const view = streamView(connection.seen);
  if (view.problems.length > 0) t.fail(`${who}: ${view.problems.join("; ")}`);
  for (const [at, snapshot] of world.server.streams.all.entries()) {
    const { key, state, text, nextIndex, endData, channel } = snapshot;
    const has = view.streams.get(streamName(snapshot));
    const isMine = channel.type === GROUP_CHANNEL || key.includes(session.uid);
    if (has === undefined) {
      if (isMine && (state === "active" || at >= knownFrom))
        t.fail(`${who}: knows no ${key} ${at}`);
      continue;
    }
    const notes = snapshot.notes.map(({ data }) => data);
    const should = { state, text, nextIndex, endData, notes };
    if (JSON.stringify(has) !== JSON.stringify(should))
      t.same(has, should, `${who}: ${key} ${snapshot.clientMsgNo}`);
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
  "who joins or resumes at a random moment has every stream's text, without a gap or a repeat",
  async (t) => {
    for (let seed = 1; seed <= ROUNDS; seed++) {
      const random = seeded(seed);
      const world = populated(random);
      const sessions = joiners(world, random);
      const joining: Promise<void>[] = [];
      for (const one of sessions) {
        joining.push(world.join(one));
        for (let steps = random.below(40); steps > 0; steps--) {
          if (random.chance(0.5)) produce(world, random);
          await world.server.step();
        }
      }
      for (let steps = 60; steps > 0; steps--) {
        if (random.chance(0.5)) produce(world, random);
        await world.server.step();
      }
      await world.server.settle();
      await Promise.all(joining);
      const knownFrom = world.server.streams.all.length;
      for (const place of PLACES)
        for (let count = 0; count < 3; count++) produce(world, random, [place]);
      await finish(world, sessions);
      const round = `seed ${seed}`;
      for (const one of sessions) checkViewer(t, world, one, { round, knownFrom });
      t.same(world.bugs, []);
    }
  },
);

/** Something that belongs to no stream; numbered through all channels. */
function tellSometimes(world: World, random: Random, told: string[]): void {
  if (!random.chance(0.1)) return;
  const { channel, fromUid } = random.pick(PLACES.slice(0, 2));
  const data = `${channel.id} ${told.length}`;
  told.push(data);
  const key = channelKey(channel, fromUid);
  const clientMsgNo = world.server.streams.active(key)?.clientMsgNo ?? "";
  world.server.tell({
    ...{ key, channel, fromUid, data },
    ...{ clientMsgNo, eventId: data, type: "x", timestampMs: 0 },
    stream: undefined,
  });
}

t.test(
  "who lags gets what it missed merged, also when it asks meanwhile, and every other event once",
  async (t) => {
    let merged = 0;
    for (let seed = 1; seed <= ROUNDS; seed++) {
      const random = seeded(seed);
      const world = populated(random);
      const sessions = joiners(world, random);
      const joining = sessions.map((one) => world.join(one));
      const told: string[] = [];
      const from = new Map<Joiner, { streams: number; customs: number }>();
      for (let steps = 250; steps > 0; steps--) {
        produce(world, random);
        for (const one of sessions) {
          lagSometimes(world, one, random);
          void askSometimes(world, one, random)?.catch((e) => t.error(e));
          const streams = world.server.streams.all.length;
          if (one.isLive && !from.has(one)) from.set(one, { streams, customs: told.length });
        }
        tellSometimes(world, random, told);
        await world.server.step();
      }
      await finish(world, sessions);
      await Promise.all(joining);
      produce(world, random);
      await finish(world, sessions);
      for (const one of sessions) {
        const { streams = 1e9, customs = 1e9 } = from.get(one) ?? {};
        const round = `seed ${seed}`;
        checkViewer(t, world, one, { round, knownFrom: streams });
        const view = streamView(one.connection.seen);
        merged += view.merged;
        for (const id of ["g1 ", "g2 "]) {
          const should = told.slice(customs).filter((it) => it.startsWith(id));
          const has = view.customs.filter((it) => it.startsWith(id));
          t.same(has.slice(-should.length || has.length), should);
        }
      }
      t.same(world.bugs, []);
    }
    t.ok(merged > ROUNDS, `${merged} merged`);
  },
);

t.test(
  "events of a stream that the store has do not pile up while personal channels resume",
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
      t.equal(alice.connection.seen.length, pushed, "it waits for the client");
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
  "a conversation that shows a lagging client more of a stream is where its events go on",
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
