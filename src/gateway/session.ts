// An authenticated device session on this node: its connection, its wire format, the groups it follows, and what is held back for it while
// it catches up. Pushes go out here; who gets which push is the hub's business. Ten thousands exist: what only a session at work needs is
// made when it is needed.

import { CLOSE_REASONS, type CloseReason } from "../broker/errors.ts";
import {
  type ChannelEvent,
  type ChannelKey,
  channelSeenBy,
  GROUP_CHANNEL,
  type Message,
  type StreamSnapshot,
} from "../broker/model.ts";
import { restOf, type StreamCursor } from "../broker/stream-pieces.ts";
import type { Codec, Frame, Push, Reply } from "../protocol/protocol.ts";
import type { Connection } from "../transport/types.ts";
import type { Reads } from "./reads.ts";
import type { Rate } from "./work.ts";

/** What a held message or event costs beside its payload, about: without it, tiny ones would be held without bound. */
export const HELD_OVERHEAD_BYTES = 256;

/** How far a session has read each channel it resumes: messages through that seq are not pushed again. */
export type Cursors = ReadonlyMap<ChannelKey, number>;

/** A group as its sessions see it. */
export interface FollowedGroup {
  readonly channelId: string;
}

/** A stream of any channel. */
export interface StreamName {
  readonly key: ChannelKey;
  readonly clientMsgNo: string;
}

/** Where a message stands in its channel. */
export type MessagePlace = Pick<Message, "messageSeq" | "messageId">;

/** Distinguishes streams of all channels; keys hold no line break. */
export function streamName({ key, clientMsgNo }: StreamName): string {
  return `${key}\n${clientMsgNo}`;
}

/** Keeps events back from a session that is not to get them yet. */
export interface Withholding {
  withhold(event: ChannelEvent): void;
  /** The client was told otherwise how a stream stands. */
  shown(snapshot: StreamSnapshot): void;
}

/** What comes for a session that has not read its inbox to the end. */
export interface UnreadInbox {
  /** A copy came that what was read may not show. */
  hasMore: boolean;
  /** Commands that are kept nowhere else. */
  readonly told: CommandPush[];
}

/** Copies of commands that a session was given as they came: all from `from` to `to`. */
export interface LiveInbox {
  readonly from: number;
  to: number;
}

export type CommandPush = Extract<Push, { readonly kind: "command" }>;

/** Pushes that keep their order with messages that are held. */
export type HeldPush = Extract<Push, { readonly kind: "event" | "stream" }>;

const NO_GROUPS: ReadonlyMap<string, FollowedGroup> = new Map();
/** Of more personal streams that a session read, late events are pushed again. */
const MAX_READ_STREAMS = 100;
/** Of more groups that a session left it is not remembered what it had. */
const MAX_GROUPS_LEFT = 100;

export class Session {
  readonly sessionId: string;
  readonly uid: string;
  readonly codec: Codec;
  readonly connection: Connection;
  /** Groups the node listens to because the session is about to join them; kept by the hub. */
  warm: string[] | undefined;
  /** The group it is just joining: its live messages are held. */
  joining: FollowedGroup | undefined;
  /** Its memberships changed: what was read of them before is old. */
  membershipsStale = false;
  /** The broker opened it: the client proved who it is. */
  isAdmitted = false;
  /** The client has its connack. */
  isWelcome = false;
  /** It follows all its groups; changes of membership apply directly. */
  hasJoined = false;
  /** Set while it is not to get events of personal channels. */
  personalEvents: Withholding | undefined;
  /** Set until it is level with its inbox. */
  inbox: UnreadInbox | undefined;
  /** Through which inboxSeq it has read its inbox. */
  inboxSeq = 0;
  /** What came live behind that. */
  inboxLive: LiveInbox | undefined;
  /** Where what the client asks to read waits. */
  reads: Reads | undefined;
  /** The work it may ask for; undefined: any. */
  rate: Rate | undefined;
  /** Of content and overhead. A small payload may keep 8 KiB of memory that it shared with others when it was read (`redis/wire.ts`). */
  readonly #maxHeldBytes: number;
  #groups: Map<string, FollowedGroup> | undefined;
  #held: (Message | HeldPush)[] | undefined = [];
  #heldBytes = 0;
  #keptBytes = 0;
  #ended: CloseReason | undefined;
  #removedFrom: Set<string> | undefined;
  /** Of groups it got messages of and was told out of: through which seq. */
  #had: Map<string, number> | undefined;
  #waiting: (() => void)[] | undefined;
  /** Newest message that it has of personal channels it resumed, and end of each personal stream that was read, by `streamName`. */
  #readThrough: Map<ChannelKey, MessagePlace> | undefined;
  #readStreams: Map<string, StreamCursor> | undefined;
  /** Active streams the client was shown in groups whose events it does not get yet. */
  #openStreams: Map<ChannelKey, Map<string, StreamCursor>> | undefined;

  constructor(parts: {
    readonly sessionId: string;
    readonly uid: string;
    readonly codec: Codec;
    readonly connection: Connection;
    readonly maxHeldBytes: number;
  }) {
    this.sessionId = parts.sessionId;
    this.uid = parts.uid;
    this.codec = parts.codec;
    this.connection = parts.connection;
    this.#maxHeldBytes = parts.maxHeldBytes;
  }

  /** Why it was ended from this side; undefined while it lives. */
  get ended(): CloseReason | undefined {
    return this.#ended;
  }

  /** Holds live messages back: it is reading what it missed. */
  get isHolding(): boolean {
    return this.#held !== undefined;
  }

  /** Returns the size of the frame in bytes. */
  reply(reply: Reply): number {
    const frame = this.codec.encodeReply(reply);
    this.connection.send(frame);
    return frame.length;
  }

  push(push: Push): void {
    this.connection.send(this.codec.encodePush(push));
  }

  pushMessage(message: Message): void {
    const channel = channelSeenBy(this.uid, message);
    this.push({ kind: "message", channel, message });
  }

  /** A frame of this session's format, encoded once for several sessions. */
  pushFrame(frame: Frame): void {
    this.connection.send(frame);
  }

  /** Resolves when no more than `bytes` wait to be read by the client, or when the session is over. */
  async writable(bytes: number): Promise<void> {
    await new Promise<void>((resolve) => setImmediate(resolve)); // frames of this turn leave first
    while (this.#ended === undefined && this.connection.bufferedBytes() > bytes)
      await new Promise<void>((resolve) => {
        this.#waiting ??= [];
        this.#waiting.push(resolve);
      });
  }

  /** The client took bytes, or is gone. */
  drained(): void {
    const waiting = this.#waiting;
    if (waiting === undefined) return;
    this.#waiting = undefined;
    for (const wake of waiting) wake();
  }

  /** Keeps a live message until `release`. More than the bound ends the session, which then resumes from where it was. */
  hold(message: Message): void {
    this.#hold(message, message.payload.length);
  }

  /** Pushes, in its turn among what is held. */
  pushInTurn(push: HeldPush): void {
    if (!this.isHolding) return this.push(push);
    const content =
      push.kind === "event" ? push.event.data : push.snapshot.text;
    this.#hold(push, content.length);
  }

  /** Counts what is kept back for it elsewhere, in bytes (negative: no more), against the same bound. */
  charge(bytes: number): void {
    this.#keptBytes += bytes;
    this.#checkHeld();
  }

  #hold(item: Message | HeldPush, bytes: number): void {
    if (this.#ended !== undefined) return;
    this.#held ??= [];
    this.#held.push(item);
    this.#heldBytes += bytes + HELD_OVERHEAD_BYTES;
    this.#checkHeld();
  }

  #checkHeld(): void {
    if (this.#heldBytes + this.#keptBytes > this.#maxHeldBytes)
      this.end("slow_reader");
  }

  /** Its user left the group: nothing of it goes out any more. */
  dropHeld(channelId: string): void {
    const held = this.#held;
    if (held === undefined) return;
    this.#held = [];
    this.#heldBytes = 0;
    for (const item of held)
      if (isOf(channelId, item)) continue;
      else if ("kind" in item) this.pushInTurn(item);
      else this.hold(item);
  }

  startHolding(): void {
    this.#held ??= [];
  }

  /** Pushes what was held, but for what its cursors say it has, and goes live. */
  release(cursors: Cursors): void {
    const held = this.#held ?? [];
    this.#held = undefined;
    this.#heldBytes = 0;
    if (this.#ended !== undefined) return;
    for (const item of held)
      if ("kind" in item) this.push(item);
      else if (!isHad(item, cursors)) {
        this.pushMessage(item);
        if (item.stream !== undefined) this.opened(item.stream);
      }
  }

  /** Its client has a personal channel through this message: what is published later of that is not pushed. */
  noteRead(key: ChannelKey, { messageSeq, messageId }: MessagePlace): void {
    this.#readThrough ??= new Map();
    this.#readThrough.set(key, { messageSeq, messageId });
  }

  /** False: the client has the message of a personal channel. Equal seqs alone prove nothing: a fail-over may have given them out again. */
  lacks({ key, messageId, messageSeq }: Message): boolean {
    const through = this.#readThrough?.get(key);
    if (through === undefined || messageSeq === 0) return true;
    const { messageSeq: lastSeq, messageId: lastId } = through;
    if (messageSeq <= lastSeq && messageId <= lastId) return false;
    this.#readThrough?.delete(key); // publications of a channel come in their order
    return true;
  }

  /** A stream of a personal channel was read through `cursor`: what is published later of that is not pushed. */
  noteReadStream(name: StreamName, cursor: StreamCursor): void {
    this.#readStreams ??= new Map();
    this.#readStreams.set(streamName(name), cursor);
    if (this.#readStreams.size <= MAX_READ_STREAMS) return;
    const oldest = this.#readStreams.keys().next();
    if (!oldest.done) this.#readStreams.delete(oldest.value);
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

  /** Tells the client why (unless it was replaced, which is silent) and closes. Harmless when it ended before. */
  end(reason: CloseReason): void {
    if (this.#ended !== undefined) return;
    this.#ended = reason;
    if (reason !== "replaced") this.push({ kind: "disconnect", reason });
    const { code, message } = CLOSE_REASONS[reason];
    this.connection.end(code, message);
    this.drained();
  }

  /** The connection is gone; `reason` counts where the session did not end from this side. */
  gone(reason: CloseReason): void {
    this.#ended ??= reason;
    this.drained();
  }

  /** While it joins, remembers what its user was told out of: it is not to be followed on what was read before. */
  noteRemoval(channelId: string): void {
    if (this.hasJoined) return;
    this.#removedFrom ??= new Set();
    this.#removedFrom.add(channelId);
  }

  /** It has the group's messages through that seq: the word of its leaving and coming back may be later than they. */
  noteHad(channelId: string, messageSeq: number): void {
    this.#had ??= new Map();
    const before = this.#had.get(channelId) ?? 0;
    this.#had.delete(channelId);
    this.#had.set(channelId, Math.max(before, messageSeq));
    if (this.#had.size <= MAX_GROUPS_LEFT) return;
    const oldest = this.#had.keys().next();
    if (!oldest.done) this.#had.delete(oldest.value);
  }

  /** Through which seq it has a group that it left; 0: nothing is known of it. */
  hadSeq(channelId: string): number {
    return this.#had?.get(channelId) ?? 0;
  }

  /** It was in the group before, and is not back. */
  hasLeft(channelId: string): boolean {
    return this.#had?.has(channelId) ?? false;
  }

  /** It is back in the group. */
  forgetHad(channelId: string): void {
    this.#had?.delete(channelId);
  }

  wasRemovedFrom(channelId: string): boolean {
    return this.#removedFrom?.has(channelId) ?? false;
  }

  forgetRemovals(): void {
    this.#removedFrom = undefined;
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

  /** While it joins, remembers an active stream it was shown before it gets the events of that channel. */
  opened(snapshot: StreamSnapshot): void {
    if (this.hasJoined && this.joining === undefined) return;
    if (snapshot.state !== "active") return;
    const { key, clientMsgNo, nextIndex, text } = snapshot;
    const open = this.#openStreams?.get(key) ?? new Map<string, StreamCursor>();
    if (nextIndex < (open.get(clientMsgNo)?.index ?? 0)) return;
    open.set(clientMsgNo, { index: nextIndex, textOffset: text.length });
    this.#openStreams ??= new Map();
    this.#openStreams.set(key, open);
  }

  /** Gives back what was remembered of the channel, by clientMsgNo, and forgets it. */
  takeOpened(key: ChannelKey): ReadonlyMap<string, StreamCursor> | undefined {
    const found = this.#openStreams?.get(key);
    this.#openStreams?.delete(key);
    return found;
  }

  /** Every channel's events reach it: there is nothing more to remember. */
  joined(): void {
    this.hasJoined = true;
    this.#openStreams = undefined;
  }
}

function isOf(channelId: string, { channel }: Message | HeldPush): boolean {
  return channel.type === GROUP_CHANNEL && channel.id === channelId;
}

function isHad({ key, messageSeq }: Message, cursors: Cursors): boolean {
  return messageSeq !== 0 && messageSeq <= (cursors.get(key) ?? 0);
}
