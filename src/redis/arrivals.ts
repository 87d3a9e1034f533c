// How a Redis store and a Redis cluster of one node know of each other: the store tells what its reads have seen published, the cluster reads
// from the store what it missed. Types only.

import type { ChannelKey, StreamSnapshot, Topic } from "../broker/model.ts";
import type { HistoryRange, HistorySlice } from "../broker/ports.ts";

/** What has reached this node of what was published. */
export interface Arrivals {
  /**
   * Resolves once every publication of the channel through number `pub`, and of its messages through `messageId` (0: any), has reached the node's
   * listener, or at once (undefined) where the node listens to none of the channel's topics or has had them all. Numbers may have been given out
   * again, ids are not. Never rejects: what cannot be had in time comes later, repaired.
   */
  level(
    key: ChannelKey,
    pub: number,
    messageId?: number,
  ): Promise<void> | undefined;
  /** Whether the node listens to the topic, lingering included: what is published under it comes to the node's listener. */
  listensTo(topic: Topic): boolean;
  /**
   * Resolves once everything published to this node's topics before the call has reached the node's listener; undefined where it listens to
   * none. Costs a round trip. Never rejects: what is lost meanwhile is told as missed.
   */
  barrier(): Promise<void> | undefined;
}

/** Where a channel stands, read in one atomic step. */
export interface ChannelPosition {
  /** The number of its newest publication; 0 when there was none. */
  readonly pub: number;
  /** The seq of its newest message. */
  readonly headSeq: number;
  /** No message of it has a greater id so far, stored or not, and every later one has. */
  readonly lastId: number;
  /** Its active stream and those that were asked for, as far as they are there. */
  readonly streams: readonly StreamSnapshot[];
}

/** Reads that do not wait for arrivals: what repairs them. All throw `unavailable`. */
export interface ChannelFeed {
  position(
    key: ChannelKey,
    streams: readonly string[],
  ): Promise<ChannelPosition>;
  /** The number of its newest publication, 0 when there was none: what tells cheaply, of many channels, where something was missed. */
  pubOf(key: ChannelKey): Promise<number>;
  messages(key: ChannelKey, range: HistoryRange): Promise<HistorySlice>;
  /** Personal channels of `uid` with a message since about that time (a few seconds more is harmless), Unix milliseconds. */
  personalChannelsSince(
    uid: string,
    sinceMs: number,
  ): Promise<readonly ChannelKey[]>;
}
