// Stored messages that were pushed to a client but have not been acknowledged yet, for wire formats
// whose clients rely on resending [WKProto RECVACK]. The limits affect only resending. A message
// that a limit removes was still pushed once, and stays in the history or the inbox. A message is
// added for each recipient, so adding must be very cheap.

import type { Push } from "../protocol/protocol.ts";

const MAX_MESSAGES = 256;
/** Initial length of the ring. It grows up to twice MAX_MESSAGES. */
const INITIAL_LENGTH = 8;
const MAX_BYTES = 1_048_576;
const MAX_RESENDS = 5;

export type Resendable = Extract<Push, { readonly kind: "message" | "command" }>;

export class Unacknowledged {
  readonly #afterMs: number;
  readonly #resend: (push: Resendable) => void;
  /** Ring buffer. A message is stored at the index `number % length` until it is removed. */
  #ring: (Resendable | undefined)[] = new Array(INITIAL_LENGTH).fill(undefined);
  #first = 0;
  #next = 0;
  #count = 0;
  #bytes = 0;
  /** Value of `#next` at the start of each of the last rounds, newest first. */
  #rounds: number[] = [];
  #timer: NodeJS.Timeout | undefined;

  /**
   * Calls `resend` for each unacknowledged message after one to two times `afterMs`, and then every
   * `afterMs`, at most MAX_RESENDS times.
   */
  constructor(afterMs: number, resend: (push: Resendable) => void) {
    this.#afterMs = afterMs;
    this.#resend = resend;
  }

  add(push: Resendable): void {
    if (this.#count === MAX_MESSAGES) this.#remove(this.#first);
    if (this.#next - this.#first === this.#ring.length) this.#renumber();
    this.#ring[this.#next & (this.#ring.length - 1)] = push;
    this.#next += 1;
    this.#count += 1;
    this.#bytes += push.message.payload.length;
    while (this.#bytes > MAX_BYTES) this.#remove(this.#first);
    this.#timer ??= setTimeout(this.#nextRound, this.#afterMs).unref();
  }

  /**
   * Removes a message and returns it, or `undefined` if it is unknown. Searches from the oldest
   * message, because clients acknowledge in order.
   */
  confirm(messageId: number): Resendable | undefined {
    return this.#removeFirst(({ message }) => message.messageId === messageId);
  }

  confirmCommand(inboxSeq: number): void {
    this.#removeFirst((push) => push.kind === "command" && push.inboxSeq === inboxSeq);
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#first = this.#next;
    this.#ring = [];
  }

  readonly #nextRound = (): void => {
    this.#timer = undefined;
    this.#rounds.unshift(this.#next);
    this.#rounds.length = Math.min(this.#rounds.length, MAX_RESENDS + 2);
    const [, waitedEnd = 0] = this.#rounds;
    const resentEnd = this.#rounds[MAX_RESENDS + 1] ?? 0;
    const pushes: Resendable[] = [];
    for (let number = this.#first; number < waitedEnd; number++) {
      const push = this.#ring[number & (this.#ring.length - 1)];
      if (number < resentEnd) this.#remove(number);
      else if (push !== undefined) pushes.push(push);
    }
    // Resending may change the ring, because it may acknowledge messages or end the session.
    for (const push of pushes) this.#resend(push);
    if (this.#first < this.#next) this.#timer = setTimeout(this.#nextRound, this.#afterMs).unref();
  };

  #removeFirst(matches: (push: Resendable) => boolean): Resendable | undefined {
    for (let number = this.#first; number < this.#next; number++) {
      const push = this.#ring[number & (this.#ring.length - 1)];
      if (push === undefined || !matches(push)) continue;
      this.#remove(number);
      return push;
    }
    return undefined;
  }

  #remove(number: number): void {
    const mask = this.#ring.length - 1;
    const push = this.#ring[number & mask];
    if (push === undefined) return;
    this.#ring[number & mask] = undefined;
    this.#count -= 1;
    this.#bytes -= push.message.payload.length;
    while (this.#first < this.#next && this.#ring[this.#first & mask] === undefined)
      this.#first += 1;
  }

  /** Renumbers the messages without gaps, in a ring that is at most half full. */
  #renumber(): void {
    const size = this.#ring.length;
    const ring = new Array<Resendable | undefined>(2 * this.#count > size ? 2 * size : size).fill(
      undefined,
    );
    const rounds = this.#rounds.map(() => 0);
    let next = 0;
    for (let number = this.#first; number < this.#next; number++) {
      const push = this.#ring[number & (size - 1)];
      if (push === undefined) continue;
      ring[next] = push;
      next += 1;
      for (const [index, start] of this.#rounds.entries()) if (number < start) rounds[index] = next;
    }
    this.#ring = ring;
    this.#rounds = rounds;
    this.#first = 0;
    this.#next = next;
  }
}
