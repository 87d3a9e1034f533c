// Decides for each stored message which users need a push notification, while this node holds the
// lease for this task. Follows the event feed with one cursor for each partition. A decision is
// written in the step that moves the cursor, so that no message gets two decisions. State: the
// lease, the position of each cursor, and timers.

import { randomUUID } from "node:crypto";
import { Semaphore } from "../lib/semaphore.ts";
import {
  EVENT_PARTITIONS,
  type EventPosition,
  type EventRow,
  type EventStore,
} from "./event-ports.ts";
import { HeldLease, LEASE_TICK_MS } from "./held-lease.ts";
import type { Lease, LeaseStore } from "./lease-ports.ts";
import type { PushStore } from "./push-ports.ts";
import type { Decision, Unreached } from "./unreached.ts";

interface PushCursorPorts {
  readonly store: Pick<EventStore, "readEvents" | "eventsSince" | "onEvents"> &
    LeaseStore &
    Pick<PushStore, "claimPushCursor" | "movePushCursor">;
  readonly unreached: Pick<Unreached, "decide">;
  /** The store's clock, in Unix milliseconds. */
  readonly clock: () => number;
  /** Delay between storing a message and deciding which users need a push notification. */
  readonly afterMs: number;
  /**
   * Called after decisions have been made, with the number of messages they concern and the number
   * of users who need a push notification.
   */
  onDecided(messages: number, users: number): void;
  onError(error: unknown, message: string): void;
}

const LEASE_NAME = "push";
/** Maximum number of partitions that are processed at the same time. */
const MAX_IN_FLIGHT = 8;
/** Maximum number of events in one read. */
const ROWS = 200;
/** Maximum number of users in the events of one move. A single message may have more users. */
const MAX_USERS = 20_000;
/** Age above which a message gets no push notification, for example after a long outage. */
const MAX_AGE_MS = 86_400_000;
const ERROR_PAUSE_MS = 1000;
/**
 * Time after which a partition is read again, in case the notification about an event was lost.
 */
const IDLE_MS = 5000;
const PARTITIONS = Array.from({ length: EVENT_PARTITIONS }, (_, at) => at);

export class PushCursors {
  readonly #ports: PushCursorPorts;
  readonly #held: HeldLease;
  #run: Run | undefined;
  #timer: NodeJS.Timeout | undefined;
  #ticking: Promise<void> = Promise.resolve();
  #isClosed = false;

  constructor(ports: PushCursorPorts) {
    this.#ports = ports;
    this.#held = new HeldLease(ports.store, LEASE_NAME, randomUUID());
  }

  /** Time for which the oldest due message on this node has been waiting for its decision. */
  get lagMs(): number {
    return this.#run?.lagMs ?? 0;
  }

  /**
   * Resolves after the first attempt to acquire the lease. Once a node has claimed the cursors,
   * every new message gets a decision.
   */
  async start(): Promise<void> {
    this.#tick();
    await this.#ticking;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    await this.#ticking;
    await this.#end();
  }

  #tick(): void {
    clearTimeout(this.#timer);
    if (this.#isClosed) return;
    this.#ticking = this.#ticking
      .then(() => this.#renew())
      .catch((error: unknown) =>
        this.#ports.onError(error, "Could not renew the lease for push decisions"),
      )
      .finally(() => {
        if (!this.#isClosed) this.#timer = setTimeout(() => this.#tick(), LEASE_TICK_MS).unref();
      });
  }

  async #renew(): Promise<void> {
    if (this.#isClosed) return;
    const lease = await this.#held.renew();
    const run = this.#run;
    if (run !== undefined && run.lease.token === lease?.token && !run.isStopping) return;
    await run?.stop();
    this.#run = undefined;
    if (lease === undefined) return;
    const next = new Run(lease, this.#ports, () => this.#held.isValid);
    if (await next.start()) this.#run = next;
  }

  async #end(): Promise<void> {
    const run = this.#run;
    if (run === undefined) return;
    await run.stop();
    await this.#held
      .release(run.lease)
      .catch((error: unknown) =>
        this.#ports.onError(error, "Could not release the lease for push decisions"),
      );
  }
}

interface Partition {
  readonly at: number;
  /** Position of the cursor in the store. */
  stored: EventPosition;
  /**
   * Position of the next read. For each earlier event, the decision has been made, or the event
   * needs no decision.
   */
  read: EventPosition;
  /**
   * Unix milliseconds at which the oldest message that still awaits a push decision became due, or
   * `undefined` if no message is due.
   */
  dueMs: number | undefined;
  /**
   * First event of the last read, and the time on the monotonic clock at which it was first read.
   * `undefined` if the last read returned no event.
   */
  next: { readonly number: number; readonly seenMs: number } | undefined;
  isBusy: boolean;
  /** True if events may have been added while the partition was busy. */
  isChanged: boolean;
  timer: NodeJS.Timeout | undefined;
}

/** Makes the decisions in all partitions under one lease. */
class Run {
  readonly lease: Lease;
  readonly #ports: PushCursorPorts;
  readonly #isValid: () => boolean;
  readonly #inFlight = new Semaphore(MAX_IN_FLIGHT);
  readonly #working = new Set<Promise<void>>();
  #partitions: readonly Partition[] = [];
  /**
   * Time on the monotonic clock before which no decision is made, so that clients can reconnect
   * after a restart.
   */
  readonly #fromMs: number;
  #unsubscribe: (() => void) | undefined;
  #isStopping = false;

  constructor(lease: Lease, ports: PushCursorPorts, isValid: () => boolean) {
    this.lease = lease;
    this.#ports = ports;
    this.#isValid = isValid;
    this.#fromMs = performance.now() + ports.afterMs;
  }

  get isStopping(): boolean {
    return this.#isStopping;
  }

  get lagMs(): number {
    const due = this.#partitions.map(({ dueMs }) => dueMs ?? Number.POSITIVE_INFINITY);
    return Math.max(0, this.#ports.clock() - Math.min(...due));
  }

  /** Claims the cursors. Returns false if another lease has claimed one of them. */
  async start(): Promise<boolean> {
    const { store } = this.#ports;
    const [oldest, positions] = await Promise.all([
      store.eventsSince(this.#ports.clock() - MAX_AGE_MS),
      Promise.all(PARTITIONS.map((at) => store.claimPushCursor(at, this.lease))),
    ]);
    const partitions: Partition[] = [];
    for (const [at, stored] of positions.entries()) {
      if (stored === undefined) return false;
      const first = oldest[at];
      const read = first !== undefined && first.number > stored.number ? first : stored;
      partitions.push({
        ...{ at, stored, read, dueMs: undefined, next: undefined },
        ...{ isBusy: false, isChanged: false, timer: undefined },
      });
    }
    this.#partitions = partitions;
    this.#unsubscribe = store.onEvents((changed) => {
      // A partition whose next event is not due yet is woken by its timer.
      for (const at of changed) if (partitions[at]?.next === undefined) this.#wake(at);
    });
    for (const at of PARTITIONS) this.#wake(at);
    return true;
  }

  /**
   * Stops the run. Resolves after the steps in progress have ended. They begin no further writes.
   */
  async stop(): Promise<void> {
    this.#isStopping = true;
    this.#unsubscribe?.();
    for (const { timer } of this.#partitions) clearTimeout(timer);
    await Promise.all(this.#working);
  }

  #wake(at: number): void {
    const partition = this.#partitions[at];
    if (partition === undefined || this.#isStopping) return;
    partition.isChanged = true;
    if (partition.isBusy) return;
    partition.isBusy = true;
    const working = this.#work(partition).finally(() => this.#working.delete(working));
    this.#working.add(working);
  }

  async #work(partition: Partition): Promise<void> {
    clearTimeout(partition.timer);
    let waitMs = 0;
    while (!this.#isStopping && waitMs === 0) {
      partition.isChanged = false;
      waitMs = await this.#inFlight.run(() => this.#tryStep(partition));
      if (waitMs === IDLE_MS && partition.isChanged) waitMs = 0;
    }
    partition.isBusy = false;
    if (this.#isStopping) return;
    partition.timer = setTimeout(() => this.#wake(partition.at), waitMs).unref();
  }

  async #tryStep(partition: Partition): Promise<number> {
    if (this.#isStopping) return IDLE_MS;
    if (!this.#isValid()) return ERROR_PAUSE_MS;
    const waitMs = Math.ceil(this.#fromMs - performance.now());
    if (waitMs > 0) return Math.min(waitMs, IDLE_MS - 1);
    try {
      return await this.#step(partition);
    } catch (error) {
      this.#ports.onError(
        error,
        "Could not decide which users need a push notification; trying again",
      );
      return ERROR_PAUSE_MS;
    }
  }

  /**
   * Makes the decisions for the next messages that are due. Returns the time until the next step.
   */
  async #step(partition: Partition): Promise<number> {
    const { store, clock, afterMs } = this.#ports;
    // New events wake only a partition without `next`, and events may be added during the read.
    if ((partition.next?.number ?? 0) <= partition.read.number) partition.next = undefined;
    const page = await store.readEvents(partition.at, partition.read, ROWS);
    // Lost events need no decision, so a loss before the rows is ignored.
    const [first] = page.rows;
    if (first === undefined) {
      Object.assign(partition, { dueMs: undefined, next: undefined });
      return IDLE_MS;
    }
    const dueUntilMs = Math.max(clock(), this.#seen(partition, first)) - afterMs;
    const due = page.rows.filter(({ timestampMs }) => timestampMs <= dueUntilMs);
    const last = due.at(-1);
    if (last === undefined) {
      partition.dueMs = undefined;
      return Math.min(IDLE_MS - 1, Math.max(1, first.timestampMs - dueUntilMs));
    }
    const messages = due.filter(({ type }) => type === "message.stored");
    if (messages.length === 0) {
      partition.read = { number: last.number, id: last.id };
      return 0;
    }
    partition.dueMs = (messages[0]?.timestampMs ?? 0) + afterMs;
    await this.#decide(partition, messages, last);
    return 0;
  }

  /**
   * Returns the time of the event plus the time since this node first read it. If the store's clock
   * was set back, event times are ahead of the clock, and this sum is a better estimate of the
   * current time.
   */
  #seen(partition: Partition, { number, timestampMs }: EventRow): number {
    const nowMs = performance.now();
    if (partition.next?.number !== number) partition.next = { number, seenMs: nowMs };
    return timestampMs + nowMs - partition.next.seenMs;
  }

  /** Makes the decisions for the messages, and writes them in one or more moves of the cursor. */
  async #decide(
    partition: Partition,
    messages: readonly EventRow[],
    last: EventPosition,
  ): Promise<void> {
    const { store, unreached, onDecided } = this.#ports;
    const { lease } = this;
    let decisions = await unreached.decide(messages);
    while (decisions.length > 0) {
      if (this.#isStopping || !this.#isValid()) return;
      const { chosen, users } = leading(decisions);
      decisions = decisions.slice(chosen.length);
      const end = decisions.length === 0 ? last : (chosen.at(-1)?.row ?? last);
      const to = { number: end.number, id: end.id };
      const events = chosen.flatMap((decision) => decision.events);
      const move = { lease, from: partition.stored, to, events };
      if (!(await store.movePushCursor(partition.at, move))) return this.#lost(partition);
      partition.stored = to;
      partition.read = to;
      onDecided(chosen.length, users);
    }
  }

  /**
   * Reads the cursor again after a refused move. Either an earlier move took effect although its
   * reply was lost, or another lease has claimed the cursor.
   */
  async #lost(partition: Partition): Promise<void> {
    const stored = await this.#ports.store.claimPushCursor(partition.at, this.lease);
    if (stored === undefined) {
      this.#isStopping = true;
      return;
    }
    partition.stored = stored;
    partition.read = stored;
  }
}

/**
 * Returns the first decisions that have at most `MAX_USERS` users in total, and the number of their
 * users. The first decision is returned even if it has more users.
 */
function leading(decisions: readonly Decision[]): {
  readonly chosen: readonly Decision[];
  readonly users: number;
} {
  let users = 0;
  const chosen: Decision[] = [];
  for (const decision of decisions) {
    const count = decision.events.reduce((sum, { fields }) => sum + usersIn(fields), 0);
    if (chosen.length > 0 && users + count > MAX_USERS) break;
    chosen.push(decision);
    users += count;
  }
  return { chosen, users };
}

function usersIn({ uids }: Decision["events"][number]["fields"]): number {
  return Array.isArray(uids) ? uids.length : 0;
}
