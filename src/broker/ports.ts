// The ports of the domain: the store, the cluster and the clock. The comment of a method is its
// contract. Every driver must fulfil it, and `test/contract/` checks that. A call rejects with
// BrokerError("unavailable") while its driver cannot reach its server or its files.

import type { MaybePromise } from "../lib/maybe-promise.ts";
import type { BrokerError, CloseReason, SendRefusal } from "./errors.ts";
import type { EventDemandStore } from "./event-demand-ports.ts";
import type { EventStore } from "./event-ports.ts";
import type { LeaseStore } from "./lease-ports.ts";
import type { LogAppend, LogAppendResult, LogCreation, LogEvent, LogStore } from "./log-ports.ts";
import type {
  ChannelEvent,
  ChannelFlags,
  ChannelInfo,
  ChannelKey,
  ChannelRef,
  CommandCopy,
  Conversation,
  ConversationHead,
  Device,
  DeviceFlag,
  InboxCommand,
  Message,
  MessageHeader,
  Passthrough,
  SessionRecord,
  StreamSnapshot,
  StreamState,
  SubscriberRemoval,
  Topic,
} from "./model.ts";
import type { OnlineStore } from "./online-ports.ts";
import type { PushStore } from "./push-ports.ts";
import type { WebhookStore } from "./webhook-ports.ts";

/** Returns the current time in Unix milliseconds. */
export type Clock = () => number;

// --- Store ---------------------------------------------------------------------------------------

/**
 * Devices, bans and states of users. A write to any part of the store is durable when its promise
 * resolves, unless the comment of its method says otherwise. A durable write survives `kill -9`, and
 * also a power failure if the driver is configured for that.
 */
export interface UserStore {
  device(uid: string, flag: DeviceFlag): Promise<Device | undefined>;
  /**
   * Atomically replaces the user's device with this flag. Returns the old device, or `undefined` if
   * no device was registered. A device without a token is logged out: its main session can no
   * longer be continued or confirmed (see `SessionStore`), even if the session was offline, and its
   * secondary sessions cannot be confirmed for at least a day. The logout also sets `revokedS`, and
   * a later call with a token keeps that value. A device without a token is removed once no JWT
   * that was issued before the logout can still be valid, but no earlier than `LOGOUT_TTL_MS` after
   * the logout.
   */
  putDevice(device: Omit<Device, "revokedS">): Promise<Device | undefined>;
  /**
   * Returns true if the account is banned. A store that does not check bans always returns false.
   */
  isBanned(uid: string): Promise<boolean>;
  /**
   * Bans the account or lifts its ban. If the store checks bans, later logins of a banned user, and
   * later confirmations of the user's sessions, are refused with `banned`.
   */
  putBan(uid: string, isBanned: boolean): Promise<void>;
  /** Returns the state of each user, in order. */
  userStates(uids: readonly string[]): Promise<readonly UserState[]>;
}

export interface UserState {
  /**
   * All groups that the user belongs to, and possibly groups that the user has left (see
   * `JoinState.groups`).
   */
  readonly groups: readonly string[];
  /** Highest inboxSeq in the user's command inbox, or 0 if the inbox is empty. */
  readonly inboxSeq: number;
}

/** Kind of membership in a channel [spec: temp_subscriber]. A uid can have both kinds. */
export type Membership = "permanent" | "temporary";

/**
 * A list of a channel. Users on the denylist may not send. If a group's allowlist is not empty,
 * only users on it may send. A user's allowlist is checked only with `check_friends` (see
 * `SendCheck`).
 */
export type ChannelList = "denylist" | "allowlist";

/** A change to a list. Repeating it has no effect. `replace` with no uids empties the list. */
export interface ListChange {
  readonly kind: "add" | "remove" | "replace";
  readonly uids: readonly string[];
}

interface ListFacts {
  readonly isDenied: boolean;
  readonly hasAllowlist: boolean;
  readonly isAllowed: boolean;
}

/** Number of a channel's members (of either kind), and number of uids on each of its lists. */
export interface ChannelSizes extends Readonly<Record<ChannelList, number>> {
  readonly members: number;
}

export interface GroupFacts extends ListFacts {
  /** `undefined` if the group does not exist. */
  readonly info: ChannelInfo | undefined;
  readonly isSubscriber: boolean;
}

/** The facts about a personal message. The lists belong to the receiver. */
export interface PersonFacts extends ListFacts {
  /**
   * The receiver's channel record. `undefined` if the receiver has no record, and therefore no
   * rules except the lists.
   */
  readonly receiver: ChannelInfo | undefined;
  readonly receiverHasContacts: boolean;
  readonly isContact: boolean;
  readonly sender: ChannelInfo | undefined;
}

export interface ChannelStore {
  channel(channel: ChannelRef): Promise<ChannelInfo | undefined>;
  /** Atomically creates the channel. Returns false and changes nothing if it already exists. */
  createChannel(info: ChannelInfo, subscribers: readonly string[]): Promise<boolean>;
  /**
   * Atomically changes flags and returns the new record, or `undefined` if the channel does not
   * exist. A channel that is disbanded stays disbanded, even with `disband: false`.
   */
  updateChannel(channel: ChannelRef, flags: ChannelFlags): Promise<ChannelInfo | undefined>;
  /**
   * Atomically adds members. Returns false and changes nothing if the channel does not exist or is
   * disbanded. Adding an existing member has no effect. With `reset`, `uids` replace all uids that
   * have this kind of membership. For a group, a call with `reset` also publishes a `removal`
   * event, as `removeSubscribers` does.
   */
  addSubscribers(
    channel: ChannelRef,
    uids: readonly string[],
    options: { readonly membership: Membership; readonly reset: boolean },
  ): Promise<boolean>;
  /**
   * Atomically removes one kind of membership from all of `uids`. Changes nothing if one of the
   * uids does not have it. A uid that also has the other kind stays a member. For a group, the same
   * step publishes a `removal` event with the uids that are no longer members. The event is ordered
   * with the group's messages. A node that may have missed the event calls its `GroupJudge`. A
   * repeated call changes and publishes nothing.
   */
  removeSubscribers(
    channel: ChannelRef,
    uids: readonly string[],
    membership: Membership,
  ): Promise<SubscriberRemoval>;
  /**
   * Atomically changes a list. Returns false and changes nothing if the channel is a group that
   * does not exist or is disbanded. A user's lists need no channel record.
   */
  changeList(channel: ChannelRef, list: ChannelList, change: ListChange): Promise<boolean>;
  /**
   * Returns the sizes. All sizes are 0 if the channel is a group that does not exist. The lists of
   * a personal channel are counted even if the channel has no record.
   */
  channelSizes(channel: ChannelRef): Promise<ChannelSizes>;
  /** Returns all uids on the list, in no particular order. */
  listed(channel: ChannelRef, list: ChannelList): Promise<readonly string[]>;
  /**
   * Returns the facts that decide whether `uid` may send to the group. A driver that has the facts
   * in memory returns them without a promise, because every command and client event needs them.
   */
  groupFacts(channelId: string, uid: string): MaybePromise<GroupFacts>;
  personFacts(fromUid: string, toUid: string): MaybePromise<PersonFacts>;
  /** Returns the groups in which `uid` has either kind of membership, except disbanded groups. */
  groupsOf(uid: string): Promise<readonly string[]>;
  /**
   * Returns, for each uid in order, the seq of the group's newest message at the time the user
   * became a member, or `undefined` if the group is not in `groupsOf(uid)`.
   */
  joinSeqs(channelId: string, uids: readonly string[]): Promise<readonly (number | undefined)[]>;
  /**
   * Returns the members of either kind in no particular order. Returns an empty list if the channel
   * does not exist.
   */
  members(channel: ChannelRef): Promise<readonly string[]>;
  /** Returns the members of either kind among `uids`, in their order, without duplicates. */
  membersAmong(channel: ChannelRef, uids: readonly string[]): Promise<readonly string[]>;
}

/**
 * Rules that a send must pass.
 *
 *     check          the ordinary rules
 *     check_friends  the ordinary rules, and the sender must be on the receiver's allowlist
 *     check_exempt   the sender is a system account: only a disbanded channel refuses it
 *     check_open     the receiver is a system account: its lists and contacts are not checked
 *     check_named    a backend sends in a user's name: the user need not be a member of the group
 */
export type SendCheck = "check" | "check_friends" | "check_exempt" | "check_open" | "check_named";

/**
 * How `append` checks the sender. A `SendCheck` is applied in the step that appends. With
 * `granted`, the sender is not checked. With a refusal, the store appends nothing, and only checks
 * whether the message is a retry of an accepted message.
 */
type SendPermission = SendCheck | "granted" | SendRefusal;

export interface MessageDraft {
  readonly key: ChannelKey;
  readonly channel: ChannelRef;
  readonly fromUid: string;
  /**
   * Identifies retries of the message. "" if the sender chose no value. In that case, retries are
   * not recognised, and readers see a value that is derived from the message id (`clientMsgNoOf`).
   */
  readonly clientMsgNo: string;
  readonly header: MessageHeader;
  readonly expireS: number;
  readonly streamNo: string | undefined;
  readonly tagKey: string | undefined;
  readonly passthrough?: Passthrough | undefined;
  readonly payload: Uint8Array;
  /**
   * Session that sent the message and does not receive it. `undefined` if the message was sent over
   * HTTP.
   */
  readonly origin: string | undefined;
  /** Users to push the message to. `undefined` means all users of the channel. */
  readonly recipients: readonly string[] | undefined;
  readonly permission: SendPermission;
  /**
   * True if a message that reuses a clientMsgNo with a different payload is a new message, as in
   * WuKongIM.
   */
  readonly allowsReuse?: boolean | undefined;
  /**
   * Original payload of the message, if a hook has replaced it. Retries are compared by this
   * payload. `undefined` if `payload` is the payload that was sent.
   */
  readonly sentPayload?: Uint8Array | undefined;
}

export interface AppendResult {
  readonly messageId: number;
  readonly messageSeq: number;
  /**
   * True if the message is a retry of an earlier message. In that case, nothing was stored or
   * published.
   */
  readonly duplicate: boolean;
  /**
   * Set if the sender is not allowed to send, or if the clientMsgNo belongs to a different message.
   * In that case, nothing was stored or published, and the id and the seq are 0.
   */
  readonly refused?: SendRefusal | "client_msg_no_reused";
}

/** A range of a channel's history. The bounds are inclusive. */
export interface HistoryRange {
  readonly fromSeq: number;
  readonly toSeq: number;
  readonly limit: number;
  /**
   * True if messages are read from the newest to the oldest, so that a limit omits the oldest
   * messages.
   */
  readonly reverse: boolean;
  /**
   * Maximum total size of payloads and stream data, in bytes. The first message is returned even if
   * it is larger.
   */
  readonly maxBytes: number;
}

export interface HistorySlice {
  readonly messages: readonly Message[];
  /** True if messages were omitted because of `limit` or `maxBytes`. */
  readonly more: boolean;
}

export interface ResumePosition {
  readonly key: ChannelKey;
  /** Seq up to which the reader has all messages. */
  readonly lastSeq: number;
  /** Upper bound on the ids of the messages that the reader has. 0 if ids are not compared. */
  readonly lastId: number;
}

export interface ResumeSeqs {
  /**
   * Seq of the newest message, or 0 if no message was stored. The message's event may not have
   * arrived yet.
   */
  readonly headSeq: number;
  /**
   * Highest seq, at most the reader's `lastSeq`, up to which no seq was reused for another message.
   * Lower than `lastSeq` only if a fail-over lost messages and the later seqs were reused.
   * Equals `lastSeq` if ids are not compared.
   */
  readonly lastCommonSeq: number;
}

export interface MessageStore {
  /**
   * Appends a message to its channel in one atomic step:
   *
   * 1. If (key, fromUid, clientMsgNo) was used within the dedupe window with the same payload,
   *    returns the first message as a duplicate, even if the sender is now refused. If it was used
   *    with a different payload, refuses the message with `client_msg_no_reused`. If `allowsReuse`
   *    is true, continues with step 2 instead, and the clientMsgNo then belongs to the later
   *    message. If the store does not know the payload of the first message, it treats the payloads
   *    as equal.
   * 2. Applies the rules of `permissions.ts` to the sender, as `permission` specifies.
   * 3. Assigns the channel's next seq, and a messageId higher than all earlier ids of the channel.
   * 4. Stores the record and, once the record is durable, publishes a `message` event.
   *
   * Order: calls for one channel get their seqs in the order of the calls, and a channel's events
   * are published in the order of their seqs. A group message is published before a read returns
   * it. A personal message may be published after a read has returned it. The promise does not wait
   * for delivery to any session.
   *
   * Retries: a concurrent retry gets the result of the first call, once that result is durable.
   *
   * Failures: a refused or rejected message leaves no gap in the seqs and no record. However, a
   * message that is rejected with `unavailable` may have been stored. If the store fails to write a
   * message with an `origin`, it also rejects the later messages that this origin sent to the same
   * channel before the rejection. It does not reject messages that are already stored.
   *
   * On a store with several servers, step 2 for a personal message may use data that was read just
   * before the atomic step.
   *
   * With `header.noPersist`, nothing is stored except the dedupe record of a clientMsgNo that the
   * sender chose. The seq is 0, and the event is ordered with the channel's other messages.
   */
  append(draft: MessageDraft): Promise<AppendResult>;
  /**
   * Returns the messages of the range that have not expired, in seq order (descending if
   * `reverse`). Missing seqs belong to messages that expired or were trimmed, or are seqs that an
   * import skipped.
   */
  readMessages(key: ChannelKey, range: HistoryRange): Promise<HistorySlice>;
  /** Returns the seq of the newest published message, or 0 if no stored message was published. */
  headSeq(key: ChannelKey): Promise<number>;
  /**
   * Returns the seq of the stored message that a retry by this sender would return, or `undefined`
   * if there is no such message within the dedupe window.
   */
  seqOfRetry(key: ChannelKey, fromUid: string, clientMsgNo: string): Promise<number | undefined>;
  /**
   * Returns the seq of the imported message with this source id, or `undefined` if no message with
   * this id was imported.
   */
  seqOfSource(key: ChannelKey, sourceId: string): Promise<number | undefined>;
}

export interface CommandDraft {
  readonly key: ChannelKey;
  readonly channel: ChannelRef;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  readonly header: MessageHeader;
  readonly expireS: number;
  readonly tagKey: string | undefined;
  readonly passthrough?: Passthrough | undefined;
  readonly payload: Uint8Array;
  /** Users in whose inboxes a copy is stored, without duplicates. */
  readonly recipients: readonly string[];
  /** Users whose online sessions are pushed a copy with inboxSeq 0, which is not stored. */
  readonly pushOnlyRecipients: readonly string[];
  readonly origin: string | undefined;
  /** Same as in `MessageDraft`. */
  readonly allowsReuse?: boolean | undefined;
  readonly sentPayload?: Uint8Array | undefined;
}

export interface InboxStore {
  /**
   * Stores a command in one atomic step. If (key, fromUid, clientMsgNo) was used by a command or
   * message within the dedupe window, the call is a retry or is refused, as in `append`. Otherwise,
   * the call adds a copy to the inbox of each recipient under the next inboxSeq of that inbox. Once
   * the copies are durable, the call publishes a `command` event, and returns the messageSeq 0.
   * `append` also recognises a retry of a command.
   *
   * If an inbox is full, the oldest copy of the sender with the most copies is removed. All drafts
   * without an `origin` belong to one sender, the backends. Their copies are never removed to make
   * room for a user's command. The copies of one user may occupy at most a tenth of another user's
   * inbox. If that tenth is used up, the sender's oldest copy in the inbox is removed. A recipient
   * whose full inbox contains only copies from backends gets no copy of a user's command. In these
   * last two cases, a user's command that has only one recipient is refused instead: it is not
   * stored, and the call throws `overloaded`.
   */
  appendCommand(draft: CommandDraft): Promise<AppendResult>;
  /**
   * Returns the copies with an inboxSeq higher than `afterSeq` that are neither acknowledged nor
   * expired, oldest first. Returns an empty list only if there are no further copies: a first copy
   * that is larger than `maxBytes` is returned anyway.
   */
  readInbox(
    uid: string,
    afterSeq: number,
    page: Pick<HistoryRange, "limit" | "maxBytes">,
  ): Promise<readonly InboxCommand[]>;
  /** Removes these copies and returns how many existed. A seq without a copy costs no write. */
  acknowledgeCommands(uid: string, inboxSeqs: readonly number[]): Promise<number>;
}

/**
 * A change to one user's conversation.
 *
 *     read    marks all messages through `seq` as read
 *     unread  moves the read position so that `unread` messages are unread, or all messages if
 *             there are fewer
 *     delete  hides all messages through `seq` and marks them as read. If `seq` is
 *             absent, hides all messages and marks them as read
 */
export type ConversationChange =
  | { readonly kind: "read"; readonly seq: number }
  | { readonly kind: "unread"; readonly unread: number }
  | { readonly kind: "delete"; readonly seq?: number | undefined };

export interface ConversationSlice {
  readonly conversations: readonly Conversation[];
  /** True if some of the channels were not read, because a limit was reached. */
  readonly more: boolean;
}

export interface ConversationRange {
  /** Minimum `changedAtMs` of the conversations, in Unix milliseconds. 0 means no limit. */
  readonly sinceMs: number;
  /**
   * Maximum number of conversations. Only conversations whose newest message has an id below
   * `beforeId` are selected, starting with the newest conversation.
   */
  readonly count: number;
  readonly beforeId: number;
  readonly onlyUnread?: boolean;
  readonly excludedTypes?: readonly number[];
}

export interface ConversationSelection {
  /**
   * Conversations without their content, sorted by their newest message, newest first. Some may be
   * outside the range.
   */
  readonly heads: readonly ConversationHead[];
  /** True if `heads` contains all conversations changed since `sinceMs`, regardless of `count`. */
  readonly isComplete: boolean;
  /**
   * Time (Unix milliseconds) of the latest change to the user's conversations when the read began,
   * or a later time. A change that `heads` lacks may be older than this time by up to the
   * driver's `lookBackMs`.
   */
  readonly newestChangeMs: number;
  /**
   * Time of the earliest change, up to `newestChangeMs`, that `heads` may lack because it was still
   * being stored. `undefined` if there is no such change.
   */
  readonly pendingMs?: number | undefined;
  /**
   * Returns the channels of all the user's conversations, and possibly groups that the user has
   * left.
   */
  channels(): readonly ChannelRef[];
}

/**
 * Users' conversations. A user has a conversation for each group in `groupsOf`, and for each
 * personal channel with a stored message from or to the user. Storing a message writes nothing per
 * member.
 *
 * The read position starts at the seq of the group's newest message at the time the user joined, or
 * at 0 in a personal channel. It never starts before the newest imported message. A
 * `ConversationChange` moves the position forward or back. Each message that the user sends moves
 * the position forward to that message. Leaving a group deletes the position.
 *
 * A message is visible if it has not expired, is within the history limits and was not deleted by
 * the user. The unread count is the number of visible messages with a red dot after the read
 * position. Among the messages that have an expiry time, only the newest 1000 are counted. Fewer of
 * these messages are counted while thousands of expired messages have not been removed yet. In a
 * large group the unread count is always 0 and no position is stored.
 */
export interface ConversationStore {
  /**
   * Selects conversations with a visible message. Returns all conversations in the range, and
   * possibly a few outside it.
   */
  newestConversations(uid: string, range: ConversationRange): Promise<ConversationSelection>;
  /**
   * Returns the conversations of `channels` that have a visible message, in order. Stops after
   * `limit` conversations, or before the content exceeds `maxBytes` bytes, but always returns the
   * first conversation.
   */
  readConversations(
    uid: string,
    channels: readonly ChannelRef[],
    bounds: { readonly limit: number; readonly maxBytes: number },
  ): Promise<ConversationSlice>;
  /**
   * Returns a conversation, even if it has no messages. Returns `undefined` if the user is not in
   * the group.
   */
  conversation(uid: string, channel: ChannelRef): Promise<Conversation | undefined>;
  /**
   * Atomically applies the change and returns the result, or `undefined` if the user is not in the
   * group. The read position may move back. A position above the channel's newest seq is lowered to
   * that seq.
   */
  changeConversation(
    uid: string,
    channel: ChannelRef,
    change: ConversationChange,
  ): Promise<Conversation | undefined>;
}

export interface StreamDraft {
  readonly key: ChannelKey;
  readonly channel: ChannelRef;
  readonly fromUid: string;
  /** Identifies the stream within the channel. */
  readonly clientMsgNo: string;
  /** Id chosen by the producer to mark retries. If `undefined`, the driver generates an id. */
  readonly eventId: string | undefined;
  /** STREAM_START, STREAM_CONTENT, STREAM_END, or the type of a tool call or a custom event. */
  readonly type: string;
  readonly data: string;
  /** Time set by the producer. `undefined` means the time at which the store accepts the event. */
  readonly timestampMs: number | undefined;
  /**
   * True if a start ends, in the same atomic step, the channel's active stream that `streamEvent`
   * started. The state of that stream becomes `cancelled`.
   */
  readonly force: boolean;
  /**
   * Payload of the stream's message, used in place of the stream's text. Set only for a start. If
   * `undefined`, the payload is `streamPayload` of that text. Must not be `streamPayload("")`.
   */
  readonly payload?: Uint8Array | undefined;
  /**
   * Seconds until the stream's message expires, as in `MessageDraft`. Set only for a start. Absent
   * if the message never expires. A stream that is still active when its message expires continues.
   * The message is then removed after the stream ends.
   */
  readonly expireS?: number | undefined;
  /**
   * True if an end cancels the stream. The stream's state is then `cancelled` instead of `closed`.
   */
  readonly isCancel?: boolean | undefined;
  /** Same as in `MessageDraft`. `undefined` if the sender is not checked. */
  readonly permission?: SendPermission | undefined;
}

/**
 * The outcome of a stream event. Only a call with the verdict `done` can have changed anything.
 *
 *     done     the event was applied, by this call or by an earlier one
 *     running  a start was refused, because the channel has an active stream that `streamEvent`
 *              started
 *     missing  the stream does not exist, or has ended (only for tool calls and custom events)
 *     closed   a start or content event was refused, because the stream has ended
 *     taken    a start was refused, because its clientMsgNo belongs to a plain message
 *     stopped  the event was not added, because a viewer cancelled the stream
 */
export interface StreamResult {
  readonly verdict: "done" | "running" | "missing" | "closed" | "taken" | "stopped" | "refused";
  /** State of the stream after the call, or `undefined` if the stream does not exist. */
  readonly state: StreamState | undefined;
  /**
   * Reason why the sender is not allowed to send. Set only with the verdict `refused`, in which
   * case nothing was changed.
   */
  readonly refused?: SendRefusal | undefined;
}

/** A stream to change through the Durable Streams protocol, and the sender of the change. */
interface StreamSender {
  readonly key: ChannelKey;
  readonly channel: ChannelRef;
  /** Sender of the stream's message. No other user may append to the stream. */
  readonly fromUid: string;
  readonly clientMsgNo: string;
  /** Same as in `MessageDraft`. */
  readonly permission: SendPermission;
}

export interface StreamCreationDraft extends StreamSender {
  /** `application/json` or `text/plain`, possibly with parameters. */
  readonly contentType: string;
  /**
   * Records of the first append. May be empty. Each record is a valid event (see
   * `stream-record.ts`).
   */
  readonly records: readonly Uint8Array[];
  /** True if the stream ends after the records. */
  readonly isClosed: boolean;
}

/** An append through the Durable Streams protocol. `close` is `closed` or `undefined`. */
export interface StreamAppendDraft extends StreamSender, LogAppend {}

/**
 * The outcome of a change through the Durable Streams protocol. `refused` means that the sender is
 * not allowed to send. `taken` means that the clientMsgNo belongs to a message that is not a
 * stream. `other_sender` means that the stream has a different sender. The other outcomes are those
 * of `LogStore`.
 */
export type StreamCreation =
  | LogCreation
  | { readonly verdict: "refused"; readonly refused: SendRefusal }
  | { readonly verdict: "taken" };
export type StreamAppendResult =
  | LogAppendResult
  | { readonly verdict: "refused"; readonly refused: SendRefusal }
  | { readonly verdict: "other_sender" };

/** Changes channel streams through the Durable Streams protocol. Each call is one atomic step. */
export interface ChannelLogStore {
  /**
   * Creates a stream whose log is written through the Durable Streams protocol. As in
   * `streamEvent`, the stream's message is appended to the channel, and the stream's events are
   * published. Up to `MAX_OPEN_STREAMS` streams of a channel can be active at the same time. The
   * limits in `LogLimits` apply. `stream-fold.ts` describes what viewers are shown of a long
   * stream.
   */
  createStream(draft: StreamCreationDraft): Promise<StreamCreation>;
  /**
   * Appends to the log of an active stream, ends the stream, or both, as `appendLog` does. Each
   * record is an event of the stream (see `stream-record.ts`). Throws `too_large` if the stream was
   * started by `streamEvent` and would exceed its maximum size.
   */
  appendToStream(draft: StreamAppendDraft): Promise<StreamAppendResult>;
}

export interface StreamEnd {
  readonly key: ChannelKey;
  readonly clientMsgNo: string;
  readonly messageSeq: number;
  /**
   * Time of the end in Unix milliseconds on the store's clock, not earlier than the time in the id
   * of any earlier message of the channel. It may be later than the actual end if the store was
   * interrupted before it recorded the end.
   */
  readonly endedMs: number;
}

/** Minimum time for which a store keeps the logout of a device. */
export const LOGOUT_TTL_MS = 86_400_000;

/** Maximum `limit` of `streamEnds` and `personalStreamEnds`. */
export const MAX_STREAM_ENDS = 200;

export interface StreamStore {
  /**
   * Applies an event to its stream in one atomic step [spec: Streaming text session; decisions].
   * Applies the rules of `permissions.ts` to the sender first, as `permission` specifies. On a
   * store with several servers, this check in a personal channel may use data that was read just
   * before the step.
   *
   * A start appends the stream's message to the channel. The message gets the next seq, has a red
   * dot and expires as `expireS` specifies. Its clientMsgNo is recorded for the dedupe window, as
   * for any message. The message is published as a `message` event whose `stream` has the
   * `nextIndex` 0. Every applied event, including the start, is then published as an `event` event
   * with its place in the stream. These events are published when they are durable, in the order of
   * their indexes and ordered with the channel's messages.
   *
   * A retry changes and publishes nothing. Content, a tool call or a custom event with the id of an
   * earlier event is a retry even after the end of the stream. Ending a stream that has ended
   * returns `done`.
   *
   * Throws `too_large` if the stream would exceed its maximum size, and `overloaded` if this node's
   * active streams would exceed their memory limit.
   */
  streamEvent(draft: StreamDraft): Promise<StreamResult>;
  /**
   * Ends an active stream as `cancelled` on behalf of a viewer. The producer's next event then gets
   * `stopped`. A stream that has already ended is not changed, and the call returns `done`.
   */
  cancelStream(key: ChannelKey, clientMsgNo: string): Promise<StreamResult>;
  /**
   * Ends every active stream that has had no event for more than `silentMs` milliseconds. The state
   * of these streams becomes `interrupted`. Returns their number. The time is not measured with the
   * system clock, which may jump. Silence before a restart or a store outage is not counted.
   */
  interruptStreams(silentMs: number): Promise<number>;
  /**
   * Returns the durable and published state of an active or ended stream, or `undefined` if there
   * is no such stream. Events of a group's stream are published before a read returns them.
   */
  stream(key: ChannelKey, clientMsgNo: string): MaybePromise<StreamSnapshot | undefined>;
  activeStreams(keys: readonly ChannelKey[]): MaybePromise<readonly StreamSnapshot[]>;
  personalStreamsOf(uid: string): MaybePromise<readonly StreamSnapshot[]>;
  /**
   * Returns the stream ends in these channels that occurred at `sinceMs` or later, newest first.
   * Returns at most `limit` ends, and `limit` must not exceed MAX_STREAM_ENDS. Ends of streams that
   * were removed later may be included. A channel without such an end costs one lookup in memory,
   * or one Redis command.
   */
  streamEnds(
    keys: readonly ChannelKey[],
    sinceMs: number,
    limit: number,
  ): Promise<readonly StreamEnd[]>;
  /** Does the same as `streamEnds` for all the user's personal channels. */
  personalStreamEnds(uid: string, sinceMs: number, limit: number): Promise<readonly StreamEnd[]>;
  /**
   * Returns the length of the stream's text, in UTF-16 code units, before the event at `index` (at
   * most the stream's nextIndex). Returns `undefined` if there is no such stream or index.
   */
  streamTextOffset(
    key: ChannelKey,
    clientMsgNo: string,
    index: number,
  ): MaybePromise<number | undefined>;
}

/**
 * Identifies one lifetime of a node's process in the cluster: `<node id>:<random>`. A process that
 * was declared dead continues under a new incarnation, because a dead incarnation never becomes
 * live again.
 */
export type Incarnation = string;

/** Identifies the earlier session that a CONNECT continues. */
export type Claim =
  | {
      /** Order of the earlier login, from the name that the server gave the session. */
      readonly order: number;
    }
  | {
      /** Name that the client chose. The client uses it until the server has named the session. */
      readonly label: string;
    };

export interface LoginTerms {
  /** Session that the client continues. `undefined` means a new login. */
  readonly claim?: Claim | undefined;
  /**
   * Hash of the token that must be registered for the device. The session gets the level of that
   * device. If the hash is `undefined`, no token is checked.
   */
  readonly tokenHash?: Uint8Array | undefined;
  /**
   * Time at which the session's JWT was issued, in Unix seconds. The result of the login is
   * `unauthorized` if the device was logged out after this second. `undefined` if the session has
   * no JWT.
   */
  readonly issuedS?: number | undefined;
  /** True if the session gets level 0 even if the registered device is a main device. */
  readonly isSecondary?: boolean | undefined;
}

/** Identifies a session in the store. */
export type SessionRef = Pick<SessionRecord, "uid" | "sessionId">;

/**
 * A session that `login` has added. `order` is higher for a later login, and `since` for a later
 * connection.
 */
export interface LoggedInSession {
  /** The session, with the level of the registered device if `LoginTerms.tokenHash` was set. */
  readonly session: SessionRecord;
  /** Position among the logins of this uid and flag. A continued session keeps its position. */
  readonly order: number;
  /** Position of the session's connection among the user's connections. */
  readonly since: number;
}

export type LoginResult =
  | ({ readonly kind: "entered" } & LoggedInSession & {
        /**
         * All groups that the user belongs to, and possibly groups that the user has left (see
         * `JoinState.groups`).
         */
        readonly groups: readonly string[];
        /**
         * A message id. Every message that is stored after the login has a higher id, even if the
         * clock was set back. If the store has a single counter of message ids, no earlier message
         * has a higher id. If it has several counters, messages of the last two seconds may also
         * have a higher id.
         */
        readonly newestId: number;
      })
  | {
      /**
       * The account is banned, or the claimed session may not be continued. No session was added or
       * ended.
       */
      readonly kind: "refused";
      readonly reason: CloseReason;
    }
  | {
      /**
       * No device with this flag has the token, or the device was logged out after the JWT was
       * issued. Nothing was added or changed.
       */
      readonly kind: "unauthorized";
    };

export interface JoinRequest {
  readonly session: SessionRef;
  /** Groups that `login` returned, without duplicates. */
  readonly groups: readonly string[];
  readonly positions: readonly ResumePosition[];
  readonly inboxPage: Pick<HistoryRange, "limit" | "maxBytes">;
}

export interface JoinState {
  /** False if the session was ended, or if the store has lost it. */
  readonly isEntered: boolean;
  /** The requested groups that are in `groupsOf(uid)`, in no particular order. */
  readonly groups: readonly string[];
  /** False if the user may also be a member of groups that were not requested. */
  readonly isAll: boolean;
  /** Seqs that determine where the reader resumes, for each of `positions` in order. */
  readonly resumeSeqs: readonly ResumeSeqs[];
  /** First page of the user's command inbox (see `readInbox`). */
  readonly commands: readonly InboxCommand[];
  /**
   * Keys of the channels with an active stream, among the requested groups and the user's personal
   * channels. May contain a channel whose stream has just ended.
   */
  readonly streamKeys: readonly ChannelKey[];
}

export interface SessionEntry extends LoggedInSession {
  readonly incarnation: Incarnation;
}

export type Confirmation =
  | { readonly kind: "confirmed" }
  | {
      /** The session was ended and is no longer in the store. */
      readonly kind: "refused";
      readonly reason: CloseReason;
    }
  | {
      readonly kind: "failed";
      readonly error: BrokerError;
    };

/**
 * The session directory. Each change to a user's sessions is atomic. Adding or removing a session
 * also publishes `presence`. A call for several sessions or users is not atomic as a whole. A call
 * that throws `unavailable` may still have taken effect.
 */
export interface SessionStore {
  /**
   * Checks the token and adds a session under `incarnation`. The same step removes the sessions
   * that the new session ends, and publishes one `end_session` event for each of them. The new
   * session ends the following sessions:
   *
   * - if the new session is a main session, every other main session of the same uid and flag,
   * - every session of the same uid, flag and (non-empty) deviceId,
   * - the session that it continues.
   *
   * Without a claim, the call is a new login, whose order is higher than the order of all earlier
   * logins. With a claim, the call continues an earlier session and keeps the order of that
   * session's login. The order in a claim is valid even if the store has lost the session. A label
   * that the store does not know is treated as a new login [decisions: resume is no login].
   * Continuing a main session is refused if it was ended by `endSession` for a reason other than a
   * ban. It is also refused if another device logged in later, even if that device's session no
   * longer exists.
   *
   * If a token is replaced after a session was added with it, every later call to `sessionsOf`
   * returns that session, so that the caller that replaced the token can end it.
   */
  login(
    session: SessionRecord,
    incarnation: Incarnation,
    terms?: LoginTerms,
  ): MaybePromise<LoginResult>;
  /**
   * Reads the state that a session needs to join. A caller that already listens to the topics of
   * the user and of the requested groups misses no later change of this state. On a single server,
   * the state is a consistent snapshot. On a Redis Cluster, only the parts on the same server are
   * consistent with each other.
   */
  joinState(request: JoinRequest): MaybePromise<JoinState>;
  /**
   * Removes a session that its node no longer serves. Has no effect if the session is not in the
   * store. `cause` is the reason why the session ended, or `undefined` if only its connection
   * ended.
   */
  removeSession(session: SessionRef, cause?: CloseReason): Promise<void>;
  /**
   * Removes a session and publishes `end_session` for it, even if it is not in the store. A session
   * that was in the store cannot be confirmed for at least a day, or until its node removes it. If
   * the session was a main session, it cannot be continued either, unless `reason` is `banned`.
   */
  endSession(session: SessionRecord, reason: CloseReason): Promise<void>;
  /**
   * Checks, for each session in order, whether it may continue. The caller passes only sessions
   * that logged in on this node and that the node has not removed. Each session is checked in its
   * own atomic step, and a failure for one session does not affect the others.
   *
   * `refused` means that the session was ended by a later login, by `endSession`, by a new token of
   * its device, by the logout of its device, or by a ban of its user. `confirmed` means that the
   * session is in the store under `incarnation`, even if the store had lost it. The session stays
   * in the store if its node confirms it at least once a minute. Confirming never ends a session
   * that logged in later.
   */
  confirmSessions(
    sessions: readonly LoggedInSession[],
    incarnation: Incarnation,
  ): Promise<readonly Confirmation[]>;
  /**
   * Sets a session's `isBackground`. Has no effect if the session is not in the store. Calls for
   * one session take effect in the order of the calls.
   */
  setBackground(session: SessionRef, isBackground: boolean): Promise<void>;
  /** Returns the sessions of each user, in order, including those of dead incarnations. */
  sessionsOf(uids: readonly string[]): Promise<readonly (readonly SessionEntry[])[]>;
}

/** The latest main-session login of a uid and flag. It is kept after the session has ended. */
export interface NewestLogin {
  readonly order: number;
  readonly since: number;
  readonly deviceId: string;
  /** Name that the client chose for the login, or "" if the client chose no name. */
  readonly label: string;
  /**
   * Reason why the login was ended, or `undefined` if it was not ended. An ended login cannot be
   * continued, unless the reason is a ban that has been lifted.
   */
  readonly ended: CloseReason | undefined;
  /** Labels of earlier logins, oldest first. */
  readonly past: readonly string[];
}

/** Time for which a `NewestLogin` is kept after its session was last added or confirmed. */
export const LOGIN_TTL_MS = 30 * 86_400_000;

export interface StoredPassword {
  /** Hash in the form `scrypt$N$r$p$salt$hash`, with salt and hash in base64. */
  readonly passwordHash: string;
}

export interface ManagerStore {
  /**
   * Atomically stores the password unless a password is already stored. Returns the stored
   * password.
   */
  putPasswordOnce(username: string, password: StoredPassword): Promise<StoredPassword>;
  /** Stores the SHA-256 of an access token until `expiresAtMs`. `owner` can be any text. */
  putAccessToken(tokenHash: Uint8Array, owner: string, expiresAtMs: number): Promise<void>;
  /** Returns the owner, or `undefined` if the token is unknown, expired or removed. */
  accessTokenOwner(tokenHash: Uint8Array): Promise<string | undefined>;
  /** Removes an access token. Has no effect if it is not stored. */
  removeAccessToken(tokenHash: Uint8Array): Promise<void>;
}

export const MAX_SYSTEM_UIDS = 1000;

export interface SystemAccountStore {
  systemUids(): Promise<readonly string[]>;
  /** Atomically adds or removes system accounts. Repeating the call has no effect. */
  changeSystemUids(kind: "add" | "remove", uids: readonly string[]): Promise<void>;
}

/** An identity provider's public keys, as the provider returned them. */
export interface StoredKeySet {
  readonly url: string;
  readonly text: string;
  /** Unix milliseconds at which the keys were requested. */
  readonly readAtMs: number;
}

export interface KeySetStore {
  keySet(): Promise<StoredKeySet | undefined>;
  putKeySet(set: StoredKeySet): Promise<void>;
}

/** Key that signs stream URLs. */
export interface SigningKey {
  /** Number of the key, counted from 1. The key with the highest number signs new URLs. */
  readonly number: number;
  readonly secret: Uint8Array;
  readonly createdAtMs: number;
}

export interface SigningKeyStore {
  /** Returns the keys in ascending order of their numbers. */
  signingKeys(): Promise<readonly SigningKey[]>;
  /**
   * Atomically stores the key unless a key with this number is already stored. Returns the stored
   * key.
   */
  putSigningKeyOnce(key: SigningKey): Promise<SigningKey>;
  /** Removes a key. Has no effect if it is not stored. */
  removeSigningKey(number: number): Promise<void>;
}

/**
 * State of a store's import. It only moves forward, except from `opening` back to `none`.
 *
 *     none     no import was ever opened
 *     opening  the nodes stop serving clients, and refuse writing calls outside the import
 *     open     lines are accepted
 *     closing  the nodes finish the lines in progress and accept no further lines
 *     closed   the import has ended; no other import can be opened
 */
export type ImportPhase = "none" | "opening" | "open" | "closing" | "closed";

export const LINE_KINDS = [
  "user",
  "token",
  "channel",
  "members",
  "list",
  "message",
  "position",
  "system_uid",
] as const;
export type LineKind = (typeof LINE_KINDS)[number];

export interface ImportState {
  readonly phase: ImportPhase;
  /** Number of stored lines by kind. A line that replaced an earlier line is counted again. */
  readonly stored: Readonly<Partial<Record<LineKind, number>>>;
}

/** A message from another server, with its seq and its time. */
export interface ImportedMessage {
  readonly channel: ChannelRef;
  readonly fromUid: string;
  /** "" if the sender chose no value. */
  readonly clientMsgNo: string;
  readonly messageSeq: number;
  readonly sourceId: string;
  readonly timestampMs: number;
  readonly expireS: number;
  readonly passthrough: Passthrough | undefined;
  readonly payload: Uint8Array;
}

/**
 * Result of importing a message.
 *
 *     stored     the message was stored
 *     unchanged  the message had been stored before, or is beyond the history limits
 *     conflict   the seq belongs to a different message, or is unused and below the newest seq
 */
export type ImportVerdict = "stored" | "unchanged" | "conflict";

/** Import of another server's data into a store that has no other data. */
export interface ImportStore {
  importState(): Promise<ImportState>;
  /**
   * Atomically changes the phase if it is one of `from`. Returns the phase before the call.
   */
  changeImportPhase(from: readonly ImportPhase[], to: ImportPhase): Promise<ImportPhase>;
  countImported(lines: ImportState["stored"]): Promise<void>;
  /**
   * Returns the name of a kind of data that the store contains, such as `channels` or `messages`.
   * Returns `undefined` if the store is empty. Sessions and manager accounts are ignored.
   */
  storedData(): Promise<string | undefined>;
  /**
   * Stores messages of one channel, and returns the result for each. The seqs must be in ascending
   * order. A message keeps its seq and gets a new id. If its time is earlier than that of the
   * previous message, it gets the previous message's time. Each message has a red dot. Nothing is
   * published. Retries of a message that is younger than the dedupe window are recognised.
   */
  importMessages(
    key: ChannelKey,
    messages: readonly ImportedMessage[],
  ): Promise<readonly ImportVerdict[]>;
  /**
   * Sets the positions of a user's conversation. A position above the channel's newest seq is
   * lowered to that seq. Messages that the user sent count as read. Returns false if the positions
   * have not changed. In a conversation whose positions were never set, all imported messages count
   * as read.
   */
  importPosition(
    uid: string,
    channel: ChannelRef,
    position: { readonly readSeq: number; readonly deletedSeq: number },
  ): Promise<boolean>;
}

export interface Store
  extends UserStore,
    SessionStore,
    ChannelStore,
    MessageStore,
    StreamStore,
    ChannelLogStore,
    LogStore,
    InboxStore,
    ConversationStore,
    SystemAccountStore,
    SigningKeyStore,
    KeySetStore,
    EventStore,
    LeaseStore,
    EventDemandStore,
    OnlineStore,
    PushStore,
    WebhookStore,
    ManagerStore,
    ImportStore {
  /**
   * Opens or creates the data. Rejects data in a newer format. If `signal` is aborted while the
   * start waits for a check of the data or for another process, the start rejects.
   */
  start(signal?: AbortSignal): Promise<void>;
  /**
   * Rejects new calls, and finishes the calls in progress. The embedded store then writes all data
   * to the disk. May be called repeatedly.
   */
  close(): Promise<void>;
  /** Throws `unavailable` if a write would fail now. */
  ping(): Promise<void>;
}

// --- Cluster -------------------------------------------------------------------------------------

/**
 * Events between nodes.
 *
 *     kind          topics on which it is published
 *     message       the group, or both users of a personal channel; with `recipients`, these users
 *     event         the group, or both users of a personal channel
 *     command       the users of the copies
 *     conversation  the user
 *     presence      the presence topic of the user
 *     end_session   the user
 *     credential    the user
 *     addition      the user
 *     removal       the group
 *     log           the bucket of the log
 *     missed, head  none: these events are never published
 */
export type ClusterEvent =
  | {
      readonly kind: "message";
      readonly message: Message;
      readonly origin: string | undefined;
      /** Users to whom a command is restricted. `undefined` means all users of the channel. */
      readonly recipients: readonly string[] | undefined;
    }
  | {
      /**
       * An event of a stream is ordered with the channel's messages. The order of other events is
       * undefined.
       */
      readonly kind: "event";
      readonly event: ChannelEvent;
      /** Session that sent the event and does not receive it. `undefined` if a backend sent it. */
      readonly origin?: string | undefined;
    }
  | {
      readonly kind: "command";
      readonly message: Message;
      readonly copies: readonly CommandCopy[];
      readonly origin: string | undefined;
    }
  | {
      /** A user changed a conversation. Its new state is pushed to the user's sessions. */
      readonly kind: "conversation";
      readonly uid: string;
      readonly conversation: Conversation;
      readonly change: ConversationChange["kind"];
      readonly origin: string | undefined;
    }
  | {
      /** The online state of `uid` may have changed. Watching nodes read it from the store. */
      readonly kind: "presence";
      readonly uid: string;
      /**
       * Reason why a session ended, or `undefined` if no session ended or if only its connection
       * ended. The Redis store publishes the reason only if the user has no session left.
       */
      readonly cause?: CloseReason | undefined;
    }
  | {
      readonly kind: "end_session";
      readonly uid: string;
      readonly sessionId: string;
      readonly reason: CloseReason;
    }
  | {
      /** A device's token may have changed. Nodes confirm the user's sessions. */
      readonly kind: "credential";
      readonly uid: string;
    }
  | {
      /**
       * `uid` became a member, but may already have left again. The receiver reads the membership
       * from the store.
       */
      readonly kind: "addition";
      readonly uid: string;
      readonly channelId: string;
    }
  | {
      /** Published by the step that removed the users, before later messages of the group. */
      readonly kind: "removal";
      readonly channelId: string;
      /**
       * `undefined` if any member may have been removed. In that case, the receiver checks all
       * members.
       */
      readonly uids: readonly string[] | undefined;
    }
  | LogEvent
  | {
      /**
       * Events of a user topic, a presence topic or a log topic may have been missed. This event is
       * never sent to other nodes. Only the local listener receives it. The cluster itself reads
       * missed messages and stream events. The listener must read memberships, commands, ended
       * sessions, presence and logs.
       */
      readonly kind: "missed";
      readonly topic: Topic;
    }
  | HeadEvent;

/**
 * The point from which a group's events are delivered to the listener, after this node has
 * subscribed to the group. Messages up to `headSeq`, and stream events before this point, are not
 * delivered, and must be read from the store. Later events of active streams are delivered. The
 * event is never sent to other nodes. It arrives before `Cluster.listen` resolves, unless the node
 * could not read the group's position and has to retry the read.
 */
export interface HeadEvent {
  readonly kind: "head";
  readonly channelId: string;
  readonly headSeq: number;
}

export interface Publisher {
  /** Sends an event without waiting. An event that cannot be sent now is lost without an error. */
  publish(event: ClusterEvent): void;
}

/** Sends events, and reports their loss to the caller. */
export interface Announcer {
  /**
   * Resolves when all events are sent. Throws `unavailable` or `overloaded` if an event could not
   * be sent. The other events may then have been sent. A repeated call sends all events again.
   */
  announce(events: readonly ClusterEvent[]): Promise<void>;
}

/**
 * Checks the memberships of a group's sessions in the store, after this node may have missed
 * removals. The judge is called after missed messages were read and before they are delivered.
 *
 * When the promise resolves, sessions of users who are no longer members receive nothing more from
 * the group. `lastSeq` is the seq of the last delivered message, or `Infinity` if that seq is
 * unknown. Sessions of users who became members after that message are left out of the next
 * delivery and catch up by themselves. If the judge rejects with `unavailable`, nothing is
 * delivered.
 */
export type GroupJudge = (channelId: string, lastSeq: number) => Promise<void>;

export interface NodeInfo {
  readonly nodeId: string;
  /** Address that is sent to clients, or "" if no address is configured. */
  readonly clientAddress: string;
  /**
   * Address for clients that connect over TCP without WebSocket, or "" if no address is configured.
   */
  readonly tcpAddress: string;
  readonly version: string;
  readonly startedAtMs: number;
  readonly sessions: number;
  /** Recent CPU usage of the node's process, as a fraction of one core from 0 to 1. */
  readonly load: number;
  readonly isDraining: boolean;
  /** Phase of the import that the node has adopted. */
  readonly importPhase: ImportPhase;
}

export interface NodeRegistry {
  /**
   * Returns the live nodes, this node first. Throws `unavailable` while this node is considered
   * dead.
   */
  nodes(): Promise<readonly NodeInfo[]>;
}

interface Liveness {
  /** Incarnation under which new sessions of this node are stored. */
  readonly incarnation: Incarnation;
  /**
   * Returns true if the incarnation is live. May throw `unavailable` while this node is considered
   * dead.
   */
  isLive(incarnation: Incarnation): MaybePromise<boolean>;
  /** Resolves when the other nodes consider this node live again, under `incarnation`. */
  heartbeat(): Promise<void>;
}

export interface ResyncHandler {
  /**
   * Checks the sessions of these users and ends the sessions that must not continue. Returns the
   * users whose sessions could not be checked. Called before the missed events of these users are
   * delivered. Rejects with `unavailable` if no session could be checked.
   */
  judgeUsers(uids: readonly string[]): Promise<readonly string[]>;
  readonly judgeGroup: GroupJudge;
  /**
   * Called after each confirmed heartbeat. `isAnew` is true for the first heartbeat of an
   * incarnation, and after an outage in which the store may have lost this node's sessions.
   */
  beat(isAnew: boolean): void;
  /**
   * Ends all sessions of this node. Called when this node was declared dead and another node with
   * its id is live, because events no longer reach the sessions.
   */
  evicted(): void;
}

export interface Cluster extends Publisher, Announcer, NodeRegistry, Liveness {
  readonly nodeId: string;
  /** True if every event reaches this node, even on topics to which it does not listen. */
  readonly deliversAll: boolean;
  /** Sets the listener and the handler for missed events. Called once, before `start`. */
  onEvent(listener: (event: ClusterEvent) => void, resync: ResyncHandler): void;
  /**
   * Subscribes to topics. When the call resolves, this node receives every event that is published
   * on them from then on. A second call for the same topic has no further effect. One call with
   * many topics costs less than one call for each topic.
   */
  listen(...topics: readonly Topic[]): Promise<void>;
  /**
   * Subscribes to topics, but resolves earlier than `listen`. When the call resolves, this node
   * receives every event that is published from then on. However, the events may reach the listener
   * only after `listen` has resolved. In place of stored messages and stream events, the listener
   * may receive only a `HeadEvent`. Resolves to true if the events already reach the listener, so
   * that `listen` has nothing left to do.
   */
  subscribe(...topics: readonly Topic[]): MaybePromise<boolean>;
  /** Unsubscribes after a delay, so that subscribing again soon is free. */
  unlisten(topic: Topic): void;
  /** Resolves when every event published before the call has reached the listener. */
  barrier(): Promise<void>;
  /**
   * Returns `undefined` if, as far as this node knows, it has missed no event of the topics that
   * `concerns` accepts. Otherwise, returns a promise that resolves when the missed events have
   * reached the listener and the listener has ended the sessions that must not continue. Data that
   * the caller read earlier may be outdated and must be read again. The promise rejects with
   * `unavailable` after a time-out.
   */
  recovery(concerns: (topic: Topic) => boolean): Promise<void> | undefined;
  /**
   * Does the same as `barrier`, but does not wait for events that cannot be read now. `recovery`
   * reports such events. Returns `undefined` if there is nothing to wait for, or if topics have no
   * common order (Redis Cluster).
   */
  delivered(): Promise<void> | undefined;
  start(): Promise<void>;
  /** Disconnects. Afterwards, no event reaches the listener. May be called more than once. */
  close(): Promise<void>;
  /** Throws `unavailable` while events might not reach this node. */
  ping(): Promise<void>;
}

export interface FailureCount {
  readonly count: number;
  /** Seconds until the time window of the count ends. */
  readonly retryAfterS: number;
}

/** Counts failed attempts per key. All nodes share the counts. */
export interface Throttle {
  failures(key: string): Promise<FailureCount>;
  /**
   * Counts a failure and returns the new count. The first failure starts a window of `windowMs`.
   */
  addFailure(key: string, windowMs: number): Promise<FailureCount>;
  clear(key: string): Promise<void>;
}
