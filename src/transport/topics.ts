// A server's topics and their subscribers. The publications of one iteration of the event loop are
// encoded once and written together at the end of the iteration. Subscribers of the same
// publications share one buffer. State: the subscribers, and the frames of the current iteration.

export interface Subscriber {
  readonly topics: Set<string>;
  /** Indexes of the frames that wait for the end of the iteration. Owned by `Topics`. */
  readonly pending: number[];
  deliver(frames: Buffer): void;
}

/** Number of a subscriber's waiting frames at which these frames are delivered immediately. */
const MAX_PENDING = 32;
const MAX_BATCH_BYTES = 512 * 1024;

/** Returns the bytes of a frame as the peers receive them. */
type Encode = (data: Uint8Array | string, isBinary: boolean) => Buffer;

export class Topics {
  readonly #encode: Encode;
  readonly #subscribers = new Map<string, Set<Subscriber>>();
  readonly #frames: Buffer[] = [];
  #frameBytes = 0;
  #waiting: Subscriber[] = [];
  #isScheduled = false;
  #lastIndexes: readonly number[] = [];
  #lastBatch: Buffer | undefined;

  constructor(encode: Encode) {
    this.#encode = encode;
  }

  subscribe(subscriber: Subscriber, topic: string): void {
    const subscribers = this.#subscribers.get(topic);
    if (subscribers === undefined) this.#subscribers.set(topic, new Set([subscriber]));
    else subscribers.add(subscriber);
    subscriber.topics.add(topic);
  }

  unsubscribe(subscriber: Subscriber, topic: string): boolean {
    if (!subscriber.topics.delete(topic)) return false;
    const subscribers = this.#subscribers.get(topic);
    subscribers?.delete(subscriber);
    if (subscribers?.size === 0) this.#subscribers.delete(topic);
    return true;
  }

  /** Removes a subscriber that has closed. Its waiting frames are dropped. */
  remove(subscriber: Subscriber): void {
    for (const topic of subscriber.topics) this.unsubscribe(subscriber, topic);
    subscriber.pending.length = 0;
  }

  count(topic: string): number {
    return this.#subscribers.get(topic)?.size ?? 0;
  }

  publish(
    topic: string,
    { data, isBinary }: { readonly data: Uint8Array | string; readonly isBinary: boolean },
    except?: Subscriber,
  ): void {
    const subscribers = this.#subscribers.get(topic);
    if (subscribers === undefined) return;
    if (except !== undefined && subscribers.size === 1 && subscribers.has(except)) return;
    const frame = this.#encode(data, isBinary);
    const index = this.#frames.push(frame) - 1;
    this.#frameBytes += frame.length;
    for (const subscriber of subscribers) {
      if (subscriber === except) continue;
      const { pending } = subscriber;
      if (pending.length === 0) this.#waiting.push(subscriber);
      pending.push(index);
      if (pending.length === MAX_PENDING) this.flush(subscriber);
    }
    if (this.#frameBytes > MAX_BATCH_BYTES) this.#flushAll();
    else if (!this.#isScheduled) {
      this.#isScheduled = true;
      setImmediate(() => {
        this.#isScheduled = false;
        this.#flushAll();
      });
    }
  }

  flush(subscriber: Subscriber): void {
    const { pending } = subscriber;
    if (pending.length === 0) return;
    const batch = this.#batchOf(pending);
    pending.length = 0;
    subscriber.deliver(batch);
  }

  #flushAll(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const subscriber of waiting) this.flush(subscriber);
    this.#frames.length = 0;
    this.#frameBytes = 0;
    this.#lastBatch = undefined;
    this.#lastIndexes = [];
  }

  #batchOf(indexes: readonly number[]): Buffer {
    const last = this.#lastBatch;
    if (last !== undefined && isEqual(indexes, this.#lastIndexes)) return last;
    const frames: Buffer[] = [];
    for (const index of indexes) {
      const frame = this.#frames[index];
      if (frame !== undefined) frames.push(frame);
    }
    const [first] = frames;
    const batch = frames.length === 1 && first !== undefined ? first : Buffer.concat(frames);
    this.#lastIndexes = [...indexes];
    this.#lastBatch = batch;
    return batch;
  }
}

function isEqual(a: readonly number[], b: readonly number[]): boolean {
  if (a.length !== b.length) return false;
  for (let at = a.length - 1; at >= 0; at--) if (a[at] !== b[at]) return false;
  return true;
}
