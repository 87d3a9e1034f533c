// Implements the port's `EventStore`: turns the event feed on and off, reads events, and removes
// old events.

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

  /**
   * Removes rows in steps, until `nextRows` returns fewer than `ROWS_PER_STEP` rows or the signal
   * is aborted. Each step is a short read and one commit, so that other work continues between two
   * steps. Returns the number of events in the removed rows.
   */
  async function remove(
    table: EventTable,
    nextRows: () => readonly StoredEvents[],
    signal: AbortSignal | undefined,
  ): Promise<number> {
    let removed = 0;
    while (signal?.aborted !== true) {
      tables.env.resetReadTxn();
      const rows = nextRows();
      if (rows.length === 0) break;
      await commit(
        tables,
        () => {
          for (const { key } of rows) void table.remove(key);
          if (table === tables.events) events.putTrimmed(lastNumbers(rows));
        },
        "reclaim",
      );
      removed += rows.reduce((sum, { count }) => sum + count, 0);
      if (rows.length < ROWS_PER_STEP) break;
    }
    return removed;
  }

  /**
   * Returns up to `ROWS_PER_STEP` rows in which all events are older than `beforeMs` and, if `held`
   * is set, not after the partition's position in `held`.
   */
  function oldRows(rowsOf: EventRows, { beforeMs, held }: EventLimits): readonly StoredEvents[] {
    const rows: StoredEvents[] = [];
    for (const partition of events.newest().keys())
      for (const row of rowsOf.oldestRows(partition)) {
        const isHeld = held !== undefined && row.newest.number > (held[partition]?.number ?? 0);
        if (row.newest.timestampMs >= beforeMs || isHeld) break;
        rows.push(row);
        if (rows.length === ROWS_PER_STEP) return rows;
      }
    return rows;
  }

  /**
   * Returns the oldest rows of all partitions, enough to free about `excessBytes`, but at most
   * `ROWS_PER_STEP` rows.
   */
  function excessRows(table: EventTable, excessBytes: number): readonly StoredEvents[] {
    const { entryCount } = statsOf(table);
    const bytesPerRow = bytesOf(table) / Math.max(1, entryCount);
    const count = Math.min(ROWS_PER_STEP, Math.ceil(excessBytes / bytesPerRow));
    const rowsOf = table === tables.events ? stored : onDemand;
    const partitions = [...events.newest().keys()].map((at) => rowsOf.oldestRows(at));
    const next = partitions.map((rows) => rows.next().value ?? undefined);
    const rows: StoredEvents[] = [];
    while (rows.length < count) {
      let oldest = -1;
      for (const [at, row] of next.entries())
        if (
          row !== undefined &&
          row.newest.id < (next[oldest]?.newest.id ?? Number.POSITIVE_INFINITY)
        )
          oldest = at;
      const row = next[oldest];
      if (row === undefined) break;
      rows.push(row);
      next[oldest] = partitions[oldest]?.next().value ?? undefined;
    }
    for (const unread of partitions) unread.return(undefined); // releases its database cursor
    return rows;
  }

  /** Removes the oldest events of a table until its size is about `maxBytes`. */
  function shrink(
    table: EventTable,
    maxBytes: number,
    signal: AbortSignal | undefined,
  ): Promise<number> {
    const nextRows = () => {
      const excess = bytesOf(table) - maxBytes;
      return excess > 0 ? excessRows(table, excess) : [];
    };
    return remove(table, nextRows, signal);
  }

  function allBytes(): number {
    tables.env.resetReadTxn();
    return bytesOf(tables.events) + bytesOf(tables.onDemandEvents);
  }

  return {
    feedSwitch: async () => events.switch,

    async switchFeed(isOn) {
      // The feed can be turned off even on a full disk, because no further events are written then.
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
      const { maxBytes, signal } = limits;
      const { events: feed, onDemandEvents } = tables;
      const removed = await remove(onDemandEvents, () => oldRows(onDemand, limits), signal);
      const shrunk = await shrink(onDemandEvents, maxBytes * ON_DEMAND_SHARE, signal);
      const old = await remove(feed, () => oldRows(stored, limits), signal);
      tables.env.resetReadTxn();
      const excess = await shrink(feed, maxBytes - bytesOf(onDemandEvents), signal);
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
