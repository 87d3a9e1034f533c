// Settings of the `cluster` section, and the heartbeat interval derived from them.

import { Type } from "typebox";

export const clusterOptions = Type.Object(
  {
    deadAfterMs: Type.Integer({
      default: 2000,
      minimum: 100,
      maximum: 600_000,
      unit: "milliseconds",
      description:
        "Time without a heartbeat after which a node counts as dead and its sessions count as offline. A node sends a heartbeat every 500 ms, or every quarter of this time if that is shorter.",
    }),
    acceptNewTimings: Type.Boolean({
      default: false,
      description:
        "Whether this node may start even if a live node has a different value for cluster.deadAfterMs, redis.timeoutMs or store.dedupeWindowS. Until all nodes have the same value, every node uses the largest one. Set this option to true while you change one of those settings node by node.",
    }),
    clientAddress: Type.String({
      default: "",
      maxLength: 512,
      pattern: "^((wss?://)?[A-Za-z0-9._~:/\\[\\]-]+)?$",
      description:
        "Address at which clients reach this node, as host:port, ws://… or wss://…. `GET /route` returns it. An empty value means that no address is configured.",
    }),
  },
  { additionalProperties: false },
);

const MAX_HEARTBEAT_MS = 500;
/**
 * Minimum number of heartbeats within `deadAfterMs`. More than one is needed, because a heartbeat
 * may be late.
 */
const HEARTBEATS_UNTIL_DEAD = 4;

export function heartbeatMs(deadAfterMs: number): number {
  return Math.min(MAX_HEARTBEAT_MS, deadAfterMs / HEARTBEATS_UNTIL_DEAD);
}
