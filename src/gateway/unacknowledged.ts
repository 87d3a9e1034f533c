// Stored messages that a client was given and has not acknowledged, in formats whose clients count
// on being sent them again [WKProto RECVACK]. State, per session: a ring of the messages, oldest
// first, with gaps where one was acknowledged, and a timer while there are any. The bounds are on
// what is sent again, not on what is delivered: a message over them stays in the channel's history,
// or in the inbox. One is added for each recipient of each message, so that must cost next to
// nothing.

import type { Push } from "../protocol/protocol.ts";

const MAX_MESSAGES = 256;
/** Places of a ring that was never full; it doubles, to twice MAX_MESSAGES. */
const FEW = 8;
const MAX_BYTES = 1_048_576;
const MAX_RESENDS = 5;

export type Resendable = Extract<Push, { readonly kind: "message" | "command" }>;

export class Unacknowledged {
  readonly #afterMs: number;
  readonly #resend: (push: Resendable) => void;
  /** By number, modulo its length; undefined: acknowledged. Shared by those given it at once. */
  #given: (Resendable | undefined)[] = new Array(FEW).fill(undefined);
  /** Numbers of the oldest that is not acknowledged, and of the next. */
  #first = 0;
  #next = 0;
  /** How many there are, and the bytes of their payloads. */
  #count = 0;
  #bytes = 0;
  /** The number that was next when each of the last rounds began, the newest first. */
  #rounds: number[] = [];
  #timer: NodeJS.Timeout | undefined;

  /**
   * `resend` is called with a message that was not acknowledged for `afterMs` to twice that, and
   * then every `afterMs`, as often as MAX_RESENDS.
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

  /** Clients acknowledge in the order they are given: the first is looked at first. */
  confirm(messageId: number): void {
    this.#removeOne(({ message }) => message.messageId === messageId);
  }

  confirmCommand(inboxSeq: number): void {
    this.#removeOne((push) => push.kind === "command" && push.inboxSeq === inboxSeq);
  }

  /** Nothing more is sent again. */
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
    for (const push of due) this.#resend(push); // may confirm it, or end the session
    if (this.#first < this.#next) this.#timer = setTimeout(this.#nextRound, this.#afterMs).unref();
  };

  #removeOne(isIt: (push: Resendable) => boolean): void {
    for (let number = this.#first; number < this.#next; number++) {
      const push = this.#given[number & (this.#given.length - 1)];
      if (push !== undefined && isIt(push)) return this.#remove(number);
    }
  }

  /** Harmless when it is a gap. */
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

  /** Numbers them anew, without gaps, in a ring that is at most half full. */
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
