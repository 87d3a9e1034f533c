// Delivers each message of one channel once, in seq order. Owns the cursor, the reorder buffer, and
// the seqs of acknowledged messages that this client sent. Must never skip a message that can still
// be read.

import type { ChannelRef, Message } from "../broker/model.ts";
import type { Push } from "../protocol/protocol.ts";
import type { Cursor } from "./api.ts";
import type { RequestFunction } from "./connection.ts";
import { isConnectionLost, JindouError } from "./errors.ts";
import { sleep } from "./waiting.ts";

export type MessageRange = Extract<Push, { readonly kind: "messages" }>;

/** Seq and id of a message. The id distinguishes messages with the same (reused) seq. */
export type Position = Pick<Message, "messageSeq" | "messageId">;

export interface SequencerPorts {
  readonly ask: RequestFunction;
  deliver(message: Message): void;
  /**
   * Returns true if a `send` of this client is waiting for the message's SENDACK. The message is
   * then not delivered to the app.
   */
  isOwn(message: Message): boolean;
  /**
   * Returns true if a gap may consist of this client's own messages that still wait for their
   * SENDACK.
   */
  isSending(channel: ChannelRef): boolean;
  onError(error: JindouError): void;
}

/** Maximum number of buffered messages. Further messages are later read from history. */
const MAX_BUFFERED = 500;
/**
 * Maximum number of entries in `#ownIds`. If there are more, the history is read, so that the
 * cursor can move past the client's own messages.
 */
const MAX_OWN = 100;
const SENDACK_DELAY_MS = 100;
const PAGE_SIZE = 200;
/**
 * Delay before a history page that contained no new message is read again. The delay doubles up to
 * 32 s.
 */
const RETRY_MS = 500;
const MAX_DOUBLINGS = 6;
const REPORT_AFTER = 3;

export class Sequencer {
  readonly channel: ChannelRef;
  readonly #ports: SequencerPorts;
  /** Seq up to which all messages were delivered, were sent by this client, or cannot be read. */
  #cursor: number | undefined;
  /** Highest message id up to the cursor, or 0 if the id is unknown. */
  #lastId: number;
  #headSeq = 0;
  /**
   * Ids of acknowledged messages that this client sent, by seq. Contains only messages after the
   * cursor and messages that reuse an earlier seq.
   */
  readonly #ownIds = new Map<number, number>();
  readonly #buffer = new Map<number, Message>();
  /** True while messages are only buffered, because the seq at which delivery starts is unknown. */
  #isHeld = false;
  #isFilling = false;
  #isClosed = false;
  #epoch = 0;

  constructor(channel: ChannelRef, ports: SequencerPorts, cursor?: Cursor) {
    this.channel = channel;
    this.#ports = ports;
    this.#cursor = cursor?.lastSeq;
    this.#lastId = cursor?.lastId ?? 0;
  }

  get cursor(): Cursor | undefined {
    const { channel } = this;
    const lastSeq = this.#cursor ?? Math.min(...this.#ownIds.keys()) - 1;
    const lastId = this.#lastId || Math.max(0, ...this.#ownIds.values());
    return lastSeq < Infinity ? { channel, lastSeq, lastId } : undefined;
  }

  get hasCursor(): boolean {
    return this.#cursor !== undefined;
  }

  receive(message: Message): void {
    const { messageSeq } = message;
    // a message that is not stored has no seq, so it is delivered at once
    if (messageSeq === 0) return this.#isClosed ? undefined : this.#ports.deliver(message);
    if (this.#checkDelivered(message)) return;
    this.#headSeq = Math.max(this.#headSeq, messageSeq);
    if (this.#buffer.size < MAX_BUFFERED) this.#buffer.set(messageSeq, message);
    this.#drain();
  }

  receiveRange({ afterSeq, throughSeq, messages }: MessageRange): void {
    this.#cursor ??= afterSeq;
    if (afterSeq > this.#cursor) {
      for (const message of messages) this.receive(message);
      return this.setHead(throughSeq);
    }
    for (const message of messages) this.#deliver(message);
    this.#moveTo(throughSeq);
    this.#drain();
  }

  setHead(headSeq: number): void {
    this.#headSeq = Math.max(this.#headSeq, headSeq);
    this.#drain();
  }

  /**
   * Records an acknowledged message, so that the cursor can move past it. If a recorded seq is not
   * above the cursor, the server has reused the seq, and other messages with reused seqs may still
   * arrive. The cursor then does not move, unless more than `MAX_OWN` messages are recorded.
   */
  acked(ack: Position): void {
    if (this.#isCovered(ack)) return;
    const { messageSeq, messageId } = ack;
    this.#ownIds.set(messageSeq, messageId);
    const isFull = this.#ownIds.size > MAX_OWN;
    if (isFull && !this.#isHeld) this.#cursor ??= this.cursor?.lastSeq;
    const firstOwnSeq = Math.min(...this.#ownIds.keys());
    if (isFull || firstOwnSeq > (this.#cursor ?? firstOwnSeq)) this.setHead(messageSeq);
  }

  /** If there is no cursor, buffers all messages until `release` is called. */
  hold(): void {
    this.#isHeld = this.#cursor === undefined;
  }

  /**
   * Starts delivery after `afterSeq`, or with the first buffered message if `afterSeq` is
   * `undefined`.
   */
  release(afterSeq: number | undefined): void {
    this.#isHeld = false;
    this.#cursor ??= afterSeq;
    this.#drain();
  }

  /**
   * Moves the cursor back to `headSeq` if `headSeq` is lower, which means that the server has lost
   * messages.
   */
  resumed(headSeq: number): void {
    if (this.#cursor !== undefined) this.#cursor = Math.min(this.#cursor, headSeq);
  }

  /** Drops the buffered messages, because the next connection delivers them again. */
  lost(): void {
    this.#epoch += 1;
    this.#buffer.clear();
    this.#headSeq = 0;
    this.#isFilling = false;
    this.#isHeld = false;
  }

  /**
   * Stops the delivery, even if a handler calls this method during a delivery. The cursor is not
   * changed.
   */
  close(): void {
    this.lost();
    this.#isClosed = true;
  }

  #isCovered({ messageSeq, messageId }: Position): boolean {
    if (messageSeq > (this.#cursor ?? 0)) return false;
    return this.#lastId === 0 || messageId <= this.#lastId;
  }

  /**
   * Returns true if the message was delivered before. If the message reuses a delivered seq, moves
   * the cursor back, so that the message is delivered.
   */
  #checkDelivered(message: Message): boolean {
    if (this.#isCovered(message)) return true;
    if (message.messageSeq <= (this.#cursor ?? 0)) {
      this.lost();
      this.#cursor = message.messageSeq - 1;
    }
    return false;
  }

  #drain(): void {
    if (this.#isHeld || this.#isClosed) return;
    this.#cursor ??= this.#startSeq();
    if (this.#cursor === undefined) return;
    let next = this.#nextInOrder();
    while (next !== undefined && !this.#isClosed) {
      this.#buffer.delete(this.#cursor + 1);
      if (next === "own") this.#moveTo(this.#cursor + 1);
      else this.#deliver(next);
      next = this.#nextInOrder();
    }
    if (this.#headSeq > this.#cursor && !this.#isFilling) void this.#fillGap();
  }

  #nextInOrder(): Message | "own" | undefined {
    const seq = (this.#cursor ?? 0) + 1;
    return this.#buffer.get(seq) ?? (this.#ownIds.has(seq) ? "own" : undefined);
  }

  /** Returns the seq after which delivery starts, or `undefined` if only a SENDACK has arrived. */
  #startSeq(): number | undefined {
    if (this.#headSeq === 0) return undefined;
    return Math.min(...this.#buffer.keys(), ...this.#ownIds.keys(), this.#headSeq) - 1;
  }

  #deliver(message: Message): void {
    if (this.#isClosed || this.#checkDelivered(message)) return;
    const { messageSeq, messageId } = message;
    const isOwn = this.#ownIds.get(messageSeq) === messageId || this.#ports.isOwn(message);
    this.#lastId = Math.max(this.#lastId, messageId);
    this.#moveTo(messageSeq);
    if (!isOwn) this.#ports.deliver(message);
  }

  #moveTo(seq: number): void {
    if (this.#isClosed || seq <= (this.#cursor ?? -1)) return;
    this.#cursor = seq;
    this.#lastId = Math.max(this.#lastId, this.#ownIds.get(seq) ?? 0);
    // ids grow with seqs, so a sent message with a later seq and a lower id was lost by the server
    for (const [ownSeq, id] of this.#ownIds)
      if (ownSeq <= seq || id <= this.#lastId) this.#ownIds.delete(ownSeq);
    for (const bufferedSeq of this.#buffer.keys())
      if (bufferedSeq <= seq) this.#buffer.delete(bufferedSeq);
  }

  async #fillGap(): Promise<void> {
    const epoch = this.#epoch;
    this.#isFilling = true;
    if (this.#ownIds.size > 0 || this.#ports.isSending(this.channel)) await sleep(SENDACK_DELAY_MS);
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
    const message = `The history of ${this.channel.id} lacks messages: reading it again`;
    if (failures + 1 === REPORT_AFTER)
      this.#ports.onError(new JindouError("internal", { message }));
    await sleep(RETRY_MS * 2 ** Math.min(failures, MAX_DOUBLINGS));
  }

  async #fillPage(cursor: number): Promise<void> {
    const epoch = this.#epoch;
    const buffered = [...this.#buffer.keys()];
    const toSeq = Math.min(this.#headSeq, ...buffered.map((seq) => seq - 1));
    try {
      const page = await this.#ports.ask({
        kind: "history",
        channel: this.channel,
        fromSeq: cursor + 1,
        toSeq,
        limit: PAGE_SIZE,
        reverse: false,
      });
      if (epoch !== this.#epoch) return;
      for (const message of page.messages) this.#deliver(message);
      if (!page.more) this.#moveTo(toSeq);
    } catch (error) {
      if (epoch !== this.#epoch || isConnectionLost(error)) return;
      this.#moveTo(toSeq); // the server permanently refuses to return these messages
    }
    this.#drain();
  }
}
