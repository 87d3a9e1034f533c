// The event feed. Owns the committed events that no checkpoint has written yet and the newest
// position of each partition, and reads all events. Numbers are assigned at commit, in the order of
// the WAL. A replay from the last checkpoint therefore assigns the same numbers.

import { ON_DEMAND_TYPES } from "../../../broker/event-demand-ports.ts";
import {
  EVENT_PARTITIONS,
  EVENTS_START,
  type EventListener,
  type EventPage,
  type EventPosition,
  type EventRow,
} from "../../../broker/event-ports.ts";
import { bucketOf } from "../../../broker/log-frame.ts";
import { messageTimeMs } from "../../../broker/model.ts";
import { fieldsOf } from "./database.ts";
import { decodeEventRecord, type EventRecord, maxEventBytes } from "./event-record.ts";
import { EventRows, MAX_ROW_EVENTS, positionOf } from "./event-rows.ts";
import type { Memtable, MemtableRecord } from "./memtable.ts";
import { peekId } from "./record.ts";
import type { Tables } from "./tables.ts";

const SWITCH = "feed";
const SWITCH_VERSION = 1;
const TRIMMED = "feedTrimmed";
/** Approximate maximum size of the JSON in one row of on-demand events. */
const MAX_ROW_BYTES = 16_384;

/** Record of a committed event: the record of its message, or a separate record. */
type PendingEvent = MemtableRecord | EventRecord;

interface Partition {
  /** Number and id of the newest committed event. Both are 0 if there is no event. */
  newest: EventPosition;
  /** Committed events that no checkpoint has written yet. The last element is the newest event. */
  pending: readonly PendingEvent[];
}

/** Events of a partition that had been committed before a checkpoint began. */
interface PartitionFlush {
  readonly partition: number;
  readonly first: number;
  readonly count: number;
  /** Pending events of the partition. The list may grow during the flush. */
  readonly pending: readonly PendingEvent[];
}

export class EventLog {
  readonly #tables: Tables;
  readonly #memtable: Pick<Memtable, "retain" | "release">;
  readonly #rows: EventRows;
  readonly #onDemandRows: EventRows;
  readonly #partitions: readonly Partition[];
  readonly #listeners = new Set<EventListener>();
  readonly #changed = new Set<number>();
  #switch: boolean | undefined;
  /** For each partition, the number up to which all events have been removed. */
  readonly #trimmed: number[];

  /** `state` is the result of `state()` at the WAL position from which the replay starts. */
  constructor(
    tables: Tables,
    memtable: Pick<Memtable, "retain" | "release">,
    state: readonly number[],
    onError: (error: Error, what: string) => void,
  ) {
    this.#tables = tables;
    this.#memtable = memtable;
    this.#rows = new EventRows(tables.events, onError);
    this.#onDemandRows = new EventRows(tables.onDemandEvents, onError);
    const trimmed = fieldsOf(tables.meta.get(TRIMMED) ?? [SWITCH_VERSION], SWITCH_VERSION);
    this.#trimmed = trimmed.map(Number);
    const [isOn] = fieldsOf(tables.meta.get(SWITCH) ?? [SWITCH_VERSION], SWITCH_VERSION);
    this.#switch = isOn as boolean | undefined; // as `putSwitch` wrote it
    this.#partitions = Array.from({ length: EVENT_PARTITIONS }, (_, at) => ({
      newest: { number: state[2 * at] ?? 0, id: state[2 * at + 1] ?? 0 },
      pending: [],
    }));
  }

  get isOn(): boolean {
    return this.#switch === true;
  }

  /** `undefined` if the feed has never been turned on or off. */
  get switch(): boolean | undefined {
    return this.#switch;
  }

  /** Stores whether the feed is on. Must be called inside `commit`, before `setOn`. */
  putSwitch(isOn: boolean): void {
    void this.#tables.meta.put(SWITCH, [SWITCH_VERSION, isOn]);
  }

  setOn(isOn: boolean): void {
    this.#switch = isOn;
  }

  /** Returns the number up to which all events of the partition have been removed. */
  trimmed(at: number): number {
    return this.#trimmed[at] ?? 0;
  }

  /** Puts the numbers up to which all events have been removed. Must be called inside `commit`. */
  putTrimmed(trimmed: ReadonlyMap<number, number>): void {
    for (const [at, number] of trimmed)
      this.#trimmed[at] = Math.max(this.#trimmed[at] ?? 0, number);
    const numbers = this.#partitions.map((_, at) => this.#trimmed[at] ?? 0);
    void this.#tables.meta.put(TRIMMED, [SWITCH_VERSION, ...numbers]);
  }

  /** Adds the event of a committed message. */
  readonly addMessage = (record: MemtableRecord): void => {
    const { channel, bytes, start } = record;
    if (channel.partition < 0) channel.partition = bucketOf(channel.key);
    this.#add(channel.partition, record, peekId(bytes, start));
  };

  /** Adds a committed event that has a separate record. */
  add(event: EventRecord): void {
    this.#memtable.retain(maxEventBytes(event));
    this.#add(bucketOf(event.key), event, event.id);
  }

  /** Decodes an event record of the WAL and adds the event. */
  replay(record: Buffer): EventRecord {
    const event = decodeEventRecord(record);
    this.add(event);
    return event;
  }

  #add(at: number, event: PendingEvent, id: number): void {
    const partition = this.#partitions[at];
    if (partition === undefined) return;
    const { newest, pending } = partition;
    partition.newest = { number: newest.number + 1, id };
    // The list may grow during a flush, because the flush uses only the events that the list had
    // when the flush began.
    (pending as PendingEvent[]).push(event);
    if (this.#listeners.size > 0) this.#notifyLater(at);
  }

  /** Returns the outbox keys of the committed events that no checkpoint has written yet. */
  numberedKeys(): ReadonlySet<number> {
    const events = this.#partitions.flatMap(({ pending }) => pending.filter(isOwnRecord));
    return new Set(events.map(({ outboxKey }) => outboxKey));
  }

  /**
   * Ensures that new events of each partition are numbered after its stored events. Must be called
   * after the replay. After a power loss, the database may have events that the WAL has lost. Their
   * numbers must not be assigned again. The database then also has all events that were replayed.
   */
  replayed(): void {
    for (const [at, partition] of this.#partitions.entries()) {
      const stored = maxOf(this.#rows.newest(at), this.#onDemandRows.newest(at));
      if (stored === undefined || stored.number <= partition.newest.number) continue;
      this.#release(partition.pending);
      partition.pending = [];
      partition.newest = stored;
    }
  }

  #release(events: readonly PendingEvent[]): void {
    for (const event of events)
      if (isOwnRecord(event)) this.#memtable.release(maxEventBytes(event));
  }

  /** Returns the number and id of each partition's newest event, or [] if there is no event. */
  state(): readonly number[] {
    if (this.#partitions.every(({ newest }) => newest.number === 0)) return [];
    return this.#partitions.flatMap(({ newest }) => [newest.number, newest.id]);
  }

  newest(): readonly EventPosition[] {
    return this.#partitions.map(({ newest }) => newest);
  }

  oldest(): readonly EventPosition[] {
    return this.#partitions.map((_, at) => this.#positionBefore(at, this.#oldestNumber(at)));
  }

  /** Returns, for each partition, the position before its first event at `timeMs` or later. */
  since(timeMs: number): readonly EventPosition[] {
    return this.#partitions.map(({ newest }, at) => {
      let [low, high] = [this.#oldestNumber(at), newest.number + 1];
      while (low < high) {
        const middle = Math.floor((low + high) / 2);
        const [next] = this.#read(at, middle, 1);
        if ((next?.timestampMs ?? timeMs) < timeMs) low = middle + 1;
        else high = middle;
      }
      return this.#positionBefore(at, low);
    });
  }

  read(at: number, after: EventPosition, limit: number): EventPage {
    const oldest = this.#oldestNumber(at);
    const shared = this.#lastCommon(at, after, oldest);
    if (shared < after.number)
      return {
        rows: this.#read(at, shared + 1, limit),
        lost: after.number - shared,
        loss: "forked",
      };
    const missing = oldest - 1 - after.number;
    if (missing > 0) return { rows: this.#read(at, oldest, limit), lost: missing, loss: "expired" };
    return { rows: this.#read(at, after.number + 1, limit), lost: 0, loss: undefined };
  }

  onEvents(listener: EventListener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  startFlush() {
    const flushed: PartitionFlush[] = [];
    for (const [partition, { pending, newest }] of this.#partitions.entries()) {
      const count = pending.length;
      const first = newest.number - count + 1;
      if (count > 0) flushed.push({ partition, first, count, pending });
    }
    return {
      rows: () => this.#putRows(flushed),
      finish: () => {
        for (const { partition, count } of flushed) {
          const flushedPartition = this.#partitionAt(partition);
          this.#release(flushedPartition.pending.slice(0, count));
          flushedPartition.pending = flushedPartition.pending.slice(count);
        }
      },
    };
  }

  *#putRows(flushed: readonly PartitionFlush[]): Generator<void> {
    for (const { partition, first, count, pending } of flushed)
      for (let at = 0; at < count; ) {
        const isOnDemand = isOnDemandRecord(pending[at]);
        const end = rowEnd(pending, at, count);
        const records = pending.slice(at, end);
        const rows = isOnDemand ? this.#onDemandRows : this.#rows;
        rows.put(
          partition,
          records.map((record, index) => rowOf(record, first + at + index)),
        );
        // The same transaction removes the events from the outbox, so that no event is numbered
        // twice.
        for (const record of records)
          if (isOwnRecord(record) && record.outboxKey > 0)
            void this.#tables.outbox.remove(record.outboxKey);
        at = end;
        yield;
      }
  }

  /** Returns the number of the oldest event, or of the next event if the partition is empty. */
  #oldestNumber(at: number): number {
    return this.trimmed(at) + 1;
  }

  #positionBefore(at: number, number: number): EventPosition {
    const { newest } = this.#partitionAt(at);
    if (number > newest.number) return newest;
    const before = this.#get(at, number - 1);
    // The id of a removed event is unknown. The id 0 means that ids are not compared.
    return before === undefined ? { number: number - 1, id: 0 } : positionOf(before);
  }

  /** Returns the number of the last event that the reader's history and the feed have in common. */
  #lastCommon(at: number, { number, id }: EventPosition, oldest: number): number {
    const { newest } = this.#partitionAt(at);
    const isCommon = (candidate: number) => {
      if (candidate === newest.number) return newest.id <= id;
      return (this.#floor(at, candidate)?.id ?? 0) <= id;
    };
    if (number <= newest.number && (id === 0 || isCommon(number))) return number;
    if (id === 0) return newest.number;
    let [low, high] = [Math.min(oldest - 1, newest.number), Math.min(number, newest.number)];
    while (low < high) {
      const middle = high - Math.floor((high - low) / 2);
      if (isCommon(middle)) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /**
   * Returns up to `limit` events, starting at the number `from`. Skips on-demand events that have
   * been removed.
   */
  #read(at: number, from: number, limit: number): EventRow[] {
    const { newest, pending } = this.#partitionAt(at);
    const pendingFrom = newest.number - pending.length + 1;
    const rows = from < pendingFrom ? this.#readStored(at, { from, to: pendingFrom }, limit) : [];
    for (let next = Math.max(from, pendingFrom); rows.length < limit; next++) {
      const record = pending[next - pendingFrom];
      if (record === undefined) break;
      rows.push(rowOf(record, next));
    }
    return rows;
  }

  #readStored(
    at: number,
    range: { readonly from: number; readonly to: number },
    limit: number,
  ): EventRow[] {
    const rows = this.#rows.read(at, range, limit);
    const onDemand = this.#onDemandRows.read(at, range, limit);
    if (onDemand.length === 0) return rows;
    return [...rows, ...onDemand].sort((a, b) => a.number - b.number).slice(0, limit);
  }

  /** Returns the newest event whose number is not higher than `number`. */
  #floor(at: number, number: number): EventRow | undefined {
    const { newest, pending } = this.#partitionAt(at);
    const pendingFrom = newest.number - pending.length + 1;
    if (number >= pendingFrom) return this.#get(at, number);
    const row = this.#rows.floor(at, number);
    const onDemand = this.#onDemandRows.floor(at, number);
    return (onDemand?.number ?? 0) > (row?.number ?? 0) ? onDemand : row;
  }

  #get(at: number, number: number): EventRow | undefined {
    const [row] = number < 1 ? [] : this.#read(at, number, 1);
    return row?.number === number ? row : undefined;
  }

  #partitionAt(at: number): Partition {
    return this.#partitions[at] ?? { newest: EVENTS_START, pending: [] };
  }

  #notifyLater(at: number): void {
    if (this.#changed.size === 0) setImmediate(() => this.#notify());
    this.#changed.add(at);
  }

  #notify(): void {
    const partitions = [...this.#changed];
    this.#changed.clear();
    const numbers = partitions.map((at) => this.#partitionAt(at).newest.number);
    for (const listener of this.#listeners) listener(partitions, numbers);
  }
}

function maxOf(a: EventPosition | undefined, b: EventPosition | undefined) {
  return (b?.number ?? 0) > (a?.number ?? 0) ? b : a;
}

function isOwnRecord(event: PendingEvent): event is EventRecord {
  return "outboxKey" in event;
}

function isOnDemandRecord(event: PendingEvent | undefined): boolean {
  return event !== undefined && isOwnRecord(event) && ON_DEMAND.has(event.type);
}

const ON_DEMAND: ReadonlySet<string> = new Set(ON_DEMAND_TYPES);

/**
 * Returns the index after the last event of the row that begins at the index `at` of `pending`. A
 * row contains either only on-demand events or no on-demand events.
 */
function rowEnd(pending: readonly PendingEvent[], at: number, count: number): number {
  const isOnDemand = isOnDemandRecord(pending[at]);
  const limit = Math.min(count, at + MAX_ROW_EVENTS);
  let bytes = 0;
  let end = at;
  for (; end < limit; end++) {
    const event = pending[end];
    if (event === undefined || isOnDemandRecord(event) !== isOnDemand) break;
    if (isOnDemand && isOwnRecord(event)) bytes += event.fields.length;
    if (end > at && bytes > MAX_ROW_BYTES) break;
  }
  return end;
}

function rowOf(event: PendingEvent, number: number): EventRow {
  if (isOwnRecord(event)) {
    const { id, type, key, messageSeq } = event;
    const fields = JSON.parse(event.fields);
    return { number, id, type, timestampMs: messageTimeMs(id), key, messageSeq, fields };
  }
  const { channel, messageSeq, bytes, start } = event;
  const id = peekId(bytes, start);
  return {
    ...{ number, id, type: "message.stored", timestampMs: messageTimeMs(id) },
    ...{ key: channel.key, messageSeq, fields: undefined },
  };
}
