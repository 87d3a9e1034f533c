// The ports of the domain: a store, a cluster, a clock. Each method is a domain step;
// its prose is the contract every driver keeps and `test/contract/` checks. A driver that cannot be
// reached throws BrokerError("unavailable").

import type { MaybePromise } from "../lib/maybe-promise.ts";
import type { BrokerError, CloseReason, SendRefusal } from "./errors.ts";
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

/** Unix milliseconds. Tests pass their own. */
export type Clock = () => number;

// --- Store ---------------------------------------------------------------------------------------

/**
 * Every write is durable when its promise resolves: it survives `kill -9` (and power loss where
 * the driver promises it).
 */
export interface UserStore {
  /** The registered device class, or undefined. */
  device(uid: string, flag: DeviceFlag): Promise<Device | undefined>;
  /**
   * Stores `device` in place of the one before, atomically, and returns that one. One without a
   * token logged out: its main session can then be neither continued nor confirmed, also where it
   * was not in, and a secondary one not confirmed for a day at least.
   */
  putDevice(device: Device): Promise<Device | undefined>;
  /**
   * The state of each user, in order: cheap to compare, for many users whose events may be missed.
   */
  userStates(uids: readonly string[]): Promise<readonly UserState[]>;
}

export interface UserState {
  /** A superset of the user's groups; `ChannelStore.groupsAmong` is exact. */
  readonly groups: readonly string[];
  /** No command in the user's inbox has a greater inboxSeq; 0: it is empty. */
  readonly inboxSeq: number;
}

/** [spec: temp_subscriber]. A uid may hold both at once. */
export type Membership = "permanent" | "temporary";

/** Lists of users beside the members: who may not send, and who alone may. */
export type ChannelList = "denylist" | "allowlist";

/** `add` of listed and `remove` of other uids is harmless; `replace` by no uids clears the list. */
export interface ListChange {
  readonly kind: "add" | "remove" | "replace";
  readonly uids: readonly string[];
}

/** Where a sender stands in the lists of the channel it sends to. */
interface ListFacts {
  readonly isDenied: boolean;
  /** The allowlist is not empty. */
  readonly hasAllowlist: boolean;
  readonly isAllowed: boolean;
}

/** How many uids are members of either kind, and on each list. */
export interface ChannelSizes extends Readonly<Record<ChannelList, number>> {
  readonly members: number;
}

/** The facts that decide a send into a group. `info` undefined: no such group. */
export interface GroupFacts extends ListFacts {
  readonly info: ChannelInfo | undefined;
  readonly isSubscriber: boolean;
}

/**
 * The facts that decide a personal send. A user without a record has no rules; the lists are the
 * receiver's.
 */
export interface PersonFacts extends ListFacts {
  readonly receiver: ChannelInfo | undefined;
  /** The receiver's record lists contacts at all. */
  readonly receiverHasContacts: boolean;
  /** The sender is one of them. */
  readonly isContact: boolean;
  readonly sender: ChannelInfo | undefined;
}

export interface ChannelStore {
  channel(channel: ChannelRef): Promise<ChannelInfo | undefined>;
  /**
   * Creates the channel with permanent subscribers in one atomic step; false when the id is taken
   * (nothing changes).
   */
  createChannel(info: ChannelInfo, subscribers: readonly string[]): Promise<boolean>;
  /**
   * Changes flags atomically and returns the new record; undefined when there is no such channel.
   * `disband` is never unset.
   */
  updateChannel(channel: ChannelRef, flags: ChannelFlags): Promise<ChannelInfo | undefined>;
  /**
   * Adds members in one atomic step; false if there is no such channel or it is disbanded. Adding
   * twice is harmless. With `reset` the kind's list is replaced by the given one, and the step
   * publishes the removed members of a group, as `removeSubscribers` does.
   */
  addSubscribers(
    channel: ChannelRef,
    uids: readonly string[],
    options: { readonly membership: Membership; readonly reset: boolean },
  ): Promise<boolean>;
  /**
   * Removes one kind of membership from all listed uids or from none, atomically. A uid that holds
   * the other kind as well stays a member. Of a group the step publishes the uids that are no
   * longer members as a `removal` event, in order with the group's messages; a node that misses it
   * asks its `GroupJudge`. A repeated call publishes nothing again.
   */
  removeSubscribers(
    channel: ChannelRef,
    uids: readonly string[],
    membership: Membership,
  ): Promise<SubscriberRemoval>;
  /**
   * Changes a list of the channel in one atomic step; false: no such group, or it is disbanded. A
   * user has lists without a record too. Members and what they receive stay as they are.
   */
  changeList(channel: ChannelRef, list: ChannelList, change: ListChange): Promise<boolean>;
  channelSizes(channel: ChannelRef): Promise<ChannelSizes>;
  /** All uids on the list, in no order. */
  listed(channel: ChannelRef, list: ChannelList): Promise<readonly string[]>;
  /**
   * A driver with the facts in memory answers synchronously: every command and event asks.
   */
  groupFacts(channelId: string, uid: string): MaybePromise<GroupFacts>;
  personFacts(fromUid: string, toUid: string): MaybePromise<PersonFacts>;
  /** The groups `uid` is a member of, of either kind, disbanded ones left out. */
  groupsOf(uid: string): Promise<readonly string[]>;
  /**
   * Which of these groups are among its `groupsOf`. A caller that listens to the groups and to the
   * user misses no later change. `channelIds` without repeats.
   */
  groupsAmong(
    uid: string,
    channelIds: readonly string[],
  ): Promise<{
    /** In no order. */
    readonly groups: readonly string[];
    /** False: the user may be in others too. */
    readonly isAll: boolean;
  }>;
  /**
   * For each uid the seq of the group's newest message when it became a member; undefined: the
   * group is not one of its `groupsOf`.
   */
  joinSeqs(channelId: string, uids: readonly string[]): Promise<readonly (number | undefined)[]>;
  /** All members of either kind, in no order; empty when there is no such channel. */
  members(channel: ChannelRef): Promise<readonly string[]>;
  /** Those of `uids` that are members of either kind, in the given order, each once. */
  membersAmong(channel: ChannelRef, uids: readonly string[]): Promise<readonly string[]>;
}

/**
 * How a sender is judged. `check_friends`: the receiver's allowlist counts. `check_exempt`: a
 * system account sends, only disband counts. `check_open`: to a system account, whose lists and
 * contacts do not count.
 */
export type SendCheck = "check" | "check_friends" | "check_exempt" | "check_open";

/**
 * A check: the store judges the sender in the step that appends. `granted`: the caller has judged.
 * A refusal of the caller: only the retry of an accepted message is answered.
 */
type SendPermission = SendCheck | "granted" | SendRefusal;

/** A message before the store gave it its place. */
export interface MessageDraft {
  readonly key: ChannelKey;
  readonly channel: ChannelRef;
  readonly fromUid: string;
  /**
   * The sender's own, which is looked up and remembered; "": none, and the message has that of its
   * id (`clientMsgNoOf`).
   */
  readonly clientMsgNo: string;
  readonly header: MessageHeader;
  readonly expireS: number;
  readonly streamNo: string | undefined;
  readonly tagKey: string | undefined;
  readonly passthrough?: Passthrough | undefined;
  readonly payload: Uint8Array;
  /** The session that sent it, which gets no push of it; undefined from HTTP. */
  readonly origin: string | undefined;
  /** Only these users get the push; undefined: everyone in the channel. */
  readonly recipients: readonly string[] | undefined;
  readonly permission: SendPermission;
}

export interface AppendResult {
  readonly messageId: number;
  readonly messageSeq: number;
  /**
   * The same sender used this clientMsgNo in this channel before: nothing was stored or published.
   */
  readonly duplicate: boolean;
  /**
   * The sender may not send: nothing was stored or published, and the numbers are 0. Absent: it
   * was accepted.
   */
  readonly refused?: SendRefusal;
}

/** A range of history. Bounds are inclusive sequence numbers; `limit` counts messages. */
export interface HistoryRange {
  readonly fromSeq: number;
  readonly toSeq: number;
  readonly limit: number;
  /** Newest first; the limit then keeps the newest of the range. */
  readonly reverse: boolean;
  /**
   * Bytes of content (payloads, and all that streams carry) after which the slice ends early; it
   * holds at least one message if there is one.
   */
  readonly maxBytes: number;
}

export interface HistorySlice {
  readonly messages: readonly Message[];
  /** The range holds messages beyond the limit or maxBytes. */
  readonly more: boolean;
}

export interface ResumeSeqs {
  /** The seq of the newest message; 0: no message. Its event may still be under way. */
  readonly headSeq: number;
  /**
   * Last seq (≤ the reader's) that the reader still shares with the store. Later seqs were reused
   * after a fail-over lost messages.
   */
  readonly lastCommonSeq: number;
}

export interface MessageStore {
  /**
   * One atomic step: look up (key, fromUid, clientMsgNo), which precedes a refusal, else judge
   * the sender by `permissions.ts`, take the channel's next seq and a growing messageId, store the
   * record, and, once it is durable, publish it as a `message` event. These calls take their seqs
   * in a channel in their order, and events of a channel are published in the order of their seqs.
   * A message of a group is published before a read shows it; one of a personal channel may be
   * published after that. The answer waits for no delivery. A concurrent retry gets the first
   * call's answer, and not before that one is durable. A rejected or refused append leaves no gap
   * and no record. When a call of an `origin` is rejected because the store could not take it, so
   * are its later ones for that channel which were made before the rejection and are not stored
   * yet. On a store of several servers the facts of a personal message may be read just before the
   * step.
   *
   * With `header.noPersist` only the dedupe record of clientMsgNo (if there is one) is kept and the
   * seq is 0; it is published in order with the channel's other messages.
   */
  append(draft: MessageDraft): Promise<AppendResult>;
  /**
   * Messages of the range that have not expired, in seq order (or reverse). Gaps are messages that
   * expired or were trimmed.
   */
  readMessages(key: ChannelKey, range: HistoryRange): Promise<HistorySlice>;
  /** The seq of the newest published message; 0: no message. */
  headSeq(key: ChannelKey): Promise<number>;
  /**
   * The position of a reader that has the messages through `lastSeq`, none of them with an id
   * beyond `lastId` (0: any).
   */
  resumeSeqs(key: ChannelKey, lastSeq: number, lastId: number): Promise<ResumeSeqs>;
}

/** A command before the store gave it its id. */
export interface CommandDraft {
  readonly key: ChannelKey;
  readonly channel: ChannelRef;
  readonly fromUid: string;
  /**
   * The sender's own, which is looked up and remembered; "": none, and the message has that of its
   * id (`clientMsgNoOf`).
   */
  readonly clientMsgNo: string;
  readonly header: MessageHeader;
  readonly expireS: number;
  readonly tagKey: string | undefined;
  readonly passthrough?: Passthrough | undefined;
  readonly payload: Uint8Array;
  /** Get a kept copy; no uid twice. */
  readonly recipients: readonly string[];
  /** Get copies with inboxSeq 0, which are pushed to online sessions and not kept. */
  readonly pushOnlyRecipients: readonly string[];
  /** The session that sent it, which gets no push of it; undefined from HTTP. */
  readonly origin: string | undefined;
}

export interface InboxStore {
  /**
   * One atomic step: look up (key, fromUid, clientMsgNo) among commands and messages, else put one
   * copy into each recipient's inbox under its next inboxSeq, and, once that is durable, publish a
   * `command` event. The answer's messageSeq is 0. A retry finds it, also through `append`. An
   * inbox over its bound loses its oldest copies.
   */
  appendCommand(draft: CommandDraft): Promise<AppendResult>;
  /**
   * Copies behind `afterSeq` that are neither acknowledged nor expired, oldest first; at least one
   * if there is one, none only at the end.
   */
  readInbox(
    uid: string,
    afterSeq: number,
    page: Pick<HistoryRange, "limit" | "maxBytes">,
  ): Promise<readonly InboxCommand[]>;
  /**
   * Removes copies durably; returns how many existed. Each unknown seq costs one lookup and no
   * write.
   */
  acknowledgeCommands(uid: string, inboxSeqs: readonly number[]): Promise<number>;
}

/**
 * `read`: everything through `seq`. `unread`: as many unread, at most all. `delete`: hide all
 * messages.
 */
export type ConversationChange =
  | { readonly kind: "read"; readonly seq: number }
  | { readonly kind: "unread"; readonly unread: number }
  | { readonly kind: "delete" };

export interface ConversationSlice {
  readonly conversations: readonly Conversation[];
  /** There are channels that were not read. */
  readonly more: boolean;
}

/**
 * Conversations of a user: the groups of `groupsOf` and every personal channel with a stored
 * message of or to the user. Nothing is written per message and member. The read position is where
 * the user last set it, or where the user joined the group since, or the newest own message stored
 * after that, whichever is furthest on the way. Unread counts shown messages (neither expired nor
 * past a limit of history) with a red dot behind it; of those that expire 1000 at most, the newest
 * (fewer, while thousands behind them have expired just now). Leaving a group forgets the user's
 * position in it. Large groups: unread 0, positions are not kept.
 */
export interface ConversationStore {
  /**
   * All with a shown message, in no order. Costs as much as the user has conversations, whatever
   * their messages hold: no content is read.
   */
  conversationsOf(uid: string): Promise<readonly ConversationHead[]>;
  /**
   * Those of `channels` that have a shown message, in that order, as they stand now; no more than
   * `limit` of them, and no further one whose message would take the content of all beyond
   * `maxBytes`. Holds at least one if there is one.
   */
  readConversations(
    uid: string,
    channels: readonly ChannelRef[],
    bounds: { readonly limit: number; readonly maxBytes: number },
  ): Promise<ConversationSlice>;
  /** One conversation, also without a message; undefined: a group the user is no member of. */
  conversation(uid: string, channel: ChannelRef): Promise<Conversation | undefined>;
  /**
   * Applies the change in one atomic step and returns how it stands then; both ways, clipped to
   * the channel's seqs. Undefined as above.
   */
  changeConversation(
    uid: string,
    channel: ChannelRef,
    change: ConversationChange,
  ): Promise<Conversation | undefined>;
}

/** An event of a stream before the store gave it its place. */
export interface StreamDraft {
  readonly key: ChannelKey;
  readonly channel: ChannelRef;
  readonly fromUid: string;
  /** Names the stream within the channel. */
  readonly clientMsgNo: string;
  /**
   * The producer's own id of the event: the same one again in the same stream is a retry.
   * Undefined: the driver makes one, no retry is known.
   */
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
 * The outcome. `done`: applied, now or before. `running`: a start while
 * another stream is active. `missing`: no such stream, or a tool-call event whose stream is not
 * active. `closed`: a start or content for a stream that ended. `taken`: a start whose clientMsgNo
 * belongs to a plain message. `stopped`: a viewer cancelled the stream; nothing was added. Only
 * `done` can have changed anything.
 */
export interface StreamResult {
  readonly verdict: "done" | "running" | "missing" | "closed" | "taken" | "stopped";
  /** The stream's state now; undefined when there is no such stream. */
  readonly state: StreamState | undefined;
}

export interface StreamStore {
  /**
   * One atomic step of the stream state machine [spec: Streaming text session; decisions]. A start
   * takes the channel's next seq for the stream's message (red dot, never expiring by itself,
   * remembered by clientMsgNo like any message) and publishes it as a `message` event with `stream`
   * at nextIndex 0; then every event that was applied is published as an `event` event with its
   * place, in the order of the indexes and in turn with the channel's messages, once it is durable.
   * A retry changes and publishes nothing. Content with the event id of an earlier event is a retry
   * also after the end. An end of an ended stream is `done`. Throws `too_large` when the stream
   * would exceed its bound, `overloaded` when the node holds too much of active streams.
   */
  streamEvent(draft: StreamDraft): Promise<StreamResult>;
  /**
   * Ends an active stream as `cancelled` for a viewer; an ended one stays as it is (`done`). The
   * producer's next event is answered `stopped`.
   */
  cancelStream(key: ChannelKey, clientMsgNo: string): Promise<StreamResult>;
  /**
   * Ends every stream as `interrupted` that had no event since `silentSinceMs` (after a restart
   * every stream gets that time anew). Returns how many.
   */
  interruptStreams(silentSinceMs: number): Promise<number>;
  /**
   * A stream as durable and published, active or ended; undefined: no such stream. A group's stream
   * is published before a read shows it.
   */
  stream(key: ChannelKey, clientMsgNo: string): MaybePromise<StreamSnapshot | undefined>;
  /** The active stream of a channel. */
  activeStream(key: ChannelKey): MaybePromise<StreamSnapshot | undefined>;
  /** The active streams of all personal channels of `uid`. */
  personalStreamsOf(uid: string): MaybePromise<readonly StreamSnapshot[]>;
  /**
   * UTF-16 units of the stream's text before the event at `index` (at most its nextIndex);
   * undefined: no such stream or index.
   */
  streamTextOffset(
    key: ChannelKey,
    clientMsgNo: string,
    index: number,
  ): MaybePromise<number | undefined>;
}

/**
 * One process of a node from start to death: `<node id>:<random>`. One that was declared dead
 * never comes back; its process begins another.
 */
export type Incarnation = string;

/** The name by which a CONNECT continues a session. */
export type Claim =
  | {
      /** A name the server gave: the order of its login. */
      readonly order: number;
    }
  | {
      /**
       * Any other name: one the client chose for its login and repeats until it has the server's.
       */
      readonly label: string;
    };

/** On which terms a session asks to be entered. */
export interface LoginTerms {
  /** The session it continues; undefined: it is a login. */
  readonly claim?: Claim | undefined;
  /**
   * Of the token that its device must have; the session then has the device's level. Undefined: it
   * needs none.
   */
  readonly tokenHash?: Uint8Array | undefined;
}

export type SessionName = Pick<SessionRecord, "uid" | "sessionId">;

/** A session as a login entered it. Orders and sinces grow, per user. */
export interface LoggedInSession {
  /** With the level that counts. */
  readonly session: SessionRecord;
  /**
   * The place of its login among the logins of its uid and flag; a continued session has that of
   * the session it continues.
   */
  readonly order: number;
  /** The place of its connection. */
  readonly since: number;
}

export type LoginResult =
  | ({ readonly kind: "entered" } & LoggedInSession & {
        /**
         * All groups that the user was in then, maybe others too: `ChannelStore.groupsAmong` says
         * which.
         */
        readonly groups: readonly string[];
      })
  | {
      /** The session it claims to continue was ended: it is not in, and nothing changed. */
      readonly kind: "refused";
      readonly reason: CloseReason;
    }
  | {
      /**
       * The user has no such device, or the device has another token: it is not in, and nothing
       * changed.
       */
      readonly kind: "unauthorized";
    };

/** A session in the store. */
export interface SessionEntry extends LoggedInSession {
  /** Which serves it. */
  readonly incarnation: Incarnation;
}

export type Confirmation =
  | { readonly kind: "confirmed" }
  | {
      /** It was ended, and is out. */
      readonly kind: "refused";
      readonly reason: CloseReason;
    }
  | {
      /** Whether it may go on could not be found out. */
      readonly kind: "failed";
      readonly error: BrokerError;
    };

/**
 * Each step but `confirmSessions` is atomic, throws `unavailable` (it may have run or not), and
 * publishes `presence` where it changes the user's sessions.
 */
export interface SessionStore {
  /**
   * Enters a session under `incarnation`, comparing its token and deciding which sessions it ends:
   * every other main session of the same uid and flag when it is a main one, any session of the
   * same uid, flag and (non-empty) deviceId, and the session it continues. The ended ones are out
   * when the promise resolves; their nodes are notified to end them (`end_session`, published once,
   * here only).
   *
   * Without a claim it is a login, later than all before. With one it continues an earlier session
   * and keeps the order of its login: a main session is refused when another device logged in later
   * (whether or not that session is still in) or when it was ended by `endSession`. A claim that is
   * not known is a login [decisions: resume is no login]. A session that was entered by a token is
   * in the answer of any `sessionsOf` that is called after the device got another one.
   */
  login(session: SessionRecord, incarnation: Incarnation, terms?: LoginTerms): Promise<LoginResult>;
  /** Removes a session that its node no longer serves; harmless if it is not in. */
  removeSession(session: SessionName): Promise<void>;
  /**
   * Removes a session and notifies the node that serves it to end it (`end_session`), also if it
   * was not in. A main session that was in cannot be continued. Until its node removes it, for a
   * day at least, it cannot be confirmed either.
   */
  endSession(session: SessionRecord, reason: CloseReason): Promise<void>;
  /**
   * Whether sessions that logged in here and were not removed may go on, in order; each is a step
   * of its own. `refused`: a login, `endSession`, or the device's new token or logout ended it.
   * Else it is in under `incarnation`, also where the store had lost it, and for as long as its
   * node confirms it once a minute. It never ends a session that logged in later. One that `failed`
   * says nothing about the others.
   */
  confirmSessions(
    sessions: readonly LoggedInSession[],
    incarnation: Incarnation,
  ): Promise<readonly Confirmation[]>;
  /** The sessions of each user, those of dead incarnations among them. */
  sessionsOf(uids: readonly string[]): Promise<readonly (readonly SessionEntry[])[]>;
}

/**
 * The newest main login of a uid and flag. It outlives the session's entry: an absent
 * entry does not imply a later login.
 */
export interface NewestLogin {
  readonly order: number;
  /** When its newest connection was entered, in the store's count. */
  readonly since: number;
  readonly deviceId: string;
  /** The client's own name for the login, until it has the server's; "" without one. */
  readonly label: string;
  /** The reason why it cannot be continued; undefined: it can. */
  readonly ended: CloseReason | undefined;
  /** Labels of earlier logins, oldest first. */
  readonly past: readonly string[];
}

/** A newest login expires 30 days after its session was last entered or confirmed. */
export const LOGIN_TTL_MS = 30 * 86_400_000;

/** A manager's password as kept: never the password. */
export interface StoredPassword {
  /** `scrypt$N$r$p$salt$hash`, base64 parts. */
  readonly passwordHash: string;
}

export interface ManagerStore {
  /** Stores the password of `username` unless one is there; returns the one that is there now. */
  putPasswordOnce(username: string, password: StoredPassword): Promise<StoredPassword>;
  /** Stores an access token by its SHA-256 until `expiresAtMs`; `owner` is any text. */
  putAccessToken(tokenHash: Uint8Array, owner: string, expiresAtMs: number): Promise<void>;
  /** The owner that the token was stored with, until it ends or is removed. */
  accessTokenOwner(tokenHash: Uint8Array): Promise<string | undefined>;
  removeAccessToken(tokenHash: Uint8Array): Promise<void>;
}

/** Most system accounts. */
export const MAX_SYSTEM_UIDS = 1000;

export interface SystemAccountStore {
  /** The uids of the system accounts, in no order. */
  systemUids(): Promise<readonly string[]>;
  /** To add one that is there, or remove another, is harmless. */
  changeSystemUids(kind: "add" | "remove", uids: readonly string[]): Promise<void>;
}

export interface Store
  extends UserStore,
    SessionStore,
    ChannelStore,
    MessageStore,
    StreamStore,
    InboxStore,
    ConversationStore,
    SystemAccountStore,
    ManagerStore {
  /** Opens or creates the data; refuses data of a newer format. */
  start(): Promise<void>;
  /** Takes no new calls, finishes those under way, flushes to disk. Safe to call twice. */
  close(): Promise<void>;
  /** Throws BrokerError("unavailable") when writes would fail now. */
  ping(): Promise<void>;
}

// --- Cluster -------------------------------------------------------------------------------------

/** Events between nodes. A union, so that every receiver handles every kind. */
export type ClusterEvent =
  | {
      readonly kind: "message";
      readonly message: Message;
      /** The session not to push it to. */
      readonly origin: string | undefined;
      /**
       * Only these users get it (a restricted command that is not kept); undefined: everyone in
       * the channel.
       */
      readonly recipients: readonly string[] | undefined;
    }
  | {
      /** Of a stream, in order with the channel's messages, or custom and unordered. */
      readonly kind: "event";
      readonly event: ChannelEvent;
    }
  | {
      readonly kind: "command";
      readonly message: Message;
      readonly copies: readonly CommandCopy[];
      /** The session not to push it to. */
      readonly origin: string | undefined;
    }
  | {
      /** A user changed a conversation; for the user's sessions. */
      readonly kind: "conversation";
      readonly uid: string;
      readonly conversation: Conversation;
      readonly change: ConversationChange["kind"];
      /** The session that did it. */
      readonly origin: string | undefined;
    }
  | {
      /** The online state of `uid` may have changed: watchers read it. */
      readonly kind: "presence";
      readonly uid: string;
    }
  | {
      readonly kind: "end_session";
      readonly uid: string;
      readonly sessionId: string;
      readonly reason: CloseReason;
    }
  | {
      /**
       * A device's token changed, or may have changed in a missed event: nodes that serve the user
       * by the old one ask the store.
       */
      readonly kind: "credential";
      readonly uid: string;
    }
  | {
      /**
       * `uid` became a member of the group, and may have been removed since: the store decides.
       */
      readonly kind: "addition";
      readonly uid: string;
      readonly channelId: string;
    }
  | {
      /**
       * These, or if undefined any, are no longer members of the group. The step that removed them
       * publishes it before later messages.
       */
      readonly kind: "removal";
      readonly channelId: string;
      readonly uids: readonly string[] | undefined;
    }
  | {
      /**
       * Never published: the cluster notifies its own listener that events of a user's or presence
       * topic may be lost. The cluster itself catches up on messages and streams; the listener
       * reads the rest (memberships, commands, ended sessions, presence) from the store.
       */
      readonly kind: "missed";
      readonly topic: Topic;
    };

/**
 * Delivers an event to every node that listens to one of its topics: `message`, `event`: the
 * group's, or both users' of a personal channel (a restricted message: the recipients'); `command`:
 * the users' of the copies; `conversation`, `end_session`, `credential`, `addition`: the user's;
 * `presence`: the presence topic of the user; `removal`: the group's.
 */
export interface Publisher {
  /** Does not wait: an event that cannot be sent now is lost, without an error. */
  publish(event: ClusterEvent): void;
}

/**
 * For notifications that must not be lost without an error: of added members, credentials,
 * conversations.
 */
export interface Announcer {
  /**
   * `publish` for each, in batches; once resolved all are sent. Throws `unavailable`, `overloaded`
   * if one could not be sent, while others may have been: a repeated call announces all again.
   */
  announce(events: readonly ClusterEvent[]): Promise<void>;
}

/**
 * Called after this node may have missed removals of a group's members, between the read of missed
 * messages and their delivery. Once resolved, sessions of users who are not members get nothing
 * more of the group; sessions of users who became members after `lastSeq`, the delivered position,
 * catch up by themselves and are left out of the next delivery. Asks the store after the call.
 * Rejects `unavailable`: then nothing is delivered.
 */
export type GroupJudge = (channelId: string, lastSeq: number) => Promise<void>;

/** A node as the cluster knows it. */
export interface NodeInfo {
  readonly nodeId: string;
  /** The address given to clients; "": none is. */
  readonly clientAddress: string;
  readonly version: string;
  /** Unix milliseconds. */
  readonly startedAtMs: number;
  readonly sessions: number;
  /** Share of one core that its process used lately, 0 to 1. */
  readonly load: number;
  /** It takes no new sessions: it is about to end. */
  readonly isDraining: boolean;
}

/** Throws `unavailable` while this node counts as dead: it does not know the others then. */
export interface NodeRegistry {
  /** The nodes that live, this one first. */
  nodes(): Promise<readonly NodeInfo[]>;
}

/** As `NodeRegistry`, for the sessions in the store. */
interface Liveness {
  /** The incarnation this node's sessions are entered under. */
  readonly incarnation: Incarnation;
  /**
   * Whether an incarnation in the store lives. One that does not is dead, and its entries are
   * ignored.
   */
  isLive(incarnation: Incarnation): MaybePromise<boolean>;
  /** Resolves once the other nodes count this one among the living again, under `incarnation`. */
  heartbeat(): Promise<void>;
}

/** The cluster's calls to its node after events may have been missed. */
export interface ResyncHandler {
  /**
   * Ends the sessions of these users that may not go on, and returns the users that could not be
   * checked. Called before their missed events are delivered. Rejects `unavailable`: none could be
   * checked.
   */
  judgeUsers(uids: readonly string[]): Promise<readonly string[]>;
  readonly judgeGroup: GroupJudge;
  /**
   * Called with every confirmed heartbeat. `isAnew`: under a new incarnation, or after an outage of
   * the store, which may have lost this node's sessions.
   */
  beat(isAnew: boolean): void;
}

export interface Cluster extends Publisher, Announcer, NodeRegistry, Liveness {
  readonly nodeId: string;
  /** Sets the receiver of this node's events and of its catch-up; once, before start. */
  onEvent(listener: (event: ClusterEvent) => void, resync: ResyncHandler): void;
  /**
   * From the moment the promise resolves, every event published under `topic` reaches this node.
   * Listening twice is listening.
   */
  listen(topic: Topic): Promise<void>;
  /**
   * The first half of `listen`: later events reach this node, perhaps only after `listen` resolves.
   */
  subscribe(topic: Topic): Promise<void>;
  /** Unsubscribes with a delay: to listen again soon costs nothing. */
  unlisten(topic: Topic): void;
  /**
   * Resolves once everything published to this node's topics before the call has reached the
   * listener.
   */
  barrier(): Promise<void>;
  /**
   * Undefined: as far as this node knows it misses no event of the topics that concern the caller.
   * Else resolves once missed events have reached the listener, which then knows of lost rights;
   * earlier reads must be repeated. Rejects `unavailable` after a time-out.
   */
  recovery(concerns: (topic: Topic) => boolean): Promise<void> | undefined;
  /**
   * Resolves once everything published to this node's topics before the call has reached the
   * listener, or cannot be fetched now, which `recovery` reports. Undefined: nothing to wait for,
   * or no order between topics (a Redis Cluster).
   */
  delivered(): Promise<void> | undefined;
  start(): Promise<void>;
  close(): Promise<void>;
  ping(): Promise<void>;
}

/** Failures of a key within its window, and the seconds until the window ends. */
export interface FailureCount {
  readonly count: number;
  readonly retryAfterS: number;
}

/** Counts failed credentials, shared by the cluster. */
export interface Throttle {
  failures(key: string): Promise<FailureCount>;
  /** The first failure begins the window. Resolves with the count through this failure. */
  addFailure(key: string, windowMs: number): Promise<FailureCount>;
  clear(key: string): Promise<void>;
}
