// The nodes of the cluster, and the node a client should connect to. State: none.

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
      description: "Who wants to connect; a crowd of uids is spread",
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
      return jsonReply(JSON.stringify(nodes.map((one) => nodeJson(one, nowMs))));
    },

    /** The addresses `uid` should connect to; without one, those for any client. */
    async route({ uid = "" }: { readonly uid?: string }) {
      const node = requireNode(await cluster.nodes(), uid);
      return jsonReply(JSON.stringify(addressJson(node)));
    },

    async routeBatch(uids: readonly string[]) {
      const nodes = await cluster.nodes();
      const groups = new Map<NodeInfo, string[]>();
      for (const uid of uids) {
        const node = requireNode(nodes, uid);
        const group = groups.get(node);
        if (group === undefined) groups.set(node, [uid]);
        else group.push(uid);
      }
      const body = [...groups].map(([node, group]) => ({
        uids: group,
        ...addressJson(node),
      }));
      return jsonReply(JSON.stringify(body));
    },
  };
}

function requireNode(nodes: readonly NodeInfo[], uid: string): NodeInfo {
  const node = chooseNode(nodes, uid);
  if (node === undefined)
    throw new BrokerError("unavailable", {
      message: "No node takes sessions now",
    });
  return node;
}

/** Nodes within these tolerances count as equally loaded: their figures are a heartbeat old. */
const LOAD_TOLERANCE = 0.1;
const SESSIONS_TOLERANCE = 0.1;
const SESSIONS_SLACK = 16;

/**
 * The least loaded node that takes sessions and has an address; among equally loaded nodes the uid
 * decides, so that many uids are spread. If no node has an address, any node. Undefined: no node
 * takes sessions.
 */
export function chooseNode(nodes: readonly NodeInfo[], uid: string): NodeInfo | undefined {
  const open = nodes.filter((node) => !node.isDraining);
  const reachable = open.filter((node) => node.clientAddress !== "");
  const least = leastLoaded(reachable.length > 0 ? reachable : open);
  return least[crc32(Buffer.from(uid)) % Math.max(1, least.length)];
}

/** Ordered by id, so that every node answers alike. */
function leastLoaded(nodes: readonly NodeInfo[]): readonly NodeInfo[] {
  const load = Math.min(...nodes.map((node) => node.load));
  const idle = nodes.filter((node) => node.load <= load + LOAD_TOLERANCE);
  const fewest = Math.min(...idle.map((node) => node.sessions));
  const most = fewest * (1 + SESSIONS_TOLERANCE) + SESSIONS_SLACK;
  return idle
    .filter((node) => node.sessions <= most)
    .sort((a, b) => (a.nodeId < b.nodeId ? -1 : 1));
}

function nodeJson(node: NodeInfo, nowMs: number) {
  return {
    id: node.nodeId,
    address: node.clientAddress,
    version: node.version,
    uptime: Math.max(0, Math.floor((nowMs - node.startedAtMs) / 1000)),
    sessions: node.sessions,
    load: node.load,
    draining: node.isDraining ? 1 : 0,
  };
}

/** An address is `wss://…`, `ws://…`, or `host:port`, which means `ws://host:port`. */
function addressJson({ clientAddress: address }: NodeInfo) {
  const isSecure = address.startsWith("wss://");
  const hasScheme = address === "" || address.startsWith("ws://");
  return {
    tcp_addr: "", // no node takes clients on plain TCP
    ws_addr: isSecure ? "" : hasScheme ? address : `ws://${address}`,
    wss_addr: isSecure ? address : "",
  };
}
