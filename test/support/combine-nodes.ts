// Several nodes as one broker: each call and each socket goes to the next node. State: whose turn
// it is.

import type { ApiResponse, Broker } from "./broker.ts";

export type NodePorts = Pick<Broker, "apiPort" | "clientPort" | "call">;

const JOINING = /^jindou_sessions_joining (\d+)$/m;
/** Longest that a session is waited for; what takes nothing for so long is not waited for again. */
const MOST_LEVELLING_MS = 15_000;

/** An API behind TLS is not asked so. */
const ignore = (): void => {};

/** What is asked of all nodes is put together: metrics are summed. */
export function combineNodes(
  nodes: readonly [NodePorts, ...NodePorts[]],
): NodePorts & Pick<Broker, "publicationsDelivered" | "sessionsCaughtUp"> {
  let calls = 0;
  let sockets = 1;
  const at = (turn: number): NodePorts => nodes[turn % nodes.length] ?? nodes[0];
  const all = (path: string) => Promise.all(nodes.map(({ call }) => call(path)));
  /** Sessions that do not get level. */
  const stuck = new Map<NodePorts, number>();
  const joining = async ({ call }: NodePorts) => {
    const { body } = await call("/metrics").catch(() => ({ body: "" }));
    return Number(JOINING.exec(String(body))?.[1] ?? 0);
  };
  const levelled = async (node: NodePorts) => {
    const deadline = performance.now() + MOST_LEVELLING_MS;
    for (let waitMs = 2; ; waitMs = Math.min(2 * waitMs, 20)) {
      const count = await joining(node);
      const isLate = performance.now() > deadline;
      if (isLate) stuck.set(node, count);
      if (isLate || count <= (stuck.get(node) ?? 0)) return;
      await new Promise((go) => setTimeout(go, waitMs));
    }
  };
  return {
    get apiPort() {
      return at(calls++).apiPort;
    },
    get clientPort() {
      return at(sockets++).clientPort;
    },
    call: async (path, body, headers) =>
      path === "/metrics" && body === undefined
        ? sumOf(await Promise.all(nodes.map((one) => one.call(path, body, headers))))
        : at(calls++).call(path, body, headers),

    /** A node is ready when what is published comes back to it. */
    async publicationsDelivered() {
      await all("/readyz").catch(ignore);
    },

    /** As far as the nodes tell: a client that takes nothing is not waited for. */
    async sessionsCaughtUp(port) {
      const asked = nodes.filter((one) => (port ?? one.clientPort) === one.clientPort);
      await Promise.all(asked.map(levelled));
    },
  };
}

/** The first answer, with each sample the sum of all nodes'. */
function sumOf(answers: readonly ApiResponse[]): ApiResponse {
  const [first] = answers;
  if (first === undefined) throw new Error("no node");
  if (first.status !== 200) return first;
  const sums = new Map<string, number>();
  for (const { body } of answers)
    for (const line of String(body).split("\n")) {
      const [, name, value] = /^([^#].*) (\S+)$/.exec(line) ?? [];
      if (name !== undefined) sums.set(name, (sums.get(name) ?? 0) + Number(value));
    }
  const body = [...sums].map(([name, sum]) => `${name} ${sum}`).join("\n");
  return { ...first, body };
}
