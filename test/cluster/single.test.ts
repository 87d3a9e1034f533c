// A cluster of one node keeps the cluster's contract; the failed-login counter of one process keeps its window and its bound.

import t from "tap";
import type { Device, SessionRecord } from "../../src/broker/model.ts";
import type {
  ClusterEvent,
  LoginStore,
  NewestLogin,
  UserStore,
} from "../../src/broker/ports.ts";
import { LocalThrottle, SingleNode } from "../../src/cluster/single.ts";
import { clusterContract } from "../contract/cluster.ts";
import { brittleDatabase } from "../store/embedded/brittle-database.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";

t.test("contract", async (t) => {
  const events: ClusterEvent[] = [];
  const cluster = new SingleNode("n1");
  const store = tables();
  cluster.keepLoginsIn(store);
  cluster.onEvent((event) => events.push(event));
  clusterContract(t, {
    name: "single",
    async open() {
      await cluster.start();
      return { cluster, events, store };
    },
  });
});

/** Logins and devices in memory: the embedded store has the real ones, and a test of them. */
function tables(): LoginStore & UserStore {
  const kept = new Map<string, NewestLogin>();
  const devices = new Map<string, Device>();
  return {
    async device(uid, flag) {
      return devices.get(`${uid} ${flag}`);
    },
    async putDevice(device) {
      const name = `${device.uid} ${device.flag}`;
      const before = devices.get(name);
      devices.set(name, device);
      return before;
    },
    async newestLogin(uid, flag) {
      return kept.get(`${uid} ${flag}`);
    },
    async putNewestLogin(uid, flag, login) {
      kept.set(`${uid} ${flag}`, login);
    },
  };
}

t.test("a full disk keeps no main device from reconnecting", async (t) => {
  const { fail, databaseWrites } = brittleDatabase();
  const store = await openStore(t, testFolder(t), { databaseWrites });
  const cluster = new SingleNode("n1");
  cluster.keepLoginsIn(store);
  const session = (sessionId: string): SessionRecord => ({
    ...{ sessionId, nodeId: "n1", uid: "u", flag: 0, level: 1 },
    ...{ deviceId: "phone", tokenTag: "" },
  });
  const login = await cluster.register(session("s1"), {
    claim: { label: "name" },
  });
  if (login.kind !== "entered") throw new Error("a login is entered");
  const again = { claim: { order: login.order } };
  fail.commit = 1;
  t.match(await cluster.register(session("s2"), again), {
    ...{ kind: "entered", order: login.order },
  });
  t.equal(fail.commit, 0, "it was written all the same, and the write failed");
  fail.commit = 1;
  await t.rejects(
    cluster.register({ ...session("s3"), deviceId: "other" }),
    { code: "unavailable" },
    "a login waits for the disk",
  );
  t.match(await cluster.sessionsOf("u"), [{ sessionId: "s2" }]);
});

t.test("a node tells of itself", async (t) => {
  const about = { clientAddress: "h:1", version: "1.2.3", startedAtMs: 7 };
  let isDraining = false;
  const cluster = new SingleNode("n1", {
    ...about,
    isDraining: () => isDraining,
  });
  const self = { nodeId: "n1", ...about, isDraining: false };
  t.match(await cluster.nodes(), [{ ...self, sessions: 0 }]);
  const session: SessionRecord = {
    ...{ sessionId: "s1", nodeId: "n1", uid: "u", flag: 0, level: 0 },
    ...{ deviceId: "", tokenTag: "" },
  };
  const [first, second, third] = [1, 2, 3].map((at) => ({
    ...session,
    sessionId: `s${at}`,
    deviceId: at === 1 ? "" : "d",
  })) as [SessionRecord, SessionRecord, SessionRecord];
  for (const one of [first, first, second, third]) await cluster.register(one);
  t.match(await cluster.nodes(), [{ sessions: 2 }], "the third ended another");
  await cluster.unregister(first);
  await cluster.unregister(second);
  isDraining = true;
  t.match(await cluster.nodes(), [{ sessions: 1, isDraining }]);
  const [node] = await cluster.nodes();
  t.ok(node && node.load >= 0 && node.load <= 1);
});

t.test("a publish before anybody listens is lost, not an error", async (t) => {
  const cluster = new SingleNode("n1");
  t.doesNotThrow(() =>
    cluster.publish({
      kind: "end_session",
      uid: "u",
      sessionId: "s",
      reason: "kicked",
    }),
  );
});

const WINDOW_MS = 60_000;

function throttleAt(nowMs: number, maxKeys?: number) {
  const clock = { nowMs };
  const throttle = new LocalThrottle(() => clock.nowMs, maxKeys);
  return { clock, throttle };
}

t.test("failures count within the window of the first", async (t) => {
  const { clock, throttle } = throttleAt(1000);
  t.same(await throttle.failures("a"), { count: 0, retryAfterS: 0 });
  t.same(await throttle.addFailure("a", WINDOW_MS), {
    ...{ count: 1, retryAfterS: 60 },
  });
  clock.nowMs += 20_000;
  await throttle.addFailure("a", WINDOW_MS);
  t.same(await throttle.failures("a"), { count: 2, retryAfterS: 40 });
  t.same(await throttle.failures("b"), { count: 0, retryAfterS: 0 });
});

t.test("the window's end forgets, and a new one begins", async (t) => {
  const { clock, throttle } = throttleAt(1000);
  await throttle.addFailure("a", WINDOW_MS);
  clock.nowMs += WINDOW_MS - 1;
  t.same(await throttle.failures("a"), { count: 1, retryAfterS: 1 });
  clock.nowMs += 1;
  t.same(await throttle.failures("a"), { count: 0, retryAfterS: 0 });
  await throttle.addFailure("a", WINDOW_MS);
  t.same(await throttle.failures("a"), { count: 1, retryAfterS: 60 });
});

t.test("a success clears its key alone", async (t) => {
  const { throttle } = throttleAt(0);
  await throttle.addFailure("a", WINDOW_MS);
  await throttle.addFailure("b", WINDOW_MS);
  await throttle.clear("a");
  t.equal((await throttle.failures("a")).count, 0);
  t.equal((await throttle.failures("b")).count, 1);
  await t.resolves(throttle.clear("never seen"));
});

t.test("over the bound the longest quiet key is forgotten", async (t) => {
  const { throttle } = throttleAt(0, 3);
  for (const key of ["a", "b", "c", "a", "d"])
    await throttle.addFailure(key, WINDOW_MS);
  const counts = ["a", "b", "c", "d"].map(
    async (key) => (await throttle.failures(key)).count,
  );
  t.same(await Promise.all(counts), [2, 0, 1, 1]);
});
