// The options of a cluster (section `cluster`), and the heartbeat that follows from them. No state.

import { Type } from "typebox";

/** Section `cluster`: when a node counts as dead, and the address its clients are given. */
export const clusterOptions = Type.Object(
  {
    deadAfterMs: Type.Integer({
      default: 2000,
      minimum: 100,
      maximum: 600_000,
      unit: "milliseconds",
      description:
        "Time without a heartbeat after which a node counts as dead and its sessions count as offline. A node sends a heartbeat every 500 ms, or four times within this time if that is more often.",
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
/** One late heartbeat must not make a node dead. */
const HEARTBEATS = 4;

/** Interval of heartbeats: other nodes' deaths and load are known no later. */
export function heartbeatMs(deadAfterMs: number): number {
  return Math.min(MAX_HEARTBEAT_MS, deadAfterMs / HEARTBEATS);
}
