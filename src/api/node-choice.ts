// Which node a client is told to connect to. Pure.

import type { NodeInfo } from "../broker/ports.ts";
import { crc32 } from "../lib/crc32.ts";

/** Nodes that differ by less are equally loaded: what is known of them is a heartbeat old, and not all clients may be sent to one. */
const LOAD_TOLERANCE = 0.1;
const SESSIONS_TOLERANCE = 0.1;
const SESSIONS_SLACK = 16;

/**
 * The least loaded node that takes sessions and says where it is reached; of several that are about equally loaded one by the uid, so that a crowd
 * spreads over them. Of nodes that say no address any; undefined: none takes sessions.
 */
export function chooseNode(
  nodes: readonly NodeInfo[],
  uid: string,
): NodeInfo | undefined {
  const open = nodes.filter((node) => !node.isDraining);
  const reachable = open.filter((node) => node.clientAddress !== "");
  const least = leastLoaded(reachable.length > 0 ? reachable : open);
  return least[crc32(Buffer.from(uid)) % Math.max(1, least.length)];
}

/** In the order of their ids, whoever is asked. */
function leastLoaded(nodes: readonly NodeInfo[]): readonly NodeInfo[] {
  const load = Math.min(...nodes.map((node) => node.load));
  const idle = nodes.filter((node) => node.load <= load + LOAD_TOLERANCE);
  const fewest = Math.min(...idle.map((node) => node.sessions));
  const most = fewest * (1 + SESSIONS_TOLERANCE) + SESSIONS_SLACK;
  return idle
    .filter((node) => node.sessions <= most)
    .sort((a, b) => (a.nodeId < b.nodeId ? -1 : 1));
}

/** Where a node takes clients, by kind of connection; "" where it does not. */
export interface Addresses {
  /** No node takes clients on plain TCP: always "". */
  readonly tcp: string;
  readonly ws: string;
  readonly wss: string;
}

/** Reads an address as configured: `wss://…`, `ws://…`, or `host:port`, which is `ws://host:port`. */
export function addressesOf(clientAddress: string): Addresses {
  const none = { tcp: "", ws: "", wss: "" };
  if (clientAddress === "") return none;
  if (clientAddress.startsWith("wss://"))
    return { ...none, wss: clientAddress };
  return clientAddress.startsWith("ws://")
    ? { ...none, ws: clientAddress }
    : { ...none, ws: `ws://${clientAddress}` };
}
