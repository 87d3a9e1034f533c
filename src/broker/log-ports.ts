// The port of logs. A log is an append-only list of frames with one content type, for example a
// Durable Stream. A reader starts at an offset. The content of a text stream in a channel is a log
// that belongs to the stream's message. The frames, offsets and names of logs are defined in
// `log-frame.ts`. The comment of a method is its contract. Every driver must fulfil it, and
// `test/contract/` checks that.

import type { LogName, LogOffset } from "./log-frame.ts";

/**
 * Reason why a log was closed.
 *
 *     closed       its writer closed it
 *     stopped      a viewer cancelled the stream
 *     cancelled    its producer cancelled it, or another stream was started by force
 *     interrupted  its producer sent no event for `silentMs` (see `StreamStore.interruptStreams`)
 */
export type LogEnding = "closed" | "stopped" | "cancelled" | "interrupted";

/** Limits that a store applies to every log, from the settings `logs.*`. */
export interface LogLimits {
  /** Maximum number of bytes of a log's frames, including the frames that a fork inherits. */
  readonly maxBytes: number;
  /** Maximum number of records of a log, including the records that a fork inherits. */
  readonly maxRecords: number;
  /**
   * Maximum number of producers whose state is kept in a log. A further producer replaces the
   * producer that has been silent for the longest time, if that time is longer than the dedupe
   * window.
   */
  readonly maxProducers: number;
  /** Maximum number of heads that the embedded store keeps in memory. More logs can exist. */
  readonly maxOpen: number;
  /** Maximum total size of this node's appends that have not yet reached the database or Redis. */
  readonly maxActiveBytes: number;
}

/** The state of a log without its records. */
export interface LogHead {
  /** Random number of 32 bits. A log that is deleted and created again gets a different number. */
  readonly incarnation: number;
  readonly contentType: string;
  /** Offset after the last frame. */
  readonly tail: LogOffset;
  /** Number of records before the tail, including those that a fork inherits. */
  readonly records: number;
  /** Reason why the log was closed. `undefined` while the log is open. */
  readonly closed: LogEnding | undefined;
  /** Sliding time to live (see `LogStore`). `undefined` if the log has no time to live. */
  readonly ttlS: number | undefined;
  /** Fixed expiry time in Unix milliseconds. `undefined` if the log has no fixed expiry time. */
  readonly expiresAtMs: number | undefined;
}

export interface LogOrigin {
  readonly source: LogName;
  /** Offset of the source at which the fork begins. `undefined` means the source's tail. */
  readonly offset: LogOffset | undefined;
  /**
   * Amount of the source's next frame that the fork also inherits, in records if the log is in JSON
   * mode, otherwise in bytes. Must be 0 if `offset` is `undefined`.
   */
  readonly subOffset: number;
}

export interface LogDraft {
  /**
   * Content type as it is stored and returned. `undefined` only for a fork that has the content
   * type of its source.
   */
  readonly contentType: string | undefined;
  /**
   * At most one of `ttlS` and `expiresAtMs` is set. A fork with neither field has its source's
   * expiry.
   */
  readonly ttlS: number | undefined;
  readonly expiresAtMs: number | undefined;
  readonly closed: LogEnding | undefined;
  /** Records of the first append. They follow the records that a fork inherits. May be empty. */
  readonly records: readonly Uint8Array[];
  readonly origin: LogOrigin | undefined;
}

/**
 * The outcome of `createLog`. Only a call with the verdict `created` changed anything.
 *
 *     created         the log was created
 *     exists          the log already exists with the same configuration: the same media type,
 *                     time to live, expiry time, origin and state (open or closed)
 *     conflict        the log already exists with a different configuration
 *     deleted         the log was deleted or has expired, but forks of it still exist
 *     source_missing  the source does not exist
 *     source_deleted  the source was deleted or has expired, but forks of it still exist
 *     source_type     the source has a different media type
 *     bad_offset      the fork offset does not exist in the source
 *     bad_sub_offset  the frame after the fork offset is missing, or shorter than the sub-offset
 *     full            the records exceed `limit`. `depth`: the fork exceeds `MAX_FORK_DEPTH`.
 *                     `streams`: the channel has `MAX_OPEN_STREAMS` active streams
 */
export type LogCreation =
  | { readonly verdict: "created" | "exists"; readonly head: LogHead }
  | {
      readonly verdict:
        | "conflict"
        | "deleted"
        | "source_missing"
        | "source_deleted"
        | "source_type"
        | "bad_offset"
        | "bad_sub_offset";
    }
  | { readonly verdict: "full"; readonly limit: LogLimit };

export type LogLimit = "bytes" | "records" | "producers" | "depth" | "streams";

/**
 * Maximum length of a fork's chain of sources: its source, the source of that source, and so on.
 */
export const MAX_FORK_DEPTH = 64;

/**
 * Maximum number of active streams of a channel. It bounds the number of streams that a node reads
 * when it catches up with the channel. Streams that `POST /event` starts are counted, but are never
 * refused.
 */
export const MAX_OPEN_STREAMS = 100;

/**
 * Name and numbers that identify a producer's request, so that retries are recognised [Durable
 * Streams 5.2.1].
 */
export interface LogProducer {
  readonly id: string;
  readonly epoch: number;
  /** Number of the request. In each epoch, numbers start at 0 and have no gaps. */
  readonly number: number;
}

export interface LogAppend {
  /** Records of one request, which become one frame. Empty only if `close` is set. */
  readonly records: readonly Uint8Array[];
  /** Content type of the records. `undefined` if `records` is empty. */
  readonly contentType: string | undefined;
  readonly producer: LogProducer | undefined;
  /** `Stream-Seq` of the request. Must be higher than the log's last `Stream-Seq` (bytewise). */
  readonly order: string | undefined;
  /** Closes the log after the records. */
  readonly close: LogEnding | undefined;
}

/**
 * The outcome of `appendLog`. Only a call with the verdict `appended` changed anything.
 *
 *     appended      the records were appended, or the log was closed, or both
 *     repeated      the producer's number was accepted before, or a request without records closes
 *                   a log that is already closed. `number` is the highest accepted number
 *     missing       there is no such log
 *     deleted       the log was deleted or has expired, but forks of it still exist
 *     closed        the log is closed
 *     other_type    the log has a different media type
 *     stale_epoch   the producer already has a higher epoch, `epoch`
 *     bad_start     the first number of a new epoch is not 0
 *     gap           earlier numbers of the producer are missing. `expected` is its next number,
 *                   or 0 if the producer is unknown
 *     out_of_order  `order` is not higher than that of the last append with an `order`
 *     full          the append would exceed `limit`. `producers`: the log has `maxProducers`
 *                   producers, and each wrote within the dedupe window
 */
export type LogAppendResult =
  | {
      readonly verdict: "appended" | "repeated";
      readonly tail: LogOffset;
      readonly closed: LogEnding | undefined;
      /**
       * Epoch and highest accepted number of the producer. `undefined` if the append has no
       * producer.
       */
      readonly producer: Pick<LogProducer, "epoch" | "number"> | undefined;
    }
  | { readonly verdict: "missing" | "deleted" | "other_type" | "bad_start" | "out_of_order" }
  | { readonly verdict: "closed"; readonly tail: LogOffset; readonly closed: LogEnding }
  | { readonly verdict: "stale_epoch"; readonly epoch: number }
  | { readonly verdict: "gap"; readonly expected: number }
  | { readonly verdict: "full"; readonly limit: LogLimit };

export interface LogRange {
  /**
   * Offset at which the read begins. `undefined` means the tail, so that no frames are returned.
   */
  readonly from: LogOffset | undefined;
  /**
   * Maximum total size of the frames, in bytes. The first frame is returned even if it is larger.
   */
  readonly maxBytes: number;
}

/**
 * The outcome of `readLog`.
 *
 *     read     the frames that follow `from`, as bytes: each piece consists of whole frames, and
 *              the pieces follow each other. `next` is the offset after the last frame. The
 *              reader has reached the end of the log if `next` equals `head.tail`
 *     missing  there is no such log
 *     deleted  the log was deleted or has expired, but forks of it still exist
 *     lost     the log has no such offset: the log is shorter, or its frames before `from` differ
 */
export type LogRead =
  | {
      readonly verdict: "read";
      readonly head: LogHead;
      /** Offset at which the frames begin: `from`, or the tail if `from` is `undefined`. */
      readonly start: LogOffset;
      readonly pieces: readonly Uint8Array[];
      readonly next: LogOffset;
    }
  | { readonly verdict: "missing" | "deleted" | "lost" };

/**
 * Logs. Every call is one atomic step, except that creating a fork whose source is in a different
 * bucket first adds a reference to the source. A call returns when its result is durable.
 *
 * A frame is never changed once it can be read. Two reads of a range return equal bytes, on any
 * node and after a restart. If a store loses acknowledged writes, a read from an offset that was
 * lost returns `lost`.
 *
 * A log with a time to live expires if it has been neither appended to nor read for that time. A
 * use is stored only if the last stored use was longer ago than a quarter of the time to live. The
 * log expires 1¼ times the time to live after its last stored use. Expiry is checked at each call,
 * and a sweep of the driver later removes expired logs. An expired log is treated as missing, or as
 * deleted if it has forks.
 *
 * Throws `disk_full` and `unavailable`. Throws `overloaded` if the frames in memory exceed
 * `maxActiveBytes`.
 */
export interface LogStore {
  /** Creates the log, or checks that it exists with the same configuration. */
  createLog(name: LogName, draft: LogDraft): Promise<LogCreation>;
  /**
   * Appends records, closes the log, or both. First checks that the log exists, and then that it is
   * open (or that the producer's number is repeated). Then checks the media type, the producer,
   * `order` and the limits, in this order. Appends to one log take effect in the order of the
   * calls. Once an append is durable, it is published as a `log` event.
   */
  appendLog(name: LogName, append: LogAppend): Promise<LogAppendResult>;
  /** Returns the head. Does not count as a use of the log. */
  logHead(name: LogName): Promise<LogHead | "missing" | "deleted">;
  /**
   * Returns frames. Counts as a use of the log, even if it returns no frames. A read of a fork may
   * stop where the fork's own frames begin.
   */
  readLog(name: LogName, range: LogRange): Promise<LogRead>;
  /**
   * Deletes the log and all data about it, and publishes a `log` event. While forks of the log
   * exist, its frames are kept for the forks. The frames are removed with the last fork. If there
   * is no such log, changes nothing and returns `missing` or `deleted`.
   */
  deleteLog(name: LogName): Promise<"done" | "missing" | "deleted">;
}

export const MAX_LOG_EVENT_BYTES = 4096;

/**
 * A change to a log, published on its bucket's topic (`logTopic`). Events of one log arrive in the
 * order of their offsets, but some may be lost. A reader detects a lost event by comparing `from`
 * with its own position.
 */
export interface LogEvent {
  readonly kind: "log";
  /** Name of the log, as returned by `logNameText`. */
  readonly nameText: string;
  /** Incarnation of the log (see `LogHead`). */
  readonly incarnation: number;
  readonly change: "appended" | "deleted";
  /** Tail before and after the change. */
  readonly from: LogOffset;
  readonly tail: LogOffset;
  readonly closed: LogEnding | undefined;
  /**
   * The new frame. `undefined` if nothing was appended, or if the frame is larger than
   * `MAX_LOG_EVENT_BYTES`.
   */
  readonly frame: Uint8Array | undefined;
}
