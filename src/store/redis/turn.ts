// Combines operations into a few calls. A call takes up to `MAX_OPERATIONS` operations that were
// queued in the same turn of the event loop, or while earlier calls were in flight. All of them are
// for one server (on a Redis Cluster: for one bucket). An operation must never overtake an earlier
// operation with the same `order`, even if a call fails.

import { BrokerError } from "../../broker/errors.ts";
import type { RedisLink } from "../../redis/link.ts";

/** Limits of one call. A call with a single operation may be larger than `MAX_BYTES`. */
const MAX_OPERATIONS = 32;
const MAX_BYTES = 256 * 1024;
/** Maximum number of calls in flight for one server (on a Redis Cluster: for one bucket). */
const MAX_CALLS_IN_FLIGHT = 2;

export interface Operation {
  readonly bytes: number;
  /**
   * Operations with the same `order` keep their order. `undefined` if the order does not matter.
   */
  readonly order: string | undefined;
  /**
   * True if Redis accepts the operation even when its memory is full. Such an operation never
   * shares a call with operations that a full Redis rejects.
   */
  readonly isFreeing?: boolean;
  /** Time at which the operation was created (`performance.now()`). */
  readonly sinceMs: number;
  fail(error: unknown): void;
}

interface Batch<Item> {
  readonly operations: readonly Item[];
  readonly orders: ReadonlySet<string>;
}

interface Queue<Item> {
  waiting: Item[];
  readonly inFlight: Set<Batch<Item>>;
}

interface TurnPorts<Item> {
  /** Total size of queued and in-flight operations at which further operations are rejected. */
  readonly maxPendingBytes: number;
  readonly link: Pick<RedisLink, "admit" | "release" | "isCluster" | "settings">;
  /**
   * Sends one call with these operations and settles each of them. If the promise rejects, the
   * queue fails the operations.
   */
  run(operations: readonly Item[], timeoutMs: number): Promise<void>;
}

export class TurnQueue<Item extends Operation> {
  readonly #ports: TurnPorts<Item>;
  readonly #queues = new Map<number, Queue<Item>>();
  readonly #ready = new Set<Queue<Item>>();
  #bytes = 0;
  #turn: NodeJS.Immediate | undefined;

  constructor(ports: TurnPorts<Item>) {
    this.#ports = ports;
  }

  /** Throws `overloaded` if the queues are full. */
  assertRoom(): void {
    if (this.#bytes >= this.#ports.maxPendingBytes) throw new BrokerError("overloaded");
  }

  /** Queues an operation for a bucket. Throws `overloaded` or `unavailable`. */
  add(bucket: number, operation: Item): void {
    this.assertRoom();
    this.#ports.link.admit();
    this.#bytes += operation.bytes;
    const queue = this.#queueOf(bucket);
    queue.waiting.push(operation);
    this.#wake(queue);
  }

  #queueOf(bucket: number): Queue<Item> {
    const name = this.#ports.link.isCluster ? bucket : 0;
    let queue = this.#queues.get(name);
    if (queue === undefined) {
      queue = { waiting: [], inFlight: new Set() };
      this.#queues.set(name, queue);
    }
    return queue;
  }

  #wake(queue: Queue<Item>): void {
    this.#ready.add(queue);
    this.#turn ??= setImmediate(this.#flush);
  }

  readonly #flush = (): void => {
    this.#turn = undefined;
    const queues = [...this.#ready];
    this.#ready.clear();
    for (const queue of queues) {
      this.#rejectLate(queue);
      while (queue.inFlight.size < MAX_CALLS_IN_FLIGHT) {
        const batch = takeBatch(queue);
        if (batch === undefined) break;
        queue.inFlight.add(batch);
        void this.#send(queue, batch);
      }
    }
  };

  /**
   * Rejects operations that have waited for half of the timeout, because the other half is reserved
   * for the call to the server. Also rejects queued operations that must not overtake a rejected
   * operation.
   */
  #rejectLate(queue: Queue<Item>): void {
    const lastMs = performance.now() - this.#ports.link.settings.timeoutMs / 2;
    const isLate = ({ sinceMs }: Item) => sinceMs < lastMs;
    const [first] = queue.waiting;
    if (first === undefined || !isLate(first)) return; // the queue is sorted by time
    const lateOperations = queue.waiting.filter(isLate);
    queue.waiting = queue.waiting.slice(lateOperations.length);
    const error = new BrokerError("unavailable");
    this.#fail(lateOperations, error);
    const orders = new Set(lateOperations.flatMap(({ order }) => order ?? []));
    this.#fail(takeFollowers(queue, orders), error);
  }

  /**
   * Sends a batch. If the call fails, also rejects queued operations that must not overtake the
   * batch.
   */
  async #send(queue: Queue<Item>, batch: Batch<Item>): Promise<void> {
    const { operations } = batch;
    try {
      await this.#ports.run(operations, this.#timeLeft(operations));
      queue.inFlight.delete(batch);
      for (const operation of operations) this.#release(operation);
    } catch (error) {
      queue.inFlight.delete(batch);
      this.#fail(operations, error);
      this.#fail(takeFollowers(queue, batch.orders), error);
    }
    if (queue.waiting.length > 0) this.#wake(queue);
  }

  #timeLeft([oldest]: readonly Item[]): number {
    const { timeoutMs } = this.#ports.link.settings;
    if (oldest === undefined) return timeoutMs;
    return oldest.sinceMs + timeoutMs - performance.now();
  }

  #release({ bytes }: Item): void {
    this.#bytes -= bytes;
    this.#ports.link.release();
  }

  #fail(operations: readonly Item[], error: unknown): void {
    for (const operation of operations) {
      this.#release(operation);
      operation.fail(error);
    }
  }
}

/**
 * Takes the next batch. While another batch is in flight, only a full batch is taken, because many
 * small calls cost more than a few large calls.
 */
function takeBatch<Item extends Operation>(queue: Queue<Item>): Batch<Item> | undefined {
  const { waiting, inFlight } = queue;
  const operations: Item[] = [];
  const blocked: Item[] = [];
  const orders = new Set<string>();
  let bytes = 0;
  let inspected = 0;
  let isFull = false;
  for (const operation of waiting) {
    const { order, isFreeing } = operation;
    const [first = operation] = operations;
    const isTooLarge = operations.length > 0 && bytes + operation.bytes > MAX_BYTES;
    if (order !== undefined && isInFlight(inFlight, order)) blocked.push(operation);
    else if (isTooLarge || isFreeing !== first.isFreeing) {
      isFull = true;
      break;
    } else {
      if (order !== undefined) orders.add(order);
      operations.push(operation);
      bytes += operation.bytes;
    }
    inspected += 1;
    isFull = operations.length === MAX_OPERATIONS || bytes >= MAX_BYTES;
    if (isFull) break;
  }
  if (operations.length === 0 || (inFlight.size > 0 && !isFull)) return undefined;
  queue.waiting = [...blocked, ...waiting.slice(inspected)];
  return { operations, orders };
}

function isInFlight(
  batches: ReadonlySet<{ readonly orders: ReadonlySet<string> }>,
  order: string,
): boolean {
  for (const { orders } of batches) if (orders.has(order)) return true;
  return false;
}

/**
 * Takes the waiting operations with these orders, because they must not overtake the failed
 * operations.
 */
function takeFollowers<Item extends Operation>(
  queue: Queue<Item>,
  orders: ReadonlySet<string>,
): Item[] {
  if (orders.size === 0) return [];
  const follows = ({ order }: Item) => order !== undefined && orders.has(order);
  const followers = queue.waiting.filter(follows);
  if (followers.length > 0) queue.waiting = queue.waiting.filter((item) => !follows(item));
  return followers;
}
