// The system accounts: users who may send messages to any channel that is not disbanded, and whose
// lists and contacts do not restrict who may send to them. The list of these accounts is in the
// store. Each node reads it periodically, so that a change on another node takes effect on this
// node within one period.

import { BrokerError, isTransient } from "./errors.ts";
import { assertUserUid } from "./ids.ts";
import { MAX_SYSTEM_UIDS, type SystemAccountStore } from "./ports.ts";

interface SystemAccountPorts {
  readonly store: SystemAccountStore;
  readonly onError: (error: unknown, what: string) => void;
  readonly refreshMs?: number;
}

const REFRESH_MS = 2000;

export class SystemAccounts {
  readonly #ports: SystemAccountPorts;
  #uids: ReadonlySet<string> = new Set();
  #timer: NodeJS.Timeout | undefined;
  #reading: Promise<void> | undefined;
  /** Number of changes made by this node. If it increases during a read, the result is outdated. */
  #changeCount = 0;

  constructor(ports: SystemAccountPorts) {
    this.#ports = ports;
  }

  readonly has = (uid: string): boolean => this.#uids.has(uid);

  async start(): Promise<void> {
    await this.list();
    const { refreshMs = REFRESH_MS } = this.#ports;
    this.#timer = setInterval(() => this.#refresh(), refreshMs).unref();
  }

  async close(): Promise<void> {
    clearInterval(this.#timer);
    await this.#reading;
  }

  async list(): Promise<readonly string[]> {
    const changeCount = this.#changeCount;
    const uids = await this.#ports.store.systemUids();
    if (changeCount === this.#changeCount) this.#uids = new Set(uids);
    return [...uids].sort();
  }

  /** Throws `bad_id`, `reserved_uid`, and `too_large` for more than `MAX_SYSTEM_UIDS` accounts. */
  async add(uids: readonly string[]): Promise<void> {
    for (const uid of uids) assertUserUid(uid);
    const resultingUids = new Set([...(await this.list()), ...uids]);
    if (resultingUids.size > MAX_SYSTEM_UIDS)
      throw new BrokerError("too_large", {
        message: `There can be at most ${MAX_SYSTEM_UIDS} system accounts; remove some of them first`,
      });
    await this.#change("add", uids);
  }

  /** Throws `bad_id` or `reserved_uid`. */
  async remove(uids: readonly string[]): Promise<void> {
    for (const uid of uids) assertUserUid(uid);
    await this.#change("remove", uids);
  }

  async #change(kind: "add" | "remove", uids: readonly string[]): Promise<void> {
    await this.#ports.store.changeSystemUids(kind, uids);
    this.#changeCount += 1;
    await this.list();
  }

  #refresh(): void {
    this.#reading ??= this.list()
      .then(() => {})
      .catch((error: unknown) => {
        if (!isTransient(error)) this.#ports.onError(error, "Could not read the system accounts");
      })
      .finally(() => {
        this.#reading = undefined;
      });
  }
}
