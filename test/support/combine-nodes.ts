// Presents several nodes as one broker: each call and each socket goes to the next node in turn.
// Owns the two turn counters, and the counts of sessions that never catch up.

import type { ApiResponse, Broker } from "./broker.ts";

export type NodePorts = Pick<Broker, "apiPort" | "clientPort" | "wkprotoPort" | "call">;

const JOINING = /^jindou_sessions_joining (\d+)$/m;
/**
 * Maximum time to wait for sessions to catch up. Later waits do not include the sessions that have
 * not caught up by then, because a test may leave a client that reads nothing.
 */
const MAX_WAIT_MS = 15_000;

/** Ignores the error of a failed call. A call fails if the API is served over TLS. */
const ignore = (): void => {};

/** Combines the nodes. The metrics of the combination are the sums over all nodes. */
export function combineNodes(
  nodes: readonly [NodePorts, ...NodePorts[]],
): NodePorts & Pick<Broker, "publicationsDelivered" | "sessionsCaughtUp"> {
  let calls = 0;
  let sockets = 1;
  const nodeAt = (turn: number): NodePorts => nodes[turn % nodes.length] ?? nodes[0];
  const callAll = (path: string) => Promise.all(nodes.map(({ call }) => call(path)));
  /** Number of sessions per node that did not catch up in time. */
  const stuckCounts = new Map<NodePorts, number>();
  const countJoining = async ({ call }: NodePorts) => {
    const { body } = await call("/metrics").catch(() => ({ body: "" }));
    return Number(JOINING.exec(String(body))?.[1] ?? 0);
  };
  const waitUntilCaughtUp = async (node: NodePorts) => {
    const deadline = performance.now() + MAX_WAIT_MS;
    for (let waitMs = 2; ; waitMs = Math.min(2 * waitMs, 20)) {
      const count = await countJoining(node);
      const isOverdue = performance.now() > deadline;
      if (isOverdue) stuckCounts.set(node, count);
      if (isOverdue || count <= (stuckCounts.get(node) ?? 0)) return;
      await new Promise((go) => setTimeout(go, waitMs));
    }
  };
  return {
    get apiPort() {
      return nodeAt(calls++).apiPort;
    },
    get clientPort() {
      return nodeAt(sockets++).clientPort;
    },
    get wkprotoPort() {
      return nodeAt(sockets++).wkprotoPort;
    },
    call: async (path, body, headers) =>
      path === "/metrics" && body === undefined
        ? sumMetrics(await Promise.all(nodes.map((node) => node.call(path, body, headers))))
        : nodeAt(calls++).call(path, body, headers),

    /** Calls `/readyz`, which a node answers only after it has received its own publication. */
    async publicationsDelivered() {
      await callAll("/readyz").catch(ignore);
    },

    async sessionsCaughtUp(port) {
      const selected = nodes.filter(
        ({ clientPort, wkprotoPort }) =>
          port === undefined || port === clientPort || port === wkprotoPort,
      );
      await Promise.all(selected.map(waitUntilCaughtUp));
    },
  };
}

/** Returns the first response, with each metric replaced by its sum over all nodes. */
function sumMetrics(answers: readonly ApiResponse[]): ApiResponse {
  const [firstAnswer] = answers;
  if (firstAnswer === undefined) throw new Error("there is no node to sum up");
  if (firstAnswer.status !== 200) return firstAnswer;
  const sums = new Map<string, number>();
  for (const { body } of answers)
    for (const line of String(body).split("\n")) {
      const [, name, value] = /^([^#].*) (\S+)$/.exec(line) ?? [];
      if (name !== undefined) sums.set(name, (sums.get(name) ?? 0) + Number(value));
    }
  const body = [...sums].map(([name, sum]) => `${name} ${sum}`).join("\n");
  return { ...firstAnswer, body };
}
