// What a node keeps its data in and knows of other nodes by. Types only; `embedded.ts` and `redis.ts` make them.

import type { Cluster, Store, Throttle } from "../broker/ports.ts";
import type { AboutNode } from "../cluster/about-node.ts";
import type { Config } from "../config/schema.ts";
import type { Logger } from "../observe/logger.ts";
import type { Metrics } from "../observe/metrics.ts";

export interface DriverParts {
  readonly config: Config;
  readonly logger: Logger;
  readonly metrics: Metrics;
  readonly about: AboutNode;
  /** The node was dead for others, and lives on. */
  readonly onNewIncarnation: () => void;
  /** Another process has the data now; must end this one at once. */
  readonly onLost: (error: unknown) => void;
}

export interface Drivers {
  /** To be started first. */
  readonly store: Store;
  readonly cluster: Cluster;
  /** Of failed logins. */
  readonly throttle: Throttle;
  /** Gives back what store and cluster share, after both were closed. Safe to call twice. */
  close(): Promise<void>;
}

/** What share of a client's buffer one stream may take. */
const VIEWER_SHARE = 4;

/** A viewer who joins is sent all of a stream at once. */
export function maxStreamBytes({ streams, client }: Config): number {
  const share = client.maxBufferedBytes / VIEWER_SHARE;
  return Math.min(streams.maxStreamBytes, share);
}
