// Delivers each publication of one channel to the listener once, in the order of the publication
// numbers. A publication that arrives too early is buffered. If the missing publication does not
// arrive in time, the sequencer requests a catch-up from the store.

import type { ChannelKey, Message, StreamSnapshot } from "../../../broker/model.ts";
import { messageTimeMs } from "../../../broker/model.ts";
import type { HeadEvent } from "../../../broker/ports.ts";
import { groupOf } from "../../../redis/keys.ts";
import {
  decodeFrame,
  type EventList,
  idBeforeOf,
  kindOf,
  MESSAGE_FRAME,
  messageIdOf,
  messageSeqOf,
  type OrderedEvent,
  publicationSeqOf,
  REMOVAL_FRAME,
  withStream,
} from "../../../redis/wire.ts";
import { DeliveredPosition } from "./position.ts";
import { type BufferedBytes, isUnstored, ReorderBuffer } from "./reorder-buffer.ts";
import type { StoreTime } from "./store-time.ts";
import type { TopicsMetrics } from "./topics-ports.ts";

interface SequencerStart {
  readonly key: ChannelKey;
  /** Earliest time of the messages that a backward read of the log delivers, Unix milliseconds. */
  readonly sinceMs: number;
  /** True if stored messages since `sinceMs` must be read and delivered first. */
  readonly readsBack?: boolean;
  /**
   * True if the subscription was lost. Unstored messages are skipped until the sequencer is live.
   */
  readonly isAfterLoss?: boolean;
}

export interface SequencerPorts {
  readonly gapMs: number;
  readonly budget: BufferedBytes;
  readonly gaps: Set<Sequencer>;
  readonly time: StoreTime;
  readonly deliver: (event: OrderedEvent | HeadEvent) => void;
  readonly rejected: TopicsMetrics["rejected"];
  readonly onGap: (sequencer: Sequencer) => void;
  readonly onError: (error: unknown, message: string) => void;
}

/**
 * Maximum time by which an id may be ahead of the store's time. Ids further ahead are checked in
 * the store.
 */
const MAX_CLOCK_SKEW_MS = 60_000;

export class Sequencer {
  readonly key: ChannelKey;
  readonly sinceMs: number;
  readonly readsBack: boolean;
  readonly delivered = new DeliveredPosition();
  readonly #ports: SequencerPorts;
  /**
   * `new`: the position is unknown. `live`: publications are delivered on arrival. `gap`: a
   * publication is missing, and later ones are buffered. `catching-up`: missed publications are
   * being read.
   */
  #status: "new" | "live" | "gap" | "catching-up" | "closed" = "new";
  /** True while the subscription is lost. During this time, publications are buffered. */
  #isSuspended = false;
  #publicationSeq = 0;
  #movedAtMs = 0;
  #expectedSeq = 0;
  /** Highest publication number that arrived while the sequencer was suspended. */
  #suspendedThrough = 0;
  /** True after the subscription was lost, until the catch-up is done (see `#deliverFrame`). */
  #isAfterLoss: boolean;
  #reorderBuffer: ReorderBuffer | undefined;
  #gapTimer: NodeJS.Timeout | undefined;

  constructor(start: SequencerStart, ports: SequencerPorts) {
    const { key, sinceMs, readsBack = false, isAfterLoss = false } = start;
    this.key = key;
    this.sinceMs = sinceMs;
    this.readsBack = readsBack;
    this.#isAfterLoss = isAfterLoss;
    this.#ports = ports;
  }

  get isNew(): boolean {
    return this.#status === "new";
  }

  get isLive(): boolean {
    return this.#status === "live" && !this.#isSuspended;
  }

  get isClosed(): boolean {
    return this.#status === "closed";
  }

  /** Number of the last delivered publication, or 0 while the position is unknown. */
  get publicationSeq(): number {
    return this.#publicationSeq;
  }

  /** Time of the last position change, Unix milliseconds. 0 if no publication is known. */
  get movedAtMs(): number {
    return this.#movedAtMs;
  }

  get isSuspended(): boolean {
    return this.#isSuspended;
  }

  get bufferedSeqs(): readonly number[] {
    return this.#reorderBuffer?.numbers ?? [];
  }

  get lowestBuffered(): number {
    return this.#reorderBuffer?.lowest ?? Number.POSITIVE_INFINITY;
  }

  /** Returns true if all publications up to this number are delivered or buffered. */
  hasThrough(publicationSeq: number): boolean {
    let seq = this.#publicationSeq;
    while (seq < publicationSeq && this.#reorderBuffer?.get(seq + 1) !== undefined) seq += 1;
    return seq >= publicationSeq;
  }

  /** True if the sequencer may be evicted, because no publication is buffered or being read. */
  get isIdle(): boolean {
    return this.isLive || this.isClosed;
  }

  accept(frame: Buffer, event?: OrderedEvent | EventList): void {
    const publicationSeq = publicationSeqOf(frame);
    if (this.#isHeld) return this.#keep(publicationSeq, frame);
    if (publicationSeq === this.#publicationSeq + 1 && !this.#isImplausible(frame)) {
      this.#advance(publicationSeq, frame, event);
      if (this.#status === "gap") this.#drain();
    } else if (publicationSeq === this.#publicationSeq + 1) {
      this.#keep(publicationSeq, frame);
      this.#ports.onGap(this); // the catch-up determines which message has this number
    } else if (publicationSeq > this.#publicationSeq) {
      this.#keep(publicationSeq, frame);
      this.#openGap();
    } else if (this.#isForked(frame)) {
      this.#keep(publicationSeq, frame);
      this.#ports.onGap(this);
    } else if (kindOf(frame) === REMOVAL_FRAME) {
      this.#ports.onGap(this); // the number is late or reused, so memberships must be checked
    }
  }

  confirmId(messageId: number): void {
    this.#ports.time.confirm(messageId);
  }

  /**
   * Sets the position: publications up to `publicationSeq` are delivered or not needed. The
   * listener must read the messages of a group up to `headSeq` from the store.
   */
  begin(publicationSeq: number, headSeq: number | undefined): void {
    this.delivered.headSeq ??= headSeq;
    const channelId = groupOf(this.key);
    if (channelId !== undefined && headSeq !== undefined)
      this.#ports.deliver({ kind: "head", channelId, headSeq });
    this.goLive(publicationSeq);
  }

  suspend(): void {
    this.#isSuspended = true;
  }

  /** Ends the suspension. If publications may have been missed, a catch-up must have started. */
  resume(): void {
    if (!this.#isSuspended) return;
    this.#isSuspended = false;
    this.#markBufferedAsSuspended();
    if (this.#isHeld) this.#isAfterLoss = true;
    else this.#drain();
  }

  /** Buffers publications until `goLive`. Returns false if the sequencer is closed. */
  startCatchUp(): boolean {
    if (this.#status === "closed") return false;
    this.#closeGap();
    if (this.#status !== "new") this.#status = "catching-up";
    return true;
  }

  /**
   * Delivers a message that was read from the store. First delivers buffered unstored messages with
   * lower ids.
   */
  deliverMessage(message: Message): void {
    if (this.isClosed) return;
    const unstoredFrames = this.#reorderBuffer?.removeUnstoredBefore(message.messageId) ?? [];
    for (const frame of unstoredFrames)
      if (this.#isMissing(frame, this.#publicationSeq)) this.#deliverFrame(frame);
    const frame = this.#reorderBuffer?.messageFrame(message.messageId);
    // Unlike the log, the frame contains the sending session.
    const event = frame === undefined ? undefined : this.#decode(frame);
    this.#deliver(event ?? publicationOf(message));
    if (message.stream !== undefined && this.delivered.hasStream(message.clientMsgNo))
      this.deliverStream(message.stream);
  }

  deliverStream(snapshot: StreamSnapshot): void {
    if (this.isClosed) return;
    for (const event of this.delivered.advanceStream(snapshot))
      this.#ports.deliver({ kind: "event", event });
  }

  /** Drops buffered publications with these numbers, which the store has not assigned. */
  disprove(numbers: readonly number[]): void {
    for (const publicationSeq of numbers)
      if (this.#reorderBuffer?.remove(publicationSeq) !== undefined)
        this.#ports.rejected("disproved");
  }

  /**
   * Ends the catch-up. The stored publications up to `publicationSeq` must have been delivered,
   * except those that are not needed.
   */
  goLive(publicationSeq: number): void {
    if (this.isClosed) return;
    const previousSeq = this.#status === "new" ? 0 : this.#publicationSeq;
    if (this.#isAfterLoss || this.#isSuspended) this.#markBufferedAsSuspended();
    this.#isAfterLoss = false;
    this.#publicationSeq = publicationSeq;
    this.#expectedSeq = publicationSeq;
    if (publicationSeq > 0) this.#movedAtMs = this.#ports.time.now();
    this.#status = "live";
    // Frames are delivered after the status was set, because a removal of unknown members starts
    // another catch-up, and its status must not be overwritten.
    for (const frame of this.#reorderBuffer?.removeThrough(publicationSeq) ?? [])
      if (this.#isMissing(frame, previousSeq)) this.#deliverFrame(frame);
    if (!this.#isHeld) this.#drain();
  }

  /**
   * Records that a publication exists. If the publication does not arrive in time, requests a
   * catch-up.
   */
  expect(publicationSeq: number): void {
    if (publicationSeq <= this.#expectedSeq) return;
    this.#expectedSeq = publicationSeq;
    if (!this.#isHeld && publicationSeq > this.#publicationSeq) this.#openGap();
  }

  close(): void {
    this.#closeGap();
    this.#status = "closed";
    this.#reorderBuffer?.clear();
  }

  get #isHeld(): boolean {
    return this.#isSuspended || (this.#status !== "live" && this.#status !== "gap");
  }

  /**
   * Returns true if the message belongs to a different history. After a fail-over, publication
   * numbers can be reused with new message ids, which may be lower than the delivered ids.
   */
  #isForked(frame: Buffer): boolean {
    const { lastId } = this.delivered;
    if (kindOf(frame) !== MESSAGE_FRAME || lastId === 0) return false;
    const messageId = messageIdOf(frame);
    if (messageId > lastId) return true;
    if (publicationSeqOf(frame) === this.#publicationSeq) return messageId < lastId;
    return this.delivered.hasOtherAt(messageSeqOf(frame), messageId);
  }

  #isImplausible(frame: Buffer): boolean {
    if (kindOf(frame) !== MESSAGE_FRAME) return false;
    const { lastId } = this.delivered;
    const messageId = messageIdOf(frame);
    if (messageId <= lastId) return true;
    const latestMs = this.#ports.time.now() + MAX_CLOCK_SKEW_MS;
    if (messageTimeMs(messageId) > latestMs) return true;
    return lastId > 0 && (idBeforeOf(frame) ?? lastId) !== lastId;
  }

  /**
   * Returns true if the publication was not delivered. On a Redis Cluster, the position may move
   * past an unstored message before the message arrives. Such a message is recognised by its id.
   */
  #isMissing(frame: Buffer, through: number): boolean {
    if (publicationSeqOf(frame) > through) return true;
    return isUnstored(frame) && messageIdOf(frame) > this.delivered.lastId;
  }

  #markBufferedAsSuspended(): void {
    for (const publicationSeq of this.bufferedSeqs)
      if (publicationSeq > this.#suspendedThrough) this.#suspendedThrough = publicationSeq;
  }

  #keep(publicationSeq: number, frame: Buffer): void {
    if (this.isClosed) return;
    this.#reorderBuffer ??= new ReorderBuffer(this.#ports.budget);
    this.#reorderBuffer.add(publicationSeq, frame);
    this.expect(publicationSeq); // even if its frame did not fit into the buffer
  }

  #drain(): void {
    const buffer = this.#reorderBuffer;
    let isDoubtful = false;
    while (buffer !== undefined && buffer.size > 0 && !this.#isHeld) {
      const frame = buffer.get(this.#publicationSeq + 1);
      if (frame === undefined) break;
      isDoubtful = this.#isImplausible(frame);
      if (isDoubtful) break;
      buffer.remove(this.#publicationSeq + 1);
      this.#advance(this.#publicationSeq + 1, frame, undefined);
    }
    // After a removal of unknown members, memberships are checked before the next frame.
    if (this.#isHeld) return;
    if ((buffer?.size ?? 0) > 0 || this.#expectedSeq > this.#publicationSeq) this.#openGap();
    else this.#closeGap();
    // The store has the frames that did not fit into the buffer, and its history decides between
    // two frames with the same number.
    if (buffer?.consumeLost() || isDoubtful) this.#ports.onGap(this);
  }

  #advance(
    publicationSeq: number,
    frame: Buffer,
    event: OrderedEvent | EventList | undefined,
  ): void {
    this.#publicationSeq = publicationSeq;
    this.#movedAtMs = this.#ports.time.now();
    if (event === undefined) this.#deliverFrame(frame);
    else this.#deliver(event);
  }

  /**
   * Delivers the event in a frame. Between a loss and the end of the catch-up, skips unstored
   * messages, which a session may have received on its previous node.
   */
  #deliverFrame(frame: Buffer): void {
    const wasHeld = this.#isAfterLoss || publicationSeqOf(frame) <= this.#suspendedThrough;
    if (wasHeld && isUnstored(frame)) return;
    const event = this.#decode(frame);
    if (event !== undefined) this.#deliver(event);
  }

  #deliver(event: OrderedEvent | EventList): void {
    if (event.kind === "events")
      for (const published of event.events) this.#deliver({ kind: "event", event: published });
    else if (event.kind === "removal" && event.uids === undefined)
      // Any member may have been removed, so memberships are checked before the next event.
      this.#ports.onGap(this);
    else if (this.delivered.markDelivered(event)) this.#ports.deliver(event);
  }

  #decode(frame: Buffer): OrderedEvent | EventList | undefined {
    try {
      const publication = decodeFrame(frame);
      return publication.kind === "ordered" ? publication.event : undefined;
    } catch (error) {
      this.#ports.onError(error, "Skipped a publication that this node cannot read");
      return undefined;
    }
  }

  #openGap(): void {
    this.#status = "gap";
    this.#ports.gaps.add(this);
    this.#gapTimer ??= setTimeout(() => {
      this.#gapTimer = undefined;
      if (this.#status === "gap") this.#ports.onGap(this);
    }, this.#ports.gapMs);
  }

  #closeGap(): void {
    clearTimeout(this.#gapTimer);
    this.#gapTimer = undefined;
    this.#ports.gaps.delete(this);
    if (this.#status === "gap") this.#status = "live";
  }
}

/** Returns the event for a stored message, with an empty stream if the message started a stream. */
function publicationOf(message: Message): OrderedEvent {
  const base = { kind: "message", origin: undefined } as const;
  const isStream = message.stream !== undefined;
  return {
    ...base,
    message: isStream ? withStream(message) : message,
    recipients: undefined,
  };
}
