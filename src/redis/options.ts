// Schema of the settings for the Redis that nodes share. The drivers receive plain numbers, strings
// and booleans.

import { Type } from "typebox";

export const redisOptions = Type.Object(
  {
    url: Type.String({
      default: "",
      maxLength: 2048,
      secret: true,
      description:
        "Address of the Redis that several nodes share, as redis://user:password@host:port/db (rediss:// for TLS). If it is set, this node is part of a cluster and stores no data itself. Several addresses, separated by commas, are the initial nodes of a Redis Cluster, or Sentinels if redis.sentinelName is set.",
    }),
    cluster: Type.Boolean({
      default: false,
      description:
        "Whether the single address in redis.url is a node of a Redis Cluster. If false, a single address is a single server. Several addresses always mean a Cluster or Sentinels.",
    }),
    sentinelName: Type.String({
      default: "",
      maxLength: 128,
      description:
        "Name of the primary that the Sentinels in redis.url monitor. An empty value means that redis.url does not name Sentinels.",
    }),
    sentinelPassword: Type.String({
      default: "",
      maxLength: 1024,
      secret: true,
      description: "Password of the Sentinels, if they have one.",
    }),
    caFile: Type.String({
      default: "",
      unit: "path",
      description:
        "PEM file of the certificate authority that signed Redis' certificate (rediss://). An empty value means the system's certificate authorities.",
    }),
    prefix: Type.String({
      default: "jd",
      pattern: "^[A-Za-z0-9._-]{1,32}$",
      description: "Prefix of every key. Clusters with different prefixes can share one Redis.",
    }),
    minReplicas: Type.Integer({
      default: 0,
      minimum: 0,
      maximum: 16,
      unit: "replicas",
      description:
        "Number of replicas that must have received a message before it is acknowledged (WAIT). If fewer replicas confirm in time, the send is rejected with 503 and can be retried. On startup, the node waits until this many replicas are connected and confirm a write. 0 means that the primary is enough.",
    }),
    timeoutMs: Type.Integer({
      default: 3000,
      minimum: 100,
      maximum: 60_000,
      unit: "milliseconds",
      description:
        "Maximum time to wait for a reply from Redis. After that time, the call is rejected as unavailable.",
    }),
    maxInFlight: Type.Integer({
      default: 20_000,
      minimum: 100,
      maximum: 1_000_000,
      unit: "commands",
      description:
        "Maximum number of commands that wait for a reply from Redis at once. Further calls are rejected as overloaded. Each command holds its message in memory, so lower the value for large messages on a node with little memory.",
    }),
  },
  { additionalProperties: false },
);
