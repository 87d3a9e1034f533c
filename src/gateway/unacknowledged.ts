// Stored messages that a client was given and has not acknowledged, in formats whose clients count
// on being sent them again [WKProto RECVACK]. State, per session: the messages, oldest first, and a
// timer while there are any. The bounds are on what is sent again, not on what is delivered: a
// message over them stays in the channel's history, or in the inbox.

import type { Push } from "../protocol/protocol.ts";

const MAX_MESSAGES = 256;
const MAX_BYTES = 1_048_576;
const MAX_RESENDS = 5;

export type Resendable = Extract<
  Push,
  { readonly kind: "message" | "command" }
>;

export class Unacknowledged {
  readonly #afterMs: number;
  readonly #resend: (push: Resendable) => void;
  /** Shared by the sessions that were given it at once. */
  readonly #given: Resendable[] = [];
  /** In which round each was given. */
  readonly #givenIn: number[] = [];
  #bytes = 0;
  #round = 0;
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
    this.#given.push(push);
    this.#givenIn.push(this.#round);
    this.#bytes += push.message.payload.length;
    while (this.#given.length > MAX_MESSAGES || this.#bytes > MAX_BYTES)
      this.#removeAt(0);
    this.#timer ??= setTimeout(this.#nextRound, this.#afterMs).unref();
  }

  /** Clients acknowledge in the order they are given: the first is looked at first. */
  confirm(messageId: number): void {
    this.#removeAt(
      this.#given.findIndex(({ message }) => message.messageId === messageId),
    );
  }

  confirmCommand(inboxSeq: number): void {
    this.#removeAt(
      this.#given.findIndex(
        (push) => push.kind === "command" && push.inboxSeq === inboxSeq,
      ),
    );
  }

  /** Nothing more is sent again. */
  stop(): void {
    clearTimeout(this.#timer);
    this.#given.length = 0;
  }

  readonly #nextRound = (): void => {
    this.#timer = undefined;
    this.#round += 1;
    const roundsOf = (at: number) => this.#round - (this.#givenIn[at] ?? 0);
    while (this.#given.length > 0 && roundsOf(0) > MAX_RESENDS + 1)
      this.#removeAt(0);
    const due = this.#given.filter((_, at) => roundsOf(at) > 1);
    for (const push of due) this.#resend(push); // may confirm it, or end the session
    if (this.#given.length > 0)
      this.#timer = setTimeout(this.#nextRound, this.#afterMs).unref();
  };

  /** Does nothing for -1. */
  #removeAt(at: number): void {
    if (at < 0) return;
    const [removed] = this.#given.splice(at, 1);
    this.#givenIn.splice(at, 1);
    this.#bytes -= removed?.message.payload.length ?? 0;
  }
}
