// What the embedded store is made with: values of the configuration and the ports it uses. Types only.

import type { BrokerError } from "../../broker/errors.ts";
import type { Clock, Publisher } from "../../broker/ports.ts";
import type { DatabaseWrites } from "./engine/tables.ts";
import type { WalFiles } from "./engine/wal.ts";

/** Plain values of the store's configuration (see `store/options.ts`) and the ports the store uses. */
export interface EmbeddedOptions {
  readonly path: string;
  readonly durability: "process" | "disk";
  readonly checkpointMs: number;
  readonly maxTailBytes: number;
  readonly maxTailRecords: number;
  readonly segmentBytes: number;
  readonly dedupeWindowS: number;
  readonly retentionS: number;
  /** How many messages each channel keeps; 0 = all. */
  readonly maxChannelMessages: number;
  readonly sweepIntervalMs: number;
  /** Data of all events of one stream. */
  readonly maxStreamBytes: number;
  /** Memory of all active streams, about. */
  readonly maxActiveStreamBytes: number;
  /** Commands a user's inbox holds at most. */
  readonly maxInbox: number;
  /** How long a command waits to be acknowledged. */
  readonly inboxTtlS: number;
  readonly publisher: Publisher;
  readonly clock: Clock;
  /** Hears of failures that no caller is told of. `what` names the activity. */
  readonly onError: (error: Error, what: string) => void;
  /**
   * Called once, when another process has taken the data folder while this one was paused. Must end the process at once: nothing is
   * written or answered any more.
   */
  readonly onLost: (error: BrokerError) => void;
  /** Only for tests that make files fail. */
  readonly files?: WalFiles;
  /** Only for tests that make the database fail. */
  readonly databaseWrites?: DatabaseWrites;
}
