// Watched presence: the reply, and then each change once. An older state never follows a newer
// state, and no subscription is left at the end.

import { BrokerError } from "../../src/broker/errors.ts";
import { PresenceWatch } from "../../src/gateway/watch.ts";
import { t } from "../support/suite.ts";
import { volume } from "../support/volume.ts";
import { operator } from "./operation-world.ts";
import { seeded } from "./random.ts";
import type { Seen } from "./recorder.ts";
import { type Joiner, World } from "./world.ts";

const ROUNDS = volume(500, "JINDOU_TEST_ROUNDS");
const UIDS = ["u1", "u2", "u3", "u4"];

/**
 * Returns the state of each user that the client knows at the end, and how often a known state was
 * pushed again.
 */
function finalStates(seen: readonly Seen[]): {
  readonly states: ReadonlyMap<string, boolean>;
  readonly repeats: number;
} {
  let states = new Map<string, boolean>();
  let repeats = 0;
  for (const frame of seen) {
    if (frame.kind === "reply" && frame.reply.kind === "watch")
      states = new Map(frame.reply.presence.map(({ uid, online }) => [uid, online]));
    if (frame.kind !== "presence") continue;
    for (const { uid, online } of frame.presence) {
      if (states.get(uid) === online) repeats += 1;
      states.set(uid, online);
    }
  }
  return { states, repeats };
}

async function watching(world: World, joiner: Joiner, uids: readonly string[]): Promise<void> {
  const done = operator(world)(joiner, { kind: "watch", ref: 7, uids });
  await world.server.settle();
  await done;
}

const pushes = ({ connection }: Joiner): number =>
  connection.seen.filter(({ kind }) => kind === "presence").length;

t.test(
  "a watcher ends up with the current presence of all watched users, whatever the order of changes and requests",
  async (t) => {
    for (let seed = 1; seed <= ROUNDS; seed++) {
      const random = seeded(seed);
      const world = new World(random);
      const sessions = [await world.live({ uid: "alice" }), await world.live({ uid: "bob" })];
      const watched = new Map<Joiner, readonly string[]>();
      const requests: Promise<void>[] = [];
      for (let steps = 60; steps > 0; steps--) {
        if (random.chance(0.4)) world.server.setOnline(random.pick(UIDS), random.chance(0.5));
        const joiner = random.pick(sessions);
        if (random.chance(0.15)) {
          const uids = UIDS.filter(() => random.chance(0.6));
          watched.set(joiner, uids);
          const operation = { kind: "watch", ref: 1, uids } as const;
          requests.push(operator(world)(joiner, operation));
        }
        await world.server.step();
      }
      await world.server.settle();
      await Promise.all(requests);
      await world.server.settle();
      const current = await afterSettling(world, world.server.directory.presence(UIDS));
      for (const joiner of sessions) {
        const { states, repeats } = finalStates(joiner.connection.seen);
        for (const { uid, online } of current)
          if (watched.get(joiner)?.includes(uid) && states.get(uid) !== online)
            t.fail(`seed ${seed}: ${joiner.session.uid} sees a wrong presence of ${uid}`);
        t.equal(repeats, 0, `seed ${seed}: no state is pushed twice`);
        world.disconnect(joiner);
      }
      await world.server.settle();
      t.same([...world.server.subscriptions], [], `seed ${seed}: no subscription is left`);
      t.same(world.bugs, []);
    }
  },
);

async function afterSettling<T>(world: World, answer: Promise<T>): Promise<T> {
  await world.server.settle();
  return answer;
}

t.test(
  "the reply to WATCH lists the users in the order of the request, including duplicates",
  async (t) => {
    const world = new World(seeded(1));
    const alice = await world.live({ uid: "alice" });
    world.server.setOnline("u2", true);
    await watching(world, alice, ["u2", "u1", "u2"]);
    const [on, off] = [true, false];
    t.match(alice.connection.seen, [
      {
        reply: {
          kind: "watch",
          ref: 7,
          presence: [
            { uid: "u2", online: on },
            { uid: "u1", online: off },
            { uid: "u2", online: on },
          ],
        },
      },
    ]);
  },
);

t.test("presence changes in one turn of the event loop are pushed in one frame", async (t) => {
  const world = new World(seeded(1));
  const alice = await world.live({ uid: "alice" });
  await watching(world, alice, UIDS);
  for (const uid of UIDS.slice(0, 3)) {
    world.server.setOnline(uid, true);
    world.hub.deliver({ kind: "presence", uid });
  }
  await world.server.settle();
  t.equal(pushes(alice), 1);
  t.match(alice.connection.seen.at(-1), {
    presence: [{ uid: "u1" }, { uid: "u2" }, { uid: "u3" }],
  });
});

t.test("a new WATCH replaces the users watched before", async (t) => {
  const world = new World(seeded(1));
  const alice = await world.live({ uid: "alice" });
  await watching(world, alice, ["u1", "u2"]);
  await watching(world, alice, ["u2", "u3"]);
  t.notOk(world.server.subscriptions.has("p:u1"));
  t.ok(world.server.subscriptions.has("p:u2"));
  for (const uid of UIDS) world.server.setOnline(uid, true);
  await world.server.settle();
  const { states } = finalStates(alice.connection.seen);
  t.same([...states.keys()].sort(), ["u2", "u3"]);
  await watching(world, alice, []);
  t.notOk(world.server.subscriptions.has("p:u2"));
});

t.test("presence pushes are charged to the watched user, not to the users who watch", async (t) => {
  const world = new World(seeded(1));
  const uids = Array.from({ length: 50 }, (_, i) => `watcher-${i}`);
  const watchers = await Promise.all(uids.map((uid) => world.live({ uid })));
  for (const watcher of watchers) await watching(world, watcher, ["u1", "u2"]);
  t.same([...world.charged], [], "a request of a watcher is not charged to the watched user");
  world.server.setOnline("u1", true);
  await world.server.settle();
  t.same([...world.charged], [["u1", 50 / 100]]);
});

t.test(
  "WATCH is refused while the store is unavailable, and a presence change that could not be read is read again",
  async (t) => {
    const world = new World(seeded(1));
    const { session, connection } = await world.live({ uid: "alice" });
    // The timer of the retry does not keep the process alive.
    const alive = setInterval(() => undefined, 1000);
    t.teardown(() => clearInterval(alive));
    let isDown = true;
    const bugs: unknown[] = [];
    const watch = new PresenceWatch({
      cluster: { listen: async () => {}, unlisten: () => {} },
      directory: {
        async presence(uids) {
          if (isDown) throw new BrokerError("unavailable");
          return uids.map((uid) => ({ uid, online: !wasDown, flag: 0 }));
        },
      },
      retryMs: 1,
      offlineDelayMs: 0,
      charge: () => {},
      onError: (error) => bugs.push(error),
    });
    let wasDown = false;
    const answer = (): void => {};
    const refused = watch.watch(session, ["u1"], answer);
    await t.rejects(refused, { code: "unavailable" });
    isDown = false;
    await watch.watch(session, ["u1"], answer);
    [isDown, wasDown] = [true, true];
    watch.refresh("u1");
    for (let turns = 0; turns < 5; turns++) await new Promise((done) => setImmediate(done));
    t.same(connection.seen, []);
    isDown = false;
    while (connection.seen.length === 0) await new Promise((done) => setTimeout(done, 1));
    t.match(connection.seen, [{ presence: [{ uid: "u1", online: false }] }]);
    t.same(bugs, []);
  },
);
