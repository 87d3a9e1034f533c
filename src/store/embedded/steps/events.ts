// The event feed (the port's `EventStore`): its switch, reads, and the removal of old events.

import type { EventLimits, EventStore } from "../../../broker/event-ports.ts";
import { commit, persist, transact } from "../engine/database.ts";
import type { EventLog } from "../engine/event-log.ts";
import { EventRows, type StoredEvents } from "../engine/event-rows.ts";
import type { Tables } from "../engine/tables.ts";
import type { Appends } from "./append.ts";

const ROWS_PER_STEP = 200;

interface EventPorts {
  readonly tables: Tables;
  readonly events: EventLog;
  readonly appends: Pick<Appends, "enqueue">;
}

export function createEvents({ tables, events, appends }: EventPorts): EventStore {
  const stored = new EventRows(tables);

  /** Resolves when all calls that were queued before are durable. */
  function settleQueue(): Promise<void> {
    return new Promise((resolve, reject) => {
      const commitStep = () => resolve();
      appends.enqueue({ assign() {}, commit: commitStep, rollBack() {}, reject }, 0);
    });
  }

  /** Removes rows. Returns the number of events in them. */
  async function remove(rows: readonly StoredEvents[]): Promise<number> {
    for (let at = 0; at < rows.length; at += ROWS_PER_STEP) {
      const step = rows.slice(at, at + ROWS_PER_STEP);
      await commit(
        tables,
        () => {
          for (const { key } of step) void tables.events.remove(key);
        },
        "reclaim",
      );
    }
    return rows.reduce((sum, { count }) => sum + count, 0);
  }

  /** Returns the rows whose events are all old and no longer needed. */
  function oldRows({ beforeMs, held }: EventLimits): StoredEvents[] {
    return events.newest().flatMap((_, partition) => {
      const rows: StoredEvents[] = [];
      for (const row of stored.oldestRows(partition)) {
        const isHeld = held !== undefined && row.newest.number > (held[partition]?.number ?? 0);
        if (row.newest.timestampMs >= beforeMs || isHeld) break;
        rows.push(row);
      }
      return rows;
    });
  }

  /** Returns the oldest rows of all partitions, which are removed to free the bytes. */
  function excessRows(excessBytes: number): StoredEvents[] {
    const { entryCount } = statsOf(tables);
    const bytesPerRow = bytesOf(tables) / Math.max(1, entryCount);
    const count = Math.ceil(excessBytes / bytesPerRow);
    const oldest = events.newest().flatMap((_, partition) => {
      const rows: StoredEvents[] = [];
      for (const row of stored.oldestRows(partition)) {
        if (rows.length >= count) break;
        rows.push(row);
      }
      return rows;
    });
    return oldest.sort((a, b) => a.newest.id - b.newest.id).slice(0, count);
  }

  return {
    feedSwitch: async () => events.switch,

    async switchFeed(isOn) {
      await persist(tables, () => events.putSwitch(isOn));
      events.setOn(isOn);
      await transact(tables, () => {}); // steps that run in transactions settle before this one
      await settleQueue();
    },

    newestEvents: async () => events.newest(),
    oldestEvents: async () => events.oldest(),
    eventsSince: async (timeMs) => events.since(timeMs),
    readEvents: async (partition, after, limit) => events.read(partition, after, limit),
    onEvents: (listener) => events.onEvents(listener),

    async trimEvents(limits) {
      let removed = await remove(oldRows(limits));
      const excess = bytesOf(tables) - limits.maxBytes;
      if (excess > 0) removed += await remove(excessRows(excess));
      return removed;
    },

    eventBytes: async () => bytesOf(tables),
  };
}

interface TableStats {
  readonly pageSize: number;
  readonly entryCount: number;
  readonly treeBranchPageCount: number;
  readonly treeLeafPageCount: number;
  readonly overflowPages: number;
}

function statsOf({ events }: Pick<Tables, "events">): TableStats {
  return events.getStats() as TableStats; // lmdb does not declare the fields
}

function bytesOf(tables: Pick<Tables, "events" | "env">): number {
  tables.env.resetReadTxn();
  const stats = statsOf(tables);
  const { pageSize, treeBranchPageCount, treeLeafPageCount, overflowPages } = stats;
  if (stats.entryCount === 0) return 0;
  return pageSize * (treeBranchPageCount + treeLeafPageCount + overflowPages);
}
