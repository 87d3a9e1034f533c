// Parts and limits of the topics room, and its error reporting: each kind at most once a second.

import type { Clock, ClusterEvent, ResyncHandler } from "../../../broker/ports.ts";
import type { ChannelFeed } from "../../../redis/channel-feed.ts";
import type { RedisLink } from "../../../redis/link.ts";

export type OnError = (error: unknown, what: string) => void;

export interface TopicsParts {
  /** Shared with the store; started before the topics are. */
  readonly link: RedisLink;
  /** Store reads that do not wait for delivery. Used from `start` on. */
  readonly feed: ChannelFeed;
  readonly nodeId: string;
  readonly clock: Clock;
  /** Delay of an unsubscribe, milliseconds. */
  readonly lingerMs: number;
  /** Receives failures that no caller gets. */
  readonly onError: OnError;
  readonly metrics?: TopicsMetrics;
  readonly limits?: Partial<TopicsLimits>;
}

/** Judges access after a loss, before anything read or held is delivered. */
export interface TopicsResync extends Pick<ResyncHandler, "judgeUsers" | "judgeGroup"> {
  /**
   * Time of the last confirmed heartbeat, Unix milliseconds, if that is too long ago: other nodes
   * may count this one as dead. Undefined: recent enough.
   */
  silentSinceMs(): number | undefined;
}

/** For a node without sessions. */
export const NO_RESYNC: TopicsResync = {
  silentSinceMs: () => undefined,
  judgeUsers: async () => [],
  judgeGroup: async () => {},
};

/** Metrics of the room. */
export interface TopicsMetrics {
  /** A channel caught up from the store. */
  repaired(): void;
  /**
   * A publication was dropped. `unreadable`: no valid frame; `misplaced`: wrong topic; `disproved`:
   * its number was not given out by the store.
   */
  rejected(why: "unreadable" | "misplaced" | "disproved"): void;
  /** This many lost topics are subscribed again. */
  resubscribed(topics: number): void;
}

interface TopicsLimits {
  /** Time to wait for a missing publication, milliseconds. */
  readonly gapMs: number;
  /** Limit of delayed unsubscribes. */
  readonly maxLingering: number;
  /** Limit of personal channels with a sequencer. */
  readonly maxPersonal: number;
  /** Byte limit of all reorder buffers. */
  readonly maxBufferedBytes: number;
}

export const TOPICS_LIMITS: TopicsLimits = {
  gapMs: 30,
  maxLingering: 20_000,
  maxPersonal: 100_000,
  maxBufferedBytes: 64 << 20,
};

export type Deliver = (event: ClusterEvent) => void;

const SELDOM_MS = 1000;

/** Reports the first error of each kind per second. Kinds are few: `what` is a constant. */
export function seldom(onError: OnError): OnError {
  const last = new Map<string, number>();
  return (error, what) => {
    const now = performance.now();
    if (now - (last.get(what) ?? Number.NEGATIVE_INFINITY) < SELDOM_MS) return;
    last.set(what, now);
    onError(error, what);
  };
}
