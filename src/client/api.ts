// Types of the SDK's public interface: the client, its methods, options, results and events.

import type { CloseReason } from "../broker/errors.ts";
import type { ChannelRef, Presence, StreamNote, StreamState } from "../broker/model.ts";
import type { JindouError } from "./errors.ts";

/**
 * Connection status of a client:
 * - `connecting`: a connection attempt is in progress.
 * - `online`: the session is open.
 * - `offline`: the client waits before the next attempt.
 * - `closed`: closed permanently, by `close()` or by the server (see the `kicked` event).
 */
export type Status = "connecting" | "online" | "offline" | "closed";

/** Message content: the JSON object in the payload. */
export interface Content {
  /** Kind of content, for example 1 for a text message. */
  readonly type: number;
  readonly [field: string]: unknown;
}

/**
 * Content that `send` accepts. A string is sent as a text message, an object with an integer `type`
 * as JSON, and bytes unchanged.
 */
export type Sendable = string | Content | { readonly type: number } | ArrayBuffer | ArrayBufferView;

export interface SendOptions {
  /**
   * Idempotency key. A message that is sent again with the same key is stored once. Default:
   * random.
   */
  readonly clientMsgNo?: string | undefined;
  /** Whether the message counts as unread for its receivers. Default: true. */
  readonly redDot?: boolean | undefined;
  /** Number of seconds after which the message is removed from history. Default: 0, never. */
  readonly expireS?: number | undefined;
  /** If true, the message is not stored and reaches only users who are online. Default: false. */
  readonly noPersist?: boolean | undefined;
  /**
   * If true, the message is a command. It stays in each receiver's inbox until it is acknowledged,
   * and is not part of the channel's history. Default: false.
   */
  readonly syncOnce?: boolean | undefined;
  /** Label that is stored and returned with the message. */
  readonly tagKey?: string | undefined;
}

/** Acknowledgement of a message. A message that is stored is durable when it is acknowledged. */
export interface Sent {
  readonly messageId: number;
  /** Sequence number in the channel, or 0 for `noPersist` messages and commands. */
  readonly messageSeq: number;
  readonly clientMsgNo: string;
  /** Time at which the server accepted the message, in Unix milliseconds. */
  readonly timestampMs: number;
}

/**
 * A message as the app receives it, live or from history. It is plain data: it can be stored,
 * cloned, compared and made reactive. Its bytes are not shared with any other message.
 */
export interface ReceivedMessage {
  /** Channel of the message. A personal channel's id is the other user's uid. */
  readonly channel: ChannelRef;
  /** Unique id. Later messages of the channel have higher ids. */
  readonly messageId: number;
  /** Sequence number in the channel, starting at 1. 0 if the message is not stored. */
  readonly messageSeq: number;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  /** Time at which the server accepted the message, in Unix milliseconds. */
  readonly timestampMs: number;
  readonly redDot: boolean;
  readonly noPersist: boolean;
  /** Number of seconds after `timestampMs` at which the message expires. 0 means never. */
  readonly expireS: number;
  /**
   * `clientMsgNo` of the stream that the message refers to, `undefined` if it refers to no stream.
   */
  readonly streamNo: string | undefined;
  readonly tagKey: string | undefined;
  readonly payload: Uint8Array;
  /**
   * JSON object in the payload, or `undefined` if the payload is not an object with an integer
   * `type`. If the message started a stream, the content includes the text that the stream had on
   * receipt.
   */
  readonly content: Content | undefined;
  /**
   * The stream that the message started, in its state on receipt, or `undefined` if the message did
   * not start a stream. `client.stream(message)` follows the stream.
   */
  readonly stream: Stream | undefined;
}

/**
 * The known state of a stream at one point in time. A stream is text that is received while it is
 * being written. The object is plain data. `text` is always a prefix of the complete text.
 */
export interface Stream {
  readonly channel: ChannelRef;
  /** Key of the stream, unique within its channel. */
  readonly clientMsgNo: string;
  /** Uid of the producer. */
  readonly fromUid: string;
  readonly messageId: number;
  readonly messageSeq: number;
  /** `active`, or how the stream ended: `closed`, `cancelled` or `interrupted`. */
  readonly state: StreamState;
  readonly text: string;
  /** Index of the next event of the stream. If the stream has ended, the number of its events. */
  readonly nextIndex: number;
  /** Data of the event that started the stream. */
  readonly startData: string;
  /** Data of the event that ended the stream, or `undefined` while the stream is active. */
  readonly endData: string | undefined;
  readonly notes: readonly StreamNote[];
  /**
   * True if the stream is too long to be shown in full, so that `text` and `notes` lack its later
   * part. The records of `client.stream(stream.log)` contain the whole stream.
   */
  readonly truncated: boolean;
  /** Path of the stream's records. `client.stream(stream.log)` opens them. */
  readonly log: string;
}

/** An object that identifies a stream: its message, one of its events, or its channel and key. */
export interface StreamTarget {
  readonly channel: ChannelRef;
  readonly clientMsgNo: string;
  readonly stream?: Stream | undefined;
}

/**
 * A stream that the client follows across lost connections. Iterating yields the text in pieces,
 * from its beginning until the stream ends.
 */
export interface LiveStream extends AsyncIterable<string> {
  /**
   * Returns the current state of the stream, or an empty active stream before the server's first
   * reply. Returns the same object until the stream changes.
   */
  readonly snapshot: () => Stream;
  /**
   * Resolves with the stream when its state is known. Rejects with the error of `finished`, for
   * example with `stream_unknown`.
   */
  ready(): Promise<Stream>;
  /** Calls `listener` after each change. Returns a function that removes the listener. */
  readonly subscribe: (listener: () => unknown) => () => void;
  /**
   * Resolves when the stream ends. Rejects if the client cannot follow it, for example with
   * `closed` when the client is closed.
   */
  readonly finished: Promise<Stream>;
  /**
   * Yields the text in pieces: the whole text (`start`, the default), or only text that is added
   * later (`now`). Throws the error that `finished` rejects with.
   */
  pieces(from?: "start" | "now"): AsyncIterableIterator<string>;
}

/** A record of a durable stream. */
export interface StreamRecord<T = unknown> {
  /**
   * A JSON value if the content type is `application/json`. For any other type, a chunk of the data
   * as it arrived: a string for `text/*`, otherwise bytes.
   */
  readonly data: T;
  /** Offset after the record. Pass it to `records` to continue later. */
  readonly offset: string;
  /**
   * True for the first record after the stream was recreated, or after the server lost the stream's
   * last records. Reading has then restarted from the beginning, and the app must discard all
   * earlier records.
   */
  readonly restarted: boolean;
}

/** A durable stream below `/v1/stream/`. Iterating yields its records from the beginning. */
export interface RecordStream<T = unknown> extends AsyncIterable<StreamRecord<T>> {
  /**
   * Yields the records after `offset`, then new records, until the stream is closed. Continues
   * after a lost connection without gaps or repetitions. `offset` is the offset of a record, `-1`
   * for the beginning (the default), or `now` for new records only. Throws the server's error, for
   * example `stream_unknown`, if the read is refused.
   */
  records(offset?: string): AsyncIterableIterator<StreamRecord<T>>;
  /**
   * Appends a record, and resolves when it is durable. Appends keep their order. If the reply is
   * lost, the append is repeated only if the stream was opened with `producer`. Without `producer`,
   * the call then rejects with `connection_lost` or `timeout`.
   */
  append(data: T): Promise<void>;
  /** Closes the stream permanently for all users, after all earlier appends. */
  close(): Promise<void>;
}

export interface RecordStreamOptions {
  /**
   * Content type of the stream and of the data that `append` sends. Default: `application/json`.
   */
  readonly contentType?: string | undefined;
  /**
   * Name of this writer. Only one writer can use a name at a time: the writer opened last fences
   * off the others. If a name is set, an append is repeated until it is acknowledged, and is stored
   * only once.
   */
  readonly producer?: string | undefined;
}

/** A tool call or custom event from a producer, or an event from another client. */
export interface ReceivedEvent {
  readonly channel: ChannelRef;
  readonly fromUid: string;
  /**
   * Key of the event's stream, chosen by the producer. Empty if a client of `fromUid` sent the
   * event.
   */
  readonly clientMsgNo: string;
  readonly eventId: string;
  readonly type: string;
  readonly data: string;
  readonly timestampMs: number;
  /**
   * State of the event's stream after the event. `undefined` if the event is not part of a stream.
   */
  readonly stream: Stream | undefined;
}

/** Notification that a user began or stopped typing in a channel. */
export interface TypingChange {
  readonly channel: ChannelRef;
  readonly uid: string;
  readonly isTyping: boolean;
}

/**
 * A command from the user's inbox. It is acknowledged after all `command` handlers have succeeded.
 */
export interface Command {
  readonly channel: ChannelRef;
  readonly messageId: number;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  readonly timestampMs: number;
  readonly payload: Uint8Array;
  readonly content: Content | undefined;
}

export interface ConversationView {
  readonly channel: ChannelRef;
  /** The channel's newest `messageSeq`. */
  readonly headSeq: number;
  /** Read position. Messages up to and including this seq are read. */
  readonly readSeq: number;
  readonly unread: number;
  /** True if the channel is a super-large group. Its unread messages are not counted. */
  readonly large: boolean;
  /** Messages up to this seq are hidden, because the conversation was deleted. */
  readonly deletedSeq: number;
  readonly changedAtMs: number;
  /** Newest message that is not hidden, or `undefined` if no such message exists. */
  readonly last: ReceivedMessage | undefined;
}

export interface ConversationPage {
  /** Conversations, sorted by their newest message, newest first. */
  readonly conversations: readonly ConversationView[];
  /**
   * Cursor for the next page, or `undefined` on the last page. A page may be shorter than `limit`.
   */
  readonly cursor: string | undefined;
}

export interface MemberPage {
  /** Uids of permanent and temporary members, sorted. */
  readonly uids: readonly string[];
  /** Cursor for the next page, or `undefined` on the last page. */
  readonly cursor: string | undefined;
}

export interface HistoryOptions {
  /** Upper bound of the returned seqs, exclusive. Takes precedence over `toSeq`. */
  readonly before?: number | undefined;
  /** Lower bound of the returned seqs, exclusive. Takes precedence over `fromSeq`. */
  readonly after?: number | undefined;
  /** First seq of the range. Default: 1. */
  readonly fromSeq?: number | undefined;
  /** Last seq of the range. Default: the newest seq. */
  readonly toSeq?: number | undefined;
  /** Maximum number of messages to return. Default: 50. */
  readonly limit?: number | undefined;
  /**
   * If true, the newest messages of the range are returned, newest first. If false, the oldest are
   * returned, oldest first. Default: false if `after` is set, or if `fromSeq` is set without
   * `before`. Otherwise, the default is true.
   */
  readonly newestFirst?: boolean | undefined;
}

export interface HistoryResult {
  readonly messages: readonly ReceivedMessage[];
  readonly headSeq: number;
  /** True if the range contains further messages. */
  readonly more: boolean;
}

/** The app's position in a channel: the newest message that the app has. */
export interface Cursor {
  readonly channel: ChannelRef;
  readonly lastSeq: number;
  /**
   * Highest `messageId` among the app's messages of the channel. 0 or `undefined` if the id is
   * unknown. With the id, the client detects seqs that were reused because a fail-over lost
   * messages.
   */
  readonly lastId?: number | undefined;
}

export interface ClientEvents {
  /**
   * A message from one of the user's channels. The messages of a channel are delivered in order,
   * each once. A message that this client sent causes a `sent` event instead.
   */
  readonly message: ReceivedMessage;
  /** The server acknowledged a message that this client sent. */
  readonly sent: ReceivedMessage;
  readonly event: ReceivedEvent;
  /**
   * Another user began or stopped typing. Typing begins with an event of type `typing`. It ends
   * with a `typing` event whose data is `stop`, with a message from the user, or when no further
   * event arrives for 6 seconds.
   */
  readonly typing: TypingChange;
  /**
   * An active stream in one of the user's channels. It may have started before this client
   * connected.
   */
  readonly stream: Stream;
  readonly command: Command;
  /** Another of the user's sessions changed a conversation. */
  readonly conversation: {
    readonly change: "read" | "unread" | "delete";
    readonly conversation: ConversationView;
  };
  /**
   * A conversation's unread count changed, because of a message or because one of the user's
   * sessions changed the conversation.
   */
  readonly unread: {
    readonly channel: ChannelRef;
    readonly unread: number;
  };
  /** The presence of a watched user changed. */
  readonly presence: Presence;
  readonly status: Status;
  /** The server ended the session permanently. The client does not reconnect. */
  readonly kicked: {
    readonly reason: CloseReason;
    readonly code: number;
    readonly message: string;
  };
  /** An error that is not the result of a call, such as a failed connection attempt or handler. */
  readonly error: JindouError;
}

/**
 * A client for one user on one device. It reconnects and resumes automatically. Its promises reject
 * only with a `JindouError`.
 */
export interface Client {
  readonly uid: string;
  readonly deviceId: string;
  readonly status: Status;
  /**
   * Adds a handler. Returns a function that removes the handler. If a `command` handler returns a
   * promise, the command is acknowledged only after the promise resolves. Throws `bad_option` if
   * the event is unknown or `handler` is not a function.
   */
  on<E extends keyof ClientEvents>(
    event: E,
    handler: (value: ClientEvents[E]) => unknown,
  ): () => void;
  /** Resolves when the client is online. Rejects with the reason if the client is closed. */
  ready(): Promise<void>;
  /**
   * Sends a message: a string (as a text message), a content object, or bytes. Resolves when the
   * server has acknowledged the message. Messages wait while the client is offline, and are sent
   * again after a lost connection without creating duplicates. Messages to one channel keep their
   * order. Rejects with an error such as `queue_full`, or with the server's error if the server
   * refuses the message.
   */
  send(channel: ChannelRef, content: Sendable, options?: SendOptions | undefined): Promise<Sent>;
  /**
   * Sends an event to the members of a channel who are online. The event is neither stored nor sent
   * again: the call rejects with `connection_lost` if the client is not online, or if the
   * connection is lost before the reply. `type` has 1 to 64 characters and does not begin with
   * `___`. `data` has at most 4096 bytes.
   */
  emit(channel: ChannelRef, type: string, data?: string | undefined): Promise<void>;
  /**
   * Reports that the user is typing in the channel. May be called on every key press, because
   * repeated calls for a channel send at most one event every 3 seconds. If `isTyping` is false,
   * reports that the user stopped typing. Does nothing while the client is not online.
   */
  typing(channel: ChannelRef, isTyping?: boolean | undefined): void;
  /**
   * Reports that the user is not looking at the app, so that a backend may send a push
   * notification. The client continues to receive messages. In a browser, the client calls this
   * method itself when the page is hidden.
   */
  background(): void;
  /** Reports that the user is looking at the app again. A new client is in the foreground. */
  foreground(): void;
  /** Returns messages from a channel's history, by default the newest 50. */
  history(channel: ChannelRef, options?: HistoryOptions | undefined): Promise<HistoryResult>;
  /**
   * Follows a stream, active or ended. Requests the stream from the server, unless the client
   * already follows the stream or `target` shows that the stream has ended.
   */
  stream(target: StreamTarget): LiveStream;
  /**
   * Opens a durable stream by its path, which begins with `/v1/stream/`, or by its URL. The
   * client's token is sent only to the client's server, and never with a signed URL or path. Throws
   * `bad_option` if the path, the URL or an option is invalid.
   */
  stream<T = unknown>(path: string, options?: RecordStreamOptions | undefined): RecordStream<T>;
  /**
   * Stops a stream. Resolves with its final state: `cancelled`, unless the stream had already
   * ended.
   */
  cancel(target: StreamTarget): Promise<StreamState>;
  /**
   * Returns one page of the user's conversations. `limit` is from 1 to 500 (default 100). `cursor`
   * is the cursor that the previous page returned. If `sinceMs` is set, only conversations that
   * changed at this time or later are returned.
   */
  conversations(
    page?:
      | {
          readonly limit?: number | undefined;
          readonly cursor?: string | undefined;
          readonly sinceMs?: number | undefined;
        }
      | undefined,
  ): Promise<ConversationPage>;
  /** Returns one conversation, even one without messages. */
  conversation(channel: ChannelRef): Promise<ConversationView>;
  /**
   * Returns one page of the members of one of the user's groups, sorted by uid. `limit` is from 1
   * to 1000 (default 100). `cursor` is the cursor that the previous page returned.
   */
  members(
    channel: ChannelRef,
    page?:
      | { readonly limit?: number | undefined; readonly cursor?: string | undefined }
      | undefined,
  ): Promise<MemberPage>;
  /**
   * Marks the messages up to `seq` as read. If `seq` is lower than the current read position, later
   * messages become unread, except if the call waited for a connection or was repeated.
   */
  markRead(channel: ChannelRef, seq: number): Promise<ConversationView>;
  /**
   * Marks the newest `unread` messages as unread, or all messages if the conversation has fewer.
   */
  setUnread(channel: ChannelRef, unread: number): Promise<ConversationView>;
  /**
   * Hides the conversation until a new message arrives, and hides its current messages permanently.
   */
  deleteConversation(channel: ChannelRef): Promise<ConversationView>;
  /** Returns the presence of each user, in the order of `uids`. */
  presence(uids: readonly string[]): Promise<readonly Presence[]>;
  /**
   * Calls `handler` with the presence of each user, and again after every change. Returns a
   * function that ends the watch. Throws `bad_id` if a uid is invalid, or `too_large` if all
   * watches together would cover more than 200 users.
   */
  watchPresence(uids: readonly string[], handler: (presence: Presence) => unknown): () => void;
  /**
   * Returns the app's positions, most recently used last. Pass them to the next `connect` as the
   * `cursors` option.
   */
  cursors(): readonly Cursor[];
  /**
   * Ends the session and closes the client permanently. Nothing is delivered after this call, and
   * waiting calls are rejected with `closed`. Resolves when the socket is closed, or after three
   * seconds.
   */
  close(): Promise<void>;
}
