// The contract of the registry: which nodes a node of the cluster sees. For drivers of several
// nodes.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import type { Cluster } from "../../src/broker/ports.ts";
import { measureStalls } from "../support/stalls.ts";

export interface RegisteredNode {
  readonly cluster: Pick<Cluster, "nodeId" | "nodes">;
  close(): Promise<void>;
  /** It says nothing any more, as a process that was killed. */
  kill(): Promise<void>;
}

export interface RegistryOptions {
  readonly nodeId: string;
  readonly deadAfterMs: number;
}

export interface RegistryDriver {
  readonly name: string;
  readonly heartbeatMs: number;
  /**
   * A started node of a cluster of `prefix`. Closes itself with the test. Rejects as its start
   * does.
   */
  open(t: Test, prefix: string, options: RegistryOptions): Promise<RegisteredNode>;
  /** What says which nodes live is lost. */
  forgetNodes(node: RegisteredNode): Promise<void>;
  /** The node counts as silent since long ago. */
  declareDead(node: RegisteredNode): Promise<void>;
}

const SOON_MS = 2000;
/** So long that nobody dies of silence. */
const NEVER_MS = 600_000;

/** Runs the contract against the driver. */
export function registryContract(t: Test, driver: RegistryDriver): void {
  const { name, heartbeatMs } = driver;

  /** Of a cluster of its own. */
  function world(t: Test, deadAfterMs: number) {
    const prefix = `w${randomUUID().slice(0, 8)}`;
    return (nodeId: string) => driver.open(t, prefix, { nodeId, deadAfterMs });
  }

  t.test(`${name}: a node names itself first, then the others`, async (t) => {
    const open = world(t, NEVER_MS);
    const [a, b] = [await open("a"), await open("b")];
    t.same(await seen(b), ["b", "a"], "it knows from its start");
    await until(async () => (await seen(a)).join() === "a,b", "a hears of b");
    const [, other] = await a.cluster.nodes();
    t.match(other, { nodeId: "b", isDraining: false, sessions: 0 });
  });

  t.test(`${name}: a node that leaves is gone at once`, async (t) => {
    const open = world(t, NEVER_MS);
    const [a, b] = [await open("a"), await open("b")];
    await until(async () => (await seen(a)).length === 2, "a hears of b");
    await b.close();
    await until(async () => (await seen(a)).length === 1, "it is gone");
    await t.rejects(b.cluster.nodes(), { code: "unavailable" });
    const again = await open("b");
    t.same(await seen(again), ["b", "a"], "its id is free");
  });

  t.test(`${name}: a node that falls silent is gone in time`, async (t) => {
    const open = world(t, SOON_MS);
    const [a, b] = [await open("a"), await open("b")];
    await until(async () => (await seen(a)).length === 2, "a hears of b");
    const stalls = measureStalls(t);
    const since = performance.now();
    await b.kill();
    await until(async () => (await seen(a)).length === 1, "it is gone");
    const tookMs = performance.now() - since;
    t.ok(tookMs > SOON_MS - 2 * heartbeatMs, `not before: ${tookMs} ms`);
    t.ok(tookMs < 3 * SOON_MS + 10 * stalls.totalMs(), `${tookMs} ms`);
  });

  t.test(`${name}: no two nodes live under one id`, async (t) => {
    const open = world(t, SOON_MS);
    const first = await open("same");
    await t.rejects(open("same"), /"same"/);
    t.same(await seen(first), ["same"]);
    await first.kill();
    const second = await open("same");
    t.same(await seen(second), ["same"], "its predecessor is dead");
  });

  t.test(`${name}: a node that was declared dead lives on`, async (t) => {
    const open = world(t, SOON_MS);
    const [a, b] = [await open("a"), await open("b")];
    await until(async () => (await seen(a)).length === 2, "a hears of b");
    for (let round = 0; round < 3; round++) {
      await driver.declareDead(b);
      await pause(3 * heartbeatMs);
      await until(async () => (await seen(a)).join() === "a,b", "it is back");
      await until(async () => (await seen(b)).join() === "b,a", "it sees a");
    }
  });

  t.test(`${name}: nodes that were forgotten say that they live`, async (t) => {
    const open = world(t, NEVER_MS);
    const all = [await open("a"), await open("b"), await open("c")];
    const [a] = all as [RegisteredNode];
    await until(async () => (await seen(a)).length === 3, "a hears of all");
    await driver.forgetNodes(a);
    await pause(3 * heartbeatMs);
    for (const one of all) await until(async () => (await seen(one)).length === 3, "all are back");
  });
}

/** The ids of the living, as the node tells them. */
async function seen({ cluster }: RegisteredNode): Promise<readonly string[]> {
  const [self, ...others] = await cluster.nodes();
  const ids = others.map(({ nodeId }) => nodeId).sort();
  return [self?.nodeId ?? "", ...ids];
}

const pause = (ms: number) => new Promise((go) => setTimeout(go, ms));

async function until(holds: () => Promise<boolean>, what: string): Promise<void> {
  const deadline = performance.now() + 120_000;
  while (!(await holds().catch(() => false))) {
    if (performance.now() > deadline) throw new Error(`not in time: ${what}`);
    await pause(10);
  }
}
