// An authenticated device session on this node: its connection, its wire format, the groups it
// follows, and how much is held back for it while it catches up. Pushes go out here; who gets which
// push is the hub's business. Ten thousands exist: what only a session at work needs is made when
// it is needed.

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
 * What a held message or event costs beside its payload, about: without it, tiny ones would be held
 * without bound.
 */
export const HELD_OVERHEAD_BYTES = 256;

/** A group as its sessions see it. */
interface FollowedGroup {
  readonly channelId: string;
}

/** A stream of any channel. */
export interface StreamName {
  readonly key: ChannelKey;
  readonly clientMsgNo: string;
}

/** Where a message stands in its channel. */
type MessagePlace = Pick<Message, "messageSeq" | "messageId">;

/** What a session has of a group that it left. */
export interface Had {
  /** Through which seq; 0: that is not known. */
  readonly seq: number;
  /** It was resuming from where its client was. */
  readonly isResumed: boolean;
}

/** Distinguishes streams of all channels; keys hold no line break. */
export function streamName({ key, clientMsgNo }: StreamName): string {
  return `${key}\n${clientMsgNo}`;
}

/** What the session's personal channels have for it while it is not live in them: see `Backlog`. */
export interface Withheld {
  readonly isHolding: boolean;
  takeMessage(message: Message): number;
  takeEvent(event: ChannelEvent): void;
  forgetGroup(channelId: string): void;
  shown(snapshot: StreamSnapshot): void;
}

/** What comes for a session that has not read its inbox to the end. */
export interface UnreadInbox {
  /** A copy came that what was read may not show. */
  hasMore: boolean;
  /** Commands that are kept nowhere else. */
  readonly unstored: CommandPush[];
}

/** Copies of commands that a session was given as they came: all from `from` to `to`. */
export interface LiveInbox {
  readonly from: number;
  to: number;
}

export type CommandPush = Extract<Push, { readonly kind: "command" }>;

/** Sends each of the frames; returns how long they are, in bytes or characters. */
export function sendFrames(connection: Connection, frames: Frames): number {
  if (isOne(frames)) {
    connection.send(frames);
    return frames.length;
  }
  let length = 0;
  for (const frame of frames) length += sendFrames(connection, frame);
  return length;
}

/** Publishes each of the frames on the topic. */
export function publishFrames(publisher: TopicPublisher, topic: string, frames: Frames): void {
  if (isOne(frames)) publisher.publish(topic, frames);
  else for (const frame of frames) publisher.publish(topic, frame);
}

function isOne(frames: Frames): frames is Frame {
  return typeof frames === "string" || frames instanceof Uint8Array;
}

const NO_GROUPS: ReadonlyMap<string, FollowedGroup> = new Map();
/** Of more personal streams that a session read, late events are pushed again. */
const MAX_READ_STREAMS = 100;
/** A client with more unread bytes is not sent messages again. */
const MAX_RESEND_BEHIND_BYTES = 65_536;
/** Of more groups that a session left it is not remembered what it had. */
const MAX_GROUPS_LEFT = 100;

export class Session {
  readonly sessionId: string;
  readonly uid: string;
  readonly codec: Codec;
  readonly connection: Connection;
  /** Groups that it is about to follow; kept by them. */
  joining: Set<string> | undefined;
  /** Its memberships changed: what was read of them before is old. */
  membershipsStale = false;
  /** The broker opened it: the client proved who it is. */
  isAdmitted = false;
  /** The client has its connack. */
  isWelcome = false;
  /** It follows all its groups; changes of membership apply directly. */
  hasJoined = false;
  /** Set while it is not live in its personal channels. */
  personal: Withheld | undefined;
  /** Set until it has caught up with its inbox. */
  inbox: UnreadInbox | undefined;
  /** Through which inboxSeq it has read its inbox. */
  inboxSeq = 0;
  /** What came live behind that. */
  inboxLive: LiveInbox | undefined;
  /** Where what the client asks to read waits. */
  reads: Reads | undefined;
  /** The work it may ask for; undefined: any. */
  rate: Rate | undefined;
  /**
   * Of content and overhead. A small payload may keep 8 KiB of memory that it shared with others
   * when it was read (`redis/wire.ts`).
   */
  readonly #maxHeldBytes: number;
  /** 0: never. */
  readonly #resendAfterMs: number;
  #unacknowledged: Unacknowledged | undefined;
  #groups: Map<string, FollowedGroup> | undefined;
  #heldBytes = 0;
  #ended: CloseReason | undefined;
  /** Of groups it got messages of and was removed from: what it has. */
  #had: BoundedMap<string, Had> | undefined;
  #waiting: (() => void)[] | undefined;
  /**
   * Newest message that it has of personal channels it resumed, and end of each personal stream
   * that was read, by `streamName`.
   */
  #readThrough: Map<ChannelKey, MessagePlace> | undefined;
  #readStreams: BoundedMap<string, StreamCursor> | undefined;

  constructor(parts: {
    readonly sessionId: string;
    readonly uid: string;
    readonly codec: Codec;
    readonly connection: Connection;
    readonly maxHeldBytes: number;
    /** A stored message is sent again to a client that does not acknowledge it; 0: never. */
    readonly resendAfterMs: number;
  }) {
    this.sessionId = parts.sessionId;
    this.uid = parts.uid;
    this.codec = parts.codec;
    this.connection = parts.connection;
    this.#maxHeldBytes = parts.maxHeldBytes;
    this.#resendAfterMs = parts.codec.acknowledges ? parts.resendAfterMs : 0;
  }

  /** Why it was ended from this side; undefined while it lives. */
  get ended(): CloseReason | undefined {
    return this.#ended;
  }

  /** Returns how long the reply is on the wire, in bytes or characters. */
  reply(reply: Reply): number {
    return sendFrames(this.connection, this.codec.encodeReply(reply));
  }

  push(push: Push): void {
    this.pushFrames(this.codec.encodePush(push));
    this.#note(push);
  }

  /**
   * The same, encoded once for all sessions that share `encoded`; `key` names the frames there, and
   * holds their format.
   */
  pushShared(push: Push, encoded: Map<string, Frames>, key = this.codec.format): void {
    if (this.codec.isPrivate) return this.push(push);
    const frames = encoded.get(key) ?? this.codec.encodePush(push);
    encoded.set(key, frames);
    this.pushFrames(frames);
    this.#note(push);
  }

  #note(push: Push): void {
    if (this.#resendAfterMs === 0) return;
    const { kind } = push;
    if (kind === "message" || kind === "command") this.noteGiven(push);
    else if (kind === "messages")
      for (const message of push.messages)
        this.noteGiven({ kind: "message", channel: push.channel, message });
  }

  /** A stored message is sent again until the client acknowledges it. */
  noteGiven(push: Resendable): void {
    const isStored = push.message.messageSeq > 0;
    if (this.#resendAfterMs === 0 || !isStored) return;
    if (this.#ended !== undefined) return;
    this.#unacknowledged ??= new Unacknowledged(this.#resendAfterMs, (one) => this.#resend(one));
    this.#unacknowledged.add(push);
  }

  /** The client has the message. */
  acknowledged(messageId: number): void {
    this.#unacknowledged?.confirm(messageId);
  }

  /** The client has these commands. */
  acknowledgedCommands(inboxSeqs: readonly number[]): void {
    for (const one of inboxSeqs) this.#unacknowledged?.confirmCommand(one);
  }

  /** Nothing to a client that has not read what it was sent, nor of a group that it left. */
  #resend(push: Resendable): void {
    const { channel, message } = push;
    if (this.connection.bufferedBytes() > MAX_RESEND_BEHIND_BYTES) return;
    if (push.kind === "message" && channel.type === GROUP_CHANNEL)
      if (!this.follows(channel.id)) return this.acknowledged(message.messageId);
    if (expiresAtMs(message) <= Date.now()) return;
    this.pushFrames(this.codec.encodePush(push));
  }

  pushMessage(message: Message): void {
    const channel = channelSeenBy(this.uid, message);
    this.push({ kind: "message", channel, message });
  }

  /** Frames of this session's format, encoded once for several sessions. */
  pushFrames(frames: Frames): void {
    sendFrames(this.connection, frames);
  }

  /**
   * Resolves when no more than `bytes` wait to be read by the client, or when the session is over.
   */
  async writable(bytes: number): Promise<void> {
    await new Promise<void>((resolve) => setImmediate(resolve)); // frames of this turn leave first
    while (this.#ended === undefined && this.connection.bufferedBytes() > bytes)
      await new Promise<void>((resolve) => {
        this.#waiting ??= [];
        this.#waiting.push(resolve);
      });
  }

  /** The client took bytes, or disconnected. */
  drained(): void {
    const waiting = this.#waiting;
    if (waiting === undefined) return;
    this.#waiting = undefined;
    for (const wake of waiting) wake();
  }

  /**
   * Counts what is held back for it (negative: no more), in bytes. More than the bound ends it; it
   * then resumes from where it was.
   */
  charge(bytes: number): void {
    this.#heldBytes += bytes;
    if (this.#heldBytes > this.#maxHeldBytes) this.end("slow_reader");
  }

  /**
   * Its client has a personal channel through this message: what is published later of that is not
   * pushed.
   */
  noteRead(key: ChannelKey, { messageSeq, messageId }: MessagePlace): void {
    this.#readThrough ??= new Map();
    this.#readThrough.set(key, { messageSeq, messageId });
  }

  /**
   * False: the client has the message of a personal channel. Equal seqs alone prove nothing: a
   * fail-over may have given them out again.
   */
  lacks({ key, messageId, messageSeq }: Message): boolean {
    const through = this.#readThrough?.get(key);
    if (through === undefined || messageSeq === 0) return true;
    const { messageSeq: lastSeq, messageId: lastId } = through;
    if (messageSeq <= lastSeq && messageId <= lastId) return false;
    this.#readThrough?.delete(key); // publications of a channel come in their order
    return true;
  }

  /**
   * A stream of a personal channel was read through `cursor`: what is published later of that is
   * not pushed.
   */
  noteReadStream(name: StreamName, cursor: StreamCursor): void {
    this.#readStreams ??= new BoundedMap(MAX_READ_STREAMS);
    this.#readStreams.set(streamName(name), cursor);
  }

  /** The part of a personal channel's event that the client lacks; undefined: it has all of it. */
  lackedPart(event: ChannelEvent): ChannelEvent | undefined {
    const { stream } = event;
    if (stream === undefined || this.#readStreams === undefined) return event;
    const name = streamName(event);
    const cursor = this.#readStreams.get(name);
    if (cursor === undefined) return event;
    const rest = restOf(event, stream, cursor);
    if (rest !== undefined) this.#readStreams.delete(name);
    return rest;
  }

  /**
   * Tells the client why (unless it was replaced, which is silent) and closes. Harmless when it
   * ended before.
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

  /** The connection ended; `reason` counts where the session did not end from this side. */
  disconnected(reason: CloseReason): void {
    this.#ended ??= reason;
    this.#unacknowledged?.stop();
    this.drained();
  }

  /**
   * It has that of a group it leaves: the notifications of its leaving and coming back may be later
   * than those messages.
   */
  rememberSeq(channelId: string, had: Had): void {
    this.#had ??= new BoundedMap(MAX_GROUPS_LEFT);
    const before = this.#had.get(channelId)?.seq ?? 0;
    this.#had.renew(channelId, { ...had, seq: Math.max(before, had.seq) });
  }

  /** It has resumed: from now on a group that its user is back in begins with the membership. */
  endResume(): void {
    for (const [id, had] of this.#had ?? []) this.#had?.set(id, { ...had, isResumed: false });
  }

  /** What it has of a group that it left and is back in; from now on that is not remembered. */
  takeHad(channelId: string): Had | undefined {
    const found = this.#had?.get(channelId);
    this.#had?.delete(channelId);
    return found;
  }

  /** The groups it gets live messages of, by id; kept by them. */
  get groups(): ReadonlyMap<string, FollowedGroup> {
    return this.#groups ?? NO_GROUPS;
  }

  follow(group: FollowedGroup): void {
    this.#groups ??= new Map();
    this.#groups.set(group.channelId, group);
  }

  /** False: it did not follow the group. */
  unfollow({ channelId }: FollowedGroup): boolean {
    return this.#groups?.delete(channelId) ?? false;
  }

  follows(channelId: string): boolean {
    return this.#groups?.has(channelId) ?? false;
  }
}
