// The event feed (the port's `EventStore`): its switch, reads, and the removal of old events.

import type { EventLimits, EventStore } from "../../../broker/event-ports.ts";
import { commit, persist } from "../engine/database.ts";
import type { EventLog } from "../engine/event-log.ts";
import { countInEvents, EventRows } from "../engine/event-rows.ts";
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

  async function remove(keys: readonly Buffer[]): Promise<number> {
    let count = 0;
    for (let at = 0; at < keys.length; at += ROWS_PER_STEP) {
      const step = keys.slice(at, at + ROWS_PER_STEP);
      await commit(
        tables,
        () => {
          for (const key of step) {
            count += countInEvents(tables.events.get(key) ?? [1]);
            void tables.events.remove(key);
          }
        },
        "reclaim",
      );
    }
    return count;
  }

  /** Returns the keys of rows whose events are all old. */
  function oldRows({ beforeMs }: EventLimits): Buffer[] {
    return events.newest().flatMap((_, partition) => {
      const keys: Buffer[] = [];
      for (const { key, last } of stored.oldestChunks(partition)) {
        if (last.timestampMs >= beforeMs) break;
        keys.push(key);
      }
      return keys;
    });
  }

  /** Returns the keys of the oldest rows of all partitions, which are removed to free the bytes. */
  function excessRows(excessBytes: number): Buffer[] {
    const { entryCount } = statsOf(tables);
    const bytesPerRow = bytesOf(tables) / Math.max(1, entryCount);
    const count = Math.ceil(excessBytes / bytesPerRow);
    const oldest = events.newest().flatMap((_, partition) => {
      const rows: { readonly key: Buffer; readonly id: number }[] = [];
      for (const { key, last } of stored.oldestChunks(partition)) {
        if (rows.length >= count) break;
        rows.push({ key, id: last.id });
      }
      return rows;
    });
    return oldest
      .sort((a, b) => a.id - b.id)
      .slice(0, count)
      .map(({ key }) => key);
  }

  return {
    feedSwitch: async () => events.switch,

    async switchFeed(isOn) {
      await persist(tables, () => events.putSwitch(isOn));
      events.setOn(isOn);
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
