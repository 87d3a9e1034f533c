// Repairs users' group indexes on a Redis Cluster, where a fail-over of a user's slot may lose a
// group from the index while the group's slot keeps the membership. An entry that was written in
// the last minute is written again, and the user's sessions are notified, if the connection on
// which the entry was written was lost, or if the user's slot moved. If `redis.minReplicas` is not
// 0, no entry can be lost, and nothing is repaired.

import { isTransient } from "../../../broker/errors.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import { slotOf } from "../../../redis/slots.ts";
import type { RedisStorePorts } from "../ports.ts";

interface IndexRepairsPorts extends Pick<RedisStorePorts, "link" | "clock" | "onError"> {
  readonly add: (groupId: string, uid: string) => Promise<void>;
}

interface IndexEntry {
  readonly groupId: string;
  readonly uid: string;
  readonly connection: unknown;
}

interface WrittenEntry extends IndexEntry {
  readonly slot: number;
}

/**
 * Time for which written entries are remembered. A fail-over can lose entries that were written to
 * a primary while it was isolated from the cluster. An isolated primary stops accepting writes
 * after a shorter time.
 */
const KEPT_MS = 60_000;
const MAX_ENTRIES = 200_000;
const REPAIRS_AT_ONCE = 256;
const NONE = Symbol("none");

export class IndexRepairs {
  readonly #ports: IndexRepairsPorts;
  readonly #isNeeded: boolean;
  readonly #entries = new BoundedMap<WrittenEntry, number>(MAX_ENTRIES);

  constructor(ports: IndexRepairsPorts) {
    this.#ports = ports;
    const { link } = ports;
    this.#isNeeded = link.isCluster && link.settings.minReplicas === 0;
  }

  /**
   * Returns the connection on which an entry would be written now, or `undefined` if this
   * connection is closed.
   */
  connectionOf(index: string): unknown {
    return this.#ports.link.primaryOf(index).stream;
  }

  note(entry: IndexEntry): void {
    if (!this.#isNeeded) return;
    const slot = slotOf(this.#indexOf(entry));
    this.#entries.set({ ...entry, slot }, this.#ports.clock());
  }

  /** Writes lost entries again. Stops after a batch with a transient error. */
  async sweep(isStopped: () => boolean): Promise<void> {
    const lost = this.#lostEntries();
    for (let at = 0; at < lost.length && !isStopped(); at += REPAIRS_AT_ONCE) {
      const batch = lost.slice(at, at + REPAIRS_AT_ONCE);
      const done = await Promise.all(batch.map((entry) => this.#rewrite(entry)));
      if (done.includes(false)) return;
    }
  }

  /**
   * Returns the entries that may have been lost, because their slot now has a different connection.
   */
  #lostEntries(): readonly WrittenEntry[] {
    const expiredMs = this.#ports.clock() - KEPT_MS;
    const connections = new Map<number, unknown>();
    const lost: WrittenEntry[] = [];
    for (const [entry, writtenMs] of this.#entries) {
      const { slot, connection } = entry;
      if (!connections.has(slot)) connections.set(slot, this.#readyConnectionOf(entry));
      if (connection !== connections.get(slot)) lost.push(entry);
      else if (writtenMs <= expiredMs) this.#entries.delete(entry);
    }
    return lost;
  }

  #readyConnectionOf(entry: IndexEntry): unknown {
    try {
      const { status, stream } = this.#ports.link.primaryOf(this.#indexOf(entry));
      return status === "ready" ? stream : NONE;
    } catch {
      return NONE;
    }
  }

  #indexOf({ uid }: IndexEntry): string {
    return this.#ports.link.keys.user("groups", uid);
  }

  async #rewrite(entry: WrittenEntry): Promise<boolean> {
    const writtenMs = this.#entries.get(entry) ?? 0;
    this.#entries.delete(entry);
    try {
      await this.#ports.add(entry.groupId, entry.uid);
      return true;
    } catch (error) {
      if (!isTransient(error)) {
        const what = "Could not repair a user's group index";
        this.#ports.onError(error, what);
        return true;
      }
      this.#entries.set(entry, writtenMs);
      return false;
    }
  }
}
