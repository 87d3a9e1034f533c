// The configuration keys of the Redis that nodes share. A schema only: values reach the drivers as
// plain numbers and strings.

import { Type } from "typebox";

export const redisOptions = Type.Object(
  {
    url: Type.String({
      default: "",
      maxLength: 2048,
      secret: true,
      description:
        "Redis that many nodes share, as redis://user:password@host:port/db (rediss:// with TLS). Set: this node is one of a cluster and keeps nothing itself. Several addresses with a comma between: start nodes of a Redis Cluster, or Sentinels when redis.sentinelName is set.",
    }),
    cluster: Type.Boolean({
      default: false,
      description:
        "redis.url is a Redis Cluster. Without this one address is taken for a single server; several always are a Cluster or Sentinels.",
    }),
    sentinelName: Type.String({
      default: "",
      maxLength: 128,
      description:
        "Name of the primary that the Sentinels of redis.url watch. Empty: redis.url names no Sentinels.",
    }),
    sentinelPassword: Type.String({
      default: "",
      maxLength: 1024,
      secret: true,
      description: "Password of the Sentinels themselves, where they have one.",
    }),
    caFile: Type.String({
      default: "",
      description:
        "PEM file of the authority that signed Redis' certificate (rediss://). Empty: the system's.",
    }),
    prefix: Type.String({
      default: "jd",
      pattern: "^[A-Za-z0-9._-]{1,32}$",
      description: "First part of every key: clusters with different prefixes can share one Redis.",
    }),
    minReplicas: Type.Integer({
      default: 0,
      minimum: 0,
      maximum: 16,
      unit: "replicas",
      description:
        "Replicas that must have a message before it is acknowledged (WAIT); fewer in time: the sender hears 503 and retries. 0 = the primary is enough.",
    }),
    timeoutMs: Type.Integer({
      default: 3000,
      minimum: 100,
      maximum: 60_000,
      unit: "milliseconds",
      description: "How long Redis may take to answer before the call is refused as unavailable.",
    }),
    maxInFlight: Type.Integer({
      default: 20_000,
      minimum: 100,
      maximum: 1_000_000,
      unit: "commands",
      description:
        "Commands that may wait for Redis' answer at once; above it calls are refused as overloaded. Each holds its message: lower it for large messages on a node with little memory.",
    }),
  },
  { additionalProperties: false },
);
