// What the topics of a node on Redis read from its store to catch up with what they missed. Types
// only.

import type { ChannelKey, StreamSnapshot } from "../broker/model.ts";
import type { HistoryRange, HistorySlice } from "../broker/ports.ts";

/** Position of a channel, read in one atomic step. */
export interface ChannelPosition {
  /** Number of its newest publication; 0: none. */
  readonly publicationSeq: number;
  /** Seq of its newest message. */
  readonly headSeq: number;
  /** No message of it has a greater id so far, stored or not, and every later one has. */
  readonly lastId: number;
  /** The id of the newest message that is kept; 0: none is. */
  readonly newestId: number;
  /**
   * Of the marks that were named, those with this id or a greater one are not in the channel: lost
   * by a fail-over, or forged. Infinity: all may be.
   */
  readonly lostFromId: number;
  /** Its active stream and the requested ones, if they exist. */
  readonly streams: readonly StreamSnapshot[];
}

/** A message of a channel that a reader was given. */
export interface DeliveredMark {
  /** Its seq; of one that is not stored, the channel's newest seq before it. */
  readonly seq: number;
  readonly isStored: boolean;
  readonly messageId: number;
}

/** What a reader has of a channel. */
export interface Known {
  /** clientMsgNos of streams. */
  readonly streams: readonly string[];
  /** Ids grow. */
  readonly marks: readonly DeliveredMark[];
}

/** All throw `unavailable`. */
export interface ChannelFeed {
  position(key: ChannelKey, known: Known): Promise<ChannelPosition>;
  /**
   * Number of its newest publication, 0: none. Cheap: shows, for many channels, where something was
   * missed.
   */
  publicationSeqOf(key: ChannelKey): Promise<number>;
  messages(key: ChannelKey, range: HistoryRange): Promise<HistorySlice>;
  /**
   * Personal channels of `uid` with a message since about that time (a few seconds more is
   * harmless), Unix milliseconds.
   */
  personalChannelsSince(uid: string, sinceMs: number): Promise<readonly ChannelKey[]>;
}
