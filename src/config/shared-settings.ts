// Selects the settings that should be the same on all nodes of a cluster. Contains only pure
// functions.

import { CONFIG_KEYS, type Config } from "./schema.ts";

/**
 * Sections and keys that describe one process, its machine or its place in the network. The list
 * also contains `redis.prefix`, because nodes with different prefixes belong to different clusters.
 */
const OF_ONE_NODE = [
  ...[
    "api.compatListen",
    "api.listen",
    "api.tls",
    "api.trustedProxies",
    "api.maxFollowers",
    "api.maxPendingBodyBytes",
  ],
  ...["client.listen", "client.tls", "client.trustedProxies", "client.maxConnections"],
  ...["cluster.acceptNewTimings", "cluster.clientAddress", "cluster.wkprotoAddress"],
  ...["drain", "log", "migrate", "node"],
  ...["protocol.wkproto.listen", "protocol.wkproto.tls", "protocol.wkproto.trustedProxies"],
  ...["redis.caFile", "redis.cluster", "redis.maxInFlight", "redis.prefix", "redis.sentinelName"],
  ...["sockets", "start", "store.durability", "store.maxMemtableBytes", "store.path"],
  "transport",
];
/** Keys that must be equal on all nodes, which is checked separately. */
const HELD_EQUAL = ["cluster.deadAfterMs", "redis.timeoutMs", "store.dedupeWindowS"];
const EXCLUDED = [...OF_ONE_NODE, ...HELD_EQUAL];

export function sharedSettings(config: Config): Readonly<Record<string, unknown>> {
  const keys = CONFIG_KEYS.filter(
    ({ name, secret }) =>
      !secret && !EXCLUDED.some((key) => name === key || name.startsWith(`${key}.`)),
  );
  return Object.fromEntries(keys.map(({ name, path }) => [name, valueAt(config, path)]));
}

function valueAt(config: Config, path: readonly string[]): unknown {
  let value: unknown = config;
  for (const name of path) value = (value as Readonly<Record<string, unknown>>)[name];
  return value;
}
