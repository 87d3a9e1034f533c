// Presence watches. The server stores one list of watched users per connection. The client sends
// this list, the union of all watches, after each change and each connect.

import { isId, type Presence } from "../broker/model.ts";
import type { RequestFunction } from "./connection.ts";
import { isConnectionLost, JindouError } from "./errors.ts";
import type { Handler } from "./events.ts";
import { badId } from "./options.ts";

interface PresencePorts {
  readonly ask: RequestFunction;
  changed(presence: Presence): void;
  onError(error: JindouError): void;
  call(handler: Handler<Presence>, presence: Presence): void;
}

interface Watch {
  readonly uids: ReadonlySet<string>;
  readonly handler: Handler<Presence>;
  readonly notified: Set<string>;
}

/** Maximum number of watched users that the server accepts per connection. */
const MAX_WATCHED = 200;

export class PresenceWatches {
  readonly #ports: PresencePorts;
  readonly #watches = new Set<Watch>();
  readonly #lastPresences = new Map<string, Presence>();
  #isSending = false;
  #isStale = false;

  constructor(ports: PresencePorts) {
    this.#ports = ports;
  }

  watch(uids: readonly string[], handler: Handler<Presence>): () => void {
    if (!uids.every(isId)) throw badId("each uid");
    const watch: Watch = { uids: new Set(uids), handler, notified: new Set() };
    if (new Set([...this.#watchedUids(), ...uids]).size > MAX_WATCHED)
      throw new JindouError("too_large", {
        message: `At most ${MAX_WATCHED} users can be watched`,
      });
    this.#watches.add(watch);
    this.#watchesChanged();
    return () => {
      if (this.#watches.delete(watch)) this.#watchesChanged();
    };
  }

  opened(): void {
    if (this.#watches.size > 0) this.#watchesChanged();
  }

  receive(presences: readonly Presence[]): void {
    const watchedUids = this.#watchedUids();
    for (const presence of presences) if (watchedUids.has(presence.uid)) this.#notify(presence);
  }

  #notify(presence: Presence): void {
    const { uid, online, flag } = presence;
    const previous = this.#lastPresences.get(uid);
    const isChange = previous?.online !== online || previous.flag !== flag;
    this.#lastPresences.set(uid, presence);
    for (const { uids, notified, handler } of [...this.#watches])
      if (uids.has(uid) && (isChange || !notified.has(uid))) {
        notified.add(uid);
        this.#ports.call(handler, presence);
      }
    if (isChange && previous !== undefined) this.#ports.changed(presence);
  }

  #watchedUids(): ReadonlySet<string> {
    return new Set([...this.#watches].flatMap(({ uids }) => [...uids]));
  }

  #watchesChanged(): void {
    this.#isStale = true;
    const watchedUids = this.#watchedUids();
    for (const uid of [...this.#lastPresences.keys()])
      if (!watchedUids.has(uid)) this.#lastPresences.delete(uid);
    if (!this.#isSending) void this.#send();
  }

  async #send(): Promise<void> {
    this.#isSending = true;
    await Promise.resolve(); // changes made in one turn of the event loop share a request
    while (this.#isStale) {
      this.#isStale = false;
      try {
        const uids = [...this.#watchedUids()];
        await this.#ports.ask({ kind: "watch", uids }, ({ presence }) => this.receive(presence));
      } catch (error) {
        // the next connection sends the list again; `ask` rejects only with JindouError
        if (!isConnectionLost(error)) this.#ports.onError(error as JindouError);
      }
    }
    this.#isSending = false;
  }
}
