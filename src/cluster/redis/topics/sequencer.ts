// In-order delivery of one channel: publications reach the listener in the order of their numbers,
// each once. A publication ahead of its turn is buffered; if the missing one does not arrive in
// time, the sequencer requests a catch-up from the store. State: position, reorder buffer.

import type { ChannelKey, Message, StreamSnapshot } from "../../../broker/model.ts";
import { messageTimeMs } from "../../../broker/model.ts";
import {
  decodeFrame,
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
import type { TopicsMetrics } from "./topics-parts.ts";

/** How a new sequencer finds its position. */
interface Beginning {
  readonly key: ChannelKey;
  /** Older messages are not delivered, Unix milliseconds. */
  readonly sinceMs: number;
  /** Stored messages since then are delivered first. */
  readonly readsBack?: boolean;
  /** Created after a loss: unstored publications that arrive until it goes live are skipped. */
  readonly isAfterLoss?: boolean;
}

export interface SequencerParts {
  /** Time to wait for a missing publication, milliseconds. */
  readonly gapMs: number;
  readonly budget: BufferedBytes;
  /** Sequencers of the node that wait for a missing publication. */
  readonly gaps: Set<Sequencer>;
  /** Unix milliseconds. */
  readonly clock: () => number;
  /** Hands an event to the node's listener; never throws. */
  readonly deliver: (event: OrderedEvent) => void;
  readonly rejected: TopicsMetrics["rejected"];
  /** The sequencer needs a catch-up. */
  readonly onGap: (sequencer: Sequencer) => void;
  readonly onError: (error: unknown, what: string) => void;
}

/** Ids start with a node's clock. An id further ahead than this is checked against the store. */
const CLOCKS_APART_MS = 60_000;

export class Sequencer {
  readonly key: ChannelKey;
  readonly sinceMs: number;
  readonly readsBack: boolean;
  readonly delivered = new DeliveredPosition();
  readonly #parts: SequencerParts;
  /** `new`: the position is not known yet. */
  #status: "new" | "live" | "gap" | "catching-up" | "closed" = "new";
  /** The subscription is lost: publications are buffered until a catch-up. */
  #isSuspended = false;
  /** Publications through this number are delivered. */
  #publicationSeq = 0;
  #movedAtMs = 0;
  /** Highest publication number known to exist. */
  #expected = 0;
  /** Buffered publications through this number arrived while suspended. */
  #suspendedThrough = 0;
  /** It catches up after a loss: sessions may move here from nodes that were whole meanwhile. */
  #isAfterLoss: boolean;
  #buffered: ReorderBuffer | undefined;
  #gapTimer: NodeJS.Timeout | undefined;

  constructor(beginning: Beginning, parts: SequencerParts) {
    const { key, sinceMs, readsBack = false, isAfterLoss = false } = beginning;
    this.key = key;
    this.sinceMs = sinceMs;
    this.readsBack = readsBack;
    this.#isAfterLoss = isAfterLoss;
    this.#parts = parts;
  }

  get isNew(): boolean {
    return this.#status === "new";
  }

  /** The next publication is delivered on arrival. */
  get isLive(): boolean {
    return this.#status === "live" && !this.#isSuspended;
  }

  get isClosed(): boolean {
    return this.#status === "closed";
  }

  /** Publications through this number are delivered; 0 while new. */
  get publicationSeq(): number {
    return this.#publicationSeq;
  }

  /**
   * When its position was found or moved last, Unix milliseconds; 0: nothing was ever published.
   */
  get movedAtMs(): number {
    return this.#movedAtMs;
  }

  get isSuspended(): boolean {
    return this.#isSuspended;
  }

  /** Numbers of the buffered publications. */
  get bufferedNumbers(): readonly number[] {
    return this.#buffered?.numbers ?? [];
  }

  /** Lowest buffered number; Infinity if the buffer is empty. */
  get lowestBuffered(): number {
    return this.#buffered?.lowest ?? Number.POSITIVE_INFINITY;
  }

  /** Whether all publications through this number are delivered or buffered. */
  hasThrough(publicationSeq: number): boolean {
    let one = this.#publicationSeq;
    while (one < publicationSeq && this.#buffered?.get(one + 1) !== undefined) one += 1;
    return one >= publicationSeq;
  }

  /** It may be dropped: nothing is buffered or read. */
  get isIdle(): boolean {
    return this.isLive || this.isClosed;
  }

  /** Takes a frame of the channel; `event` is the frame, if already decoded. */
  accept(frame: Buffer, event?: OrderedEvent): void {
    const publicationSeq = publicationSeqOf(frame);
    if (this.#isHeld) return this.#buffer(publicationSeq, frame);
    if (publicationSeq === this.#publicationSeq + 1 && !this.#isImplausible(frame)) {
      this.#advance(publicationSeq, frame, event);
      if (this.#status === "gap") this.#drain();
    } else if (publicationSeq === this.#publicationSeq + 1) {
      this.#buffer(publicationSeq, frame);
      this.#parts.onGap(this); // the store knows which message has this number
    } else if (publicationSeq > this.#publicationSeq) {
      this.#buffer(publicationSeq, frame);
      this.#openGap();
    } else if (this.#isOfForkedHistory(frame)) {
      this.#buffer(publicationSeq, frame);
      this.#parts.onGap(this);
    } else if (kindOf(frame) === REMOVAL_FRAME) {
      this.#parts.onGap(this); // late, or its number was given out again: the store says who is a member
    }
  }

  /** Starts at `publicationSeq`: earlier publications are delivered or not needed. */
  begin(publicationSeq: number, headSeq: number | undefined): void {
    this.delivered.headSeq ??= headSeq;
    this.goLive(publicationSeq);
  }

  /** Buffers publications: the subscription is lost. */
  suspend(): void {
    this.#isSuspended = true;
  }

  /** The subscription is back. A catch-up that started before delivers the missed publications. */
  resume(): void {
    if (!this.#isSuspended) return;
    this.#isSuspended = false;
    this.#holdBuffered();
    if (this.#isHeld) this.#isAfterLoss = true;
    else this.#drain();
  }

  /** Buffers publications until `goLive`. False if closed. */
  startCatchUp(): boolean {
    if (this.#status === "closed") return false;
    this.#endGap();
    if (this.#status !== "new") this.#status = "catching-up";
    return true;
  }

  /**
   * Delivers a stored message unless it is delivered already, and for a stream's message also its
   * stream. Only during a catch-up.
   */
  deliverMessage(message: Message): void {
    if (this.isClosed) return;
    const before = this.#buffered?.unstoredBefore(message.messageId) ?? [];
    for (const frame of before)
      if (this.#isMissing(frame, this.#publicationSeq)) this.#deliverFrame(frame);
    const buffered = this.#buffered?.message(message.messageId);
    const event = buffered === undefined ? undefined : this.#decode(buffered); // the frame names the sending session
    this.#deliver(event ?? published(message));
    if (message.stream !== undefined && this.delivered.knows(message.clientMsgNo))
      this.deliverStream(message.stream);
  }

  /** Delivers the missing part of a stream, merged. */
  deliverStream(snapshot: StreamSnapshot): void {
    if (this.isClosed) return;
    for (const event of this.delivered.missed(snapshot))
      this.#parts.deliver({ kind: "event", event });
  }

  /** Drops buffered publications whose numbers the store has not given out. */
  disprove(numbers: readonly number[]): void {
    for (const publicationSeq of numbers)
      if (this.#buffered?.take(publicationSeq) !== undefined) this.#parts.rejected("disproved");
  }

  /** Continues after `publicationSeq`: earlier publications are delivered or cannot be read. */
  goLive(publicationSeq: number): void {
    if (this.isClosed) return;
    const before = this.#status === "new" ? 0 : this.#publicationSeq;
    if (this.#isAfterLoss || this.#isSuspended) this.#holdBuffered();
    this.#isAfterLoss = false;
    for (const frame of this.#buffered?.passThrough(publicationSeq) ?? [])
      if (this.#isMissing(frame, before)) this.#deliverFrame(frame);
    this.#publicationSeq = publicationSeq;
    this.#expected = publicationSeq;
    if (publicationSeq > 0) this.#movedAtMs = this.#parts.clock();
    this.#status = "live";
    if (!this.#isSuspended) this.#drain();
  }

  /** A publication with this number exists: waits for it, then catches up. */
  expect(publicationSeq: number): void {
    if (publicationSeq <= this.#expected) return;
    this.#expected = publicationSeq;
    if (!this.#isHeld && publicationSeq > this.#publicationSeq) this.#openGap();
  }

  close(): void {
    this.#endGap();
    this.#status = "closed";
    this.#buffered?.clear();
  }

  get #isHeld(): boolean {
    return this.#isSuspended || (this.#status !== "live" && this.#status !== "gap");
  }

  /**
   * After a fail-over numbers are given out again, with new message ids, which are lower if the
   * lost messages were sent by a node whose clock is ahead.
   */
  #isOfForkedHistory(frame: Buffer): boolean {
    const { lastId } = this.delivered;
    if (kindOf(frame) !== MESSAGE_FRAME || lastId === 0) return false;
    const messageId = messageIdOf(frame);
    if (messageId > lastId) return true;
    if (publicationSeqOf(frame) === this.#publicationSeq) return messageId < lastId;
    return this.delivered.hasOther(messageSeqOf(frame), messageId);
  }

  /**
   * The next message has an id that is not above the last one or is far in the future, or it does
   * not come after the last one: that was lost in a fail-over, and the message before this one,
   * with the same number, is late.
   */
  #isImplausible(frame: Buffer): boolean {
    if (kindOf(frame) !== MESSAGE_FRAME) return false;
    const { lastId } = this.delivered;
    const messageId = messageIdOf(frame);
    if (messageId <= lastId) return true;
    if (messageTimeMs(messageId) > Date.now() + CLOCKS_APART_MS) return true;
    return lastId > 0 && (idBeforeOf(frame) ?? lastId) !== lastId;
  }

  /**
   * A buffered frame that is not in the store was not delivered before. On a Redis Cluster a read
   * may pass the number of an unstored personal message before the message arrives; its id is then
   * above all delivered ones.
   */
  #isMissing(frame: Buffer, through: number): boolean {
    if (publicationSeqOf(frame) > through) return true;
    return isUnstored(frame) && messageIdOf(frame) > this.delivered.lastId;
  }

  #holdBuffered(): void {
    for (const publicationSeq of this.bufferedNumbers)
      if (publicationSeq > this.#suspendedThrough) this.#suspendedThrough = publicationSeq;
  }

  #buffer(publicationSeq: number, frame: Buffer): void {
    if (this.isClosed) return;
    this.#buffered ??= new ReorderBuffer(this.#parts.budget);
    this.#buffered.keep(publicationSeq, frame);
    this.expect(publicationSeq); // also if the frame does not fit the buffer
  }

  #drain(): void {
    const buffered = this.#buffered;
    let isDoubtful = false;
    while (buffered !== undefined && buffered.size > 0 && !this.#isHeld) {
      const frame = buffered.get(this.#publicationSeq + 1);
      if (frame === undefined) break;
      isDoubtful = this.#isImplausible(frame);
      if (isDoubtful) break;
      buffered.take(this.#publicationSeq + 1);
      this.#advance(this.#publicationSeq + 1, frame, undefined);
    }
    if (this.#isHeld) return; // a removal is judged before delivery continues
    if ((buffered?.size ?? 0) > 0 || this.#expected > this.#publicationSeq) this.#openGap();
    else this.#endGap();
    if (buffered?.hasLost() || isDoubtful) this.#parts.onGap(this); // the store has the frames that did not fit, or are forged
  }

  #advance(publicationSeq: number, frame: Buffer, event: OrderedEvent | undefined): void {
    this.#publicationSeq = publicationSeq;
    this.#movedAtMs = this.#parts.clock();
    if (event === undefined) this.#deliverFrame(frame);
    else this.#deliver(event);
  }

  /**
   * Unstored publications that arrived while suspended, or before the catch-up after a loss was
   * done, are skipped: a session that moved here since may have received them on its earlier node.
   */
  #deliverFrame(frame: Buffer): void {
    const wasHeld = this.#isAfterLoss || publicationSeqOf(frame) <= this.#suspendedThrough;
    if (wasHeld && isUnstored(frame)) return;
    const event = this.#decode(frame);
    if (event !== undefined) this.#deliver(event);
  }

  #deliver(event: OrderedEvent): void {
    if (event.kind === "removal" && event.uids === undefined)
      this.#parts.onGap(this); // the store names the removed users before delivery continues
    else if (this.delivered.markDelivered(event)) this.#parts.deliver(event);
  }

  #decode(frame: Buffer): OrderedEvent | undefined {
    try {
      const publication = decodeFrame(frame);
      return publication.kind === "ordered" ? publication.event : undefined;
    } catch (error) {
      this.#parts.onError(error, "A publication could not be read");
      return undefined;
    }
  }

  #openGap(): void {
    this.#status = "gap";
    this.#parts.gaps.add(this);
    this.#gapTimer ??= setTimeout(() => {
      this.#gapTimer = undefined;
      if (this.#status === "gap") this.#parts.onGap(this);
    }, this.#parts.gapMs);
  }

  #endGap(): void {
    clearTimeout(this.#gapTimer);
    this.#gapTimer = undefined;
    this.#parts.gaps.delete(this);
    if (this.#status === "gap") this.#status = "live";
  }
}

/** A stored message as it was published: a stream's message with an empty stream. */
function published(message: Message): OrderedEvent {
  const delivered = { kind: "message", origin: undefined } as const;
  const isStream = message.stream !== undefined;
  return {
    ...delivered,
    message: isStream ? withStream(message) : message,
    recipients: undefined,
  };
}
