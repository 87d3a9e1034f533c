// Whose presence the app watches, and what it was told. State: the watches, the last known state of each watched user. The server is told
// the union of all watches, and again after each reconnect.

import { isId, type Presence } from "../broker/model.ts";
import type { Ask } from "./connection.ts";
import { isLost, JindouError } from "./errors.ts";
import type { Handler } from "./events.ts";
import { badId } from "./options.ts";

export interface WatchingParts {
  /** Repeats what fails for the moment. */
  readonly ask: Ask;
  /** A watched user's state changed. */
  changed(presence: Presence): void;
  trouble(error: JindouError): void;
  /** Calls a handler, which may throw. */
  call(handler: Handler<Presence>, presence: Presence): void;
}

interface Watch {
  readonly uids: ReadonlySet<string>;
  readonly handler: Handler<Presence>;
  /** Users whose state the handler was told. */
  readonly told: Set<string>;
}

/** As many as a server takes. */
const MAX_WATCHED = 200;

export class Watching {
  readonly #parts: WatchingParts;
  readonly #watches = new Set<Watch>();
  readonly #known = new Map<string, Presence>();
  #isTelling = false;
  /** The server does not know all changes of the watches yet. */
  #isStale = false;

  constructor(parts: WatchingParts) {
    this.#parts = parts;
  }

  /** Throws `too_large`, `bad_id`. */
  watch(uids: readonly string[], handler: Handler<Presence>): () => void {
    if (!uids.every(isId)) throw badId("each of uids");
    const watch: Watch = { uids: new Set(uids), handler, told: new Set() };
    if (new Set([...this.#union(), ...uids]).size > MAX_WATCHED)
      throw new JindouError("too_large", {
        message: `At most ${MAX_WATCHED} users can be watched`,
      });
    this.#watches.add(watch);
    this.#changeWatches();
    return () => {
      if (this.#watches.delete(watch)) this.#changeWatches();
    };
  }

  /** A new connection is open. */
  opened(): void {
    if (this.#watches.size > 0) this.#changeWatches();
  }

  /** How users stand now. */
  take(presences: readonly Presence[]): void {
    const union = this.#union();
    for (const presence of presences)
      if (union.has(presence.uid)) this.#note(presence);
  }

  #note(presence: Presence): void {
    const { uid, online, flag } = presence;
    const before = this.#known.get(uid);
    const isNew = before?.online !== online || before.flag !== flag;
    this.#known.set(uid, presence);
    for (const { uids, told, handler } of [...this.#watches])
      if (uids.has(uid) && (isNew || !told.has(uid))) {
        told.add(uid);
        this.#parts.call(handler, presence);
      }
    if (isNew && before !== undefined) this.#parts.changed(presence);
  }

  #union(): ReadonlySet<string> {
    return new Set([...this.#watches].flatMap(({ uids }) => [...uids]));
  }

  #changeWatches(): void {
    this.#isStale = true;
    const union = this.#union();
    for (const uid of [...this.#known.keys()])
      if (!union.has(uid)) this.#known.delete(uid);
    if (!this.#isTelling) void this.#tellServer();
  }

  /** One at a time, and only the newest. */
  async #tellServer(): Promise<void> {
    this.#isTelling = true;
    await Promise.resolve(); // several changes of one turn go together
    while (this.#isStale) {
      this.#isStale = false;
      try {
        const uids = [...this.#union()];
        await this.#parts.ask({ kind: "watch", uids }, ({ presence }) =>
          this.take(presence),
        );
      } catch (error) {
        if (!isLost(error)) this.#parts.trouble(error as JindouError); // `ask` rejects with nothing else
        // the next connection tells it again
      }
    }
    this.#isTelling = false;
  }
}
