// Joining under every interleaving: what was missed and what comes live meet without a gap or a
// repeat, memberships that change on the way end right, and a session that ends on the way leaves
// nothing behind. JINDOU_TEST_ROUNDS raises the count of random courses.

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

/** A world in which alice and carol are in all groups, with some history. */
function populated(random: Random): World {
  const world = new World(random);
  for (const uid of ["alice", "carol", "bob"])
    for (const id of ["g1", "g2", "g3"]) world.server.setMember(id, uid, true);
  for (let count = random.below(40); count > 0; count--) appendSomewhere(world, random);
  return world;
}

/** Sessions that want to resume some channels: two of alice, one of carol. */
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

/** A client that stops reading now and then, and reads on later. */
function readSometimes({ connection, session }: Joiner, random: Random): void {
  if (connection.unread === 0) {
    if (random.chance(0.05)) connection.unread = 1000;
  } else if (random.chance(0.3)) {
    connection.unread = 0;
    session.drained();
  }
}

t.test(
  "a session that resumes while messages are sent gets each exactly once, in order",
  async (t) => {
    for (let seed = 1; seed <= ROUNDS; seed++) {
      const random = seeded(seed);
      const world = populated(random);
      const sessions = joiners(world, random);
      const joining = sessions.map((one) => world.join(one));
      while (sessions.some(({ isLive }) => !isLive)) {
        if (random.chance(0.5)) appendSomewhere(world, random);
        for (const one of sessions) readSometimes(one, random);
        await world.server.step();
      }
      await Promise.all(joining);
      const unstored = sendEverywhere(world);
      await world.server.settle();
      for (const one of sessions) {
        checkLevel(t, world, one, `seed ${seed}`);
        const { connection, points } = one;
        const got = clientView(connection.seen, points).unstored;
        t.equal(got.filter((no) => unstored.includes(no)).length, 6);
      }
    }
  },
);

/**
 * A stored and an unstored message by every sender into every channel: six of each kind reach
 * alice, and six carol.
 */
function sendEverywhere(world: World): readonly string[] {
  return CHANNELS.flatMap(({ channel, fromUids }) =>
    fromUids.map((fromUid) => {
      world.server.append({ channel, fromUid });
      return world.server.append({ channel, fromUid, noPersist: true });
    }),
  );
}

function checkLevel(
  t: Test,
  world: World,
  { session, connection, points }: Joiner,
  round: string,
): void {
  const view = clientView(connection.seen, points);
  const who = `${round}, ${session.sessionId} of ${session.uid}`;
  if (view.problems.length > 0) t.fail(`${who}: ${view.problems.join("; ")}`);
  if (view.repeats.length > 0) t.fail(`${who}: repeats ${view.repeats}`);
  const got = new Set(view.nos);
  for (const { channel, lastSeq } of points) {
    const key = channelKey(channel, session.uid);
    for (const no of world.server.keptAfter(key, lastSeq))
      if (!got.has(no)) t.fail(`${who}: misses ${no} of ${nameOf(channel)}`);
  }
  const others = session.uid === "alice" ? "carol" : "alice";
  for (const channel of [...["g1", "g2", "g3"].map(group), person("bob"), person(others)])
    if (view.levels.get(nameOf(channel)) !== world.headSeq(channel, session.uid))
      t.fail(`${who}: not level in ${nameOf(channel)}`);
}

const CHANGES = [
  { what: "is removed", changes: [false] },
  { what: "is added", changes: [true] },
  { what: "is removed and added again", changes: [false, true] },
  { what: "is added and removed again", changes: [true, false] },
] as const;

/** More steps than any of these joins takes. */
const MOST_STEPS = 80;
/** Courses for each moment. */
const EACH = volume(5);

/**
 * Alice about to join g2, with history, and g1 if she is a member of it; her resume points may name
 * g1.
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
 * Collects frames of g1 sent after alice was told out of it: from then until `isBack` is called
 * nothing of it may go out.
 */
function watchLeaks(
  world: World,
  alice: Joiner,
): { readonly leaks: readonly string[]; isBack(): void } {
  const leaks: string[] = [];
  let outSince: number | undefined;
  world.onDelivered = (event: ClusterEvent) => {
    if (event.kind !== "removal" || event.channelId !== "g1") return;
    const isOut = !world.server.groupsOf("alice").includes("g1");
    if (isOut) outSince ??= alice.connection.frames.length;
  };
  const isBack = (): void => {
    for (const one of alice.connection.seen.slice(outSince ?? Infinity))
      if ("channel" in one && one.channel.id === "g1") leaks.push(JSON.stringify(one));
    outSince = undefined;
  };
  return { leaks, isBack };
}

for (const { what, changes } of CHANGES)
  for (const isNamed of [true, false])
    t.test(
      `a user who ${what} at any moment of joining ends right (${isNamed ? "resumed" : "not named"})`,
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
            if (member) watch.isBack();
            world.server.setMember("g1", "alice", member);
            await steps(random.below(20));
          }
          while (!alice.isLive) await steps(1);
          await joining;
          alice.connection.unread = 0;
          alice.session.drained();
          await world.server.settle();
          await checkMembership(t, world, alice, `seed ${seed}`);
          watch.isBack();
          t.same(watch.leaks, [], `seed ${seed}: nothing while she was out`);
        }
      },
    );

/** Alice follows g1 exactly if she is a member, and gets the next message there at most once. */
async function checkMembership(t: Test, world: World, alice: Joiner, round: string): Promise<void> {
  const isMember = world.server.groupsOf("alice").includes("g1");
  const no = world.server.append({ channel: group("g1"), fromUid: "bob" });
  await world.server.settle();
  const got = alice.connection.messageNos.filter((one) => one === no);
  const { repeats } = clientView(alice.connection.seen, alice.points);
  const follows = alice.session.follows("g1");
  const listens = world.server.listened.has("g:g1");
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

t.test("a group its user was out of only while it was being resumed has no gap", async (t) => {
  let rounds = 0;
  for (let seed = 0; seed < 3 * MOST_STEPS; seed++) {
    const random = seeded(seed);
    const start = { isMember: true, isNamed: true };
    const { world, alice } = smallWorld(random, start);
    world.server.tellsInOrder = true;
    let toldOut = false;
    let wasLevel = false;
    let isLate = false;
    world.onDelivered = (event) => {
      if (event.kind !== "removal" && event.kind !== "addition") return;
      toldOut ||= event.kind === "removal";
      isLate ||= toldOut && alice.isLive;
    };
    const joining = world.join(alice);
    const step = async (): Promise<void> => {
      await world.server.step();
      wasLevel ||= alice.session.follows("g1");
    };
    for (let count = seed % MOST_STEPS; count > 0; count--) await step();
    while (!world.server.listened.has("u:alice")) await step(); // else nobody hears of it
    world.server.setMember("g1", "alice", false);
    while (!toldOut && world.server.hasWork) await step();
    for (let count = random.below(5); count > 0; count--) await step();
    world.server.append({ channel: group("g1"), fromUid: "bob" });
    world.server.setMember("g1", "alice", true);
    await world.server.settle();
    await joining;
    const isAllowed = alice.results.every(({ status }) => status === "ok");
    if (!toldOut || wasLevel || isLate || !isAllowed) continue;
    rounds += 1;
    const view = clientView(alice.connection.seen, alice.points);
    t.same(view.problems, [], `seed ${seed}`);
    const headSeq = world.headSeq(group("g1"), "alice");
    t.equal(view.levels.get("group g1"), headSeq, `seed ${seed}: level`);
  }
  t.ok(rounds > 50, "such rounds happened");
});

t.test(
  "at the end of joining the store is believed, whatever order the changes were told in",
  async (t) => {
    for (let seed = 0; seed < EACH * MOST_STEPS; seed++) {
      const random = seeded(seed);
      const start = { isMember: true, isNamed: random.chance(0.5) };
      const { world, alice } = smallWorld(random, start);
      const joining = world.join(alice);
      await world.server.step();
      for (let step = seed % MOST_STEPS; step > 0 && !alice.isLive; step--)
        await world.server.step();
      if (alice.isLive) continue; // from here on what is told counts
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

for (const how of ["is ended", "is gone", "is ended and gone later"] as const)
  t.test(`a session that ${how} at any moment of joining leaves nothing behind`, async (t) => {
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
      if (how !== "is gone") alice.session.end("kicked");
      if (how === "is ended and gone later") await world.server.settle();
      world.disconnect(alice);
      world.disconnect(alice);
      await world.server.settle();
      await joining;
      const left = {
        sessions: [...world.hub.sessions()].length,
        listened: world.server.listened.size,
        topics: alice.connection.topics.size,
      };
      const nothing = { sessions: 0, listened: 0, topics: 0 };
      t.same(left, nothing, `seed ${seed}`);
    }
    t.ok(early > 25 * EACH, "many ended before they were live");
  });

t.test("a session is live in every group once its joining resolves", async (t) => {
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
    t.same(alice.connection.messageNos, sent, `seed ${seed}`);
  }
});

t.test("planning tells where each named channel stands", async (t) => {
  const world = populated(seeded(1));
  world.server.append({ channel: group("g1"), fromUid: "bob" });
  const points = [group("g1"), group("other"), person("nobody")].map((channel) => ({
    channel,
    lastSeq: 0,
  }));
  const { session } = world.session({ uid: "alice" });
  const wishes = { candidates: ["g1", "g2", "g3"], points };
  const planning = planJoin(session, wishes, world.planPorts);
  await world.server.settle();
  const { groups, results } = await planning;
  t.equal(groups, 3);
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

t.test("a channel named twice is resumed once", async (t) => {
  const world = populated(seeded(2));
  for (let count = 0; count < 5; count++)
    for (const channel of [group("g1"), person("alice")])
      world.server.append({ channel, fromUid: "bob" });
  const names = [group("g1"), person("bob"), person("bob"), group("g1")];
  const points = names.map((channel) => ({ channel, lastSeq: 0 }));
  const { connection } = await world.live({ uid: "alice", points });
  t.same(clientView(connection.seen, points).problems, []);
});
