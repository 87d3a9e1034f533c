// Types of the public interface: the client, its calls and its events.

import type { CloseReason } from "../broker/errors.ts";
import type { ChannelRef, Presence, StreamNote, StreamState } from "../broker/model.ts";
import type { JindouError } from "./errors.ts";

/**
 * `connecting`: an attempt is under way. `online`: the session is open. `offline`: waiting for the
 * next attempt. `closed`: permanently, by `close()` or by the server (see the `kicked` event).
 */
export type Status = "connecting" | "online" | "offline" | "closed";

/** The JSON object in a payload. */
export interface Content {
  readonly type: number;
  readonly [field: string]: unknown;
}

export interface SendOptions {
  /** Idempotency key: sending with the same one again is the same message. Default: random. */
  readonly clientMsgNo?: string;
  /** Counts as unread for the receivers. Default: true. */
  readonly redDot?: boolean;
  /** Seconds until it expires from history. Default: 0, never. */
  readonly expireS?: number;
  /** Delivered to online users only, not stored. Default: false. */
  readonly noPersist?: boolean;
  /**
   * A command: kept in each receiver's inbox until acknowledged, not in the channel's history.
   * Default: false.
   */
  readonly syncOnce?: boolean;
  /** A label, returned with the message. */
  readonly tagKey?: string;
}

/** The server's acknowledgement: the message is durable. */
export interface Sent {
  readonly messageId: number;
  /** Sequence number in the channel; 0: none (noPersist, commands). */
  readonly messageSeq: number;
  readonly clientMsgNo: string;
}

export interface ReceivedMessage {
  /** A personal channel has the other user's uid as its id. */
  readonly channel: ChannelRef;
  /** Unique and increasing. */
  readonly messageId: number;
  /** Sequence number in the channel, from 1; 0: none. */
  readonly messageSeq: number;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  /** When the server accepted it, Unix milliseconds. */
  readonly timestampMs: number;
  readonly redDot: boolean;
  readonly noPersist: boolean;
  /** Seconds after `timestampMs` until it expires; 0: never. */
  readonly expireS: number;
  /** The clientMsgNo of a stream it refers to. */
  readonly streamNo: string | undefined;
  readonly tagKey: string | undefined;
  readonly payload: Uint8Array;
  /**
   * The payload's JSON object; undefined when it is not one. Of a stream: the text when the message
   * was received.
   */
  readonly content: Content | undefined;
  /** The stream that this message started; it is followed while active. */
  readonly stream: Stream | undefined;
}

/** The final state of a stream, and its whole text. */
export interface StreamEnd {
  readonly state: Exclude<StreamState, "active">;
  readonly text: string;
}

/**
 * A text while it is written. It is followed through lost connections: `text` is always a prefix of
 * the stream's text. Iterating yields the text from its beginning in pieces until the stream ends
 * (see `state`).
 */
export interface Stream extends AsyncIterable<string> {
  readonly channel: ChannelRef;
  readonly clientMsgNo: string;
  readonly fromUid: string;
  readonly messageId: number;
  readonly messageSeq: number;
  readonly state: StreamState;
  /** The text so far. */
  readonly text: string;
  /** Data of the start event. */
  readonly startData: string;
  /** Data of the end event; undefined while active. */
  readonly endData: string | undefined;
  /** The tool-call events so far. */
  readonly notes: readonly StreamNote[];
  /** Resolves at the end. Rejects when the stream cannot be followed any longer, e.g. `closed`. */
  readonly finished: Promise<StreamEnd>;
  /** The text in pieces, all of it or only later text. Throws what `finished` rejects with. */
  pieces(from?: "start" | "now"): AsyncIterable<string>;
  /** Stops the stream. Resolves with its state: `cancelled` unless it had ended before. */
  cancel(): Promise<StreamState>;
}

/** A custom event or a tool-call event. */
export interface ReceivedEvent {
  readonly channel: ChannelRef;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  readonly eventId: string;
  readonly type: string;
  readonly data: string;
  readonly timestampMs: number;
  /** The stream it belongs to. */
  readonly stream: Stream | undefined;
}

/** Acknowledged when all handlers have succeeded. */
export interface Command {
  readonly channel: ChannelRef;
  readonly messageId: number;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  readonly timestampMs: number;
  readonly payload: Uint8Array;
  readonly content: Content | undefined;
}

/** This user's conversation in a channel. */
export interface ConversationView {
  readonly channel: ChannelRef;
  readonly headSeq: number;
  readonly readSeq: number;
  readonly unread: number;
  /** Messages through this seq are hidden: the conversation was deleted then. */
  readonly deletedSeq: number;
  readonly changedAtMs: number;
  readonly last: ReceivedMessage | undefined;
}

export interface ConversationPage {
  /** Newest message first. */
  readonly conversations: readonly ConversationView[];
  /**
   * There are more, even when this page has fewer than `limit`: the next `offset` is this one plus
   * the page's length.
   */
  readonly more: boolean;
}

export interface HistoryOptions {
  /** First seq. Default: 1. */
  readonly fromSeq?: number;
  /** Last seq. Default: the newest. */
  readonly toSeq?: number;
  /** Limit of messages. Default: 50. */
  readonly limit?: number;
  /** Newest first, and the limit keeps the newest. Default: true, unless `fromSeq` is given. */
  readonly newestFirst?: boolean;
}

export interface HistoryResult {
  readonly messages: readonly ReceivedMessage[];
  /** The channel's newest seq. */
  readonly headSeq: number;
  /** The range has more messages than these. */
  readonly more: boolean;
}

/** The app's position in a channel. */
export interface Cursor {
  readonly channel: ChannelRef;
  readonly lastSeq: number;
  /**
   * The greatest id of a message the app has: detects reused seqs after a fail-over lost messages.
   * Undefined or 0: not known.
   */
  readonly lastId?: number;
}

export interface ClientEvents {
  /** In channel order, each once. Not for messages this client sent: `send` answers those. */
  readonly message: ReceivedMessage;
  readonly event: ReceivedEvent;
  /** An active stream, also one that started before this client connected. */
  readonly stream: Stream;
  readonly command: Command;
  /** Another session of the user changed a conversation. */
  readonly conversation: {
    readonly change: "read" | "unread" | "delete";
    readonly conversation: ConversationView;
  };
  /** A watched user went online or offline. */
  readonly presence: Presence;
  readonly status: Status;
  /** The server ended the session permanently; the client does not reconnect. */
  readonly kicked: {
    readonly reason: CloseReason;
    readonly code: number;
    readonly message: string;
  };
  /** Errors that belong to no call. */
  readonly error: JindouError;
}

/** Promises reject with JindouError only. */
export interface Client {
  readonly uid: string;
  readonly deviceId: string;
  readonly status: Status;
  /**
   * Calls `handler` until the returned function is called. A `command` handler may return a
   * promise. Throws `bad_option` for an unknown event.
   */
  on<E extends keyof ClientEvents>(
    event: E,
    handler: (value: ClientEvents[E]) => unknown,
  ): () => void;
  /** Resolves when online; rejects with the reason when the client is closed. */
  ready(): Promise<void>;
  /**
   * Sends a text, a content object or bytes; resolves when the message is durable. Waits while
   * offline, and is repeated after a lost connection without a duplicate. Messages of one channel
   * keep the order of the calls. Rejects with `queue_full`, `closed`, and refusals of the server.
   */
  send(
    channel: ChannelRef,
    content: string | Content | Uint8Array,
    options?: SendOptions,
  ): Promise<Sent>;
  history(channel: ChannelRef, options?: HistoryOptions): Promise<HistoryResult>;
  /** Any stream of the channel, active or ended. Rejects with `stream_unknown`. */
  streamOf(channel: ChannelRef, clientMsgNo: string): Promise<Stream>;
  /** `limit`: 1 to 500, default 100. `offset`: how many of the newest to skip. */
  conversations(page?: {
    readonly limit?: number;
    readonly offset?: number;
  }): Promise<ConversationPage>;
  /** Messages through `seq` are read; a lower seq than before makes later ones unread again. */
  markRead(channel: ChannelRef, seq: number): Promise<ConversationView>;
  /** Makes the newest `unread` messages unread, or all there are. */
  setUnread(channel: ChannelRef, unread: number): Promise<ConversationView>;
  /** Hides the conversation until a new message, and its messages permanently. */
  deleteConversation(channel: ChannelRef): Promise<ConversationView>;
  /** The presence of each uid, in the order given. */
  presence(uids: readonly string[]): Promise<readonly Presence[]>;
  /**
   * Calls `handler` with the presence of each user and with every change, until the returned
   * function is called. At most 200 users over all watches: throws `too_large`.
   */
  watchPresence(uids: readonly string[], handler: (presence: Presence) => unknown): () => void;
  /** The position in each channel, most recently used last: an option of the next `connect`. */
  cursors(): readonly Cursor[];
  /** Ends the session; waiting calls are rejected with `closed`. Safe to call twice. */
  close(): Promise<void>;
}
