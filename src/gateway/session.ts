// An authenticated device session on this node: its connection, its wire format, the groups it follows, and what is held back for it while
// it catches up. Pushes go out here; who gets which push is the hub's business.

import { CLOSE_REASONS, type CloseReason } from "../broker/errors.ts";
import {
  type ChannelKey,
  channelSeenBy,
  GROUP_CHANNEL,
  type Message,
} from "../broker/model.ts";
import type { Codec, Frame, Push, Reply } from "../protocol/protocol.ts";
import type { Connection } from "../transport/types.ts";

/** What a held message costs beside its payload, about: without it, tiny messages would be held without bound. */
const HELD_OVERHEAD_BYTES = 256;

/** How far a session has read each channel it resumes: messages through that seq are not pushed again. */
export type Cursors = ReadonlyMap<ChannelKey, number>;

/** A group as its sessions see it. */
export interface FollowedGroup {
  readonly channelId: string;
}

const NO_GROUPS: readonly FollowedGroup[] = [];

export class Session {
  readonly sessionId: string;
  readonly uid: string;
  readonly codec: Codec;
  readonly connection: Connection;
  /** The groups it gets live messages of; kept by the hub. */
  groups: readonly FollowedGroup[] = NO_GROUPS;
  /** The group it is just joining: its live messages are held. */
  joining: FollowedGroup | undefined;
  /** Its memberships changed: what was read of them before is old. */
  membershipsStale = false;
  /** The broker opened it: the client proved who it is. */
  isAdmitted = false;
  /** It follows all its groups; changes of membership apply directly. */
  hasJoined = false;
  readonly #maxHeldBytes: number;
  #held: Message[] | undefined = [];
  #heldBytes = 0;
  #ended: CloseReason | undefined;
  #removedFrom: Set<string> | undefined;
  #wake: (() => void) | undefined;

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

  reply(reply: Reply): void {
    this.connection.send(this.codec.encodeReply(reply));
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
        this.#wake = resolve;
      });
  }

  /** The client took bytes, or is gone. */
  drained(): void {
    this.#wake?.();
    this.#wake = undefined;
  }

  /** Keeps a live message until `release`. More than the bound ends the session, which then resumes from where it was. */
  hold(message: Message): void {
    if (this.#ended !== undefined) return;
    this.#held ??= [];
    this.#held.push(message);
    this.#heldBytes += message.payload.length + HELD_OVERHEAD_BYTES;
    if (this.#heldBytes > this.#maxHeldBytes) this.end("slow_reader");
  }

  /** Its user left the group: nothing of it goes out any more. */
  dropHeld(channelId: string): void {
    const held = this.#held;
    if (held === undefined) return;
    this.#held = [];
    this.#heldBytes = 0;
    for (const message of held) {
      const { id, type } = message.channel;
      if (type !== GROUP_CHANNEL || id !== channelId) this.hold(message);
    }
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
    for (const message of held) {
      const has = cursors.get(message.key) ?? 0;
      if (message.messageSeq === 0 || message.messageSeq > has)
        this.pushMessage(message);
    }
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

  /** While it joins, remembers the groups its user was told out of: they are not to be followed on what was read before. */
  noteMembership(channelId: string, member: boolean): void {
    if (member) this.#removedFrom?.delete(channelId);
    else if (!this.hasJoined) {
      this.#removedFrom ??= new Set();
      this.#removedFrom.add(channelId);
    }
  }

  wasRemovedFrom(channelId: string): boolean {
    return this.#removedFrom?.has(channelId) ?? false;
  }

  forgetRemovals(): void {
    this.#removedFrom = undefined;
  }

  follows(channelId: string): boolean {
    return this.groups.some((group) => group.channelId === channelId);
  }
}
