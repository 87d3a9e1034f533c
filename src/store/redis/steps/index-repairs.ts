// Index repairs on a Redis Cluster: a fail-over of a user's slot may lose a group from the user's
// index where the group's slot keeps the membership. What was entered in the last minute over a
// connection that is lost, or in a slot that moved, is entered again, blindly: an entry too many
// does no harm. The user's sessions are notified: they may have connected without it. Nothing is
// lost with `redis.minReplicas`. State: those entries, bounded; it ends with the process.

import { isTransient } from "../../../broker/errors.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import { slotOf } from "../../../redis/slots.ts";
import type { RedisStorePorts } from "../ports.ts";

interface IndexRepairsParts extends Pick<RedisStorePorts, "link" | "clock" | "onError"> {
  /** Enters the group into the user's index, notes that, and notifies the user's sessions. */
  readonly add: (groupId: string, uid: string) => Promise<void>;
}

interface IndexEntry {
  readonly groupId: string;
  readonly uid: string;
  /** See `connectionOf`. */
  readonly connection: unknown;
}

interface Written extends IndexEntry {
  /** That of the user's index. */
  readonly slot: number;
}

/** Longer than a primary that was cut off from the others takes writes. */
const KEPT_MS = 60_000;
const MAX_ENTRIES = 200_000;
const AT_ONCE = 256;
/** The connection of a slot whose server is away. */
const NONE = Symbol("none");

export class IndexRepairs {
  readonly #parts: IndexRepairsParts;
  readonly #mayLose: boolean;
  /** When each was written. */
  readonly #entries = new BoundedMap<Written, number>(MAX_ENTRIES);

  constructor(parts: IndexRepairsParts) {
    this.#parts = parts;
    const { link } = parts;
    this.#mayLose = link.isCluster && link.settings.minReplicas === 0;
  }

  /**
   * Over which connection an entry is written that is sent now; undefined: one that is not made
   * yet. As nobody knows whether that was lost meanwhile, such an entry is repeated. Throws
   * `unavailable`.
   */
  connectionOf(index: string): unknown {
    return this.#parts.link.primaryOf(index).stream;
  }

  /** It was written. */
  note(entry: IndexEntry): void {
    if (!this.#mayLose) return;
    const slot = slotOf(this.#indexOf(entry));
    this.#entries.set({ ...entry, slot }, this.#parts.clock());
  }

  /**
   * What cannot be reached stays, behind the others, and ends the sweep: a server that does not
   * answer is waited for once.
   */
  async sweep(isStopped: () => boolean): Promise<void> {
    const lost = this.#lost();
    for (let at = 0; at < lost.length && !isStopped(); at += AT_ONCE) {
      const some = lost.slice(at, at + AT_ONCE);
      const done = await Promise.all(some.map((entry) => this.#repeat(entry)));
      if (done.includes(false)) return;
    }
  }

  /**
   * Those that were not written over the connection that their slot has now. Others that are old
   * enough are forgotten.
   */
  #lost(): readonly Written[] {
    const oldMs = this.#parts.clock() - KEPT_MS;
    const connections = new Map<number, unknown>();
    const lost: Written[] = [];
    for (const [entry, writtenMs] of this.#entries) {
      const { slot, connection } = entry;
      if (!connections.has(slot)) connections.set(slot, this.#readyOf(entry));
      if (connection !== connections.get(slot)) lost.push(entry);
      else if (writtenMs <= oldMs) this.#entries.delete(entry);
    }
    return lost;
  }

  #readyOf(entry: IndexEntry): unknown {
    try {
      const { status, stream } = this.#parts.link.primaryOf(this.#indexOf(entry));
      return status === "ready" ? stream : NONE;
    } catch {
      return NONE;
    }
  }

  #indexOf({ uid }: IndexEntry): string {
    return this.#parts.link.keys.user("groups", uid);
  }

  /** False: its server is away. */
  async #repeat(entry: Written): Promise<boolean> {
    const writtenMs = this.#entries.get(entry) ?? 0;
    this.#entries.delete(entry);
    try {
      await this.#parts.add(entry.groupId, entry.uid);
      return true;
    } catch (error) {
      if (!isTransient(error)) {
        const what = "The group index of a user could not be repaired";
        this.#parts.onError(error, what);
        return true;
      }
      this.#entries.set(entry, writtenMs);
      return false;
    }
  }
}
