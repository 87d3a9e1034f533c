// What an app sees of the SDK: the client, what it hears, what it sends. Types only.

import type { CloseReason } from "../broker/errors.ts";
import type {
  ChannelRef,
  Presence,
  StreamNote,
  StreamState,
} from "../broker/model.ts";
import type { JindouError } from "./errors.ts";

/**
 * `connecting`: on the way. `online`: messages flow. `offline`: waiting for the next try. `closed`: over for good, by `close()` or by the
 * server (`kicked` told why).
 */
export type Status = "connecting" | "online" | "offline" | "closed";

/** The JSON document in a payload. */
export interface Content {
  readonly type: number;
  readonly [field: string]: unknown;
}

export interface SendOptions {
  /** Your number for the message: sending it again with the same one is the same message. Default: a new one. */
  readonly clientMsgNo?: string;
  /** Counts as unread for the receivers. Default: true. */
  readonly redDot?: boolean;
  /** Seconds until it leaves history. Default: 0, never. */
  readonly expireS?: number;
  /** Delivered to who is online, not stored. Default: false. */
  readonly noPersist?: boolean;
  /** A command: kept in each receiver's inbox until acknowledged, not in the channel's history. Default: false. */
  readonly syncOnce?: boolean;
  /** A label that comes back in history. */
  readonly tagKey?: string;
}

/** The server's receipt: the message is durable. */
export interface Sent {
  readonly messageId: number;
  /** Place in the channel; 0 when it has none (noPersist, commands). */
  readonly messageSeq: number;
  readonly clientMsgNo: string;
}

export interface ReceivedMessage {
  /** As this user names it: a personal channel has the other user's uid. */
  readonly channel: ChannelRef;
  /** Unique, growing. */
  readonly messageId: number;
  /** Place in the channel, from 1; 0 when it has none. */
  readonly messageSeq: number;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  /** When the server accepted it, Unix milliseconds. */
  readonly timestampMs: number;
  readonly redDot: boolean;
  readonly noPersist: boolean;
  /** Seconds after `timestampMs` until it is no longer to be shown; 0: never. */
  readonly expireS: number;
  /** The clientMsgNo of a stream it refers to. */
  readonly streamNo: string | undefined;
  readonly tagKey: string | undefined;
  readonly payload: Uint8Array;
  /** The payload's JSON object; undefined when it is none. Of a stream: the text as it was when the message came. */
  readonly content: Content | undefined;
  /** The stream whose message this is; it goes on by itself while it is active. */
  readonly stream: Stream | undefined;
}

/** How a stream ended, and all of its text. */
export interface StreamEnd {
  readonly state: Exclude<StreamState, "active">;
  readonly text: string;
}

/**
 * A text that is being written. It follows the server through lost connections: `text` is at any time a beginning of the stream's text,
 * without a gap or a repeat. Iterating gives the text from its beginning in pieces until the stream ends, however it ends (see `state`).
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
  /** What the producer gave with the start. */
  readonly startData: string;
  /** What the producer gave with the end; undefined while active. */
  readonly endData: string | undefined;
  /** The tool-call events so far. */
  readonly notes: readonly StreamNote[];
  /** Resolves at the end. Rejects with JindouError when the stream cannot be followed any more, `closed` among others. */
  readonly finished: Promise<StreamEnd>;
  /** The text in pieces: from its beginning, or only what comes from now on. Throws what `finished` rejects with. */
  pieces(from?: "start" | "now"): AsyncIterable<string>;
  /** The stop button. Resolves with the state, `cancelled` unless the stream had ended already. */
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

/** A command; acknowledged when all handlers are through without an error. */
export interface Command {
  readonly channel: ChannelRef;
  readonly messageId: number;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  readonly timestampMs: number;
  readonly payload: Uint8Array;
  readonly content: Content | undefined;
}

/** How this user stands to a channel. */
export interface ConversationView {
  readonly channel: ChannelRef;
  readonly headSeq: number;
  readonly readSeq: number;
  readonly unread: number;
  /** Messages through this seq are not shown: the conversation was deleted then. */
  readonly deletedSeq: number;
  readonly changedAtMs: number;
  readonly last: ReceivedMessage | undefined;
}

export interface ConversationPage {
  /** Newest message first. */
  readonly conversations: readonly ConversationView[];
  /** There are more behind the last one, also where fewer came than `limit`: ask on with `offset` moved on by as many as came. */
  readonly more: boolean;
}

export interface HistoryOptions {
  /** First seq wanted. Default: 1. */
  readonly fromSeq?: number;
  /** Last seq wanted. Default: the newest. */
  readonly toSeq?: number;
  /** Most messages wanted. Default: 50. */
  readonly limit?: number;
  /** Newest first, and the limit keeps the newest of the range. Default: true, unless `fromSeq` is given. */
  readonly newestFirst?: boolean;
}

export interface HistoryResult {
  readonly messages: readonly ReceivedMessage[];
  /** The channel's newest seq. */
  readonly headSeq: number;
  /** The range holds messages beyond these. */
  readonly more: boolean;
}

/** Through which message the app has a channel. */
export interface Cursor {
  readonly channel: ChannelRef;
  readonly lastSeq: number;
  /** The greatest id of a message the app has: tells where a fail-over lost messages and others took their places. None or 0: not known. */
  readonly lastId?: number;
}

export interface ClientEvents {
  /** In the order of the channel, each once. What this client sent itself is answered by `send` instead. */
  readonly message: ReceivedMessage;
  readonly event: ReceivedEvent;
  /** An active stream came into sight: it started, or this client came late. */
  readonly stream: Stream;
  readonly command: Command;
  /** Another session of the user changed it. */
  readonly conversation: {
    readonly change: "read" | "unread" | "delete";
    readonly conversation: ConversationView;
  };
  /** A watched user came or went. */
  readonly presence: Presence;
  readonly status: Status;
  /** The server ended the session for good; the client does not come back by itself. */
  readonly kicked: {
    readonly reason: CloseReason;
    readonly code: number;
    readonly message: string;
  };
  /** What no call can be rejected with. */
  readonly error: JindouError;
}

/** Promises reject with JindouError only. */
export interface Client {
  readonly uid: string;
  readonly deviceId: string;
  readonly status: Status;
  /** Calls `handler` until the returned function is called. A `command` handler may return a promise. Throws `bad_option` for an unknown event. */
  on<E extends keyof ClientEvents>(
    event: E,
    handler: (value: ClientEvents[E]) => unknown,
  ): () => void;
  /** Resolves when online; rejects when the client is closed for good, with the reason. */
  ready(): Promise<void>;
  /**
   * Sends a text, a content object or bytes; resolves when the message is durable. Waits while offline, and is repeated after a lost
   * connection without ever becoming two messages. Messages of one channel keep the order of the calls. Rejects with `queue_full`,
   * `closed`, and what the server refuses.
   */
  send(
    channel: ChannelRef,
    content: string | Content | Uint8Array,
    options?: SendOptions,
  ): Promise<Sent>;
  history(
    channel: ChannelRef,
    options?: HistoryOptions,
  ): Promise<HistoryResult>;
  /** Any stream of the channel, active or ended. Rejects with `stream_unknown`. */
  streamOf(channel: ChannelRef, clientMsgNo: string): Promise<Stream>;
  /** `limit`: 1 to 500, default 100. `offset`: how many of the newest to leave out. */
  conversations(page?: {
    readonly limit?: number;
    readonly offset?: number;
  }): Promise<ConversationPage>;
  /** Everything through `seq` is read; a lower one than before makes messages unread again. */
  markRead(channel: ChannelRef, seq: number): Promise<ConversationView>;
  /** As many unread as that, as far as there are. */
  setUnread(channel: ChannelRef, unread: number): Promise<ConversationView>;
  /** Hides the conversation and all its messages until a new one comes. */
  deleteConversation(channel: ChannelRef): Promise<ConversationView>;
  /** Who is online now; one record per uid, in order. */
  presence(uids: readonly string[]): Promise<readonly Presence[]>;
  /**
   * Tells `handler` how each user stands, and from then on every change, until the returned function is called. At most 200 different
   * users at a time over all watches: throws `too_large`.
   */
  watchPresence(
    uids: readonly string[],
    handler: (presence: Presence) => unknown,
  ): () => void;
  /** Where each channel stands, most recently used last: keep it, and give it to the next `connect` to go on from there. */
  cursors(): readonly Cursor[];
  /** Ends the session. What waits is rejected with `closed`. Safe to call twice. */
  close(): Promise<void>;
}
