// Users who are added to groups while they are online: the messages sent since then arrive once and
// in order, in whatever order the node was notified.

import { setImmediate as nextTurn } from "node:timers/promises";
import { Backlog, PERSONAL_CHANNELS } from "../../src/gateway/backlog.ts";
import { CatchUps } from "../../src/gateway/catch-up.ts";
import { t } from "../support/suite.ts";
import { volume } from "../support/volume.ts";
import { clientView } from "./client-view.ts";
import { seeded } from "./random.ts";
import { memberEvent } from "./shared-server.ts";
import { group, type Joiner, person, World } from "./world.ts";

const ROUNDS = volume(500, "JINDOU_TEST_ROUNDS");

const CUSTOM = {
  ...{ key: "2:g", channel: group("g"), fromUid: "carol", type: "custom" },
  ...{ clientMsgNo: "c", eventId: "e", data: "x", timestampMs: 0 },
  stream: undefined,
};

t.test(
  "messages sent since a user was added to a group reach the user's live and joining sessions once",
  async (t) => {
    for (let seed = 0; seed < ROUNDS; seed++) {
      const random = seeded(seed);
      const world = new World(random);
      const say = (id: string) => world.server.append({ channel: group(id), fromUid: "bob" });
      for (const id of ["g1", "g2"]) say(id);
      const live = await world.live({ uid: "alice" });
      const late = world.session({ uid: "alice" });
      const joining = world.join(late);
      for (let count = random.below(20); count > 0; count--) await world.server.step();
      const isEarly = !late.isLive && !late.session.hasConnack;
      const sent: string[] = [];
      for (const id of ["g1", "g2"]) {
        world.server.setMember(id, "alice", true);
        for (let count = random.below(5); count > 0; count--) {
          sent.push(say(id));
          await world.server.step();
        }
      }
      await world.server.settle();
      await joining;
      sent.push(say("g1"), say("g2"));
      await world.server.settle();
      for (const joiner of isEarly ? [live] : [live, late]) {
        const view = clientView(joiner.connection.seen, joiner.points);
        t.same(view.repeats, [], `no message is pushed twice with seed ${seed}`);
        t.same([...view.nos].sort(), [...sent].sort(), `every message is pushed with seed ${seed}`);
        for (const id of ["g1", "g2"])
          t.equal(view.levels.get(`group ${id}`), world.headSeq(group(id), "alice"));
      }
      t.same(world.bugs, []);
    }
  },
);

t.test(
  "a session whose user is removed from a group right after being added gets no more of the group's messages and keeps no subscription to the group",
  async (t) => {
    for (let seed = 0; seed < ROUNDS; seed++) {
      const random = seeded(seed);
      const world = new World(random);
      const alice = await world.live({ uid: "alice" });
      for (const id of ["g1", "g2", "g3"]) world.server.setMember(id, "alice", true);
      for (let count = random.below(30); count > 0; count--) await world.server.step();
      for (const id of ["g1", "g2", "g3"]) {
        world.server.append({ channel: group(id), fromUid: "bob" });
        world.server.setMember(id, "alice", false);
      }
      await world.server.settle();
      const before = alice.connection.seen.length;
      for (const id of ["g1", "g2", "g3"])
        world.server.append({ channel: group(id), fromUid: "bob" });
      await world.server.settle();
      t.equal(
        alice.connection.seen.length,
        before,
        `a removed user is pushed no message with seed ${seed}`,
      );
      t.same([...world.server.subscriptions], ["u:alice"]);
      world.server.append({
        channel: { id: "alice", type: 1 },
        fromUid: "bob",
      });
      await world.server.settle();
      t.equal(alice.connection.seen.length, before + 1, "personal messages are not held");
    }
  },
);

t.test(
  "an unstored event reaches a session that is joining the group, unless the session's user is removed during the join",
  async (t) => {
    let came = 0;
    for (let seed = 0; seed < ROUNDS; seed++) {
      const random = seeded(seed);
      const world = new World(random);
      const alice = await world.live({ uid: "alice" });
      const bob = await world.live({ uid: "bob" });
      world.server.setMember("g", "bob", true);
      await world.server.settle();
      world.server.setMember("g", "alice", true);
      while (alice.session.joining === undefined) await world.server.step();
      const isOut = random.chance(0.3);
      world.hub.deliver({ kind: "event", event: CUSTOM });
      if (isOut) world.server.setMember("g", "alice", false);
      await world.server.settle();
      const eventsOf = (joiner: Joiner) =>
        joiner.connection.seen.filter(({ kind }) => kind === "event").length;
      t.equal(eventsOf(bob), 1);
      if (!isOut) t.equal(eventsOf(alice), 1, `a member is pushed the event with seed ${seed}`);
      else came += eventsOf(alice);
    }
    t.ok(came < ROUNDS * 0.3, "sessions whose user was removed in time got no event");
  },
);

t.test(
  "a session whose user is removed during the resume gets no messages that were sent while the user was not a member",
  async (t) => {
    for (let seed = 0; seed < ROUNDS; seed++) {
      const random = seeded(seed);
      const world = new World(random);
      world.server.setMember("g", "alice", true);
      for (let count = 0; count < 8; count++) say(world);
      await world.server.settle();
      const points = [{ channel: group("g"), lastSeq: 1 }];
      const alice = world.session({ uid: "alice", points });
      const joining = world.join(alice);
      for (let count = random.below(40); count > 0; count--) await world.server.step();
      world.server.setMember("g", "alice", false);
      await world.server.settle();
      await joining;
      const missed = [say(world), say(world)];
      await world.server.settle();
      world.server.setMember("g", "alice", true);
      await world.server.settle();
      const last = say(world);
      await world.server.settle();
      const { nos, repeats } = clientView(alice.connection.seen, []);
      const shown = missed.filter((no) => nos.includes(no));
      t.same(
        shown,
        [],
        `messages sent while alice was not a member are not pushed with seed ${seed}`,
      );
      t.ok(nos.includes(last));
      t.same(repeats, []);
    }
  },
);

t.test(
  "message ids never decrease for a session that catches up while messages are sent",
  async (t) => {
    for (const isResumed of [true, false])
      for (let seed = 0; seed < ROUNDS; seed++) {
        const random = seeded(seed);
        const world = new World(random);
        if (isResumed) {
          world.server.setMember("g", "alice", true);
          await world.server.settle();
        }
        const points = isResumed ? [{ channel: group("g"), lastSeq: 0 }] : [];
        const sent: string[] = [];
        const early = () => {
          for (let count = 0; count < 9; count++) sent.push(say(world));
        };
        if (isResumed) early();
        const alice = world.session({ uid: "alice", points });
        const joining = world.join(alice);
        if (!isResumed) {
          await world.server.settle();
          world.server.changeMember("g", "alice", true);
          early();
          announce(world, true);
        }
        for (let count = 0; count < 60; count++) {
          await world.server.step();
          if (!random.chance(0.3)) continue;
          const isKept = random.chance(0.6);
          const no = say(world, !isKept);
          if (isKept) sent.push(no);
        }
        await world.server.settle();
        await joining;
        const { nos } = clientView(alice.connection.seen, []);
        const numbers = nos.map((no) => Number(no.slice(1)));
        const sorted = [...numbers].sort((a, b) => a - b);
        t.same(numbers, sorted, `message ids do not decrease with seed ${seed}`);
        t.same(
          sent.filter((no) => !nos.includes(no)),
          [],
        );
      }
  },
);

/** Delivers the notification of a membership change to the node. */
const announce = (world: World, member: boolean) =>
  world.hub.deliver(memberEvent("g", "alice", member));

const say = (world: World, noPersist = false): string =>
  world.server.append({ channel: group("g"), fromUid: "bob", noPersist });

t.test(
  "a late notification of an addition does not keep a removed user in the group",
  async (t) => {
    const world = new World(seeded(1));
    const alice = await world.live({ uid: "alice" });
    world.server.changeMember("g", "alice", true);
    world.server.changeMember("g", "alice", false);
    announce(world, false);
    announce(world, true);
    say(world);
    await world.server.settle();
    say(world);
    await world.server.settle();
    t.same(alice.connection.seen, []);
    t.same([...world.server.subscriptions], ["u:alice"]);
    const personal = { id: "alice", type: 1 } as const;
    world.server.append({ channel: personal, fromUid: "bob" });
    await world.server.settle();
    t.equal(alice.connection.seen.length, 1, "personal messages are not held");
  },
);

t.test(
  "a late notification of a removal does not keep out a user who was added again, and no message is missed",
  async (t) => {
    const world = new World(seeded(1));
    world.server.setMember("g", "alice", true);
    await world.server.settle();
    const alice = await world.live({ uid: "alice" });
    const sent = [say(world)];
    await world.server.settle();
    world.server.changeMember("g", "alice", false);
    world.server.changeMember("g", "alice", true);
    announce(world, true);
    announce(world, false);
    sent.push(say(world));
    await world.server.settle();
    sent.push(say(world));
    await world.server.settle();
    t.same(clientView(alice.connection.seen, []).nos, sent);
  },
);

t.test("a late notification of a removal does not cause messages to be pushed twice", async (t) => {
  const world = new World(seeded(1));
  say(world);
  const alice = await world.live({ uid: "alice" });
  world.server.changeMember("g", "alice", true);
  const sent = [say(world), say(world)];
  await world.server.settle();
  announce(world, true);
  await world.server.settle();
  announce(world, false);
  sent.push(say(world));
  await world.server.settle();
  const { nos, repeats } = clientView(alice.connection.seen, []);
  t.same(nos, sent);
  t.same(repeats, []);
});

t.test(
  "a user who rejoins a group that lost messages gets the new messages that reuse the lost seqs",
  async (t) => {
    const world = new World(seeded(1));
    world.server.setMember("g", "alice", true);
    await world.server.settle();
    const alice = await world.live({ uid: "alice" });
    for (let count = 0; count < 5; count++) say(world);
    await world.server.settle();
    world.server.loseLast(group("g"), 3);
    announce(world, false);
    const sent = [say(world), say(world)];
    await world.server.settle();
    sent.push(say(world));
    await world.server.settle();
    const { nos } = clientView(alice.connection.seen, []);
    t.same(nos.slice(-sent.length), sent);
  },
);

t.test(
  "a joining session whose user is added to several groups reads the groups from the store one at a time",
  async (t) => {
    const world = new World(seeded(1));
    const { store } = world.server;
    const { joinSeqs } = store;
    let [reads, maxReads] = [0, 0];
    store.joinSeqs = async (...request) => {
      reads += 1;
      maxReads = Math.max(maxReads, reads);
      const seqs = await joinSeqs(...request);
      reads -= 1;
      return seqs;
    };
    world.server.append({ channel: person("alice"), fromUid: "bob" });
    const points = [{ channel: person("bob"), lastSeq: 0 }];
    const alice = world.session({ uid: "alice", points });
    const joining = world.join(alice);
    while (!alice.session.hasConnack) await world.server.step();
    t.notOk(alice.session.hasJoined, "the session is still joining");
    const ids = Array.from({ length: 10 }, (_, at) => `g${at}`);
    for (const id of ids) world.server.changeMember(id, "alice", true);
    announce(world, true);
    await world.server.settle();
    await joining;
    t.same([...alice.session.groups.keys()].sort(), ids);
    t.equal(maxReads, 1);
  },
);

t.test(
  "if the notification of an added member was lost, adding the member again delivers the missed messages",
  async (t) => {
    const world = new World(seeded(1));
    say(world);
    const alice = await world.live({ uid: "alice" });
    world.server.changeMember("g", "alice", true);
    const sent = [say(world), say(world)];
    await world.server.settle();
    announce(world, true);
    await world.server.settle();
    sent.push(say(world));
    await world.server.settle();
    t.same(clientView(alice.connection.seen, []).nos, sent);
  },
);

t.test(
  "a session ends up with the same membership as the store and gets each message once, whatever the order of the notifications",
  async (t) => {
    for (let seed = 0; seed < ROUNDS; seed++) {
      const random = seeded(seed);
      const world = new World(random);
      const alice = await world.live({ uid: "alice" });
      let isMember = false;
      let since: string[] = [];
      let quietFrom: number | undefined;
      world.onDelivered = (event) => {
        if (event.kind === "removal" && !isMember) quietFrom ??= alice.connection.frames.length;
      };
      for (let count = 1 + random.below(8); count > 0; count--) {
        if (quietFrom !== undefined)
          t.equal(
            alice.connection.frames.length,
            quietFrom,
            `a removed user is pushed no frame with seed ${seed}`,
          );
        quietFrom = undefined;
        isMember = !isMember;
        world.server.setMember("g", "alice", isMember);
        since = [];
        for (let some = random.below(12); some > 0; some--) {
          if (random.chance(0.2)) since.push(say(world));
          await world.server.step();
        }
      }
      await world.server.settle();
      t.equal(
        alice.session.follows("g"),
        isMember,
        `only a member follows the group with seed ${seed}`,
      );
      const before = alice.connection.seen.length;
      since.push(say(world));
      await world.server.settle();
      if (!isMember) t.equal(alice.connection.seen.length, before);
      const { nos, repeats } = clientView(alice.connection.seen, []);
      t.same(repeats, [], `no message is pushed twice with seed ${seed}`);
      if (isMember)
        t.same(
          nos.slice(-since.length),
          since,
          `messages since the last addition are pushed with seed ${seed}`,
        );
      t.same(world.bugs, []);
    }
  },
);

t.test("a personal message is not held while the session joins a group", async (t) => {
  const world = new World(seeded(1));
  const alice = await world.live({ uid: "alice" });
  world.server.changeMember("g", "alice", true);
  say(world);
  announce(world, true);
  while (alice.session.joining === undefined) await world.server.step();
  const no = world.server.append({
    ...{ channel: person("alice"), fromUid: "bob" },
  });
  const came = () => alice.connection.messageNos.includes(no);
  while (!came() && !alice.session.follows("g")) await world.server.step();
  t.ok(came());
  t.notOk(alice.session.follows("g"), "the session does not follow the group yet");
  await world.server.settle();
  t.ok(alice.session.follows("g"));
});

t.test(
  "a session that joins a busy group is not ended by messages that arrive while it reads earlier ones",
  async (t) => {
    for (let seed = 0; seed < 20; seed++) {
      const world = new World(seeded(seed));
      const alice = await world.live({ uid: "alice", maxHeldBytes: 4000 });
      world.server.changeMember("g", "alice", true);
      const sent = Array.from({ length: 60 }, () => say(world));
      announce(world, true);
      while (!world.server.subscriptions.has("g:g")) await world.server.step();
      for (let count = 0; count < 30; count++) {
        sent.push(say(world));
        await world.server.step();
        await world.server.step();
      }
      await world.server.settle();
      t.equal(alice.session.ended, undefined, `the session does not end with seed ${seed}`);
      t.same(
        clientView(alice.connection.seen, []).nos,
        sent,
        `every message is pushed in order with seed ${seed}`,
      );
    }
  },
);

t.test(
  "the missed messages of many sessions are read in several turns of the event loop",
  async (t) => {
    const world = new World(seeded(1));
    const pageMs = 2;
    const sessions = 20;
    let pages = 0;
    const catchUps = new CatchUps({
      store: {
        ...world.server.store,
        headSeq: async () => 1,
        async readMessages() {
          const endMs = performance.now() + pageMs; // the embedded store blocks while it reads
          while (performance.now() < endMs);
          pages += 1;
          return { messages: [], more: false };
        },
        activeStreams: async () => [],
        personalStreamsOf: async () => [],
      },
      cluster: { barrier: async () => {}, recovery: () => undefined, delivered: () => undefined },
      directory: { endedBy: async () => undefined },
      groups: world.groups,
      limits: { pageMessages: 3, pageBytes: 1000, maxUnreadBytes: 100, maxBufferedBytes: 800 },
      metrics: { resumed() {}, catchingUp() {}, caughtUp() {} },
      onError: (error) => world.bugs.push(error),
    });
    const done = Array.from({ length: sessions }, (_, at) => {
      const { session } = world.session({ uid: `u${at}` });
      session.personal = new Backlog(session, PERSONAL_CHANNELS, "holding");
      return catchUps.connect(session, [person("bob")], []);
    });
    let turns = 0;
    for (let before = 0; pages < sessions; before = pages) {
      await nextTurn();
      turns += 1;
      t.ok(pages - before <= 2 * (2 / pageMs + 1), `turn ${turns} read ${pages - before} pages`);
    }
    await Promise.all(done);
    t.equal(pages, sessions);
    t.same(world.bugs, []);
  },
);
