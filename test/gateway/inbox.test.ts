// Commands under many interleavings: each copy reaches each session of its user once and in order,
// while inboxes are read and live copies arrive.

import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { pullInbox } from "../../src/gateway/inbox.ts";
import { t } from "../support/suite.ts";
import { volume } from "../support/volume.ts";
import { type Random, seeded } from "./random.ts";
import type { Seen } from "./recorder.ts";
import { group, type Joiner, person, World } from "./world.ts";

const ROUNDS = volume(500, "JINDOU_TEST_ROUNDS");
const USERS = ["alice", "bob", "carol"];

type SeenCommand = Extract<Seen, { readonly kind: "command" }>;

function commandsOf({ connection }: Joiner): readonly SeenCommand[] {
  return connection.seen.filter((one) => one.kind === "command");
}

function commandSomewhere(world: World, random: Random): string {
  const to = USERS.filter(() => random.chance(0.7));
  const isGroup = random.chance(0.7);
  const sent = { fromUid: "dave", pushOnlyRecipients: ["dave"] };
  return isGroup
    ? world.server.sendCommand({ ...sent, channel: group("g"), to })
    : world.server.sendCommand({
        ...sent,
        channel: person("alice"),
        to: ["alice"],
      });
}

t.test(
  "commands that arrive before, during and after the read of an inbox are pushed once, in the order of their inboxSeqs",
  async (t) => {
    for (let seed = 1; seed <= ROUNDS; seed++) {
      const random = seeded(seed);
      const world = new World(random);
      for (let count = random.below(15); count > 0; count--) commandSomewhere(world, random);
      const names = ["alice", "alice", "bob", "dave"];
      const sessions = names.map((uid) => world.session({ uid }));
      const joining = sessions.map((one) => world.join(one));
      while (sessions.some(({ isLive }) => !isLive)) {
        if (random.chance(0.2)) commandSomewhere(world, random);
        for (const { connection, session } of sessions)
          if (connection.unread === 0 && random.chance(0.05)) connection.unread = 1000;
          else if (random.chance(0.3)) {
            connection.unread = 0;
            session.drained();
          }
        await world.server.step();
      }
      await Promise.all(joining);
      const unstored = [commandSomewhere(world, random), commandSomewhere(world, random)];
      await world.server.settle();
      for (const joiner of sessions) {
        const seqs = commandsOf(joiner).map(({ inboxSeq }) => inboxSeq);
        const { uid } = joiner.session;
        if (uid === "dave") {
          const nos = commandsOf(joiner).map(({ message }) => message.no);
          t.same(nos.slice(-2), unstored, `seed ${seed}: unstored commands are in order`);
          t.equal(new Set(nos).size, nos.length, "no command is pushed twice");
        } else {
          const all = world.server.inboxSize(uid);
          const expected = Array.from({ length: all }, (_, at) => at + 1);
          t.same(seqs, expected, `${uid} is pushed every command in order with seed ${seed}`);
        }
      }
      t.same(world.bugs, []);
    }
  },
);

t.test(
  "a command is pushed to the sender's other sessions, but not to the sending session",
  async (t) => {
    const world = new World(seeded(1));
    const [sender, otherDevice] = [
      await world.live({ uid: "alice" }),
      await world.live({ uid: "alice" }),
    ];
    const no = world.server.sendCommand({
      ...{ channel: group("g"), fromUid: "alice", to: ["alice"] },
      origin: sender.session.sessionId,
    });
    await world.server.settle();
    t.same(commandsOf(sender), []);
    t.match(commandsOf(otherDevice), [{ inboxSeq: 1, message: { no, seq: 1 } }]);
  },
);

t.test("a copy of a command is encoded once per wire format", async (t) => {
  const world = new World(seeded(1));
  const sessions: Joiner[] = [];
  for (const format of ["a", "a", "b"]) sessions.push(await world.live({ uid: "alice", format }));
  const channel = person("alice");
  world.server.sendCommand({ channel, fromUid: "bob", to: ["alice", "bob"] });
  await world.server.settle();
  for (const session of sessions)
    t.match(commandsOf(session), [{ channel: person("bob"), inboxSeq: 1 }]);
  const [a1, a2, b] = sessions.map(({ codec }) => codec.encodedPushes);
  t.equal((a1 ?? 0) + (a2 ?? 0), 1);
  t.equal(b, 1);
});

t.test("the commands of an inbox are pushed no faster than the client reads", async (t) => {
  const world = new World(seeded(1));
  for (let count = 0; count < 20; count++)
    world.server.sendCommand({
      ...{ channel: person("alice"), fromUid: "bob", to: ["alice"] },
    });
  const alice = world.session({ uid: "alice" });
  alice.connection.unread = 1000;
  const joining = world.join(alice);
  await world.server.settle();
  const before = commandsOf(alice).length;
  t.ok(before > 0 && before <= 3, `${before} commands are pushed before the client reads`);
  alice.connection.unread = 0;
  alice.session.drained();
  await world.server.settle();
  await joining;
  t.equal(commandsOf(alice).length, 20);
});

t.test(
  "commands are not pushed to a slow client after another device has acknowledged them",
  async (t) => {
    const world = new World(seeded(1));
    const send = () =>
      world.server.sendCommand({
        ...{ channel: person("alice"), fromUid: "bob", to: ["alice"] },
      });
    for (let count = 0; count < 20; count++) send();
    const alice = world.session({ uid: "alice" });
    alice.connection.unread = 1000;
    const joining = world.join(alice);
    await world.server.settle();
    const before = commandsOf(alice).length;
    t.ok(before > 0 && before < 20, `${before} of 20 commands are pushed before the client reads`);
    for (let seq = 1; seq <= 19; seq++) world.server.acknowledge("alice", seq);
    send();
    alice.connection.unread = 0;
    alice.session.drained();
    await world.server.settle();
    await joining;
    t.same(
      commandsOf(alice)
        .slice(before)
        .map(({ inboxSeq }) => inboxSeq),
      [20, 21],
    );
  },
);

t.test(
  "a page that is read from an inbox contains at most `pageBytes` bytes of commands",
  async (t) => {
    const world = new World(seeded(1));
    for (let count = 0; count < 9; count++)
      world.server.sendCommand({
        ...{ channel: person("alice"), fromUid: "bob", to: ["alice"] },
      });
    const { store } = world.server;
    const sizes: number[] = [];
    const reading = {
      readInbox: async (...args: Parameters<typeof store.readInbox>) => {
        const page = await store.readInbox(...args);
        sizes.push(page.length);
        return page;
      },
    };
    const { session, connection } = world.session({ uid: "alice" });
    session.inbox = { hasMore: false, unstored: [] };
    const pulling = pullInbox(session, {
      store: reading,
      cluster: { recovery: () => undefined, delivered: () => undefined },
      metrics: { commandsPushed: () => {} },
      limits: { pageMessages: 100, pageBytes: 40, maxUnreadBytes: 1000 },
    });
    await world.server.settle();
    await pulling;
    t.same(sizes, [4, 4, 1, 0]);
    t.equal(connection.seen.length, 9);
  },
);

t.test("unstored commands are held while the inbox is read, up to `maxHeldBytes`", async (t) => {
  const world = new World(seeded(1));
  const alice = world.session({ uid: "alice", maxHeldBytes: 2000 });
  const joining = world.join(alice);
  alice.connection.unread = 1000;
  const publish = (): string =>
    world.server.sendCommand({
      ...{ channel: group("g"), fromUid: "bob", to: [] },
      pushOnlyRecipients: ["alice"],
    });
  world.server.sendCommand({
    ...{ channel: group("g"), fromUid: "bob", to: ["alice"] },
  });
  await world.server.settle();
  for (let count = 0; count < 3; count++) publish();
  await world.server.settle();
  t.equal(commandsOf(alice).length, 1);
  t.equal(alice.session.ended, undefined);
  for (let count = 0; count < 10; count++) publish();
  await world.server.settle();
  await joining;
  t.equal(alice.connection.endedWith, CLOSE_REASONS.slow_reader.code);
});
