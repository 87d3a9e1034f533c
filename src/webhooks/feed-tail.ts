// Notifies lanes (see `lane.ts`) that wait for events of the feed. One read serves all idle lanes,
// of any endpoint, at the same position of a partition. If no event is missing, the read wakes only
// the lanes that deliver one of the new events. State: the waiting lanes.

import {
  EVENT_PARTITIONS,
  type EventPosition,
  type EventRow,
  type EventStore,
} from "../broker/event-ports.ts";

/** A lane that has read its partition to the end. */
interface IdleLane {
  /** Position up to which the lane has read. It moves when events are skipped. */
  position: EventPosition;
  selects(row: Pick<EventRow, "type" | "key">): boolean;
  /** Called when the lane delivers none of the events up to the position. */
  skip(position: EventPosition): void;
  /** Called when the lane must read the partition. */
  wake(): void;
}

interface Partition {
  /**
   * Number of notifications so far. A lane compares the numbers before and after its read to detect
   * a notification that arrived during the read.
   */
  notices: number;
  /** Number of the newest event, as of the last notification. */
  newest: number;
  readonly idle: Set<IdleLane>;
  /** Number of the event that each waiting lane needs, by the function that wakes the lane. */
  readonly filling: Map<() => void, number>;
  isReading: boolean;
  mustReadAgain: boolean;
}

/** Number of rows per read. */
const ROWS = 100;

export class FeedTail {
  readonly #store: Pick<EventStore, "readEvents" | "onEvents">;
  readonly #partitions: readonly Partition[] = Array.from({ length: EVENT_PARTITIONS }, () => ({
    ...{ notices: 0, newest: 0, idle: new Set<IdleLane>(), filling: new Map<() => void, number>() },
    ...{ isReading: false, mustReadAgain: false },
  }));
  #users = 0;
  #unsubscribe: (() => void) | undefined;

  constructor(store: Pick<EventStore, "readEvents" | "onEvents">) {
    this.#store = store;
  }

  /** Listens to the store until the returned function is called. All callers share one listener. */
  listen(): () => void {
    this.#users += 1;
    this.#unsubscribe ??= this.#store.onEvents((partitions, numbers) => {
      for (const [at, partition] of partitions.entries()) this.#notify(partition, numbers[at] ?? 0);
    });
    return () => {
      this.#users -= 1;
      if (this.#users > 0) return;
      this.#unsubscribe?.();
      this.#unsubscribe = undefined;
    };
  }

  /** Returns the number of notifications about a partition so far. */
  notices(partition: number): number {
    return this.#partitions[partition]?.notices ?? 0;
  }

  /** Adds a lane that waits for events. Returns a function that removes it. */
  addIdle(partition: number, lane: IdleLane): () => void {
    const { idle } = this.#partitionAt(partition);
    idle.add(lane);
    return () => idle.delete(lane);
  }

  /** Returns true if a notification has shown that the partition has the event with this number. */
  hasNumber(partition: number, number: number): boolean {
    return this.#partitionAt(partition).newest >= number;
  }

  /**
   * Calls `wake` when a notification shows that the partition has the event with this number.
   * Returns a function that cancels the wait.
   */
  onNumber(partition: number, number: number, wake: () => void): () => void {
    const { filling } = this.#partitionAt(partition);
    filling.set(wake, number);
    return () => filling.delete(wake);
  }

  /**
   * Reads the partitions that have events after the position of an idle lane, in case a
   * notification was lost.
   */
  check(newest: readonly EventPosition[]): void {
    for (const [at, { idle }] of this.#partitions.entries()) {
      const end = newest[at];
      if (end === undefined) continue;
      const isBehind = ({ position: { number, id } }: IdleLane) =>
        number !== end.number || (id !== 0 && id !== end.id);
      if ([...idle].some(isBehind)) void this.#read(at);
    }
  }

  #partitionAt(at: number): Partition {
    const partition = this.#partitions[at];
    if (partition === undefined) throw new Error(`The feed has no partition ${at}`);
    return partition;
  }

  #notify(at: number, newest: number): void {
    const partition = this.#partitionAt(at);
    partition.notices += 1;
    partition.newest = newest;
    for (const [wake, number] of partition.filling) if (newest >= number) wake();
    if (partition.idle.size > 0) void this.#read(at);
  }

  /** Reads the events after the positions of the idle lanes. Never rejects. */
  async #read(at: number): Promise<void> {
    const partition = this.#partitionAt(at);
    partition.mustReadAgain = true;
    if (partition.isReading) return;
    partition.isReading = true;
    try {
      while (partition.mustReadAgain) {
        partition.mustReadAgain = false;
        await this.#readOnce(at, partition);
      }
    } catch {
      // The lanes read the partition themselves, and handle the error.
      for (const lane of [...partition.idle]) lane.wake();
    } finally {
      partition.isReading = false;
    }
  }

  async #readOnce(at: number, partition: Partition): Promise<void> {
    const { idle } = partition;
    for (const { position, lanes } of groupsOf(idle)) {
      const page = await this.#store.readEvents(at, position, ROWS);
      const { rows, loss } = page;
      const isComplete =
        loss === undefined &&
        rows.every(({ number }, place) => number === position.number + 1 + place);
      const last = rows.at(-1);
      for (const lane of lanes) {
        if (!idle.has(lane)) continue;
        if (!isComplete || rows.some((row) => lane.selects(row))) lane.wake();
        else if (last !== undefined) {
          lane.position = { number: last.number, id: last.id };
          lane.skip(lane.position);
        }
      }
      if (rows.length === ROWS) partition.mustReadAgain = true;
    }
  }
}

/** Groups the lanes by their positions. Idle lanes have usually read up to the same position. */
function groupsOf(idle: Iterable<IdleLane>) {
  const groups = new Map<string, { readonly position: EventPosition; lanes: IdleLane[] }>();
  for (const lane of idle) {
    const { position } = lane;
    const name = `${position.number}-${position.id}`;
    const group = groups.get(name);
    if (group === undefined) groups.set(name, { position, lanes: [lane] });
    else group.lanes.push(lane);
  }
  return groups.values();
}
