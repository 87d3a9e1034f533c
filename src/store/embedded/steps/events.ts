// The event feed (the port's `EventStore`): its switch, reads, and the removal of old events.

import { ON_DEMAND_SHARE } from "../../../broker/event-demand-ports.ts";
import type { EventLimits, EventStore } from "../../../broker/event-ports.ts";
import { commit, persist, transact } from "../engine/database.ts";
import type { EventLog } from "../engine/event-log.ts";
import {
  EventRows,
  type EventTable,
  partitionIn,
  type StoredEvents,
} from "../engine/event-rows.ts";
import type { Tables } from "../engine/tables.ts";
import type { Appends } from "./append.ts";

const ROWS_PER_STEP = 200;

interface EventPorts {
  readonly tables: Tables;
  readonly events: EventLog;
  readonly appends: Pick<Appends, "enqueue">;
  readonly onError: (error: Error, what: string) => void;
}

export function createEvents({ tables, events, appends, onError }: EventPorts): EventStore {
  const stored = new EventRows(tables.events, onError);
  const onDemand = new EventRows(tables.onDemandEvents, onError);

  /** Resolves when all calls that were queued before this call are durable. */
  function settleQueue(): Promise<void> {
    return new Promise((resolve, reject) => {
      const commitStep = () => resolve();
      appends.enqueue({ assign() {}, commit: commitStep, rollBack() {}, reject }, 0);
    });
  }

  /** Removes rows. Returns the number of events in them. */
  async function remove(table: EventTable, rows: readonly StoredEvents[]): Promise<number> {
    for (let at = 0; at < rows.length; at += ROWS_PER_STEP) {
      const step = rows.slice(at, at + ROWS_PER_STEP);
      await commit(
        tables,
        () => {
          for (const { key } of step) void table.remove(key);
          if (table === tables.events) events.putTrimmed(lastNumbers(step));
        },
        "reclaim",
      );
    }
    return rows.reduce((sum, { count }) => sum + count, 0);
  }

  /** Returns the rows in which all events are old and no longer needed. */
  function oldRows(rowsOf: EventRows, { beforeMs, held }: EventLimits): StoredEvents[] {
    return events.newest().flatMap((_, partition) => {
      const rows: StoredEvents[] = [];
      for (const row of rowsOf.oldestRows(partition)) {
        const isHeld = held !== undefined && row.newest.number > (held[partition]?.number ?? 0);
        if (row.newest.timestampMs >= beforeMs || isHeld) break;
        rows.push(row);
      }
      return rows;
    });
  }

  /** Returns the oldest rows of all partitions, enough to free about `excessBytes`. */
  function excessRows(table: EventTable, excessBytes: number): StoredEvents[] {
    const { entryCount } = statsOf(table);
    const bytesPerRow = bytesOf(table) / Math.max(1, entryCount);
    const count = Math.ceil(excessBytes / bytesPerRow);
    const rowsOf = table === tables.events ? stored : onDemand;
    const oldest = events.newest().flatMap((_, partition) => {
      const rows: StoredEvents[] = [];
      for (const row of rowsOf.oldestRows(partition)) {
        if (rows.length >= count) break;
        rows.push(row);
      }
      return rows;
    });
    return oldest.sort((a, b) => a.newest.id - b.newest.id).slice(0, count);
  }

  /** Removes the oldest events of a table until its size is about `maxBytes`. */
  async function shrink(table: EventTable, maxBytes: number): Promise<number> {
    tables.env.resetReadTxn();
    const excess = bytesOf(table) - maxBytes;
    return excess > 0 ? remove(table, excessRows(table, excess)) : 0;
  }

  function allBytes(): number {
    tables.env.resetReadTxn();
    return bytesOf(tables.events) + bytesOf(tables.onDemandEvents);
  }

  return {
    feedSwitch: async () => events.switch,

    async switchFeed(isOn) {
      // The feed can be turned off on a full disk, because events then stop using space.
      const purpose = isOn ? "store" : "reclaim";
      await persist(tables, () => events.putSwitch(isOn), purpose);
      events.setOn(isOn);
      await transact(tables, () => {}, purpose); // waits for the steps of earlier calls
      await settleQueue();
    },

    newestEvents: async () => events.newest(),
    oldestEvents: async () => events.oldest(),
    eventsSince: async (timeMs) => events.since(timeMs),
    readEvents: async (partition, after, limit) => events.read(partition, after, limit),
    onEvents: (listener) => events.onEvents(listener),

    async trimEvents(limits) {
      const { maxBytes } = limits;
      const removed = await remove(tables.onDemandEvents, oldRows(onDemand, limits));
      const shrunk = await shrink(tables.onDemandEvents, maxBytes * ON_DEMAND_SHARE);
      const old = await remove(tables.events, oldRows(stored, limits));
      tables.env.resetReadTxn();
      const excess = await shrink(tables.events, maxBytes - bytesOf(tables.onDemandEvents));
      return removed + shrunk + old + excess;
    },

    eventBytes: async () => allBytes(),
  };
}

/** Returns each partition's highest event number in these rows. */
function lastNumbers(rows: readonly StoredEvents[]): ReadonlyMap<number, number> {
  const numbers = new Map<number, number>();
  for (const { key, newest } of rows) {
    const partition = partitionIn(key);
    numbers.set(partition, Math.max(numbers.get(partition) ?? 0, newest.number));
  }
  return numbers;
}

interface TableStats {
  readonly pageSize: number;
  readonly entryCount: number;
  readonly treeBranchPageCount: number;
  readonly treeLeafPageCount: number;
  readonly overflowPages: number;
}

function statsOf(table: EventTable): TableStats {
  return table.getStats() as TableStats; // lmdb does not declare the fields
}

/** Returns the size of the table as of the last `resetReadTxn`. */
function bytesOf(table: EventTable): number {
  const stats = statsOf(table);
  const { pageSize, treeBranchPageCount, treeLeafPageCount, overflowPages } = stats;
  if (stats.entryCount === 0) return 0;
  return pageSize * (treeBranchPageCount + treeLeafPageCount + overflowPages);
}
