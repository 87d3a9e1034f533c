// What the domain asks of a store for streams: the part of the Store port (`ports.ts`) that is the stream state machine. Prose is contract,
// as there.

import type { MaybePromise } from "../lib/maybe-promise.ts";
import type {
  ChannelKey,
  ChannelRef,
  StreamSnapshot,
  StreamState,
} from "./model.ts";

/** An event of a stream before the store gave it its place. */
export interface StreamDraft {
  readonly key: ChannelKey;
  readonly channel: ChannelRef;
  readonly fromUid: string;
  /** Names the stream within the channel. */
  readonly clientMsgNo: string;
  /** The producer's own id of the event: the same one again in the same stream is a retry. Undefined: the driver makes one, no retry is known. */
  readonly eventId: string | undefined;
  /** STREAM_START, STREAM_CONTENT, STREAM_END or a tool-call event. */
  readonly type: string;
  readonly data: string;
  /** Undefined: the time of acceptance. */
  readonly timestampMs: number | undefined;
  /** Of a start: ends the channel's active stream as `cancelled` first, in the same step. */
  readonly force: boolean;
}

/**
 * What became of it. `done`: applied, or it had been applied before. `running`: a start while another stream is active. `missing`: no
 * such stream, or a tool-call event whose stream is not active. `closed`: a start or content for a stream that ended. `taken`: a start whose
 * clientMsgNo belongs to a plain message. `stopped`: a viewer cancelled the stream; nothing was added. Only `done` can have changed anything.
 */
export interface StreamStep {
  readonly verdict:
    | "done"
    | "running"
    | "missing"
    | "closed"
    | "taken"
    | "stopped";
  /** The stream's state now; undefined when there is no such stream. */
  readonly state: StreamState | undefined;
}

export interface StreamStore {
  /**
   * One atomic step of the stream state machine [spec: Streaming text session; decisions]. A start takes the channel's next seq for the
   * stream's message (red dot, never expiring by itself, remembered by clientMsgNo like any message) and publishes it as a `message` event
   * with `stream` at nextIndex 0; then every event that was applied is published as an `event` event with its place, in the order of the
   * indexes and in turn with the channel's messages, once it is durable. A retry changes and publishes nothing. Content with the event id
   * of an earlier event is a retry also after the end. An end of an ended stream is `done`.
   * Throws `too_large` when the stream would exceed its bound, `overloaded` when the node holds too much of active streams.
   */
  streamEvent(draft: StreamDraft): Promise<StreamStep>;
  /** A viewer's wish: ends an active stream as `cancelled`; an ended one stays as it is (`done`). The producer then hears `stopped`. */
  cancelStream(key: ChannelKey, clientMsgNo: string): Promise<StreamStep>;
  /** Ends every stream as `interrupted` that had no event since `silentSinceMs` (after a restart every stream gets that time anew). Returns how many. */
  interruptStreams(silentSinceMs: number): Promise<number>;
  /** A stream as durable and published, active or ended; undefined: none. What a read shows of a group has been published before. */
  stream(
    key: ChannelKey,
    clientMsgNo: string,
  ): MaybePromise<StreamSnapshot | undefined>;
  /** The active stream of a channel. */
  activeStream(key: ChannelKey): MaybePromise<StreamSnapshot | undefined>;
  /** The active streams of all personal channels of `uid`. */
  personalStreamsOf(uid: string): MaybePromise<readonly StreamSnapshot[]>;
  /** UTF-16 units of the stream's text before the event at `index` (at most its nextIndex); undefined: no such stream or index. */
  streamTextOffset(
    key: ChannelKey,
    clientMsgNo: string,
    index: number,
  ): MaybePromise<number | undefined>;
}
