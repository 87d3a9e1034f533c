// Presence watches. State: the watches, and the last known presence of each watched user. The
// server knows the union of all watches, and gets it again after each reconnect.

import { isId, type Presence } from "../broker/model.ts";
import type { Ask } from "./connection.ts";
import { isLost, JindouError } from "./errors.ts";
import type { Handler } from "./events.ts";
import { badId } from "./options.ts";

interface PresenceParts {
  /** Retries what fails temporarily. */
  readonly ask: Ask;
  /** A watched user's presence changed. */
  changed(presence: Presence): void;
  onError(error: JindouError): void;
  /** Calls a handler, which may throw. */
  call(handler: Handler<Presence>, presence: Presence): void;
}

interface Watch {
  readonly uids: ReadonlySet<string>;
  readonly handler: Handler<Presence>;
  /** Users whose presence the handler got. */
  readonly notified: Set<string>;
}

/** The server's limit. */
const MAX_WATCHED = 200;

export class PresenceWatches {
  readonly #parts: PresenceParts;
  readonly #watches = new Set<Watch>();
  readonly #known = new Map<string, Presence>();
  #isSending = false;
  /** The watches changed since they were last sent. */
  #isStale = false;

  constructor(parts: PresenceParts) {
    this.#parts = parts;
  }

  /** Throws `too_large`, `bad_id`. */
  watch(uids: readonly string[], handler: Handler<Presence>): () => void {
    if (!uids.every(isId)) throw badId("each of uids");
    const watch: Watch = { uids: new Set(uids), handler, notified: new Set() };
    if (new Set([...this.#union(), ...uids]).size > MAX_WATCHED)
      throw new JindouError("too_large", {
        message: `At most ${MAX_WATCHED} users can be watched`,
      });
    this.#watches.add(watch);
    this.#changed();
    return () => {
      if (this.#watches.delete(watch)) this.#changed();
    };
  }

  /** A new connection is open. */
  opened(): void {
    if (this.#watches.size > 0) this.#changed();
  }

  take(presences: readonly Presence[]): void {
    const union = this.#union();
    for (const presence of presences) if (union.has(presence.uid)) this.#notify(presence);
  }

  #notify(presence: Presence): void {
    const { uid, online, flag } = presence;
    const before = this.#known.get(uid);
    const isNew = before?.online !== online || before.flag !== flag;
    this.#known.set(uid, presence);
    for (const { uids, notified, handler } of [...this.#watches])
      if (uids.has(uid) && (isNew || !notified.has(uid))) {
        notified.add(uid);
        this.#parts.call(handler, presence);
      }
    if (isNew && before !== undefined) this.#parts.changed(presence);
  }

  #union(): ReadonlySet<string> {
    return new Set([...this.#watches].flatMap(({ uids }) => [...uids]));
  }

  #changed(): void {
    this.#isStale = true;
    const union = this.#union();
    for (const uid of [...this.#known.keys()]) if (!union.has(uid)) this.#known.delete(uid);
    if (!this.#isSending) void this.#send();
  }

  /** One request at a time, with the newest union. */
  async #send(): Promise<void> {
    this.#isSending = true;
    await Promise.resolve(); // changes of one turn share a request
    while (this.#isStale) {
      this.#isStale = false;
      try {
        const uids = [...this.#union()];
        await this.#parts.ask({ kind: "watch", uids }, ({ presence }) => this.take(presence));
      } catch (error) {
        // the next connection sends it again; `ask` rejects with nothing else
        if (!isLost(error)) this.#parts.onError(error as JindouError);
      }
    }
    this.#isSending = false;
  }
}
