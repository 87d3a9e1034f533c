// The calls about the nodes of the cluster: which there are, and where a client should connect. State: none.

import { BrokerError } from "../broker/errors.ts";
import type { Clock, NodeInfo, NodeRegistry } from "../broker/ports.ts";
import { addressesOf, chooseNode } from "./node-choice.ts";
import { jsonReply } from "./reply.ts";
import type { Outcome } from "./route.ts";

export interface ClusterParts {
  readonly cluster: NodeRegistry;
  readonly clock: Clock;
}

export interface ClusterCalls {
  nodes(): Outcome;
  /** Where `uid` should connect; without one, where anybody should. */
  route(query: { readonly uid?: string }): Outcome;
  routeBatch(uids: readonly string[]): Outcome;
}

export function createClusterCalls(parts: ClusterParts): ClusterCalls {
  const { cluster, clock } = parts;
  return {
    async nodes() {
      const nodes = await cluster.nodes();
      const nowMs = clock();
      return jsonReply(JSON.stringify(nodes.map((one) => toJson(one, nowMs))));
    },

    async route({ uid = "" }) {
      const node = placeFor(await cluster.nodes(), uid);
      return jsonReply(JSON.stringify(addressJson(node)));
    },

    async routeBatch(uids) {
      const nodes = await cluster.nodes();
      const groups = new Map<NodeInfo, string[]>();
      for (const uid of uids) {
        const node = placeFor(nodes, uid);
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

function placeFor(nodes: readonly NodeInfo[], uid: string): NodeInfo {
  const node = chooseNode(nodes, uid);
  if (node === undefined)
    throw new BrokerError("unavailable", {
      message: "No node takes sessions now",
    });
  return node;
}

function toJson(node: NodeInfo, nowMs: number) {
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

function addressJson({ clientAddress }: NodeInfo) {
  const { tcp, ws, wss } = addressesOf(clientAddress);
  return { tcp_addr: tcp, ws_addr: ws, wss_addr: wss };
}
