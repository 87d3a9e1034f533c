// In-order delivery of one channel: each message once, in seq order; a gap is filled from history.
// State: the cursor, own messages ahead of it, the reorder buffer. Must never skip a message that
// can still be read.

import type { ChannelRef, Message } from "../broker/model.ts";
import type { Push } from "../protocol/protocol.ts";
import type { Cursor } from "./api.ts";
import type { Ask } from "./connection.ts";
import { isLost, JindouError } from "./errors.ts";
import { sleep } from "./waiting.ts";

export type MessageRange = Extract<Push, { readonly kind: "messages" }>;

/** A message's seq, and the id that tells it from another message with a reused seq. */
export type Position = Pick<Message, "messageSeq" | "messageId">;

export interface SequencerParts {
  /** Retries what fails temporarily. */
  readonly ask: Ask;
  deliver(message: Message): void;
  /** Whether this client sent it and `send` answers with its SENDACK: it is not delivered. */
  isOwn(message: Message): boolean;
  /** Own messages wait for their SENDACK: a gap may be theirs. */
  isSending(channel: ChannelRef): boolean;
  onError(error: JindouError): void;
}

/** Size of the reorder buffer; messages beyond it are read from history. */
const MAX_BUFFERED = 500;
/** Own messages remembered while the cursor or its message id is not known. */
const MAX_OWN = 100;
/** A SENDACK may arrive after later messages: so long a gap may close by itself. */
const SENDACK_DELAY_MS = 100;
const PAGE_MESSAGES = 200;
/** A page without a new message is read again after 0.5 s, 1 s, 2 s … 32 s … */
const RETRY_MS = 500;
const MAX_DOUBLINGS = 6;
/** … and the third one is reported. */
const REPORT_AFTER = 3;

export class Sequencer {
  readonly channel: ChannelRef;
  /** Server time of the last delivered message. */
  lastTimestampMs = 0;
  readonly #parts: SequencerParts;
  /** Messages through this seq were delivered or no longer exist; undefined: none seen yet. */
  #cursor: number | undefined;
  /**
   * Greatest message id through the cursor; 0: not known. Ids grow with seqs, and a reused seq
   * gets a greater id.
   */
  #lastId: number;
  /** The greatest seq the server is known to have. */
  #headSeq = 0;
  /** Ids of own messages by seq: those beyond the cursor, or at a seq that was reused. */
  readonly #own = new Map<number, number>();
  /** The reorder buffer, by seq. */
  readonly #buffer = new Map<number, Message>();
  /** Delivery waits until the start position is known. */
  #isHeld = false;
  #isFilling = false;
  /** Counts connections: an answer to a request of an earlier one is ignored. */
  #epoch = 0;

  constructor(channel: ChannelRef, parts: SequencerParts, cursor?: Cursor) {
    this.channel = channel;
    this.#parts = parts;
    this.#cursor = cursor?.lastSeq;
    this.#lastId = cursor?.lastId ?? 0;
  }

  /** The position to resume from; undefined: not known. */
  get cursor(): Cursor | undefined {
    const { channel } = this;
    const lastSeq = this.#cursor ?? Math.min(...this.#own.keys()) - 1;
    const lastId = this.#lastId || Math.max(0, ...this.#own.values());
    return lastSeq < Infinity ? { channel, lastSeq, lastId } : undefined;
  }

  get hasCursor(): boolean {
    return this.#cursor !== undefined;
  }

  /** A message from the server, live or of a range. */
  take(message: Message): void {
    const { messageSeq } = message;
    if (messageSeq === 0) return this.#parts.deliver(message); // not stored: has no order
    if (this.#isDelivered(message)) return;
    this.#headSeq = Math.max(this.#headSeq, messageSeq);
    if (this.#buffer.size < MAX_BUFFERED) this.#buffer.set(messageSeq, message);
    this.#drain();
  }

  /** All messages of the channel after `afterSeq` through `throughSeq`. */
  takeRange({ afterSeq, throughSeq, messages }: MessageRange): void {
    this.#cursor ??= afterSeq;
    if (afterSeq > this.#cursor) {
      for (const message of messages) this.take(message);
      return this.setHead(throughSeq);
    }
    for (const message of messages) this.#deliver(message);
    this.#moveTo(throughSeq);
    this.#drain();
  }

  /** The server has messages through `headSeq`. */
  setHead(headSeq: number): void {
    this.#headSeq = Math.max(this.#headSeq, headSeq);
    this.#drain();
  }

  /**
   * The SENDACK of an own message. With a reused seq it may overtake other messages with reused
   * seqs, so it does not move the cursor: they do.
   */
  acked(ack: Position): void {
    if (this.#isPassed(ack)) return;
    const { messageSeq, messageId } = ack;
    this.#own.set(messageSeq, messageId);
    const isMany = this.#own.size > MAX_OWN;
    if (isMany) this.#cursor ??= this.cursor?.lastSeq;
    const first = Math.min(...this.#own.keys());
    if (isMany || first > (this.#cursor ?? first)) this.setHead(messageSeq);
  }

  /** Without a cursor, buffers all messages until `release`. */
  hold(): void {
    this.#isHeld = this.#cursor === undefined;
  }

  /** Delivers from behind `afterSeq`; undefined: from the first buffered message. */
  release(afterSeq: number | undefined): void {
    this.#isHeld = false;
    this.#cursor ??= afterSeq;
    this.#drain();
  }

  /** A new connection is open. A `headSeq` below the cursor means a forked history. */
  resumed(headSeq: number): void {
    if (this.#cursor !== undefined) this.#cursor = Math.min(this.#cursor, headSeq);
  }

  /** The connection is lost: the next one delivers again what is buffered. */
  lost(): void {
    this.#epoch += 1;
    this.#buffer.clear();
    this.#headSeq = 0;
    this.#isFilling = false;
    this.#isHeld = false;
  }

  #isPassed({ messageSeq, messageId }: Position): boolean {
    if (messageSeq > (this.#cursor ?? 0)) return false;
    return this.#lastId === 0 || messageId <= this.#lastId;
  }

  /** Whether it was delivered. A new message with a reused seq moves the cursor back to it. */
  #isDelivered(message: Message): boolean {
    if (this.#isPassed(message)) return true;
    if (message.messageSeq <= (this.#cursor ?? 0)) {
      this.lost();
      this.#cursor = message.messageSeq - 1;
    }
    return false;
  }

  /** Delivers the buffered messages that are next; a gap before the others is filled. */
  #drain(): void {
    if (this.#isHeld) return;
    this.#cursor ??= this.#start();
    if (this.#cursor === undefined) return;
    let next = this.#next();
    while (next !== undefined) {
      this.#buffer.delete(this.#cursor + 1);
      if (next === "own") this.#moveTo(this.#cursor + 1);
      else this.#deliver(next);
      next = this.#next();
    }
    if (this.#headSeq > this.#cursor && !this.#isFilling) void this.#fillGap();
  }

  #next(): Message | "own" | undefined {
    const seq = (this.#cursor ?? 0) + 1;
    return this.#buffer.get(seq) ?? (this.#own.has(seq) ? "own" : undefined);
  }

  /**
   * The seq before the first message. Own SENDACKs alone do not give it: an earlier message may
   * follow.
   */
  #start(): number | undefined {
    if (this.#headSeq === 0) return undefined;
    return Math.min(...this.#buffer.keys(), ...this.#own.keys(), this.#headSeq) - 1;
  }

  #deliver(message: Message): void {
    if (this.#isDelivered(message)) return;
    const { messageSeq, messageId } = message;
    const isOwn = this.#own.get(messageSeq) === messageId || this.#parts.isOwn(message);
    this.#lastId = Math.max(this.#lastId, messageId);
    this.#moveTo(messageSeq);
    this.lastTimestampMs = message.timestampMs;
    if (!isOwn) this.#parts.deliver(message);
  }

  #moveTo(seq: number): void {
    if (seq <= (this.#cursor ?? -1)) return;
    this.#cursor = seq;
    this.#lastId = Math.max(this.#lastId, this.#own.get(seq) ?? 0);
    for (const [at, id] of this.#own) if (at <= seq || id <= this.#lastId) this.#own.delete(at); // passed, or lost: ids grow
    for (const at of this.#buffer.keys()) if (at <= seq) this.#buffer.delete(at);
  }

  /** Reads history page by page through `#headSeq`; pages without progress are delayed. */
  async #fillGap(): Promise<void> {
    const epoch = this.#epoch;
    this.#isFilling = true;
    if (this.#own.size > 0 || this.#parts.isSending(this.channel)) await sleep(SENDACK_DELAY_MS);
    let failures = 0;
    while (epoch === this.#epoch && this.#headSeq > (this.#cursor ?? 0)) {
      const cursor = this.#cursor ?? 0;
      await this.#fillPage(cursor);
      if (epoch !== this.#epoch) return;
      if (this.#cursor !== cursor) failures = 0;
      else await this.#backOff(failures++);
    }
    if (epoch === this.#epoch) this.#isFilling = false;
  }

  async #backOff(failures: number): Promise<void> {
    const message = `History of ${this.channel.id} does not go on`;
    if (failures + 1 === REPORT_AFTER)
      this.#parts.onError(new JindouError("internal", { message }));
    await sleep(RETRY_MS * 2 ** Math.min(failures, MAX_DOUBLINGS));
  }

  async #fillPage(cursor: number): Promise<void> {
    const epoch = this.#epoch;
    const buffered = [...this.#buffer.keys()];
    const toSeq = Math.min(this.#headSeq, ...buffered.map((seq) => seq - 1));
    try {
      const page = await this.#parts.ask({
        kind: "history",
        channel: this.channel,
        fromSeq: cursor + 1,
        toSeq,
        limit: PAGE_MESSAGES,
        reverse: false,
      });
      if (epoch !== this.#epoch) return;
      for (const message of page.messages) this.#deliver(message);
      if (!page.more) this.#moveTo(toSeq);
    } catch (error) {
      if (epoch !== this.#epoch || isLost(error)) return;
      this.#moveTo(toSeq); // the user may not read it
    }
    this.#drain();
  }
}
