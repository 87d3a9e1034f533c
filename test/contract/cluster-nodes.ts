// Contract of the node registry: the list of live nodes that each node sees. It applies to drivers
// of clusters with several nodes.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import type { Cluster } from "../../src/broker/ports.ts";
import { measureStalls } from "../support/stalls.ts";

/** A running node of the cluster. */
export interface RegisteredNode {
  readonly cluster: Pick<Cluster, "nodeId" | "nodes">;
  close(): Promise<void>;
  /** Stops the node without notifying the others, like a killed process. */
  kill(): Promise<void>;
}

export interface RegistryOptions {
  readonly nodeId: string;
  readonly deadAfterMs: number;
}

/** Opens nodes of clusters and damages their registries. */
export interface RegistryDriver {
  readonly name: string;
  readonly heartbeatMs: number;
  /**
   * Starts a node of the cluster whose keys begin with `prefix`, and rejects if the start fails.
   * The node is closed when the test ends.
   */
  open(t: Test, prefix: string, options: RegistryOptions): Promise<RegisteredNode>;
  /** Deletes the cluster's record of live nodes. */
  forgetNodes(node: RegisteredNode): Promise<void>;
  /** Makes the registry consider the node dead. */
  declareDead(node: RegisteredNode): Promise<void>;
}

/** Timeout after which a test expects a silent node to be considered dead. */
const SOON_MS = 2000;
/** Timeout that no test reaches, so that no node counts as dead because of silence. */
const NEVER_MS = 600_000;

/** Runs the contract against the driver. */
export function registryContract(t: Test, driver: RegistryDriver): void {
  const { name, heartbeatMs } = driver;

  /** Returns a function that opens nodes of a new cluster. */
  function newCluster(t: Test, deadAfterMs: number) {
    const prefix = `w${randomUUID().slice(0, 8)}`;
    return (nodeId: string) => driver.open(t, prefix, { nodeId, deadAfterMs });
  }

  t.test(`${name}: a node lists itself first, then the other nodes`, async (t) => {
    const open = newCluster(t, NEVER_MS);
    const [a, b] = [await open("a"), await open("b")];
    t.same(
      await nodesListedBy(b),
      ["b", "a"],
      "a node lists the other nodes when its start completes",
    );
    await until(async () => (await nodesListedBy(a)).join() === "a,b", "node a lists node b");
    const [, other] = await a.cluster.nodes();
    t.match(other, { nodeId: "b", isDraining: false, sessions: 0 });
  });

  t.test(`${name}: a node that closes disappears from other nodes' lists at once`, async (t) => {
    const open = newCluster(t, NEVER_MS);
    const [a, b] = [await open("a"), await open("b")];
    await until(async () => (await nodesListedBy(a)).length === 2, "node a lists node b");
    await b.close();
    await until(async () => (await nodesListedBy(a)).length === 1, "node a no longer lists node b");
    await t.rejects(b.cluster.nodes(), { code: "unavailable" });
    const reopened = await open("b");
    t.same(
      await nodesListedBy(reopened),
      ["b", "a"],
      "the id of the closed node can be used again",
    );
  });

  t.test(
    `${name}: a node without heartbeats disappears from other nodes' lists after the timeout`,
    async (t) => {
      const open = newCluster(t, SOON_MS);
      const [a, b] = [await open("a"), await open("b")];
      await until(async () => (await nodesListedBy(a)).length === 2, "node a lists node b");
      const stalls = measureStalls(t);
      const startMs = performance.now();
      await b.kill();
      await until(
        async () => (await nodesListedBy(a)).length === 1,
        "node a no longer lists node b",
      );
      const tookMs = performance.now() - startMs;
      t.ok(
        tookMs > SOON_MS - 2 * heartbeatMs,
        `the silent node is listed until the timeout, for ${tookMs} ms`,
      );
      t.ok(
        tookMs < 3 * SOON_MS + 10 * stalls.totalMs(),
        `the silent node disappears soon after the timeout, after ${tookMs} ms`,
      );
    },
  );

  t.test(`${name}: a second node with the id of a live node cannot start`, async (t) => {
    const open = newCluster(t, SOON_MS);
    const first = await open("same");
    await t.rejects(open("same"), /"same"/, "the second node is refused");
    t.same(await nodesListedBy(first), ["same"], "the first node stays");
    await first.kill();
    const second = await open("same");
    t.same(await nodesListedBy(second), ["same"], "the id is free after its node died");
  });

  t.test(`${name}: a node that was wrongly declared dead is listed again`, async (t) => {
    const open = newCluster(t, SOON_MS);
    const [a, b] = [await open("a"), await open("b")];
    await until(async () => (await nodesListedBy(a)).length === 2, "node a lists node b");
    for (let round = 0; round < 3; round++) {
      await driver.declareDead(b);
      await pause(3 * heartbeatMs);
      await until(
        async () => (await nodesListedBy(a)).join() === "a,b",
        "node a lists node b again",
      );
      await until(
        async () => (await nodesListedBy(b)).join() === "b,a",
        "node b lists node a again",
      );
    }
  });

  t.test(`${name}: live nodes are listed again after the registry was deleted`, async (t) => {
    const open = newCluster(t, NEVER_MS);
    const all = [await open("a"), await open("b"), await open("c")];
    const [a] = all as [RegisteredNode];
    await until(async () => (await nodesListedBy(a)).length === 3, "node a lists all nodes");
    await driver.forgetNodes(a);
    await pause(3 * heartbeatMs);
    for (const node of all)
      await until(
        async () => (await nodesListedBy(node)).length === 3,
        "each node lists all nodes",
      );
  });
}

/** Returns the ids of the live nodes as this node lists them, its own first. */
async function nodesListedBy({ cluster }: RegisteredNode): Promise<readonly string[]> {
  const [self, ...others] = await cluster.nodes();
  const ids = others.map(({ nodeId }) => nodeId).sort();
  return [self?.nodeId ?? "", ...ids];
}

const pause = (ms: number) => new Promise((go) => setTimeout(go, ms));

async function until(condition: () => Promise<boolean>, message: string): Promise<void> {
  const deadline = performance.now() + 120_000;
  while (!(await condition().catch(() => false))) {
    if (performance.now() > deadline) throw new Error(`timed out waiting until ${message}`);
    await pause(10);
  }
}
