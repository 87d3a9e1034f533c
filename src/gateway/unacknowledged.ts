// Stored messages that were pushed to a client and that it has not acknowledged, for wire formats
// whose clients rely on being sent them again [WKProto RECVACK]. State per session: a ring of
// messages, oldest first, with gaps for those acknowledged, and a timer while it is not empty. The
// limits concern only what is sent again: a message beyond them was delivered, and stays in the
// history or the inbox. A message is added for each recipient, so adding must be very cheap.

import type { Push } from "../protocol/protocol.ts";

const MAX_MESSAGES = 256;
/** Initial length of the ring. It doubles when it is full, up to twice MAX_MESSAGES. */
const FEW = 8;
const MAX_BYTES = 1_048_576;
const MAX_RESENDS = 5;

export type Resendable = Extract<Push, { readonly kind: "message" | "command" }>;

export class Unacknowledged {
  readonly #afterMs: number;
  readonly #resend: (push: Resendable) => void;
  /**
   * The ring. A message is at its number modulo the length; acknowledged messages are `undefined`.
   * A push is shared by all sessions that received it.
   */
  #given: (Resendable | undefined)[] = new Array(FEW).fill(undefined);
  /** Number of the oldest unacknowledged message. */
  #first = 0;
  /** Number of the next message. */
  #next = 0;
  /** Number of unacknowledged messages. */
  #count = 0;
  /** Payload bytes of the unacknowledged messages. */
  #bytes = 0;
  /** Value of `#next` at the start of each of the last rounds, newest first. */
  #rounds: number[] = [];
  #timer: NodeJS.Timeout | undefined;

  /**
   * Calls `resend` for a message that was not acknowledged for `afterMs` to twice that time, and
   * then every `afterMs`, up to MAX_RESENDS times in total.
   */
  constructor(afterMs: number, resend: (push: Resendable) => void) {
    this.#afterMs = afterMs;
    this.#resend = resend;
  }

  add(push: Resendable): void {
    if (this.#count === MAX_MESSAGES) this.#remove(this.#first);
    if (this.#next - this.#first === this.#given.length) this.#makeRoom();
    this.#given[this.#next & (this.#given.length - 1)] = push;
    this.#next += 1;
    this.#count += 1;
    this.#bytes += push.message.payload.length;
    while (this.#bytes > MAX_BYTES) this.#remove(this.#first);
    this.#timer ??= setTimeout(this.#nextRound, this.#afterMs).unref();
  }

  /**
   * Removes an acknowledged message. Clients acknowledge in the order of delivery, so the search
   * starts with the oldest.
   */
  confirm(messageId: number): void {
    this.#removeOne(({ message }) => message.messageId === messageId);
  }

  confirmCommand(inboxSeq: number): void {
    this.#removeOne((push) => push.kind === "command" && push.inboxSeq === inboxSeq);
  }

  /** Drops all messages; none is sent again. */
  stop(): void {
    clearTimeout(this.#timer);
    this.#first = this.#next;
    this.#given = [];
  }

  readonly #nextRound = (): void => {
    this.#timer = undefined;
    this.#rounds.unshift(this.#next);
    this.#rounds.length = Math.min(this.#rounds.length, MAX_RESENDS + 2);
    const [, before = 0] = this.#rounds;
    const over = this.#rounds[MAX_RESENDS + 1] ?? 0;
    const due: Resendable[] = [];
    for (let number = this.#first; number < before; number++) {
      const push = this.#given[number & (this.#given.length - 1)];
      if (number < over) this.#remove(number);
      else if (push !== undefined) due.push(push);
    }
    // This may acknowledge messages or end the session.
    for (const push of due) this.#resend(push);
    if (this.#first < this.#next) this.#timer = setTimeout(this.#nextRound, this.#afterMs).unref();
  };

  #removeOne(isIt: (push: Resendable) => boolean): void {
    for (let number = this.#first; number < this.#next; number++) {
      const push = this.#given[number & (this.#given.length - 1)];
      if (push !== undefined && isIt(push)) return this.#remove(number);
    }
  }

  /** Does nothing if the message was already removed. */
  #remove(number: number): void {
    const mask = this.#given.length - 1;
    const push = this.#given[number & mask];
    if (push === undefined) return;
    this.#given[number & mask] = undefined;
    this.#count -= 1;
    this.#bytes -= push.message.payload.length;
    while (this.#first < this.#next && this.#given[this.#first & mask] === undefined)
      this.#first += 1;
  }

  /** Renumbers the messages without gaps, in a ring that is at most half full. */
  #makeRoom(): void {
    const size = this.#given.length;
    const given = new Array<Resendable | undefined>(2 * this.#count > size ? 2 * size : size).fill(
      undefined,
    );
    const rounds = this.#rounds.map(() => 0);
    let next = 0;
    for (let number = this.#first; number < this.#next; number++) {
      const push = this.#given[number & (size - 1)];
      if (push === undefined) continue;
      given[next] = push;
      next += 1;
      for (const [at, before] of this.#rounds.entries()) if (number < before) rounds[at] = next;
    }
    this.#given = given;
    this.#rounds = rounds;
    this.#first = 0;
    this.#next = next;
  }
}
