// Behaviour after the cluster reported that events of a user may be lost. Every session of the user
// ends up with its groups, and receives each command once and in order, whatever happens in the
// meantime.

import { BrokerError } from "../../src/broker/errors.ts";
import { userTopic } from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";
import { volume } from "../support/volume.ts";
import { clientView } from "./client-view.ts";
import { seeded } from "./random.ts";
import { group, type Joiner, person, World } from "./world.ts";

const ROUNDS = volume(250, "JINDOU_TEST_ROUNDS");

const reportMissed = (world: World, uid: string) =>
  world.hub.deliver({ kind: "missed", topic: userTopic(uid) });

function inboxSeqs({ connection }: Joiner): readonly number[] {
  return connection.seen.flatMap((one) => (one.kind === "command" ? [one.inboxSeq] : []));
}

const followed = ({ session }: Joiner): readonly string[] => [...session.groups.keys()].sort();

t.test(
  "sessions have the same memberships as the store after the cluster reported lost events, even if a membership changes meanwhile",
  async (t) => {
    for (let seed = 0; seed < ROUNDS; seed++) {
      const random = seeded(seed);
      const world = new World(random);
      const ids = ["g1", "g2", "g3", "g4"];
      for (const id of ids) if (random.chance(0.5)) world.server.setMember(id, "alice", true);
      await world.server.settle();
      const sessions = [await world.live({ uid: "alice" }), await world.live({ uid: "alice" })];
      for (const id of ids) world.server.changeMember(id, "alice", random.chance(0.5));
      const late = world.session({ uid: "alice" });
      const joining = world.join(late);
      reportMissed(world, "alice");
      for (let count = random.below(20); count > 0; count--) await world.server.step();
      world.server.setMember(random.pick(ids), "alice", random.chance(0.5));
      if (random.chance(0.3)) reportMissed(world, "alice");
      await world.server.settle();
      await joining;
      const expected = [...world.server.groupsOf("alice")].sort();
      for (const joiner of [...sessions, late])
        t.same(followed(joiner), expected, `the session follows its groups with seed ${seed}`);
      const sent = expected.map((id) =>
        world.server.append({ channel: group(id), fromUid: "bob" }),
      );
      await world.server.settle();
      for (const { connection } of [...sessions, late])
        t.same(connection.messageNos.slice(-sent.length || 99), sent);
      t.same(world.bugs, []);
    }
  },
);

t.test(
  "messages sent after a user was added to a group are pushed once, in the order in which they were sent, even if the node missed the addition and subscribing to the group fails at first",
  async (t) => {
    for (let seed = 0; seed < ROUNDS; seed++) {
      const random = seeded(seed);
      const world = new World(random);
      const say = () => world.server.append({ channel: group("g"), fromUid: "bob" });
      say();
      const alice = await world.live({ uid: "alice" });
      world.server.changeMember("g", "alice", true);
      const sent = [say(), say()];
      let refusals = random.below(4);
      world.server.isRefused = (topic) => topic === "g:g" && random.chance(0.5) && refusals-- > 0;
      reportMissed(world, "alice");
      for (let count = random.below(20); count > 0; count--) {
        await world.server.step();
        if (random.chance(0.3)) sent.push(say());
      }
      for (let at = 0; at < 5000 && !alice.session.follows("g"); at++) {
        await world.server.settle();
        await new Promise((resolve) => setTimeout(resolve, 1));
      }
      await world.server.settle();
      sent.push(say());
      const personal = world.server.append({
        ...{ channel: person("alice"), fromUid: "bob" },
      });
      await world.server.settle();
      const view = clientView(alice.connection.seen, alice.points);
      t.same(view.nos, [...sent, personal], `every message is pushed in order with seed ${seed}`);
      t.same(view.repeats, []);
      t.ok(world.server.subscriptions.has("g:g"));
      t.equal(alice.session.ended, undefined);
      t.same(world.bugs, []);
    }
  },
);

t.test(
  "a joining session receives the messages sent to a group after the session's user was added, even if the node missed the addition",
  async (t) => {
    for (let seed = 0; seed < ROUNDS; seed++) {
      const random = seeded(seed);
      const world = new World(random);
      const say = (id: string) => world.server.append({ channel: group(id), fromUid: "bob" });
      world.server.setMember("named", "alice", true);
      for (const id of ["g", "named"]) say(id);
      const points = [{ channel: group("named"), lastSeq: 0 }];
      const alice = world.session({ uid: "alice", points });
      const joining = world.join(alice);
      while (!alice.session.hasConnack) await world.server.step();
      for (let count = random.below(12); count > 0; count--) await world.server.step();
      world.server.changeMember("g", "alice", true);
      const sent = [say("g"), say("g")];
      reportMissed(world, "alice");
      await world.server.settle();
      await joining;
      sent.push(say("g"));
      await world.server.settle();
      const { nos } = clientView(alice.connection.seen, points);
      t.same(
        nos.filter((no) => sent.includes(no)),
        sent,
        `the messages since the missed addition are pushed in order with seed ${seed}`,
      );
    }
  },
);

t.test(
  "missed commands are pushed once, and in the order of their `inboxSeq` if the session had received a live command before them",
  async (t) => {
    for (let seed = 0; seed < ROUNDS; seed++) {
      const random = seeded(seed);
      const world = new World(random);
      const send = () =>
        world.server.sendCommand({
          ...{ channel: person("alice"), fromUid: "bob", to: ["alice"] },
        });
      for (let count = random.below(4); count > 0; count--) send();
      if (world.server.inboxSize("alice") > 0 && random.chance(0.5))
        world.server.acknowledge("alice", 1);
      const alice = await world.live({ uid: "alice" });
      const other = await world.live({ uid: "alice" });
      const previous = inboxSeqs(alice);
      let isDeaf = false;
      let losesFirst = false;
      const { deliver } = world.hub;
      world.handleEvent = (event) => {
        if (!isDeaf || event.kind === "missed") deliver(event);
      };
      const before = world.server.inboxSize("alice");
      for (let count = 0; count < 12; count++) {
        isDeaf = random.chance(0.4);
        if (isDeaf && count === 0) losesFirst = true;
        send();
        if (count > 0 && random.chance(0.3)) await world.server.step();
        else await world.server.settle();
      }
      await world.server.settle();
      isDeaf = false;
      reportMissed(world, "alice");
      send();
      await world.server.settle();
      const all = world.server.inboxSize("alice");
      const news = Array.from({ length: all - before }, (_, at) => before + at + 1);
      for (const joiner of [alice, other]) {
        const received = inboxSeqs(joiner).slice(previous.length);
        const inOrder = [...received].sort((a, b) => a - b);
        t.same(
          losesFirst ? inOrder : received,
          news,
          `every missed command is pushed once with seed ${seed}`,
        );
      }
    }
  },
);

t.test(
  "lost commands are pushed before the commands that are sent after the cluster reported the loss",
  async (t) => {
    for (const [lost, later] of [
      [1, 1],
      [3, 1],
      [2, 4],
    ] as const) {
      const world = new World(seeded(1));
      const send = () =>
        world.server.sendCommand({
          ...{ channel: person("alice"), fromUid: "bob", to: ["alice"] },
        });
      for (let seq = 1; seq <= 5; seq++) {
        send();
        world.server.acknowledge("alice", seq);
      }
      const alice = await world.live({ uid: "alice" }); // the inbox is empty
      const { deliver } = world.hub;
      world.handleEvent = () => {};
      for (let count = 0; count < lost; count++) send();
      await world.server.settle();
      world.handleEvent = deliver;
      reportMissed(world, "alice");
      for (let count = 0; count < later; count++) send();
      await world.server.settle();
      const all = Array.from({ length: lost + later }, (_, at) => 6 + at);
      t.same(inboxSeqs(alice), all, `commands are pushed in order after ${lost} were lost`);
    }
  },
);

t.test(
  "commands that are lost while the inbox is read are pushed before later commands",
  async (t) => {
    for (let steps = 0; steps < 60; steps++) {
      const world = new World(seeded(steps));
      const send = () =>
        world.server.sendCommand({
          ...{ channel: person("alice"), fromUid: "bob", to: ["alice"] },
        });
      for (let seq = 1; seq <= 5; seq++) {
        send();
        world.server.acknowledge("alice", seq);
      }
      const alice = world.session({ uid: "alice" });
      const joining = world.join(alice);
      for (let step = 0; step < steps; step++) await world.server.step();
      const { deliver } = world.hub;
      world.handleEvent = () => {};
      send();
      for (let step = 0; step < steps % 3; step++) await world.server.step();
      world.handleEvent = deliver;
      reportMissed(world, "alice");
      send();
      await world.server.settle();
      await joining;
      t.same(
        inboxSeqs(alice),
        [6, 7],
        `both commands are pushed if the first is lost after ${steps} steps`,
      );
    }
  },
);

t.test(
  "a command that a session missed after it read an empty inbox is pushed once, even if a later command was pushed first",
  async (t) => {
    const world = new World(seeded(1));
    const send = () =>
      world.server.sendCommand({
        ...{ channel: person("alice"), fromUid: "bob", to: ["alice"] },
      });
    send();
    world.server.acknowledge("alice", 1);
    const alice = await world.live({ uid: "alice" });
    world.handleEvent = () => {};
    send();
    await world.server.settle();
    world.handleEvent = world.hub.deliver;
    send();
    await world.server.settle();
    for (let time = 0; time < 2; time++) {
      reportMissed(world, "alice");
      await world.server.settle();
      t.same(inboxSeqs(alice), [3, 2], "each command is pushed once");
    }
  },
);

t.test(
  "failed reads of memberships are repeated, at most 64 at a time, and no session ends",
  async (t) => {
    const world = new World(seeded(1));
    const { store } = world.server;
    let reads = 0;
    let maxReads = 0;
    let isDown = true;
    store.groupsOf = async () => {
      reads += 1;
      maxReads = Math.max(maxReads, reads);
      await new Promise((resolve) => setImmediate(resolve));
      reads -= 1;
      if (isDown) throw new BrokerError("unavailable");
      return ["g"];
    };
    const sessions = Array.from({ length: 300 }, (_, at) => {
      const { session } = world.session({ uid: `user${at}` });
      world.server.changeMember("g", session.uid, true);
      world.hub.enter(session);
      session.stage = "joined";
      return session;
    });
    for (const { uid } of sessions) reportMissed(world, uid);
    const joined = () => sessions.filter((one) => one.follows("g")).length;
    const turns = async (count: number) => {
      for (let at = 0; at < count && joined() < 300; at++) {
        await world.server.settle();
        await new Promise((resolve) => setTimeout(resolve, 1));
      }
    };
    await turns(5);
    t.ok(maxReads > 0, "the store was read");
    t.equal(joined(), 0);
    isDown = false;
    await turns(2000);
    t.equal(joined(), 300);
    t.ok(maxReads <= 64, `at most 64 reads run at once, not ${maxReads}`);
    t.ok(sessions.every(({ ended }) => ended === undefined));
    t.same(world.bugs, []);
  },
);

t.test(
  "missed membership changes of 48 groups are applied over several turns of the event loop, and a change made meanwhile is applied too",
  async (t) => {
    const world = new World(seeded(3));
    const ids = (name: string) => Array.from({ length: 24 }, (_, at) => `${name}${at}`);
    for (const id of ids("old")) world.server.changeMember(id, "alice", true);
    const alice = await world.live({ uid: "alice" });
    for (const id of ids("old")) world.server.changeMember(id, "alice", false);
    for (const id of ids("new")) world.server.changeMember(id, "alice", true);
    const seen = { leaving: 0, joining: 0 };
    const inTurn = { leaving: 0, joining: 0 };
    const work = (kind: "leaving" | "joining") => {
      const untilMs = performance.now() + 1;
      while (performance.now() < untilMs);
      if (inTurn[kind] === 0)
        setImmediate(() => {
          inTurn[kind] = 0;
        });
      inTurn[kind] += 1;
      seen[kind] = Math.max(seen[kind], inTurn[kind]);
    };
    const { connection } = alice;
    const unsubscribe = connection.unsubscribe.bind(connection);
    let unsubscribed = 0;
    connection.unsubscribe = (topic) => {
      work("leaving"); // called once per group, because a group without events has one topic
      unsubscribed += 1;
      if (unsubscribed === 4) world.server.setMember("old20", "alice", true);
      unsubscribe(topic);
    };
    const { catchUps } = world;
    const join = catchUps.join.bind(catchUps);
    catchUps.join = (...request) => {
      work("joining");
      return join(...request);
    };
    reportMissed(world, "alice");
    await world.server.settle();
    t.same(followed(alice), [...world.server.groupsOf("alice")].sort());
    t.ok(alice.session.follows("old20"));
    t.ok(seen.leaving > 0 && seen.joining > 0, "the session left and joined groups");
    t.ok(
      seen.leaving < 12,
      `the session leaves at most 11 groups in one turn, not ${seen.leaving}`,
    );
    t.ok(seen.joining < 12, `the session joins at most 11 groups in one turn, not ${seen.joining}`);
    t.same(world.bugs, []);
  },
);
