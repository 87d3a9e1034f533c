// The configuration keys of how nodes make one cluster. A schema only: values reach the parts as plain numbers and strings.

import { Type } from "typebox";

/** Section `cluster`: how nodes that share a Redis know of each other, and what clients are told of them. */
export const clusterOptions = Type.Object(
  {
    heartbeatMs: Type.Integer({
      default: 500,
      minimum: 20,
      maximum: 60_000,
      unit: "milliseconds",
      description:
        "Between two signs of life of this node, and between two looks at which nodes live.",
    }),
    deadAfterMs: Type.Integer({
      default: 2000,
      minimum: 100,
      maximum: 600_000,
      unit: "milliseconds",
      description:
        "A node without a sign of life for so long is dead: its sessions count as offline. At least three times cluster.heartbeatMs.",
    }),
    lingerMs: Type.Integer({
      default: 10_000,
      minimum: 0,
      maximum: 600_000,
      unit: "milliseconds",
      description:
        "How long the node still hears a user or group after its last session of it went: who comes back soon costs nothing.",
    }),
    clientAddress: Type.String({
      default: "",
      maxLength: 512,
      pattern: "^((wss?://)?[A-Za-z0-9._~:/\\[\\]-]+)?$",
      description:
        "Where clients reach this node, as host:port, ws://… or wss://…: what GET /route answers. Empty: this node tells none.",
    }),
  },
  { additionalProperties: false },
);
