// Endpoints that list the cluster's nodes and choose the node to which a client should connect.

import { Type } from "typebox";
import { BrokerError } from "../broker/errors.ts";
import type { Clock, NodeInfo, NodeRegistry } from "../broker/ports.ts";
import { crc32 } from "../lib/crc32.ts";
import { MAX_LOOKUP_UIDS, OPTIONAL_ID_PATTERN, uids } from "./fields.ts";
import { jsonReply } from "./reply.ts";

export const routeQuery = Type.Object({
  uid: Type.Optional(
    Type.String({
      pattern: OPTIONAL_ID_PATTERN,
      description:
        "User who wants to connect. Different users are spread over equally loaded nodes",
    }),
  ),
});

export const routeBatchBody = uids("Users who want to connect", MAX_LOOKUP_UIDS, {
  title: "RouteRequest",
  examples: [["alice", "bob"]],
});

export function createClusterCalls(cluster: NodeRegistry, clock: Clock) {
  return {
    async nodes() {
      const nodes = await cluster.nodes();
      const nowMs = clock();
      return jsonReply(JSON.stringify(nodes.map((node) => nodeJson(node, nowMs))));
    },

    /** Returns the addresses to which a client should connect. An empty `uid` means any client. */
    async route({ uid = "" }: { readonly uid?: string }) {
      const choice = requireChoice(await cluster.nodes(), uid);
      return jsonReply(JSON.stringify(addressJson(choice)));
    },

    async routeBatch(uids: readonly string[]) {
      const nodes = await cluster.nodes();
      const groups = new Map<string, { readonly uids: string[] } & NodeChoice>();
      for (const uid of uids) {
        const { node, tcpNode } = requireChoice(nodes, uid);
        const key = `${node.nodeId} ${tcpNode.nodeId}`;
        const group = groups.get(key);
        if (group === undefined) groups.set(key, { uids: [uid], node, tcpNode });
        else group.uids.push(uid);
      }
      const body = [...groups.values()].map(({ uids, ...choice }) => ({
        uids,
        ...addressJson(choice),
      }));
      return jsonReply(JSON.stringify(body));
    },
  };
}

/** Nodes to which a user's clients should connect. The two fields may contain the same node. */
interface NodeChoice {
  /** Node to which the user's clients should connect by WebSocket. */
  readonly node: NodeInfo;
  /** Node to which the user's clients should connect over TCP without WebSocket. */
  readonly tcpNode: NodeInfo;
}

function requireChoice(nodes: readonly NodeInfo[], uid: string): NodeChoice {
  const node = chooseNode(nodes, uid);
  const tcpNode = chooseNode(nodes, uid, "tcpAddress");
  if (node === undefined || tcpNode === undefined)
    throw new BrokerError("unavailable", {
      message: "No node accepts sessions at the moment; retry later",
    });
  return { node, tcpNode };
}

/**
 * Tolerances within which nodes are treated as equally loaded, because a node's figures may be up
 * to two heartbeat intervals old. `LOAD_TOLERANCE` is added to the lowest load. The lowest number
 * of sessions is increased by the fraction `SESSIONS_TOLERANCE` and by `SESSIONS_SLACK` sessions.
 */
const LOAD_TOLERANCE = 0.1;
const SESSIONS_TOLERANCE = 0.1;
const SESSIONS_SLACK = 16;

/** Chooses the node for a client. Prefers nodes that have an address of the kind `address`. */
export function chooseNode(
  nodes: readonly NodeInfo[],
  uid: string,
  address: "clientAddress" | "tcpAddress" = "clientAddress",
): NodeInfo | undefined {
  const accepting = nodes.filter((node) => !node.isDraining);
  const reachable = accepting.filter((node) => node[address] !== "");
  const candidates = leastLoaded(reachable.length > 0 ? reachable : accepting);
  return candidates[crc32(Buffer.from(uid)) % Math.max(1, candidates.length)];
}

/**
 * Returns the least loaded nodes. They are sorted by id, so that all nodes that have read the same
 * figures make the same choice for a uid.
 */
function leastLoaded(nodes: readonly NodeInfo[]): readonly NodeInfo[] {
  const minLoad = Math.min(...nodes.map((node) => node.load));
  const idle = nodes.filter((node) => node.load <= minLoad + LOAD_TOLERANCE);
  const minSessions = Math.min(...idle.map((node) => node.sessions));
  const maxSessions = minSessions * (1 + SESSIONS_TOLERANCE) + SESSIONS_SLACK;
  return idle
    .filter((node) => node.sessions <= maxSessions)
    .sort((a, b) => (a.nodeId < b.nodeId ? -1 : 1));
}

function nodeJson(node: NodeInfo, nowMs: number) {
  return {
    id: node.nodeId,
    address: node.clientAddress,
    tcp_address: node.tcpAddress,
    version: node.version,
    uptime: Math.max(0, Math.floor((nowMs - node.startedAtMs) / 1000)),
    sessions: node.sessions,
    load: node.load,
    draining: node.isDraining ? 1 : 0,
  };
}

/** Returns the addresses as JSON. An address without a scheme means `ws://host:port`. */
function addressJson({ node: { clientAddress: address }, tcpNode }: NodeChoice) {
  const isSecure = address.startsWith("wss://");
  const hasScheme = address === "" || address.startsWith("ws://");
  return {
    tcp_addr: tcpNode.tcpAddress,
    ws_addr: isSecure ? "" : hasScheme ? address : `ws://${address}`,
    wss_addr: isSecure ? address : "",
  };
}
