// Port through which a node reads the store to catch up with publications that it has missed.
// Contains only types.

import type { ChannelKey, StreamSnapshot } from "../broker/model.ts";
import type { HistoryRange, HistorySlice, StreamStore } from "../broker/ports.ts";

/** Position of a reader that has all events of a stream. */
export interface StreamTail {
  readonly clientMsgNo: string;
  /** Index of the next event. */
  readonly index: number;
  /** Number of UTF-16 code units in the stream's text. Not used if the stream was cut. */
  readonly textOffset: number;
}

/** State of a channel, read in one atomic step. */
export interface ChannelPosition {
  /** Number of the channel's newest publication, or 0 if nothing was published or imported. */
  readonly publicationSeq: number;
  /** Seq of the channel's newest message, or 0 if no message was ever stored. */
  readonly headSeq: number;
  /** Upper bound of the ids of the channel's messages so far. Later messages have higher ids. */
  readonly lastId: number;
  /** Id of the newest message in the log, or 0 if the log is empty. */
  readonly newestId: number;
  /**
   * Lowest id of the reader's marks that are certainly not in the channel, because a fail-over lost
   * them. Higher marks are not in it either. `Infinity` if no mark is known to be missing.
   */
  readonly lostFromId: number;
  /**
   * The channel's active streams, and the streams in `ReaderState.streams` that exist. Streams that
   * do not fit into the reply are left out.
   */
  readonly streams: readonly StreamSnapshot[];
  /** Positions of the streams that did not fit into the reply. `stream` can read these streams. */
  readonly otherStreams: readonly StreamTail[];
}

export interface DeliveredMark {
  /**
   * Seq of the message. For a message that is not stored, the channel's newest seq at the time of
   * its publication.
   */
  readonly seq: number;
  readonly isStored: boolean;
  readonly messageId: number;
}

export interface ReaderState {
  readonly streams: readonly string[];
  /** Newest delivered messages, sorted by message id. */
  readonly marks: readonly DeliveredMark[];
}

/** Functions that read channels. Each throws `unavailable` if Redis cannot be reached. */
export interface ChannelFeed extends Pick<StreamStore, "stream"> {
  position(key: ChannelKey, reader: ReaderState): Promise<ChannelPosition>;
  /**
   * Returns the positions of channels. On a Redis Cluster, the channels must be in one bucket. All
   * active streams are in `otherStreams`.
   */
  positions(keys: readonly ChannelKey[]): Promise<ReadonlyMap<ChannelKey, ChannelPosition>>;
  /** Returns the number of the newest publication, or 0 if nothing was published or imported. */
  publicationSeqOf(key: ChannelKey): Promise<number>;
  messages(key: ChannelKey, range: HistoryRange): Promise<HistorySlice>;
  /** Returns the user's personal channels with messages since about `sinceMs`. */
  personalChannelsSince(uid: string, sinceMs: number): Promise<readonly ChannelKey[]>;
}
