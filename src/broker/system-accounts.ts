// The system accounts: users that are exempt from the rules of sending and that everyone may write
// to. The store has them; each node asks it again and again, so that a change made on another node
// counts here within a bound. State: the uids as last read.

import { BrokerError, isTransient } from "./errors.ts";
import { assertUserUid } from "./ids.ts";
import { MAX_SYSTEM_UIDS, type SystemAccountStore } from "./ports.ts";

interface SystemAccountParts {
  readonly store: SystemAccountStore;
  /** Receives errors that no caller gets. */
  readonly onError: (error: unknown, what: string) => void;
  /** How old the uids of this node may be, milliseconds, while the store answers. */
  readonly refreshMs?: number;
}

const REFRESH_MS = 1000;

export class SystemAccounts {
  readonly #parts: SystemAccountParts;
  #uids: ReadonlySet<string> = new Set();
  #timer: NodeJS.Timeout | undefined;
  #reading: Promise<void> | undefined;
  /** Counts changes made here: an answer to a read that began before one is out of date. */
  #changes = 0;

  constructor(parts: SystemAccountParts) {
    this.#parts = parts;
  }

  /** As this node knows it. */
  readonly has = (uid: string): boolean => this.#uids.has(uid);

  /** Throws `unavailable`. */
  async start(): Promise<void> {
    await this.list();
    const { refreshMs = REFRESH_MS } = this.#parts;
    this.#timer = setInterval(() => this.#refresh(), refreshMs).unref();
  }

  /** Safe to call twice. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    await this.#reading;
  }

  /** As the store has them, sorted. Throws `unavailable`. */
  async list(): Promise<readonly string[]> {
    const changes = this.#changes;
    const uids = await this.#parts.store.systemUids();
    if (changes === this.#changes) this.#uids = new Set(uids);
    return [...uids].sort();
  }

  /** Counts here at once, on other nodes soon. Throws `bad_id`, `reserved_uid`, `too_large`. */
  async add(uids: readonly string[]): Promise<void> {
    for (const uid of uids) assertUserUid(uid);
    const all = new Set([...(await this.list()), ...uids]);
    if (all.size > MAX_SYSTEM_UIDS)
      throw new BrokerError("too_large", {
        message: `There may be ${MAX_SYSTEM_UIDS} system accounts`,
      });
    await this.#change("add", uids);
  }

  /** As `add`. */
  async remove(uids: readonly string[]): Promise<void> {
    for (const uid of uids) assertUserUid(uid);
    await this.#change("remove", uids);
  }

  async #change(kind: "add" | "remove", uids: readonly string[]): Promise<void> {
    await this.#parts.store.changeSystemUids(kind, uids);
    this.#changes += 1;
    await this.list();
  }

  #refresh(): void {
    this.#reading ??= this.list()
      .then(() => {})
      .catch((error: unknown) => {
        if (!isTransient(error))
          this.#parts.onError(error, "The system accounts could not be read");
      })
      .finally(() => {
        this.#reading = undefined;
      });
  }
}
