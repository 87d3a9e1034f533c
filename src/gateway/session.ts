// An authenticated device session on this node: its connection, its wire format, the groups it
// follows, and the number of bytes held for it while it catches up. It writes pushes to the
// connection; the hub decides which sessions receive a push. A node has tens of thousands of
// sessions, so fields that only a busy session needs are created on first use.

import { CLOSE_REASONS, type CloseReason } from "../broker/errors.ts";
import {
  type ChannelEvent,
  type ChannelKey,
  channelSeenBy,
  expiresAtMs,
  GROUP_CHANNEL,
  type Message,
  type StreamSnapshot,
} from "../broker/model.ts";
import { restOf, type StreamCursor } from "../broker/stream-pieces.ts";
import { BoundedMap } from "../lib/bounded-map.ts";
import type { Codec, Frame, Frames, Push, Reply } from "../protocol/protocol.ts";
import type { Connection, TopicPublisher } from "../transport/types.ts";
import type { Rate } from "./rates.ts";
import type { Reads } from "./reads.ts";
import { type Resendable, Unacknowledged } from "./unacknowledged.ts";

/**
 * Approximate memory that a held message or event uses in addition to its payload. Without it, an
 * unlimited number of tiny messages could be held.
 */
export const HELD_OVERHEAD_BYTES = 256;

/** The part of a group that a session uses. */
interface FollowedGroup {
  readonly channelId: string;
}

/** Identifies a stream among the streams of all channels. */
export interface StreamName {
  readonly key: ChannelKey;
  readonly clientMsgNo: string;
}

/** Position of a message in its channel. */
type MessagePosition = Pick<Message, "messageSeq" | "messageId">;

/** How much of a group a session had received when it left the group. */
export interface GroupPosition {
  /** Seq of the last message received, 0 if unknown. */
  readonly seq: number;
  /** True if the client asked to resume from `seq` and the session has not caught up since. */
  readonly isResumed: boolean;
}

/**
 * Returns a key that is unique among the streams of all channels. No channel key contains a line
 * break.
 */
export function streamName({ key, clientMsgNo }: StreamName): string {
  return `${key}\n${clientMsgNo}`;
}

/**
 * Holds messages and events of the user's personal channels while the session is not live in them.
 * Implemented by `Backlog`.
 */
export interface PersonalBacklog {
  readonly isHolding: boolean;
  receiveMessage(message: Message): number;
  receiveEvent(event: ChannelEvent): void;
  forgetGroup(channelId: string): void;
  recordSnapshot(snapshot: StreamSnapshot): void;
}

/** Commands that arrive while the session is still reading its inbox. */
export interface UnreadInbox {
  /**
   * True if the inbox must be read once more, because earlier reads may lack a copy that arrived.
   */
  hasMore: boolean;
  /** Commands that are not stored in the inbox. They are pushed after the inbox was read. */
  readonly unstored: CommandPush[];
}

/**
 * Range of `inboxSeq`s whose copies were pushed to the session as they arrived. Includes both ends.
 */
export interface LiveRange {
  readonly from: number;
  to: number;
}

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

const NO_GROUPS: ReadonlyMap<string, FollowedGroup> = new Map();
/**
 * Maximum number of personal streams per session whose read position is remembered. Events of
 * further streams may be pushed twice.
 */
const MAX_READ_STREAMS = 100;
/** Number of unread bytes above which a client is not sent unacknowledged messages again. */
const MAX_UNREAD_BYTES_TO_RESEND = 65_536;
/** Maximum number of groups that a session has left and whose last delivered seq is remembered. */
const MAX_GROUPS_LEFT = 100;

export class Session {
  readonly sessionId: string;
  readonly uid: string;
  readonly codec: Codec;
  readonly connection: Connection;
  /** Ids of the groups the session is about to join. Maintained by `Group`. */
  joining: Set<string> | undefined;
  /**
   * True if the user's groups must be read again: they changed, events may have been missed, or the
   * read at login was incomplete.
   */
  membershipsStale = false;
  /** True after the login was accepted and the node had room for one more session of the user. */
  isAdmitted = false;
  /** True after the CONNACK was sent. */
  hasConnack = false;
  /**
   * True after the session joined all its groups. Later membership changes are applied to it one by
   * one.
   */
  hasJoined = false;
  /** Backlog of the personal channels, `undefined` if the session is live in them. */
  personal: PersonalBacklog | undefined;
  /** State of the inbox while the session reads it, `undefined` after it has caught up. */
  inbox: UnreadInbox | undefined;
  /** Highest `inboxSeq` that the session has read from its inbox. */
  inboxSeq = 0;
  /** Copies that arrived live, `undefined` if there was none yet. */
  inboxLive: LiveRange | undefined;
  /** Queue of the client's read operations, created with the first of them. */
  reads: Reads | undefined;
  /** Work budget of the client, `undefined` if its work is not limited. */
  rate: Rate | undefined;
  /**
   * Maximum number of held bytes, counting payloads and `HELD_OVERHEAD_BYTES`. The memory in use
   * may be larger: a small payload from Redis is copied into Node's buffer pool (`redis/wire.ts`)
   * and can keep a whole pool block of 8 KiB alive.
   */
  readonly #maxHeldBytes: number;
  /** Time after which an unacknowledged message is sent again. 0 means never. */
  readonly #resendAfterMs: number;
  #unacknowledged: Unacknowledged | undefined;
  #groups: Map<string, FollowedGroup> | undefined;
  #heldBytes = 0;
  #ended: CloseReason | undefined;
  /** Position in each group that the session left, by channel id. */
  #leftGroups: BoundedMap<string, GroupPosition> | undefined;
  #writableWaiters: (() => void)[] | undefined;
  /** Newest message that the client is known to have, by personal channel. */
  #personalPositions: Map<ChannelKey, MessagePosition> | undefined;
  /** Position in each personal stream that was read from the store, by `streamName`. */
  #streamPositions: BoundedMap<string, StreamCursor> | undefined;

  constructor(fields: {
    readonly sessionId: string;
    readonly uid: string;
    readonly codec: Codec;
    readonly connection: Connection;
    readonly maxHeldBytes: number;
    /**
     * Time after which a stored message is sent again if the client has not acknowledged it. 0
     * means never.
     */
    readonly resendAfterMs: number;
  }) {
    this.sessionId = fields.sessionId;
    this.uid = fields.uid;
    this.codec = fields.codec;
    this.connection = fields.connection;
    this.#maxHeldBytes = fields.maxHeldBytes;
    this.#resendAfterMs = fields.codec.acknowledges ? fields.resendAfterMs : 0;
  }

  /** Reason why the session ended, `undefined` while it is alive. */
  get ended(): CloseReason | undefined {
    return this.#ended;
  }

  /** Sends a reply and returns its length, in bytes (binary) or characters (text). */
  reply(reply: Reply): number {
    return sendFrames(this.connection, this.codec.encodeReply(reply));
  }

  push(push: Push): void {
    this.pushFrames(this.codec.encodePush(push));
    this.#awaitAcks(push);
  }

  /**
   * Pushes like `push`, but encodes the frames only once for all sessions that share the map
   * `encoded`. `key` is the key in that map and must include the wire format.
   */
  pushShared(push: Push, encoded: Map<string, Frames>, key = this.codec.format): void {
    if (this.codec.isPrivate) return this.push(push);
    const frames = encoded.get(key) ?? this.codec.encodePush(push);
    encoded.set(key, frames);
    this.pushFrames(frames);
    this.#awaitAcks(push);
  }

  #awaitAcks(push: Push): void {
    if (this.#resendAfterMs === 0) return;
    const { kind } = push;
    if (kind === "message" || kind === "command") this.expectAck(push);
    else if (kind === "messages")
      for (const message of push.messages)
        this.expectAck({ kind: "message", channel: push.channel, message });
  }

  /**
   * Registers a stored message, so that it is sent again if the client does not acknowledge it in
   * time.
   */
  expectAck(push: Resendable): void {
    const isStored = push.message.messageSeq > 0;
    if (this.#resendAfterMs === 0 || !isStored) return;
    if (this.#ended !== undefined) return;
    this.#unacknowledged ??= new Unacknowledged(this.#resendAfterMs, (message) =>
      this.#resend(message),
    );
    this.#unacknowledged.add(push);
  }

  /** Records that the client acknowledged the message. */
  acknowledged(messageId: number): void {
    this.#unacknowledged?.confirm(messageId);
  }

  /** Records that the client acknowledged these commands. */
  acknowledgedCommands(inboxSeqs: readonly number[]): void {
    for (const inboxSeq of inboxSeqs) this.#unacknowledged?.confirmCommand(inboxSeq);
  }

  /**
   * Sends an unacknowledged message again, unless the client has too many unread bytes, the session
   * left the group, or the message expired.
   */
  #resend(push: Resendable): void {
    const { channel, message } = push;
    if (this.connection.bufferedBytes() > MAX_UNREAD_BYTES_TO_RESEND) return;
    if (push.kind === "message" && channel.type === GROUP_CHANNEL)
      if (!this.follows(channel.id)) return this.acknowledged(message.messageId);
    if (expiresAtMs(message) <= Date.now()) return;
    this.pushFrames(this.codec.encodePush(push));
  }

  pushMessage(message: Message): void {
    const channel = channelSeenBy(this.uid, message);
    this.push({ kind: "message", channel, message });
  }

  /** Sends frames that are already encoded in the wire format of this session. */
  pushFrames(frames: Frames): void {
    sendFrames(this.connection, frames);
  }

  /** Resolves when the client has at most `bytes` unread bytes, or when the session has ended. */
  async writable(bytes: number): Promise<void> {
    // Lets the frames of this turn be written first, because queued frames count as unread.
    await new Promise<void>((resolve) => setImmediate(resolve));
    while (this.#ended === undefined && this.connection.bufferedBytes() > bytes)
      await new Promise<void>((resolve) => {
        this.#writableWaiters ??= [];
        this.#writableWaiters.push(resolve);
      });
  }

  /** Wakes the callers of `writable` after the client read some bytes or the session ended. */
  drained(): void {
    const waiters = this.#writableWaiters;
    if (waiters === undefined) return;
    this.#writableWaiters = undefined;
    for (const wake of waiters) wake();
  }

  /**
   * Adds `bytes` to the bytes held for the session; a negative number releases bytes. If the total
   * exceeds the maximum, the session ends, and its client may reconnect and resume.
   */
  charge(bytes: number): void {
    this.#heldBytes += bytes;
    if (this.#heldBytes > this.#maxHeldBytes) this.end("slow_reader");
  }

  /**
   * Records that the client has all messages of a personal channel up to this one, so that they are
   * not pushed again when they are published.
   */
  noteRead(key: ChannelKey, { messageSeq, messageId }: MessagePosition): void {
    this.#personalPositions ??= new Map();
    this.#personalPositions.set(key, { messageSeq, messageId });
  }

  /**
   * Returns false if the client already has this message of a personal channel. The id is compared
   * as well as the seq, because a fail-over may have reused the seq.
   */
  lacks({ key, messageId, messageSeq }: Message): boolean {
    const position = this.#personalPositions?.get(key);
    if (position === undefined || messageSeq === 0) return true;
    const { messageSeq: lastSeq, messageId: lastId } = position;
    if (messageSeq <= lastSeq && messageId <= lastId) return false;
    // This message is new to the client, and so are all later ones, because the messages of a
    // channel are published in order.
    this.#personalPositions?.delete(key);
    return true;
  }

  /**
   * Records that a personal stream was read from the store up to `cursor`, so that earlier events
   * are not pushed again when they are published.
   */
  noteReadStream(name: StreamName, cursor: StreamCursor): void {
    this.#streamPositions ??= new BoundedMap(MAX_READ_STREAMS);
    this.#streamPositions.set(streamName(name), cursor);
  }

  /**
   * Returns the part of a personal channel's event that the client lacks, `undefined` if it lacks
   * nothing.
   */
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

  /**
   * Sends the client the reason and closes the connection. A replaced session is closed without
   * sending a reason. Does nothing if the session has already ended.
   */
  end(reason: CloseReason): void {
    if (this.#ended !== undefined) return;
    this.#ended = reason;
    if (reason !== "replaced") this.push({ kind: "disconnect", reason });
    const { code, message } = CLOSE_REASONS[reason];
    this.connection.end(code, message);
    this.#unacknowledged?.stop();
    this.drained();
  }

  /**
   * Ends the session after its connection closed. `reason` is ignored if the server had already
   * ended the session.
   */
  disconnected(reason: CloseReason): void {
    this.#ended ??= reason;
    this.#unacknowledged?.stop();
    this.drained();
  }

  /**
   * Remembers how much of a group the session has when it leaves the group. Notifications of
   * leaving and rejoining may arrive late, after messages that were sent since the user rejoined.
   * The highest seq is kept so that these messages are not pushed twice.
   */
  rememberSeq(channelId: string, position: GroupPosition): void {
    this.#leftGroups ??= new BoundedMap(MAX_GROUPS_LEFT);
    const previousSeq = this.#leftGroups.get(channelId)?.seq ?? 0;
    this.#leftGroups.renew(channelId, { ...position, seq: Math.max(previousSeq, position.seq) });
  }

  /**
   * Marks the resume as finished. If the user rejoins a group after this, the session starts no
   * earlier than where the new membership begins.
   */
  endResume(): void {
    for (const [id, position] of this.#leftGroups ?? [])
      this.#leftGroups?.set(id, { ...position, isResumed: false });
  }

  /**
   * Returns the position that the session had in a group when it left, and forgets it. Returns
   * `undefined` if no position is remembered.
   */
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

  /**
   * Removes the group from the groups that the session follows. Returns false if it was not one of
   * them.
   */
  unfollow({ channelId }: FollowedGroup): boolean {
    return this.#groups?.delete(channelId) ?? false;
  }

  follows(channelId: string): boolean {
    return this.#groups?.has(channelId) ?? false;
  }
}
