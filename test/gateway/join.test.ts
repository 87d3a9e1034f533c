// Joining under many interleavings: live messages follow missed messages without a gap or a repeat,
// memberships that change during the join are correct afterwards, and a session that ends during
// the join leaves nothing behind. JINDOU_TEST_ROUNDS sets the number of random runs.

import type { Test } from "tap";
import { channelKey } from "../../src/broker/model.ts";
import type { ClusterEvent } from "../../src/broker/ports.ts";
import { planJoin } from "../../src/gateway/opening.ts";
import { t } from "../support/suite.ts";
import { volume } from "../support/volume.ts";
import { clientView, nameOf } from "./client-view.ts";
import { type Random, seeded } from "./random.ts";
import { memberEvent } from "./shared-server.ts";
import { group, type Joiner, person, World } from "./world.ts";

const ROUNDS = volume(100, "JINDOU_TEST_ROUNDS");
const CHANNELS = [
  { channel: group("g1"), fromUids: ["bob"] },
  { channel: group("g2"), fromUids: ["bob", "carol"] },
  { channel: group("g3"), fromUids: ["bob"] },
  { channel: person("alice"), fromUids: ["bob"] },
  { channel: person("carol"), fromUids: ["alice", "bob"] },
];

function appendSomewhere(world: World, random: Random): void {
  const { channel, fromUids } = random.pick(CHANNELS);
  world.server.append({
    channel,
    fromUid: random.pick(fromUids),
    expired: random.chance(0.1),
    noPersist: random.chance(0.1),
  });
}

/** Creates a world in which alice and carol are in all groups, with some history. */
function populated(random: Random): World {
  const world = new World(random);
  for (const uid of ["alice", "carol", "bob"])
    for (const id of ["g1", "g2", "g3"]) world.server.setMember(id, uid, true);
  for (let count = random.below(40); count > 0; count--) appendSomewhere(world, random);
  return world;
}

/** Creates sessions that resume some channels: two of alice and one of carol. */
function joiners(world: World, random: Random): readonly Joiner[] {
  const names = {
    alice: [group("g1"), group("g2"), person("bob"), person("carol")],
    carol: [group("g1"), group("g3"), person("bob"), person("alice")],
  };
  return (["alice", "alice", "carol"] as const).map((uid) => {
    const points = names[uid]
      .filter(() => random.chance(0.8))
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

/** Simulates a client that stops reading now and then, and continues later. */
function readSometimes({ connection, session }: Joiner, random: Random): void {
  if (connection.unread === 0) {
    if (random.chance(0.05)) connection.unread = 1000;
  } else if (random.chance(0.3)) {
    connection.unread = 0;
    session.drained();
  }
}

t.test(
  "a session that resumes while messages are sent gets each message exactly once and in the order of the seqs",
  async (t) => {
    for (let seed = 1; seed <= ROUNDS; seed++) {
      const random = seeded(seed);
      const world = populated(random);
      const sessions = joiners(world, random);
      const joining = sessions.map((one) => world.join(one));
      while (sessions.some(({ isLive }) => !isLive)) {
        if (random.chance(0.5)) appendSomewhere(world, random);
        for (const joiner of sessions) readSometimes(joiner, random);
        await world.server.step();
      }
      await Promise.all(joining);
      const unstored = sendEverywhere(world);
      await world.server.settle();
      for (const joiner of sessions) {
        checkComplete(t, world, joiner, `seed ${seed}`);
        const { connection, points } = joiner;
        const received = clientView(connection.seen, points).unstored;
        t.equal(received.filter((no) => unstored.includes(no)).length, 6);
      }
    }
  },
);

/**
 * Sends a stored and an unstored message from every sender to every channel. Six of each kind reach
 * alice, and six reach carol.
 */
function sendEverywhere(world: World): readonly string[] {
  return CHANNELS.flatMap(({ channel, fromUids }) =>
    fromUids.map((fromUid) => {
      world.server.append({ channel, fromUid });
      return world.server.append({ channel, fromUid, noPersist: true });
    }),
  );
}

function checkComplete(
  t: Test,
  world: World,
  { session, connection, points }: Joiner,
  round: string,
): void {
  const view = clientView(connection.seen, points);
  const label = `${round}, ${session.sessionId} of ${session.uid}`;
  if (view.problems.length > 0) t.fail(`${label}: ${view.problems.join("; ")}`);
  if (view.repeats.length > 0) t.fail(`${label}: messages ${view.repeats} are pushed twice`);
  const received = new Set(view.nos);
  for (const { channel, lastSeq } of points) {
    const key = channelKey(channel, session.uid);
    for (const no of world.server.keptAfter(key, lastSeq))
      if (!received.has(no)) t.fail(`${label}: message ${no} of ${nameOf(channel)} is missing`);
  }
  const others = session.uid === "alice" ? "carol" : "alice";
  for (const channel of [...["g1", "g2", "g3"].map(group), person("bob"), person(others)])
    if (view.levels.get(nameOf(channel)) !== world.headSeq(channel, session.uid))
      t.fail(`${label}: the newest seq in ${nameOf(channel)} is wrong`);
}

const CHANGES = [
  { change: "is removed", changes: [false] },
  { change: "is added", changes: [true] },
  { change: "is removed and added again", changes: [false, true] },
  { change: "is added and removed again", changes: [true, false] },
] as const;

/** Maximum number of steps. Every join in these tests needs fewer steps. */
const MOST_STEPS = 80;
/** Number of random runs for each step at which the change happens. */
const EACH = volume(5);

/**
 * Creates a world in which alice is about to join g2, which has history, and g1 if she is a member
 * of it. Her resume points may include g1.
 */
function smallWorld(
  random: Random,
  start: { readonly isMember: boolean; readonly isNamed: boolean },
): { readonly world: World; readonly alice: Joiner } {
  const world = new World(random);
  world.server.setMember("g2", "alice", true);
  if (start.isMember) world.server.setMember("g1", "alice", true);
  for (const channel of [group("g1"), group("g2"), person("alice")])
    for (let count = 0; count < 7; count++) world.server.append({ channel, fromUid: "bob" });
  const named = [group("g2"), person("bob")];
  if (start.isNamed) named.unshift(group("g1"));
  const points = named.map((channel) => ({ channel, lastSeq: 2 }));
  return { world, alice: world.session({ uid: "alice", points }) };
}

/**
 * Collects frames of g1 that are sent after the node was notified of alice's removal. No
 * such frame may be sent until `endWatch` is called.
 */
function watchLeaks(
  world: World,
  alice: Joiner,
): { readonly leaks: readonly string[]; endWatch(): void } {
  const leaks: string[] = [];
  let outSince: number | undefined;
  world.onDelivered = (event: ClusterEvent) => {
    if (event.kind !== "removal" || event.channelId !== "g1") return;
    const isOut = !world.server.groupsOf("alice").includes("g1");
    if (isOut) outSince ??= alice.connection.frames.length;
  };
  const endWatch = (): void => {
    for (const push of alice.connection.seen.slice(outSince ?? Infinity))
      if ("channel" in push && push.channel.id === "g1") leaks.push(JSON.stringify(push));
    outSince = undefined;
  };
  return { leaks, endWatch };
}

for (const { change, changes } of CHANGES)
  for (const isNamed of [true, false])
    t.test(
      `a user who ${change} at any point during a join ends up with the same membership as in the store (group ${isNamed ? "resumed" : "not resumed"})`,
      async (t) => {
        const isMember = !changes[0];
        for (let seed = 0; seed < EACH * MOST_STEPS; seed++) {
          const random = seeded(seed);
          const { world, alice } = smallWorld(random, { isMember, isNamed });
          const watch = watchLeaks(world, alice);
          const joining = world.join(alice);
          const steps = async (count: number): Promise<void> => {
            for (let done = 0; done < count; done++) {
              if (random.chance(0.3)) world.server.append({ channel: group("g1"), fromUid: "bob" });
              readSometimes(alice, random);
              await world.server.step();
            }
          };
          await steps(seed % MOST_STEPS);
          for (const member of changes) {
            if (member) watch.endWatch();
            world.server.setMember("g1", "alice", member);
            await steps(random.below(20));
          }
          while (!alice.isLive) await steps(1);
          await joining;
          alice.connection.unread = 0;
          alice.session.drained();
          await world.server.settle();
          await checkMembership(t, world, alice, `seed ${seed}`);
          watch.endWatch();
          t.same(watch.leaks, [], `seed ${seed}: nothing is pushed while alice is not a member`);
        }
      },
    );

/**
 * Checks that alice follows g1 if and only if she is a member, and receives the next message in g1
 * at most once.
 */
async function checkMembership(t: Test, world: World, alice: Joiner, round: string): Promise<void> {
  const isMember = world.server.groupsOf("alice").includes("g1");
  const no = world.server.append({ channel: group("g1"), fromUid: "bob" });
  await world.server.settle();
  const got = alice.connection.messageNos.filter((one) => one === no);
  const { repeats } = clientView(alice.connection.seen, alice.points);
  const follows = alice.session.follows("g1");
  const listens = world.server.subscriptions.has("g:g1");
  t.same(
    { follows, listens, nextMessage: got, repeats },
    {
      follows: isMember,
      listens: isMember,
      nextMessage: isMember ? [no] : [],
      repeats: [],
    },
    round,
  );
}

t.test(
  "a session has no gap in a group that its user left and rejoined during the resume",
  async (t) => {
    let rounds = 0;
    for (let seed = 0; seed < 3 * MOST_STEPS; seed++) {
      const random = seeded(seed);
      const start = { isMember: true, isNamed: true };
      const { world, alice } = smallWorld(random, start);
      world.server.announcesInOrder = true;
      let wasRemoved = false;
      let hasFollowed = false;
      let isLate = false;
      world.onDelivered = (event) => {
        if (event.kind !== "removal" && event.kind !== "addition") return;
        wasRemoved ||= event.kind === "removal";
        isLate ||= wasRemoved && alice.isLive;
      };
      const joining = world.join(alice);
      const step = async (): Promise<void> => {
        await world.server.step();
        hasFollowed ||= alice.session.follows("g1");
      };
      for (let count = seed % MOST_STEPS; count > 0; count--) await step();
      // Without the subscription the node would miss the change.
      while (!world.server.subscriptions.has("u:alice")) await step();
      world.server.setMember("g1", "alice", false);
      while (!wasRemoved && world.server.hasWork) await step();
      for (let count = random.below(5); count > 0; count--) await step();
      world.server.append({ channel: group("g1"), fromUid: "bob" });
      world.server.setMember("g1", "alice", true);
      await world.server.settle();
      await joining;
      const isAllowed = alice.results.every(({ status }) => status === "ok");
      if (!wasRemoved || hasFollowed || isLate || !isAllowed) continue;
      rounds += 1;
      const view = clientView(alice.connection.seen, alice.points);
      t.same(view.problems, [], `the client's messages have no gap with seed ${seed}`);
      const headSeq = world.headSeq(group("g1"), "alice");
      t.equal(
        view.levels.get("group g1"),
        headSeq,
        `seed ${seed}: the session has the newest message`,
      );
    }
    t.ok(rounds > 50, "the case occurred in more than 50 rounds");
  },
);

t.test(
  "after its join, a session has the same membership as the store, whatever the order of the notifications",
  async (t) => {
    for (let seed = 0; seed < EACH * MOST_STEPS; seed++) {
      const random = seeded(seed);
      const start = { isMember: true, isNamed: random.chance(0.5) };
      const { world, alice } = smallWorld(random, start);
      const joining = world.join(alice);
      await world.server.step();
      for (let step = seed % MOST_STEPS; step > 0 && !alice.isLive; step--)
        await world.server.step();
      if (alice.isLive) continue; // the test is about sessions that are still joining
      const isMember = random.chance(0.5);
      world.server.changeMember("g1", "alice", isMember);
      for (const member of [isMember, !isMember])
        world.hub.deliver(memberEvent("g1", "alice", member));
      await world.server.settle();
      await joining;
      await checkMembership(t, world, alice, `seed ${seed}`);
    }
  },
);

for (const how of ["is ended", "disconnects", "is ended and disconnects later"] as const)
  t.test(
    `a session that ${how} at any point during a join leaves no session, topic or subscription behind`,
    async (t) => {
      let early = 0;
      for (let seed = 0; seed < EACH * MOST_STEPS; seed++) {
        const random = seeded(seed);
        const start = { isMember: true, isNamed: random.chance(0.5) };
        const { world, alice } = smallWorld(random, start);
        const joining = world.join(alice);
        for (let step = 0; step < seed % MOST_STEPS; step++) {
          if (random.chance(0.1)) alice.connection.unread = 1000;
          else readSometimes(alice, random);
          await world.server.step();
        }
        if (!alice.isLive) early += 1;
        if (how !== "disconnects") alice.session.end("kicked");
        if (how === "is ended and disconnects later") await world.server.settle();
        world.disconnect(alice);
        world.disconnect(alice);
        await world.server.settle();
        await joining;
        const remaining = {
          sessions: [...world.hub.sessions()].length,
          listened: world.server.subscriptions.size,
          topics: alice.connection.topics.size,
        };
        const nothing = { sessions: 0, listened: 0, topics: 0 };
        t.same(remaining, nothing, `no session, topic or subscription is left with seed ${seed}`);
      }
      t.ok(early > 25 * EACH, "many sessions ended before they were live");
    },
  );

t.test("a session is live in every group after joining", async (t) => {
  for (let seed = 0; seed < 50; seed++) {
    const world = new World(seeded(seed));
    for (const id of ["g1", "g2", "g3"]) world.server.setMember(id, "alice", true);
    await world.server.settle();
    const alice = world.session({ uid: "alice" });
    const joining = world.join(alice);
    while (!alice.isLive) await world.server.step();
    await joining;
    const sent = ["g1", "g2", "g3"].map((id) =>
      world.server.append({ channel: group(id), fromUid: "bob" }),
    );
    await world.server.settle();
    t.same(
      alice.connection.messageNos,
      sent,
      `the messages of every group are pushed live with seed ${seed}`,
    );
  }
});

t.test("the join plan contains the result of each resume point", async (t) => {
  const world = populated(seeded(1));
  world.server.append({ channel: group("g1"), fromUid: "bob" });
  const points = [group("g1"), group("other"), person("nobody")].map((channel) => ({
    channel,
    lastSeq: 0,
  }));
  const { session } = world.session({ uid: "alice" });
  const wishes = { candidates: ["g1", "g2", "g3"], points, endsSinceMs: undefined };
  const planning = planJoin(session, wishes, world.planPorts);
  await world.server.settle();
  const { groupCount, results } = await planning;
  t.equal(groupCount, 3);
  t.same(results, [
    {
      channel: group("g1"),
      status: "ok",
      headSeq: world.headSeq(group("g1"), "alice"),
    },
    { channel: group("other"), status: "denied", headSeq: 0 },
    { channel: person("nobody"), status: "ok", headSeq: 0 },
  ]);
});

t.test("a channel that CONNECT names twice is resumed once", async (t) => {
  const world = populated(seeded(2));
  for (let count = 0; count < 5; count++)
    for (const channel of [group("g1"), person("alice")])
      world.server.append({ channel, fromUid: "bob" });
  const names = [group("g1"), person("bob"), person("bob"), group("g1")];
  const points = names.map((channel) => ({ channel, lastSeq: 0 }));
  const { connection } = await world.live({ uid: "alice", points });
  t.same(clientView(connection.seen, points).problems, []);
});
