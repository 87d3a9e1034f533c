// The requests of one connection that wait for their answer, by their number. State: those. Each is settled exactly once.

import { MAX_UINT32 } from "../protocol/native/ops.ts";
import type { Operation, Reply } from "../protocol/protocol.ts";
import { type Deferred, deferred } from "./deferred.ts";
import { JindouError } from "./errors.ts";

/** What answers each operation; those without an answer are no requests. */
interface ReplyKinds {
  readonly send: "sendack";
  readonly history: "history";
  readonly presence: "presence";
  readonly stream: "stream";
  readonly cancel: "cancel";
  readonly conversations: "conversations";
  readonly conversation: "conversation";
  readonly commandack: "commandack";
  readonly watch: "watch";
}

export type RequestKind = keyof ReplyKinds;

/** The request without its number. */
export type Request<K extends RequestKind> = Omit<
  Extract<Operation, { readonly kind: K }>,
  "ref"
> & { readonly kind: K };

export type ReplyTo<K extends RequestKind> = Extract<
  Reply,
  { readonly kind: ReplyKinds[K] }
>;

/**
 * Sends a request; rejects with JindouError. `seen` gets the answer in its turn among the pushes; who awaits the promise may get it behind
 * pushes that came later.
 */
export type Ask = <K extends RequestKind>(
  request: Request<K>,
  seen?: (reply: ReplyTo<K>) => void,
) => Promise<ReplyTo<K>>;

interface Open {
  readonly kind: Reply["kind"];
  readonly seen: ((reply: never) => void) | undefined;
  readonly answer: Deferred<Reply>;
  readonly timer: ReturnType<typeof setTimeout>;
}

export class OpenRequests {
  readonly #open = new Map<number, Open>();
  readonly #timeoutMs: number;
  #lastRef = 0;

  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs;
  }

  /** A number that no open request has: none is open for as long as it takes to use them all. */
  nextRef(): number {
    this.#lastRef = (this.#lastRef % MAX_UINT32) + 1;
    return this.#lastRef;
  }

  /** Waits for the answer to the request numbered `ref`. */
  expect<K extends RequestKind>(
    kind: K,
    ref: number,
    seen: ((reply: ReplyTo<K>) => void) | undefined,
  ): Promise<ReplyTo<K>> {
    const answer = deferred<Reply>();
    const timer = setTimeout(() => {
      this.#open.delete(ref);
      answer.reject(new JindouError("timeout"));
    }, this.#timeoutMs);
    const expected: Reply["kind"] = kind === "send" ? "sendack" : kind;
    this.#open.set(ref, { kind: expected, seen, answer, timer });
    return answer.promise as Promise<ReplyTo<K>>; // `settle` lets no other kind through
  }

  settle(reply: Reply): void {
    const open = this.#open.get(reply.ref);
    if (open === undefined) return; // its time had run out
    this.#open.delete(reply.ref);
    clearTimeout(open.timer);
    if (reply.kind !== open.kind) return open.answer.reject(refusal(reply));
    open.seen?.(reply as never); // of the kind it was made for, as was just compared
    open.answer.resolve(reply);
  }

  /** Rejects everything that is open. */
  fail(error: JindouError): void {
    for (const { answer, timer } of this.#open.values()) {
      clearTimeout(timer);
      answer.reject(error);
    }
    this.#open.clear();
  }
}

function refusal(reply: Reply): JindouError {
  if (reply.kind !== "error")
    return new JindouError("internal", { message: `Answered ${reply.kind}` });
  const { code, message, retryAfterMs } = reply;
  return new JindouError(code, { message, retryAfterMs });
}
