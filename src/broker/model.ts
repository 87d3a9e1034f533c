// The domain types: devices, sessions, channels, messages and streams, and the keys and topics
// derived from them. Has no state and does no I/O.

import { encodeUtf8 } from "../lib/utf8.ts";

export const PERSON_CHANNEL = 1;
export const GROUP_CHANNEL = 2;
/** Type of a channel: `1` personal, `2` group [spec: Channel types]. */
export type ChannelType = typeof PERSON_CHANNEL | typeof GROUP_CHANNEL;

/** Kind of a device: `0` app, `1` web, `2` desktop [spec: User and device registration]. */
export type DeviceFlag = 0 | 1 | 2;
export const DEVICE_FLAGS: readonly DeviceFlag[] = [0, 1, 2];

export const SECONDARY_DEVICE = 0;
export const MAIN_DEVICE = 1;
/** `0` secondary, `1` main. A user has at most one main session per device flag [spec: Rule]. */
export type DeviceLevel = typeof SECONDARY_DEVICE | typeof MAIN_DEVICE;

/** Uid of the system, which cannot connect [decisions: System uid]. */
export const SYSTEM_UID = "____system";

export const MAX_ID_LENGTH = 128;
/** Maximum number of characters of a client's token, which may be a JWT. */
export const MAX_TOKEN_LENGTH = 4096;

// biome-ignore lint/suspicious/noControlCharactersInRegex: it must match control characters
const FORBIDDEN_IN_IDS = /[@#&\u0000-\u001f\u007f-\u009f]/;

export function isId(value: string): boolean {
  return (
    value.length > 0 &&
    value.length <= MAX_ID_LENGTH &&
    !FORBIDDEN_IN_IDS.test(value) &&
    isWellFormed(value)
  );
}

const LONE_SURROGATE = /\p{Surrogate}/u;

/** Returns true if the string has no lone surrogate, so that encoding it as UTF-8 loses nothing. */
export function isWellFormed(value: string): boolean {
  return !LONE_SURROGATE.test(value);
}

/** A channel as one of its users sees it. The id of a personal channel is the other user's uid. */
export interface ChannelRef {
  readonly id: string;
  readonly type: ChannelType;
}

/**
 * Key of a channel, the same for all its users: `2:<group id>` or `1:<lower uid>@<higher uid>`. Ids
 * contain no `@`.
 */
export type ChannelKey = string;

export function channelKey(channel: ChannelRef, uid: string): ChannelKey {
  if (channel.type === GROUP_CHANNEL) return `2:${channel.id}`;
  return uid < channel.id ? `1:${uid}@${channel.id}` : `1:${channel.id}@${uid}`;
}

/**
 * Returns the URL path of a stream's log. The path of a stream in a personal channel contains both
 * uids, and is therefore the same for both users. A lone surrogate becomes U+FFFD, as in UTF-8.
 */
export function streamLogPath(key: ChannelKey, clientMsgNo: string): string {
  const encode = (text: string) =>
    encodeURIComponent(text.replace(/\p{Surrogate}/gu, "\ufffd")).replaceAll("%40", "@");
  return `/v1/stream/channel/${key[0]}/${encode(key.slice(2))}/${encode(clientMsgNo)}`;
}

/** The rules for a group, or for the personal channels of the user `id` [spec: Channel]. */
export interface ChannelInfo extends ChannelRef {
  /** True if only the system and system accounts may send to the group, or to the user `id`. */
  readonly ban: boolean;
  /** True if the channel was disbanded. This cannot be undone, and the id cannot be used again. */
  readonly disband: boolean;
  /** True if members of the group, or the user `id`, may receive but may not send. */
  readonly sendBan: boolean;
  /**
   * True if users who are not contacts of the user `id` may send to that user. Used only for
   * personal channels.
   */
  readonly allowStranger: boolean;
  /**
   * True if the channel is a very large group, which has no unread counts and stores no commands.
   */
  readonly large: boolean;
  /** True if clients may send events to the group, or to the user `id`. */
  readonly clientEvents: boolean;
}

/** Flags that a backend may change on an existing channel. `disband` can only become true. */
export type ChannelFlags = Partial<Omit<ChannelInfo, "id" | "type">>;

export type SubscriberRemoval =
  | { readonly kind: "removed" }
  | { readonly kind: "no_channel" }
  | { readonly kind: "disbanded" }
  | {
      readonly kind: "not_members";
      readonly uids: readonly string[];
    };

export interface MessageHeader {
  /** True if the message is delivered only to online sessions. It is not stored and has seq 0. */
  readonly noPersist: boolean;
  readonly redDot: boolean;
  /**
   * True if the message is a command that is only pushed. A stored command needs no such mark,
   * because it is published as a `command` event.
   */
  readonly syncOnce?: boolean;
}

/**
 * Fields that WuKongIM clients set. This server stores and delivers them without interpreting them.
 */
export interface Passthrough {
  /** Bits: 0x80 requests a read receipt, 0x20 marks Signal encryption [WKProto SEND]. */
  readonly setting: number;
  readonly topic: string;
}

/** An accepted message. Immutable, because all recipients on a node share one object. */
export interface Message {
  /** Unique in the cluster and below 2^53. Within a channel, later messages have higher ids. */
  readonly messageId: number;
  /**
   * Position in the channel, counted from 1. Only the positions of imported messages can have gaps.
   * 0 if the message is not stored.
   */
  readonly messageSeq: number;
  readonly key: ChannelKey;
  /** The channel as the sender named it. */
  readonly channel: ChannelRef;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  readonly timestampMs: number;
  readonly header: MessageHeader;
  /** Seconds after `timestampMs` at which the message expires. 0 means that it never expires. */
  readonly expireS: number;
  readonly streamNo: string | undefined;
  readonly tagKey: string | undefined;
  readonly passthrough?: Passthrough | undefined;
  /** Id of an imported message on the server from which it was imported, in decimal. Below 2^64. */
  readonly sourceId?: string | undefined;
  /**
   * Content of the message. For a stream, it is `{"type":1,"content":<text so far>}` unless the
   * producer chose a different payload.
   */
  readonly payload: Uint8Array;
  readonly stream: StreamSnapshot | undefined;
}

export function channelSeenBy(
  uid: string,
  { channel, fromUid }: Pick<Message, "channel" | "fromUid">,
): ChannelRef {
  if (channel.type === GROUP_CHANNEL || uid === fromUid) return channel;
  return { id: fromUid, type: PERSON_CHANNEL };
}

// --- Streams and events [spec: Event, Streaming text session] ------------------------------------

export const STREAM_START = "___TextMessageStart";
export const STREAM_CONTENT = "___TextMessageContent";
export const STREAM_END = "___TextMessageEnd";
export const TOOL_CALL_EVENTS: ReadonlySet<string> = new Set([
  "___ToolCallStart",
  "___ToolCallArgs",
  "___ToolCallEnd",
  "___ToolCallResult",
]);
export const RESERVED_EVENT_PREFIX = "___";
/** Type of the event that the system sends to a session whose token expires soon. */
export const EXPIRING_EVENT = "auth.expiring";

export function isCustomType(type: string): boolean {
  return type !== "" && !type.startsWith(RESERVED_EVENT_PREFIX);
}

/**
 * Returns true if the type is that of a tool call or a custom event. Such an event is stored as a
 * note of its stream (see `StreamNote`) if the stream is active. Otherwise, it is only pushed.
 */
export function isNoteType(type: string): boolean {
  return isCustomType(type) || TOOL_CALL_EVENTS.has(type);
}

/** Maximum number of characters in the type of a client event. */
export const MAX_CLIENT_EVENT_TYPE = 64;
/** Maximum number of UTF-8 bytes in the data of a client event. */
export const MAX_CLIENT_EVENT_BYTES = 4096;

/**
 * State of a stream.
 *
 *     active       accepts events
 *     closed       ended by its producer
 *     cancelled    cancelled by its producer or a viewer, or by the forced start of another stream
 *     interrupted  ended because its producer sent no event for a configured time
 */
export type StreamState = "active" | "closed" | "cancelled" | "interrupted";

export interface StreamPlace {
  readonly messageSeq: number;
  /** Index of the event among all events of the stream. The start has index 0. */
  readonly index: number;
  /**
   * `index + 1`, or higher if this event stands for several events: content that was merged for a
   * receiver that joined late or lags, or events that viewers are not shown.
   */
  readonly nextIndex: number;
  /** Length of the stream's text before the event, in UTF-16 code units. */
  readonly textOffset: number;
  /**
   * State of the stream after the event. It is `active` unless the event has the type STREAM_END.
   */
  readonly state: StreamState;
  /**
   * True if viewers are shown neither this event nor any later event before the end. Otherwise
   * absent.
   */
  readonly truncated?: true;
}

/** An event of a channel [spec: Event]. Immutable, because all recipients on a node share it. */
export interface ChannelEvent {
  readonly key: ChannelKey;
  readonly channel: ChannelRef;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  readonly eventId: string;
  /** True if the producer chose the id. Reliable only for a start or an end. */
  readonly hasGivenId?: boolean;
  readonly type: string;
  readonly data: string;
  readonly timestampMs: number;
  /**
   * Place in the stream. `undefined` if the event belongs to no stream. Such an event is not
   * stored, but only pushed to online users.
   */
  readonly stream: StreamPlace | undefined;
  /**
   * Ids of the stream's start. Set only if the event was derived from a snapshot that has a
   * `startId`.
   */
  readonly start?: Pick<StreamSnapshot, "messageId" | "startId">;
}

/** A tool call or a custom event of a stream. */
export interface StreamNote {
  readonly index: number;
  readonly textOffset: number;
  readonly eventId: string;
  readonly type: string;
  readonly data: string;
  readonly timestampMs: number;
}

/**
 * A stream at one point in time. `text` consists of all content with an index below `nextIndex`.
 */
export interface StreamSnapshot {
  readonly key: ChannelKey;
  readonly channel: ChannelRef;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  readonly messageId: number;
  readonly messageSeq: number;
  readonly state: StreamState;
  readonly text: string;
  /** Index of the next event. After the end of the stream, this is the number of its events. */
  readonly nextIndex: number;
  readonly startData: string;
  /** `undefined` while the stream is active, or "" if it ended without data. */
  readonly endData: string | undefined;
  /**
   * Event id of the start. `undefined` if the producer chose no id. Jindou's own protocols do not
   * send this id.
   */
  readonly startId?: string | undefined;
  readonly endId?: string | undefined;
  readonly notes: readonly StreamNote[];
  /**
   * True if the stream is too long to be shown to viewers completely. `text` is then its beginning.
   * The only note has the index of the first event that is not shown, and stands for this event and
   * all later events before the end. Absent if `text` and `notes` contain all events.
   */
  readonly truncated?: true;
}

export function streamPayload(text: string): Uint8Array {
  return encodeUtf8(JSON.stringify({ type: 1, content: text }));
}

/**
 * Returns the payload as Jindou's own formats show it. For a stream, this is the text so far, even
 * if the producer chose a different payload. Other formats have separate fields for the payload and
 * the text.
 */
export function textPayload({ payload, stream }: Pick<Message, "payload" | "stream">): Uint8Array {
  return stream === undefined ? payload : streamPayload(stream.text);
}

const NO_TEXT = streamPayload("");

export function isEmptyStreamPayload(payload: Uint8Array): boolean {
  return (
    payload.length === NO_TEXT.length && payload.every((byte, index) => byte === NO_TEXT[index])
  );
}

// --- Commands and conversations ------------------------------------------------------------------

export interface CommandCopy {
  readonly uid: string;
  /**
   * Position in the recipient's inbox, counted from 1. 0 if the copy is only pushed and not stored.
   */
  readonly inboxSeq: number;
}

export interface InboxCommand {
  readonly inboxSeq: number;
  /** The command. Its messageSeq equals `inboxSeq`. */
  readonly message: Message;
}

export interface Conversation {
  readonly channel: ChannelRef;
  /** Seq of the newest message in the channel, or 0 if no message was stored. */
  readonly headSeq: number;
  readonly readSeq: number;
  /** Number of visible messages with a red dot after `readSeq`. 0 in a large group. */
  readonly unread: number;
  /**
   * Last seq that is hidden from the user because the conversation was deleted. 0 if no seq is
   * hidden for this reason.
   */
  readonly deletedSeq: number;
  /**
   * Time of the last message or the user's last change, whichever is later, in Unix milliseconds.
   */
  readonly changedAtMs: number;
  /**
   * Newest visible message, or `undefined` if no message is visible. Lists omit conversations
   * without a visible message.
   */
  readonly last: Message | undefined;
  /**
   * True if the channel is a large group, whose unread messages are not counted. Otherwise absent.
   */
  readonly large?: true;
}

export type MessageHead = Pick<Message, "messageId" | "messageSeq" | "clientMsgNo" | "timestampMs">;

/**
 * A conversation that has a visible message, but without that message's content. Used for sorting
 * and filtering.
 */
export interface ConversationHead extends Omit<Conversation, "last"> {
  readonly last: MessageHead;
}

/** Maximum value of `expireS`, which stores keep in 32 bits. */
export const MAX_EXPIRE_S = 0xffff_ffff;

export function expiresAtMs(message: Pick<Message, "timestampMs" | "expireS">): number {
  return message.expireS === 0
    ? Number.POSITIVE_INFINITY
    : message.timestampMs + message.expireS * 1000;
}

/**
 * Returns the range of history between two seqs. `before` and `after` exclude the message with that
 * seq, and take precedence over `toSeq` and `fromSeq`. A `toSeq` of 0 means the newest message. The
 * default order is newest first if `before` is set and `after` is not, otherwise oldest first.
 */
export function historyRange({
  before,
  after,
  fromSeq = 1,
  toSeq = 0,
}: {
  readonly before?: number | undefined;
  readonly after?: number | undefined;
  readonly fromSeq?: number | undefined;
  readonly toSeq?: number | undefined;
}): { readonly fromSeq: number; readonly toSeq: number; readonly reverse: boolean } {
  const reverse = before !== undefined && after === undefined;
  // The range is empty, because no message precedes the first message.
  if (before !== undefined && before <= 1) return { fromSeq: 2, toSeq: 1, reverse };
  return {
    fromSeq: after === undefined ? fromSeq : after + 1,
    toSeq: before === undefined ? toSeq : before - 1,
    reverse,
  };
}

/** A user's device, registered by `/user/token`. The token itself is never stored. */
export interface Device {
  readonly uid: string;
  readonly flag: DeviceFlag;
  readonly level: DeviceLevel;
  /** SHA-256 of the token. Empty after the device was logged out, so that no token matches. */
  readonly tokenHash: Uint8Array;
  /**
   * Time at which the device was last logged out, in Unix seconds on the store's clock. JWTs that
   * were issued earlier are refused. Absent if the device was never logged out.
   */
  readonly revokedS?: number;
}

/**
 * Tag of sessions that logged in with a JWT. Registering a new token does not end these sessions.
 */
export const JWT_TAG = "jwt";

export interface SessionRecord {
  readonly sessionId: string;
  readonly nodeId: string;
  readonly uid: string;
  readonly flag: DeviceFlag;
  readonly level: DeviceLevel;
  /**
   * A later session with the same uid, flag and device id ends this session, unless the id is "".
   */
  readonly deviceId: string;
  /**
   * Identifies the token, so that a new token ends only the sessions of other tokens. `JWT_TAG` for
   * JWTs, or "" for sessions without a token.
   */
  readonly tokenTag: string;
  /**
   * True while the client reports that the user is not looking at the app. Absent if the user is
   * looking at the app, or if the node does not share the state of its clients.
   */
  readonly isBackground?: true;
}

export function withBackground(session: SessionRecord, isBackground: boolean): SessionRecord {
  const { isBackground: _, ...rest } = session;
  return isBackground ? { ...rest, isBackground } : rest;
}

export interface Presence {
  readonly uid: string;
  readonly online: boolean;
  readonly flag: DeviceFlag;
}

export interface ManagerAccount {
  readonly username: string;
  readonly role: ManagerRole;
  readonly permissions: readonly string[];
}
export type ManagerRole = "admin" | "operator" | "viewer";

export type Topic = string;
export const userTopic = (uid: string): Topic => `u:${uid}`;
export const isUserTopic = (topic: Topic): boolean => topic.startsWith("u:");
export const groupTopic = (channelId: string): Topic => `g:${channelId}`;
export const presenceTopic = (uid: string): Topic => `p:${uid}`;

// A message id is the time since MESSAGE_ID_EPOCH_MS in units of 1/4096 ms. Ids stay below 2^53 for
// 69 years after that epoch.
const MESSAGE_ID_EPOCH_MS = Date.UTC(2024, 0, 1);
const MESSAGE_IDS_PER_MS = 4096;

export const MAX_MESSAGE_ID = Number.MAX_SAFE_INTEGER;
/** Latest valid clock time, in Unix milliseconds. Ids for later times may be too large. */
export const LATEST_TIME_MS = Date.UTC(2080, 0, 1);

export function firstMessageId(timeMs: number): number {
  return Math.max(1, timeMs - MESSAGE_ID_EPOCH_MS) * MESSAGE_IDS_PER_MS;
}

/**
 * Returns the clientMsgNo of a message whose sender chose none. It is derived from the id, so that
 * stores need not keep it.
 */
export function clientMsgNoOf(messageId: number): string {
  return `server-${messageId}`;
}

export function messageIdOf(clientMsgNo: string): number | undefined {
  const [, id] = /^server-([1-9]\d{0,15})$/.exec(clientMsgNo) ?? [];
  return id === undefined ? undefined : Number(id);
}

/** Returns the approximate time at which the message was accepted, in Unix milliseconds. */
export function messageTimeMs(messageId: number): number {
  return Math.floor(messageId / MESSAGE_IDS_PER_MS) + MESSAGE_ID_EPOCH_MS;
}
