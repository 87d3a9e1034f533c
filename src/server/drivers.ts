// The types of a node's drivers (its store and its cluster), and the values that the embedded
// drivers and the Redis drivers need. Must not import store or cluster code, because a node loads
// only one kind of drivers.

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
  /** Called when another process owns the data. This process must then exit at once. */
  readonly onLost: (error: unknown) => void;
  readonly newStore: boolean;
}

export interface Drivers {
  /** Store, which must be started before the cluster. */
  readonly store: Store;
  readonly cluster: Cluster;
  readonly throttle: Throttle;
  readonly clock: Clock;
  /**
   * Maximum number of milliseconds by which the time in a message id can be earlier than the time
   * in an id that was assigned before it.
   */
  readonly lookBackMs: number;
  /**
   * Connects to the store's server before the store is started. Rejects with `RedisAway` if a later
   * call may succeed, otherwise with a different error.
   */
  reach(): Promise<void>;
  /**
   * Returns the reason for the last failure of `reach`, or of one of its connection attempts.
   * Returns `undefined` if nothing has failed.
   */
  reason(): string | undefined;
  /** Returns true if the error results from a Redis outage, which is logged only once. */
  isKnownOutage(error: unknown): boolean;
  /** Closes the drivers after the store and the cluster have been closed. Can be called twice. */
  close(): Promise<void>;
}

/** A stream must not be larger than `client.maxBufferedBytes` divided by this number. */
const BUFFER_DIVISOR = 4;

/**
 * Returns the maximum size of a stream. The send buffer limits it, because the whole stream is sent
 * in one piece when a viewer joins.
 */
export function maxStreamBytes({ streams, client }: Config): number {
  const share = client.maxBufferedBytes / BUFFER_DIVISOR;
  return Math.min(streams.maxStreamBytes, share);
}

/**
 * Returns true if the flag `ban` of a user's personal channel also bans the account, as in WuKongIM
 * [decisions: A banned account].
 */
export function judgesBans({ api }: Config): boolean {
  return api.dialect === "wukongim";
}

/**
 * Returns the time for which the record of a logout is kept, in milliseconds. After this time,
 * every JWT that was issued before the logout is invalid.
 */
export function logoutMs({ auth: { jwt } }: Config): number {
  return Math.max(LOGOUT_TTL_MS, (jwt.maxAgeS + 2 * jwt.clockToleranceS) * 1000);
}
