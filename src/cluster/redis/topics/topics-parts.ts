// What the topics' side of a node is made of, and how it complains: of one kind of problem at most once a second.

import type { Clock, ClusterEvent, Resync } from "../../../broker/ports.ts";
import type { ChannelFeed } from "../../../redis/arrivals.ts";
import type { RedisLink } from "../../../redis/link.ts";

export type OnProblem = (error: unknown, what: string) => void;

export interface TopicsParts {
  /** Shared with the store; started before the topics are. */
  readonly link: RedisLink;
  /** The store's reads that do not wait for arrivals. Used from `start` on. */
  readonly feed: ChannelFeed;
  readonly nodeId: string;
  readonly clock: Clock;
  /** A topic that is not wanted any more is listened to for so long, milliseconds. */
  readonly lingerMs: number;
  /** Hears of failures that no caller is told of. */
  readonly onProblem: OnProblem;
  readonly metrics?: TopicsMetrics;
  readonly limits?: Partial<TopicsLimits>;
}

/** Who may still see what this node delivers: asked before anything is delivered that was read or held after a loss. */
export interface TopicsResync
  extends Pick<Resync, "judgeUsers" | "judgeGroup"> {
  /**
   * When the last confirmed heartbeat was sent, Unix milliseconds, where that is too long ago: other nodes may take this one for dead, and tell it
   * nothing of what they end. Undefined: it is not.
   */
  silentSinceMs(): number | undefined;
}

/** Of a node without sessions. */
export const NO_RESYNC: TopicsResync = {
  silentSinceMs: () => undefined,
  judgeUsers: async () => [],
  judgeGroup: async () => {},
};

/** What the metrics table is told. */
export interface TopicsMetrics {
  /** A channel was repaired from the store. */
  repaired(): void;
  /**
   * A publication was dropped. `unreadable`: it is no frame; `misplaced`: it does not belong to the topic it came under; `disproved`: it claims a place
   * in its channel that the store does not have.
   */
  rejected(why: "unreadable" | "misplaced" | "disproved"): void;
  /** So many topics were lost with a connection or a moved slot, and are listened to again. */
  resubscribed(topics: number): void;
}

export interface TopicsLimits {
  /** How long a missing publication is waited for, milliseconds. */
  readonly gapMs: number;
  /** Topics lingered on at most. */
  readonly maxLingering: number;
  /** Personal channels whose arrivals are followed at most. */
  readonly maxPersonal: number;
  /** Bytes of publications kept before their turn, of all channels. */
  readonly maxKeptBytes: number;
}

export const TOPICS_LIMITS: TopicsLimits = {
  gapMs: 30,
  maxLingering: 20_000,
  maxPersonal: 100_000,
  maxKeptBytes: 64 << 20,
};

export type Tell = (event: ClusterEvent) => void;

const SELDOM_MS = 1000;

/** Passes on the first of each kind within a second. Kinds are few: `what` is a constant. */
export function seldom(onProblem: OnProblem): OnProblem {
  const last = new Map<string, number>();
  return (error, what) => {
    const now = performance.now();
    if (now - (last.get(what) ?? Number.NEGATIVE_INFINITY) < SELDOM_MS) return;
    last.set(what, now);
    onProblem(error, what);
  };
}
