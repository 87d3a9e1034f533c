// Ports, limits and error reporting that the files of this folder share.

import type { Clock, ClusterEvent, ResyncHandler } from "../../../broker/ports.ts";
import type { ChannelFeed } from "../../../redis/channel-feed.ts";
import type { RedisLink } from "../../../redis/link.ts";

export type OnError = (error: unknown, message: string) => void;

export interface TopicsPorts {
  /** Link to Redis, shared with the store. Must be started before the topics. */
  readonly link: RedisLink;
  /**
   * Reads channels from the store, without waiting until earlier events are delivered. Not used
   * before the topics are started.
   */
  readonly feed: ChannelFeed;
  readonly nodeId: string;
  readonly clock: Clock;
  readonly unsubscribeDelayMs: number;
  readonly onError: OnError;
  readonly metrics?: TopicsMetrics;
  readonly limits?: Partial<TopicsLimits>;
}

/** Checks users' access after publications were missed, before any event is delivered again. */
export interface TopicsResync extends Pick<ResyncHandler, "judgeUsers" | "judgeGroup"> {
  /**
   * Returns the time of the last confirmed heartbeat (Unix milliseconds) if this node may have been
   * declared dead since then, otherwise `undefined`.
   */
  silentSinceMs(): number | undefined;
}

export const NO_RESYNC: TopicsResync = {
  silentSinceMs: () => undefined,
  judgeUsers: async () => [],
  judgeGroup: async () => {},
};

export interface TopicsMetrics {
  repaired(): void;
  /**
   * Counts a publication that was dropped: it is not a valid frame (`unreadable`), it arrived on
   * the wrong topic (`misplaced`), or the store has not assigned its number (`disproved`).
   */
  rejected(why: "unreadable" | "misplaced" | "disproved"): void;
  resubscribed(topics: number): void;
}

interface TopicsLimits {
  /** Maximum time to wait for a missing publication before the store is read, milliseconds. */
  readonly gapMs: number;
  readonly maxDelayedUnsubscribes: number;
  readonly maxPersonal: number;
  readonly maxBufferedBytes: number;
}

export const TOPICS_LIMITS: TopicsLimits = {
  gapMs: 30,
  maxDelayedUnsubscribes: 20_000,
  maxPersonal: 100_000,
  maxBufferedBytes: 64 << 20,
};

export type Deliver = (event: ClusterEvent) => void;
