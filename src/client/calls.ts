// What the app asks and may be asked twice without harm (all but sending): it waits for a connection and is repeated when one is lost, and when
// the server refused it as too fast, until its time is up. State: those that have no answer, and which of them wait as the server asked for.

import type {
  Ask,
  Connection,
  ReplyTo,
  Request,
  RequestKind,
} from "./connection.ts";
import { asJindouError, isLost, JindouError } from "./errors.ts";
import { type Deferred, deferred, Timer, within } from "./waiting.ts";

export interface CallLimits {
  /** Most calls under way. */
  readonly maxQueued: number;
  readonly requestMs: number;
}

interface Call extends Pick<Deferred<never>, "reject"> {
  send(connection: Connection): void;
}

/** After a wait calls leave one at a time, so that they are not refused together again. */
const PACE_MS = 20;
const RETRY_MS = 500;

export class Calls {
  readonly #limits: CallLimits;
  readonly #open = new Set<Call>();
  #connection: Connection | undefined;
  #closed: JindouError | undefined;
  #connected = deferred<void>();
  /** They leave, one after the other, when the time is up that the server asked for. */
  readonly #held = new Set<Call>();
  readonly #hold = new Timer(() => this.#goOn());

  constructor(limits: CallLimits) {
    this.#limits = limits;
  }

  /** Rejects with the refusal, `timeout`, `queue_full`, or what the client was closed with. */
  readonly call: Ask = async <K extends RequestKind>(
    request: Request<K>,
    seen?: (reply: ReplyTo<K>) => void,
  ) => {
    if (this.#closed !== undefined) throw this.#closed;
    if (this.#open.size >= this.#limits.maxQueued)
      throw new JindouError("queue_full");
    const { promise, resolve, reject } = deferred<ReplyTo<K>>();
    const send = (connection: Connection): void => {
      connection.request(request, seen).then(resolve, (error) => {
        if (isLost(error)) return; // the next connection repeats it
        const refusal = asJindouError(error, "connection_lost");
        if (refusal.code !== "rate_limited") reject(refusal);
        else if (connection === this.#connection)
          this.#wait(open, refusal.retryAfterMs);
      });
    };
    const open: Call = { send, reject };
    this.#open.add(open);
    this.#leave(open);
    try {
      return await within(this.#limits.requestMs, "timeout", promise);
    } finally {
      this.#open.delete(open);
      this.#held.delete(open);
    }
  };

  opened(connection: Connection): void {
    this.#connection = connection;
    this.#connected.resolve();
    for (const { send } of this.#open) send(connection);
  }

  lost(): void {
    this.#connection = undefined;
    this.#held.clear();
    this.#hold.stop();
    this.#connected = deferred();
  }

  /** Everything that waits, and every later call, is rejected with `error`. */
  close(error: JindouError): void {
    this.#connection = undefined;
    this.#hold.stop();
    this.#closed = error;
    this.#connected.reject(error);
    for (const { reject } of this.#open) reject(error);
  }

  /** Resolves when connected; rejects when closed. */
  connected(): Promise<void> {
    if (this.#closed !== undefined) return Promise.reject(this.#closed);
    return this.#connected.promise;
  }

  #leave(call: Call): void {
    if (this.#hold.isRunning) this.#held.add(call);
    else if (this.#connection !== undefined) call.send(this.#connection);
  }

  /** Partly chance, so that a user's clients do not come back together. */
  #wait(call: Call, retryAfterMs: number): void {
    if (!this.#open.has(call)) return; // its time had run out
    this.#held.add(call);
    this.#hold.start((retryAfterMs || RETRY_MS) * (1 + Math.random() / 4));
  }

  #goOn(): void {
    for (const call of this.#held) {
      this.#held.delete(call);
      if (this.#held.size > 0) this.#hold.start(PACE_MS);
      if (this.#connection !== undefined) call.send(this.#connection);
      return;
    }
  }
}
