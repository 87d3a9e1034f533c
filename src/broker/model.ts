// The nouns of the domain: users' devices, sessions, channels, messages, and the names derived from
// them. Values only; no state and no I/O. Every room may read this file; only `broker/` decides
// anything with it.

export const PERSON_CHANNEL = 1;
export const GROUP_CHANNEL = 2;
/** `1` personal channel, `2` group channel [spec: Channel types]. */
export type ChannelType = typeof PERSON_CHANNEL | typeof GROUP_CHANNEL;

/** `0` app, `1` web, `2` desktop [spec: User and device registration]. */
export type DeviceFlag = 0 | 1 | 2;
export const DEVICE_FLAGS: readonly DeviceFlag[] = [0, 1, 2];

export const SECONDARY_DEVICE = 0;
export const MAIN_DEVICE = 1;
/** `0` secondary, `1` main: main devices of one user and flag end each other [spec: Rule]. */
export type DeviceLevel = typeof SECONDARY_DEVICE | typeof MAIN_DEVICE;

/**
 * The sender that is no person: exempt from channel rules, cannot connect or register [decisions:
 * System uid].
 */
export const SYSTEM_UID = "____system";

export const MAX_ID_LENGTH = 128;

// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what it looks for
const FORBIDDEN_IN_IDS = /[@#&\u0000-\u001f\u007f-\u009f]/;

/**
 * 1 to 128 characters, no control characters, none of `@ # &`; well-formed Unicode, so that it
 * survives UTF-8 [decisions: Limits].
 */
export function isId(value: string): boolean {
  return (
    value.length > 0 &&
    value.length <= MAX_ID_LENGTH &&
    !FORBIDDEN_IN_IDS.test(value) &&
    isWellFormed(value)
  );
}

const LONE_SURROGATE = /\p{Surrogate}/u;

/** No lone surrogate: the string comes back the same from UTF-8. */
export function isWellFormed(value: string): boolean {
  return !LONE_SURROGATE.test(value);
}

/** A channel as one party names it: for a personal channel `id` is the other user's uid. */
export interface ChannelRef {
  readonly id: string;
  readonly type: ChannelType;
}

/**
 * The key of a channel, the same for every sender: `2:<group>`, or `1:<lower uid>@<higher uid>` for
 * a pair. Unambiguous because ids never contain `@`.
 */
export type ChannelKey = string;

/** Names the channel that `uid` means by `channel`. */
export function channelKey(channel: ChannelRef, uid: string): ChannelKey {
  if (channel.type === GROUP_CHANNEL) return `2:${channel.id}`;
  return uid < channel.id ? `1:${uid}@${channel.id}` : `1:${channel.id}@${uid}`;
}

/** The rules of a channel; a personal channel's record holds its owner's rules [spec: Channel]. */
export interface ChannelInfo extends ChannelRef {
  /** All members are muted (group); no user may send to the owner (personal). */
  readonly ban: boolean;
  /** Removed permanently; the id stays taken. */
  readonly disband: boolean;
  /** No member may send (group); the owner may receive but not send (personal). */
  readonly sendBan: boolean;
  /** Personal only: uids outside the owner's contacts may send. */
  readonly allowStranger: boolean;
  /** A super-large group: nothing is kept or computed per member. */
  readonly large: boolean;
}

/** Flags a backend may change on an existing channel. `disband` only changes to true. */
export type ChannelFlags = Partial<Omit<ChannelInfo, "id" | "type">>;

/** The result of the store's `removeSubscribers`. */
export type SubscriberRemoval =
  | { readonly kind: "removed" }
  | { readonly kind: "no_channel" }
  | { readonly kind: "disbanded" }
  | { readonly kind: "not_members"; readonly uids: readonly string[] };

/** How to handle a message [spec: header]. */
export interface MessageHeader {
  /** Delivered to online sessions, never stored; has no sequence number. */
  readonly noPersist: boolean;
  /** Counts as unread. */
  readonly redDot: boolean;
}

/**
 * What clients of WuKongIM's protocols tell each other with a message: stored and passed on,
 * without a meaning here.
 */
export interface Passthrough {
  /** Bits of the `setting` byte: 0x80 a read receipt is asked for, 0x20 signal [WKProto SEND]. */
  readonly setting: number;
  readonly topic: string;
}

/** A message as accepted. Immutable, shared by every recipient of it on a node. */
export interface Message {
  /** Unique in the cluster, growing, below 2^53. */
  readonly messageId: number;
  /** Place in the channel, from 1 without gaps; 0 when not stored. */
  readonly messageSeq: number;
  readonly key: ChannelKey;
  /** The channel as the sender named it. */
  readonly channel: ChannelRef;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  /** Server time of acceptance, Unix milliseconds. */
  readonly timestampMs: number;
  readonly header: MessageHeader;
  /** Seconds after `timestampMs` until it leaves history; 0 = never. */
  readonly expireS: number;
  readonly streamNo: string | undefined;
  readonly tagKey: string | undefined;
  readonly passthrough?: Passthrough | undefined;
  /** Of a stream's message: `{"type":1,"content":<the text so far>}`. */
  readonly payload: Uint8Array;
  /** The stream whose place in the channel this message is; undefined: a plain message. */
  readonly stream: StreamSnapshot | undefined;
}

/**
 * The channel of what `fromUid` sent as `uid` names it: in a conversation each calls it by the
 * other's uid.
 */
export function channelSeenBy(
  uid: string,
  { channel, fromUid }: Pick<Message, "channel" | "fromUid">,
): ChannelRef {
  if (channel.type === GROUP_CHANNEL || uid === fromUid) return channel;
  return { id: fromUid, type: PERSON_CHANNEL };
}

// --- Streams and events [spec: Event, Streaming text session] ------------------------------------

/** The events that make a streaming text message. */
export const STREAM_START = "___TextMessageStart";
export const STREAM_CONTENT = "___TextMessageContent";
export const STREAM_END = "___TextMessageEnd";
/**
 * Events of a tool call: kept with the stream of their clientMsgNo while that is active, else only
 * pushed.
 */
export const TOOL_CALL_EVENTS: ReadonlySet<string> = new Set([
  "___ToolCallStart",
  "___ToolCallArgs",
  "___ToolCallEnd",
  "___ToolCallResult",
]);
/** Types that begin so are the interface's own; any other type is a custom event. */
export const RESERVED_EVENT_PREFIX = "___";

/**
 * `cancelled`: by a viewer or by another stream's forced start. `interrupted`: its producer fell
 * silent.
 */
export type StreamState = "active" | "closed" | "cancelled" | "interrupted";

/** Where an event stands in its stream. */
export interface StreamPlace {
  /** The seq of the stream's message in the channel. */
  readonly messageSeq: number;
  /** Counts all events of the stream from 0, the start. */
  readonly index: number;
  /** The index behind it: `index + 1`, more where content was merged for a receiver that lagged. */
  readonly nextIndex: number;
  /** UTF-16 units of the stream's text before it. */
  readonly textOffset: number;
  /** The stream's state after it. Only an event of type STREAM_END takes it out of `active`. */
  readonly state: StreamState;
}

/**
 * An event of a producer in a channel [spec: Event]. Immutable, shared by every receiver on a
 * node.
 */
export interface ChannelEvent {
  readonly key: ChannelKey;
  /** The channel as the producer named it. */
  readonly channel: ChannelRef;
  readonly fromUid: string;
  /** Which stream or message it belongs to. */
  readonly clientMsgNo: string;
  readonly eventId: string;
  readonly type: string;
  readonly data: string;
  /** Unix milliseconds: the producer's, else the server's at acceptance. */
  readonly timestampMs: number;
  /** Undefined: not part of a stream; only those online get it. */
  readonly stream: StreamPlace | undefined;
}

/** A tool-call event as kept with its stream. */
export interface StreamNote {
  readonly index: number;
  readonly textOffset: number;
  readonly eventId: string;
  readonly type: string;
  readonly data: string;
  readonly timestampMs: number;
}

/** A stream as it stands: `text` is all content with an index below `nextIndex`. */
export interface StreamSnapshot {
  readonly key: ChannelKey;
  /** The channel as the producer named it. */
  readonly channel: ChannelRef;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  readonly messageId: number;
  readonly messageSeq: number;
  readonly state: StreamState;
  readonly text: string;
  /** The index the next event has or would have had. */
  readonly nextIndex: number;
  readonly startData: string;
  /** Undefined while active; "" when it was ended without data. */
  readonly endData: string | undefined;
  readonly notes: readonly StreamNote[];
}

const UTF8 = new TextEncoder();

/** The payload of a stream's message: a text message of the specification with the text so far. */
export function streamPayload(text: string): Uint8Array {
  return UTF8.encode(JSON.stringify({ type: 1, content: text }));
}

// --- Commands and conversations ------------------------------------------------------------------

/**
 * One recipient's copy of a command. `inboxSeq` counts the recipient's inbox from 1; 0: pushed
 * only, nothing is kept to acknowledge.
 */
export interface CommandCopy {
  readonly uid: string;
  readonly inboxSeq: number;
}

/** A command in an inbox. */
export interface InboxCommand {
  readonly inboxSeq: number;
  /** Its messageSeq is the inboxSeq. */
  readonly message: Message;
}

/** How one user stands to one channel. */
export interface Conversation {
  /** As the user names it. */
  readonly channel: ChannelRef;
  /** The channel's newest seq. */
  readonly headSeq: number;
  /** Everything through this seq counts as read. */
  readonly readSeq: number;
  /** Shown messages with a red dot behind it; 0 in a large group. */
  readonly unread: number;
  /** Messages through this seq are not shown to the user: the conversation was deleted then. */
  readonly deletedSeq: number;
  /** When the last message came or the user last changed one of the above, Unix milliseconds. */
  readonly changedAtMs: number;
  /** The newest shown message; undefined: none, and lists leave the conversation out. */
  readonly last: Message | undefined;
}

/** A message without its content. */
export type MessageHead = Pick<Message, "messageId" | "messageSeq" | "clientMsgNo" | "timestampMs">;

/**
 * A conversation that has a message to show, without that message's content: what lists are sorted
 * and chosen by.
 */
export interface ConversationHead extends Omit<Conversation, "last"> {
  readonly last: MessageHead;
}

/** Unix milliseconds from which on `message` is no longer shown; Infinity = never. */
export function expiresAtMs(message: Pick<Message, "timestampMs" | "expireS">): number {
  return message.expireS === 0
    ? Number.POSITIVE_INFINITY
    : message.timestampMs + message.expireS * 1000;
}

/** A device class of a user as registered by `/user/token`. The token itself is never kept. */
export interface Device {
  readonly uid: string;
  readonly flag: DeviceFlag;
  readonly level: DeviceLevel;
  /** SHA-256 of the token; empty after a device quit, which no token matches. */
  readonly tokenHash: Uint8Array;
}

/** An authenticated client connection, as the session directory knows it. */
export interface SessionRecord {
  readonly sessionId: string;
  readonly nodeId: string;
  readonly uid: string;
  readonly flag: DeviceFlag;
  readonly level: DeviceLevel;
  /** The client's own name for the device; a new session with the same one replaces the old. */
  readonly deviceId: string;
  /**
   * Which token it logged in with, so that a change of token ends the sessions of the old one
   * only; "" without authentication.
   */
  readonly tokenTag: string;
}

/** Online state of one user [spec: Online status record]. */
export interface Presence {
  readonly uid: string;
  readonly online: boolean;
  readonly flag: DeviceFlag;
}

/** A manager account of the control plane [decisions: Managers]. */
export interface ManagerAccount {
  readonly username: string;
  readonly role: ManagerRole;
  readonly permissions: readonly string[];
}
export type ManagerRole = "admin" | "operator" | "viewer";

/**
 * A name that pushes travel under: a user's sessions, a group's members' sessions, or who watches
 * a user's presence.
 */
export type Topic = string;
export const userTopic = (uid: string): Topic => `u:${uid}`;
export const groupTopic = (channelId: string): Topic => `g:${channelId}`;
/** Changes of a user's online state. */
export const presenceTopic = (uid: string): Topic => `p:${uid}`;

/** Message ids count from 2024-01-01 UTC, 4096 to a millisecond: 69 years within 2^53. */
const MESSAGE_ID_EPOCH_MS = Date.UTC(2024, 0, 1);
const MESSAGE_IDS_PER_MS = 4096;

/** The smallest id of a message accepted at `timeMs`. */
export function firstMessageId(timeMs: number): number {
  return Math.max(1, timeMs - MESSAGE_ID_EPOCH_MS) * MESSAGE_IDS_PER_MS;
}

/**
 * The clientMsgNo of a message whose sender chose none. Its id says it, so a store need not keep
 * it.
 */
export function clientMsgNoOf(messageId: number): string {
  return `server-${messageId}`;
}

/** The message id in a `clientMsgNoOf`; undefined: the sender chose this one. */
export function messageIdOf(clientMsgNo: string): number | undefined {
  const [, id] = /^server-([1-9]\d{0,15})$/.exec(clientMsgNo) ?? [];
  return id === undefined ? undefined : Number(id);
}

/** About when the message was accepted, Unix milliseconds. */
export function messageTimeMs(messageId: number): number {
  return Math.floor(messageId / MESSAGE_IDS_PER_MS) + MESSAGE_ID_EPOCH_MS;
}
