// What the app asks and may be asked twice without harm (all but sending): it waits for a connection and is repeated when one is lost,
// until its time is up. State: those that have no answer.

import { type Deferred, deferred, within } from "./deferred.ts";
import { isLost, JindouError } from "./errors.ts";
import type { Link } from "./link.ts";
import type { Ask, ReplyTo, Request, RequestKind } from "./requests.ts";

export interface CallLimits {
  /** Most calls under way. */
  readonly maxQueued: number;
  readonly requestMs: number;
}

interface Call extends Pick<Deferred<never>, "reject"> {
  send(link: Link): void;
}

export class Calls {
  readonly #limits: CallLimits;
  readonly #open = new Set<Call>();
  #link: Link | undefined;
  #closed: JindouError | undefined;
  #connected = deferred<void>();

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
    const send = (link: Link): void => {
      link.request(request, seen).then(resolve, (error) => {
        if (!isLost(error)) reject(error); // the next connection repeats it
      });
    };
    const open = { send, reject };
    this.#open.add(open);
    if (this.#link !== undefined) send(this.#link);
    try {
      return await within(this.#limits.requestMs, "timeout", (late) =>
        Promise.race([promise, late]),
      );
    } finally {
      this.#open.delete(open);
    }
  };

  opened(link: Link): void {
    this.#link = link;
    this.#connected.resolve();
    for (const { send } of this.#open) send(link);
  }

  lost(): void {
    this.#link = undefined;
    this.#connected = deferred();
  }

  /** Everything that waits, and every later call, is rejected with `error`. */
  close(error: JindouError): void {
    this.#link = undefined;
    this.#closed = error;
    this.#connected.reject(error);
    for (const { reject } of this.#open) reject(error);
  }

  /** Resolves when connected; rejects when closed. */
  connected(): Promise<void> {
    if (this.#closed !== undefined) return Promise.reject(this.#closed);
    return this.#connected.promise;
  }
}
