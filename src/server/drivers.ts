// The ports of a node's drivers, its store and its cluster, and the settings that both kinds of
// drivers share. Must import nothing of a store or a cluster, because only one kind is loaded.

import {
  type Clock,
  type Cluster,
  LOGOUT_TTL_MS,
  type Store,
  type Throttle,
} from "../broker/ports.ts";
import type { NodeDetails } from "../cluster/node-description.ts";
import type { Config } from "../config/schema.ts";
import type { Logger } from "../observe/logger.ts";
import type { Metrics } from "../observe/metrics.ts";

export interface DriverPorts {
  readonly config: Config;
  readonly logger: Logger;
  readonly metrics: Metrics;
  readonly about: NodeDetails;
  /** Called when this node was declared dead and continues under a new incarnation. */
  readonly onNewIncarnation: () => void;
  /** Called when another process owns the data. Must exit this process at once. */
  readonly onLost: (error: unknown) => void;
  readonly newStore: boolean;
}

export interface Drivers {
  /** Store, which must be started before the cluster. */
  readonly store: Store;
  readonly cluster: Cluster;
  readonly throttle: Throttle;
  readonly clock: Clock;
  /** Milliseconds by which the time in a message id may be lower than in an earlier id. */
  readonly lookBackMs: number;
  /**
   * Connects to the server of the store before its start. Rejects with `RedisAway` if a later call
   * may succeed, otherwise with another error.
   */
  reach(): Promise<void>;
  /** Returns why the last attempt of `reach`, or a part of it, failed, if one did. */
  reason(): string | undefined;
  /** Returns true if the error results from an outage of Redis, which the log reports once. */
  isKnownOutage(error: unknown): boolean;
  /** Closes the drivers after the store and the cluster are closed. Safe to call twice. */
  close(): Promise<void>;
}

/** Divisor of `client.maxBufferedBytes`. A stream may not be larger than the quotient. */
const BUFFER_DIVISOR = 4;

/** Returns the maximum size of a stream. A viewer who joins is sent all of it in one piece. */
export function maxStreamBytes({ streams, client }: Config): number {
  const share = client.maxBufferedBytes / BUFFER_DIVISOR;
  return Math.min(streams.maxStreamBytes, share);
}

/** Returns true if `ban` also bans the account, as in WuKongIM [decisions: A banned account]. */
export function judgesBans({ api }: Config): boolean {
  return api.dialect === "wukongim";
}

/** Returns the time after which no JWT that was issued before a logout can be valid any more. */
export function logoutMs({ auth: { jwt } }: Config): number {
  return Math.max(LOGOUT_TTL_MS, (jwt.maxAgeS + 2 * jwt.clockToleranceS) * 1000);
}
