// A device session on this node: its connection, its wire format, the groups it follows, and the
// number of bytes held for it while it catches up. A node has tens of thousands of sessions, so
// fields that only a busy session needs are created on first use.

import { CLOSE_REASONS, type CloseReason } from "../broker/errors.ts";
import type { ConnectAttempt, Restrictions } from "../broker/hooks.ts";
import {
  type ChannelEvent,
  type ChannelKey,
  channelSeenBy,
  expiresAtMs,
  GROUP_CHANNEL,
  type Message,
  type SessionRecord,
  type StreamSnapshot,
} from "../broker/model.ts";
import type { Clock } from "../broker/ports.ts";
import { mayRead, type Rights } from "../broker/rights.ts";
import { restOf, type StreamCursor } from "../broker/stream-pieces.ts";
import { BoundedMap } from "../lib/bounded-map.ts";
import type { Codec, Frame, Frames, Push, Reply } from "../protocol/protocol.ts";
import type { Connection, TopicPublisher, Upgrade } from "../transport/types.ts";
import type { Rate } from "./rates.ts";
import type { Reads } from "./reads.ts";
import type { SharedFrames } from "./shared-frames.ts";
import { type Resendable, Unacknowledged } from "./unacknowledged.ts";

/**
 * Estimated overhead of a held item, in bytes. Without it, any number of empty messages could be
 * held.
 */
export const HELD_OVERHEAD_BYTES = 256;

interface FollowedGroup {
  readonly channelId: string;
}

export interface StreamName {
  readonly key: ChannelKey;
  readonly clientMsgNo: string;
}

type MessagePosition = Pick<Message, "messageSeq" | "messageId">;

export interface GroupPosition {
  /** Seq of the last message received, or 0 if unknown. */
  readonly seq: number;
  /**
   * True if the session starts at `seq` even if its user's membership begins later. Set while the
   * client resumes from `seq`, and for a group that a refresh has added to the session's rights.
   */
  readonly isResumed: boolean;
}

/**
 * Returns a key that identifies the stream among all streams. No channel key contains a line break.
 */
export function streamName({ key, clientMsgNo }: StreamName): string {
  return `${key}\n${clientMsgNo}`;
}

/** Part of `Backlog` that a session uses. */
export interface PersonalBacklog {
  readonly isHolding: boolean;
  receiveMessage(message: Message): number;
  receiveEvent(event: ChannelEvent): void;
  forgetGroup(channelId: string): void;
  recordSnapshot(snapshot: StreamSnapshot): void;
}

export interface UnreadInbox {
  /** True if the inbox must be read again, because earlier reads may lack a command. */
  hasMore: boolean;
  readonly unstored: CommandPush[];
}

/** Inclusive range of the `inboxSeq`s that were pushed to the session as they arrived. */
export interface LiveRange {
  readonly from: number;
  to: number;
}

/** Encodes and sends a push. All sessions that receive the same push share one function. */
export type DeferredPush = (session: Session) => void;

export type CommandPush = Extract<Push, { readonly kind: "command" }>;

/** Sends the frames and returns their total length, in bytes (binary) or characters (text). */
export function sendFrames(connection: Connection, frames: Frames): number {
  if (isFrame(frames)) {
    connection.send(frames);
    return frames.length;
  }
  let length = 0;
  for (const frame of frames) length += sendFrames(connection, frame);
  return length;
}

export function publishFrames(publisher: TopicPublisher, topic: string, frames: Frames): void {
  if (isFrame(frames)) publisher.publish(topic, frames);
  else for (const frame of frames) publisher.publish(topic, frame);
}

function isFrame(frames: Frames): frames is Frame {
  return typeof frames === "string" || frames instanceof Uint8Array;
}

function mayReceive(rights: Rights, push: Push): boolean {
  switch (push.kind) {
    case "disconnect":
    case "presence": // `PresenceWatch` checks each user
      return true;
    case "conversation":
      return mayRead(rights, push.conversation.channel);
    default:
      return mayRead(rights, push.channel);
  }
}

const NO_GROUPS: ReadonlyMap<string, FollowedGroup> = new Map();
/**
 * Maximum number of personal streams whose read position is kept. Beyond this number, the oldest
 * position is dropped, and events of that stream may be pushed twice.
 */
const MAX_READ_STREAMS = 100;
/** Number of unread bytes above which a client is not sent unacknowledged messages again. */
const MAX_UNREAD_BYTES_TO_RESEND = 65_536;
const MAX_GROUPS_LEFT = 100;

/** Part of the WebSocket handshake that a hook receives. */
export type Handshake = Pick<Upgrade, "origin" | "headers">;

/** Numbers of the refresh that began last and of the refresh that was applied last. */
interface RefreshCounts {
  begun: number;
  applied: number;
}

/**
 * Progress of a session. A session never returns to an earlier stage, and can end at any stage
 * (`Session.ended`).
 *
 *   new         the login has not been accepted yet
 *   admitted    the login was accepted, and the node had room for one more session of the user
 *   connected   the CONNACK was sent; missed messages are being sent
 *   joined      the session is live in all its groups; group changes are applied one by one
 */
type SessionStage = "new" | "admitted" | "connected" | "joined";

export class Session {
  readonly sessionId: string;
  readonly uid: string;
  readonly codec: Codec;
  readonly connection: Connection;
  /**
   * Record of the session in the store. `undefined` before the login, and after the removal from
   * the store has begun.
   */
  record: SessionRecord | undefined;
  /** Ids of the groups the session is about to join. Maintained by `Group`. */
  joining: Set<string> | undefined;
  /** True if the groups must be read again: they changed, or an earlier read is incomplete. */
  membershipsStale = false;
  /**
   * True until the session has caught up, if its client may have streams whose ends it has not
   * received.
   */
  mayMissEnds = false;
  /** False while the client has reported that the user is not looking at the app. */
  isForeground = true;
  /** False after a failed write of `isForeground`. The store then has the new or the old state. */
  isForegroundStored = true;
  stage: SessionStage = "new";
  /**
   * Unix milliseconds at which the session expires, or `undefined` if it does not expire. Set by
   * `CredentialExpiry`.
   */
  expiresAtMs: number | undefined;
  /**
   * Handshake, kept because a refresh calls the connect hook again. `undefined` if no hook is
   * configured.
   */
  handshake: Handshake | undefined;
  restrictions: Restrictions | undefined;
  /**
   * Rights of the session, set after the login and by a refresh. `undefined` if the user's rights
   * are not restricted.
   */
  rights: Rights | undefined;
  /**
   * Rights before a refresh, kept until the session has joined the groups that only `rights` allow.
   */
  formerRights: Rights | undefined;
  /** Refreshes of the token. `undefined` before the first refresh. Set by `CredentialExpiry`. */
  refreshes: RefreshCounts | undefined;
  /**
   * True if the session ends when its timer fires, without a further notification. Set by
   * `CredentialExpiry`.
   */
  isExpiring = false;
  /** Fields of the CONNACK that a refresh repeats. `undefined` if the session does not expire. */
  connack: Pick<Extract<Reply, { readonly kind: "connack" }>, "sessionId" | "newestId"> | undefined;
  /** Backlog of the personal channels, or `undefined` if the session is live in them. */
  personal: PersonalBacklog | undefined;
  /** State of the inbox while the session reads it. `undefined` once the session has caught up. */
  inbox: UnreadInbox | undefined;
  /**
   * `inboxSeq` up to which the session has all stored commands. The session may also have later
   * commands.
   */
  inboxSeq = 0;
  /**
   * Range of the command copies that arrived live. Begins with the last seq read from the inbox, or
   * with the first live copy if the inbox was empty. Begins with 0 if copies may have been lost
   * before the first live copy. `undefined` if the next copy may have any seq.
   */
  inboxLive: LiveRange | undefined;
  reads: Reads | undefined;
  rate: Rate | undefined;
  /**
   * Maximum total size of the held items, in bytes. The items may use more memory than their size,
   * because a small payload from Redis can keep an 8 KiB block of Node's buffer pool alive
   * (`redis/wire.ts`).
   */
  readonly #maxHeldBytes: number;
  /** Time after which an unacknowledged message is sent again. 0 means never. */
  readonly #resendAfterMs: number;
  readonly #clock: Clock;
  #unacknowledged: Unacknowledged | undefined;
  #groups: Map<string, FollowedGroup> | undefined;
  #heldBytes = 0;
  #ended: CloseReason | undefined;
  #leftGroups: BoundedMap<string, GroupPosition> | undefined;
  #writableWaiters: (() => void)[] | undefined;
  /** Newest message that the client is known to have, by personal channel. */
  #personalPositions: Map<ChannelKey, MessagePosition> | undefined;
  #streamPositions: BoundedMap<string, StreamCursor> | undefined;
  /** Pushes that wait for their turn (`fan-out-turns.ts`), oldest first. */
  #deferred: DeferredPush[] | undefined;

  constructor(fields: {
    readonly sessionId: string;
    readonly uid: string;
    readonly codec: Codec;
    readonly connection: Connection;
    readonly maxHeldBytes: number;
    readonly resendAfterMs: number;
    /** The store's clock, which determines when messages expire. */
    readonly clock: Clock;
  }) {
    this.sessionId = fields.sessionId;
    this.uid = fields.uid;
    this.codec = fields.codec;
    this.connection = fields.connection;
    this.#maxHeldBytes = fields.maxHeldBytes;
    this.#resendAfterMs = fields.codec.acknowledges ? fields.resendAfterMs : 0;
    this.#clock = fields.clock;
  }

  get ended(): CloseReason | undefined {
    return this.#ended;
  }

  get isAdmitted(): boolean {
    return this.stage !== "new";
  }

  get hasConnack(): boolean {
    return this.stage === "connected" || this.stage === "joined";
  }

  get hasJoined(): boolean {
    return this.stage === "joined";
  }

  /** Facts about the connection that a hook receives. */
  get connectionFacts(): Pick<ConnectAttempt, "address" | "origin" | "headers" | "format"> {
    const { origin = "", headers = {} } = this.handshake ?? {};
    const { remoteAddress: address } = this.connection;
    return { address, origin, headers, format: this.codec.format };
  }

  /** Sends the pushes that wait for their turn, then the reply. Returns the reply's length. */
  reply(reply: Reply): number {
    this.pushDeferred();
    return sendFrames(this.connection, this.codec.encodeReply(reply));
  }

  /**
   * Sends a push. Like `pushShared`, drops a push about a channel that the session may not read.
   */
  push(push: Push): void {
    if (this.rights !== undefined && !mayReceive(this.rights, push)) return;
    this.pushFrames(this.codec.encodePush(push));
    this.#awaitAcks(push);
  }

  /** Pushes frames encoded once for several sessions. `key` must include the wire format. */
  pushShared(push: Push, encoded: SharedFrames, key = this.codec.format): void {
    if (this.codec.isPrivate) return this.push(push);
    if (this.rights !== undefined && !mayReceive(this.rights, push)) return;
    let frames = encoded.get(key);
    if (frames === undefined) {
      frames = this.codec.encodePush(push);
      encoded.set(key, frames);
    }
    this.pushFrames(frames);
    this.#awaitAcks(push);
  }

  #awaitAcks(push: Push): void {
    if (this.#resendAfterMs === 0) return;
    const { kind } = push;
    if (kind === "message" || kind === "command") this.expectAck(push);
    else if (kind === "messages")
      for (const message of push.messages) {
        const isOwn = message.fromUid === this.uid;
        this.expectAck({ kind: "message", channel: push.channel, message, isOwn });
      }
  }

  expectAck(push: Resendable): void {
    const isStored = push.message.messageSeq > 0;
    if (this.#resendAfterMs === 0 || !isStored) return;
    if (this.#ended !== undefined) return;
    this.#unacknowledged ??= new Unacknowledged(this.#resendAfterMs, (message) =>
      this.#resend(message),
    );
    this.#unacknowledged.add(push);
  }

  /** Stops resending the message. Returns its push, or `undefined` if the message is unknown. */
  acknowledged(messageId: number): Resendable | undefined {
    return this.#unacknowledged?.confirm(messageId);
  }

  acknowledgedCommands(inboxSeqs: readonly number[]): void {
    for (const inboxSeq of inboxSeqs) this.#unacknowledged?.confirmCommand(inboxSeq);
  }

  #resend(push: Resendable): void {
    const { channel, message } = push;
    if (this.connection.bufferedBytes() > MAX_UNREAD_BYTES_TO_RESEND) return;
    if (push.kind === "message" && channel.type === GROUP_CHANNEL)
      if (!this.follows(channel.id)) return void this.acknowledged(message.messageId);
    if (!mayRead(this.rights, channel)) return void this.acknowledged(message.messageId);
    if (expiresAtMs(message) <= this.#clock()) return;
    // The client may have later events of the stream than this push contains.
    if (message.stream?.state === "active") return;
    this.pushFrames(this.codec.encodePush(push));
  }

  pushMessage(message: Message): void {
    const channel = channelSeenBy(this.uid, message);
    this.push({ kind: "message", channel, message, isOwn: message.fromUid === this.uid });
  }

  pushFrames(frames: Frames): void {
    this.pushDeferred();
    sendFrames(this.connection, frames);
  }

  /** Keeps a push for later. Later frames of the session are sent after this push. */
  defer(push: DeferredPush): void {
    if (this.#ended !== undefined) return;
    if (this.#deferred === undefined) this.#deferred = [push];
    else this.#deferred.push(push);
  }

  /** Sends the deferred pushes now. Drops them if the session has ended. */
  pushDeferred(): void {
    const pushes = this.#deferred;
    if (pushes === undefined) return;
    this.#deferred = undefined;
    if (this.#ended === undefined) for (const push of pushes) push(this);
  }

  /** Resolves when the client has at most `bytes` unread bytes, or when the session has ended. */
  async writable(bytes: number): Promise<void> {
    // Waits until the frames of this turn are written, because queued frames count as unread.
    await new Promise<void>((resolve) => setImmediate(resolve));
    while (this.#ended === undefined && this.connection.bufferedBytes() > bytes)
      await new Promise<void>((resolve) => {
        this.#writableWaiters ??= [];
        this.#writableWaiters.push(resolve);
      });
  }

  /**
   * Resolves when another page may be pushed to the client, that is, when the client has at most
   * `bytes` unread bytes and its user's budget is not in debt. Also resolves when the session has
   * ended.
   */
  async readyForPage(bytes: number): Promise<void> {
    await this.writable(bytes);
    for (;;) {
      const waitMs = this.#ended === undefined ? (this.rate?.pageWaitMs() ?? 0) : 0;
      if (waitMs === 0) return;
      await new Promise<void>((resolve) => setTimeout(resolve, waitMs).unref());
    }
  }

  drained(): void {
    const waiters = this.#writableWaiters;
    if (waiters === undefined) return;
    this.#writableWaiters = undefined;
    for (const wake of waiters) wake();
  }

  /** Counts bytes that are held for the session. A negative number releases them. */
  charge(bytes: number): void {
    this.#heldBytes += bytes;
    if (this.#heldBytes > this.#maxHeldBytes) this.end("slow_reader");
  }

  /**
   * Records that the client has all messages of the channel up to this position, so that none of
   * them is pushed again.
   */
  noteRead(key: ChannelKey, { messageSeq, messageId }: MessagePosition): void {
    this.#personalPositions ??= new Map();
    this.#personalPositions.set(key, { messageSeq, messageId });
  }

  /**
   * Returns true if the client lacks a personal message. A fail-over may have reused the seq, so
   * the id is compared too.
   */
  lacks({ key, messageId, messageSeq }: Message): boolean {
    const position = this.#personalPositions?.get(key);
    if (position === undefined || messageSeq === 0) return true;
    const { messageSeq: lastSeq, messageId: lastId } = position;
    if (messageSeq <= lastSeq && messageId <= lastId) return false;
    // The client also lacks all later messages, because a channel's messages are published in
    // order. The position is therefore no longer needed.
    this.#personalPositions?.delete(key);
    return true;
  }

  noteReadStream(name: StreamName, cursor: StreamCursor): void {
    this.#streamPositions ??= new BoundedMap(MAX_READ_STREAMS);
    this.#streamPositions.set(streamName(name), cursor);
  }

  lackedPart(event: ChannelEvent): ChannelEvent | undefined {
    const { stream } = event;
    if (stream === undefined || this.#streamPositions === undefined) return event;
    const name = streamName(event);
    const cursor = this.#streamPositions.get(name);
    if (cursor === undefined) return event;
    const lacked = restOf(event, stream, cursor);
    if (lacked !== undefined) this.#streamPositions.delete(name);
    return lacked;
  }

  /** Ends the session. The client of a replaced session gets only the close code. */
  end(reason: CloseReason): void {
    if (this.#ended !== undefined) return;
    this.#ended = reason;
    if (reason !== "replaced") this.push({ kind: "disconnect", reason });
    const { code, message } = CLOSE_REASONS[reason];
    this.connection.end(code, message);
    this.#unacknowledged?.stop();
    this.drained();
  }

  disconnected(reason: CloseReason): void {
    this.#ended ??= reason;
    this.#unacknowledged?.stop();
    this.drained();
  }

  /**
   * Remembers the position in a group that the user has left. Keeps the highest seq, because
   * notifications about the membership may arrive after later messages.
   */
  rememberSeq(channelId: string, position: GroupPosition): void {
    this.#leftGroups ??= new BoundedMap(MAX_GROUPS_LEFT);
    const previousSeq = this.#leftGroups.get(channelId)?.seq ?? 0;
    this.#leftGroups.renew(channelId, { ...position, seq: Math.max(previousSeq, position.seq) });
  }

  /**
   * Ends the resume. If the session later joins a group that it has left, it does not start at a
   * seq that is earlier than the user's new membership.
   */
  endResume(): void {
    this.mayMissEnds = false;
    for (const [id, position] of this.#leftGroups ?? [])
      this.#leftGroups?.set(id, { ...position, isResumed: false });
  }

  takeGroupPosition(channelId: string): GroupPosition | undefined {
    const position = this.#leftGroups?.get(channelId);
    this.#leftGroups?.delete(channelId);
    return position;
  }

  /** Groups whose live messages the session receives, by channel id. Maintained by `Group`. */
  get groups(): ReadonlyMap<string, FollowedGroup> {
    return this.#groups ?? NO_GROUPS;
  }

  follow(group: FollowedGroup): void {
    this.#groups ??= new Map();
    this.#groups.set(group.channelId, group);
  }

  unfollow({ channelId }: FollowedGroup): boolean {
    return this.#groups?.delete(channelId) ?? false;
  }

  follows(channelId: string): boolean {
    return this.#groups?.has(channelId) ?? false;
  }

  mayReadGroup(channelId: string): boolean {
    return mayRead(this.rights, { id: channelId, type: GROUP_CHANNEL });
  }
}
