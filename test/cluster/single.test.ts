// A cluster of one node fulfils the cluster contract. The throttle of one process counts failed
// logins within a time window and for a limited number of keys.

import t from "tap";
import { LocalThrottle, SingleNode } from "../../src/cluster/single.ts";
import { clusterContract } from "../contract/cluster.ts";
import { startSingleNode } from "../store/embedded/single-node.ts";

t.test("a single node fulfils the cluster contract", async (t) => {
  const node = await startSingleNode(t);
  clusterContract(t, { name: "single", open: async () => node });
});

t.test(
  "a single node lists itself with its current number of sessions and drain state",
  async (t) => {
    const about = {
      ...{ clientAddress: "h:1", tcpAddress: "h:2" },
      ...{ version: "1.2.3", startedAtMs: 7 },
    };
    let isDraining = false;
    let sessions = 0;
    const cluster = new SingleNode("n1", {
      ...about,
      isDraining: () => isDraining,
      sessions: () => sessions,
    });
    const self = { nodeId: "n1", ...about, isDraining: false };
    t.match(await cluster.nodes(), [{ ...self, sessions: 0 }]);
    isDraining = true;
    sessions = 2;
    t.match(await cluster.nodes(), [{ sessions: 2, isDraining }]);
    const [node] = await cluster.nodes();
    t.ok(node && node.load >= 0 && node.load <= 1);
  },
);

t.test("publishing an event without a listener causes no error", async (t) => {
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

t.test("failures of a key are counted in the window that the first failure starts", async (t) => {
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

t.test(
  "the failure count of a key is 0 after the window, and the next failure starts a new window",
  async (t) => {
    const { clock, throttle } = throttleAt(1000);
    await throttle.addFailure("a", WINDOW_MS);
    clock.nowMs += WINDOW_MS - 1;
    t.same(await throttle.failures("a"), { count: 1, retryAfterS: 1 });
    clock.nowMs += 1;
    t.same(await throttle.failures("a"), { count: 0, retryAfterS: 0 });
    await throttle.addFailure("a", WINDOW_MS);
    t.same(await throttle.failures("a"), { count: 1, retryAfterS: 60 });
  },
);

t.test("clearing a key leaves the failure counts of other keys unchanged", async (t) => {
  const { throttle } = throttleAt(0);
  await throttle.addFailure("a", WINDOW_MS);
  await throttle.addFailure("b", WINDOW_MS);
  await throttle.clear("a");
  t.equal((await throttle.failures("a")).count, 0);
  t.equal((await throttle.failures("b")).count, 1);
  await t.resolves(throttle.clear("never seen"));
});

t.test(
  "a throttle over its maximum number of keys evicts the key whose last failure is the oldest",
  async (t) => {
    const { throttle } = throttleAt(0, 3);
    for (const key of ["a", "b", "c", "a", "d"]) await throttle.addFailure(key, WINDOW_MS);
    const counts = ["a", "b", "c", "d"].map(async (key) => (await throttle.failures(key)).count);
    t.same(await Promise.all(counts), [2, 0, 1, 1]);
  },
);
