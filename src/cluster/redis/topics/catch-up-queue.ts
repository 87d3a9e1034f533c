// Runs a limited number of catch-ups at a time. A catch-up is retried until it succeeds or its
// sequencer is closed. Owns the running catch-ups.

import { isTransient } from "../../../broker/errors.ts";
import { bucketOf } from "../../../broker/log-frame.ts";
import { type Deferred, deferred } from "../../../lib/deferred.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import type { ChannelFeed } from "../../../redis/channel-feed.ts";
import { begin, type CatchUpFeed, catchUp, startMidway } from "./catch-up.ts";
import type { Sequencer } from "./sequencer.ts";

interface CatchUpQueuePorts {
  readonly feed: ChannelFeed;
  readonly isCluster: boolean;
  readonly onError: (error: unknown, message: string) => void;
  /** Excludes users who lost access to the channel. Called after each read, before delivery. */
  readonly judge: (sequencer: Sequencer) => Promise<void>;
  readonly onCaughtUp: () => void;
}

const MAX_CONCURRENT = 64;
/** Maximum number of channels whose positions are read together. Such a read takes Redis 0.3 ms. */
const CHANNELS_PER_READ = 50;
/** Maximum number of concurrent position reads per bucket. It leaves room for other calls. */
const MAX_BEGIN_READS = 4;
const RETRY_MS = 100;
const MAX_RETRY_MS = 2000;
const MAX_WAIT_MS = 2500;

interface Beginning {
  readonly sequencer: Sequencer;
  readonly done: Deferred;
}

interface Beginnings {
  readonly sequencers: Beginning[];
  reads: number;
}

export class CatchUpQueue {
  readonly #ports: CatchUpQueuePorts;
  readonly #slots = new Semaphore(MAX_CONCURRENT);
  readonly #running = new Map<Sequencer, RunningCatchUp>();
  /**
   * Sequencers that wait for their first position. On a Redis Cluster, they are grouped by bucket.
   * All channels of a bucket are in one slot, so a dead server delays only its own channels.
   * Without a Redis Cluster, all are in one group.
   */
  readonly #beginnings = new Map<number, Beginnings>();

  constructor(ports: CatchUpQueuePorts) {
    this.#ports = ports;
  }

  isCatchingUp(sequencer: Sequencer): boolean {
    return this.#running.has(sequencer);
  }

  /**
   * Runs a catch-up whose reads start after this call. Resolves when the catch-up is done or the
   * sequencer is closed, after the first permanent error, or after Redis was unreachable for
   * `MAX_WAIT_MS`. Never rejects.
   */
  catchUp(sequencer: Sequencer): Promise<void> {
    const existing = this.#running.get(sequencer);
    if (existing !== undefined) {
      sequencer.startCatchUp(); // the read in progress may be too old
      return existing.restart();
    }
    const running = new RunningCatchUp();
    this.#running.set(sequencer, running);
    this.#run(sequencer, running)
      .catch((error) => this.#ports.onError(error, "A channel's catch-up failed unexpectedly"))
      .finally(() => {
        if (this.#running.get(sequencer) === running) this.#running.delete(sequencer);
        running.end();
      });
    return running.settled;
  }

  /**
   * Sets a new sequencer to the channel's position. Rejects if reading the position fails with a
   * transient error. Reports any other error and starts a catch-up instead, so that an unreadable
   * channel does not prevent connects.
   */
  begin(sequencer: Sequencer): Promise<void> {
    const bucket = this.#ports.isCluster ? bucketOf(sequencer.key) : 0;
    const waiting = this.#beginnings.get(bucket) ?? { sequencers: [], reads: 0 };
    this.#beginnings.set(bucket, waiting);
    const beginning = { sequencer, done: deferred() };
    if (waiting.sequencers.push(beginning) === 1)
      process.nextTick(() => this.#beginNext(bucket, waiting));
    return beginning.done.promise;
  }

  #beginNext(bucket: number, waiting: Beginnings): void {
    while (waiting.reads < MAX_BEGIN_READS && waiting.sequencers.length > 0) {
      waiting.reads += 1;
      const piece = waiting.sequencers.splice(0, CHANNELS_PER_READ);
      void this.#beginTogether(piece).finally(() => {
        waiting.reads -= 1;
        this.#beginNext(bucket, waiting);
      });
    }
    if (waiting.reads === 0) this.#beginnings.delete(bucket);
  }

  /**
   * Reads the positions of channels together, or one by one after a permanent error. Never rejects.
   */
  async #beginTogether(piece: readonly Beginning[]): Promise<void> {
    const { feed, onError } = this.#ports;
    try {
      const positions = await feed.positions(piece.map(({ sequencer }) => sequencer.key));
      for (const { sequencer, done } of piece) {
        const position = positions.get(sequencer.key);
        if (position === undefined) throw new Error("the channel's position is missing");
        begin(sequencer, position);
        done.resolve();
      }
    } catch (error) {
      if (isTransient(error)) for (const { done } of piece) done.reject(error);
      else if (piece.length > 1) for (const each of piece) await this.#beginTogether([each]);
      else
        for (const { sequencer, done } of piece) {
          onError(error, "Could not read a channel's position; reading the channel from the store");
          void this.catchUp(sequencer);
          done.resolve();
        }
    }
  }

  retryNow(): void {
    for (const running of this.#running.values()) if (running.isFailing) void running.restart();
  }

  async settled(): Promise<void> {
    await Promise.all([...this.#running.values()].map((running) => running.settled));
  }

  async #run(sequencer: Sequencer, running: RunningCatchUp): Promise<void> {
    const { onError } = this.#ports;
    while (running.needsRead && sequencer.startCatchUp())
      try {
        await this.#slots.run(() => {
          running.needsRead = false;
          return this.#catchUpOnce(sequencer);
        });
      } catch (error) {
        onError(error, "Could not read missed messages of a channel; trying again");
        await running.waitForRetry(isTransient(error));
      }
    this.#running.delete(sequencer); // safe: no `await` since `needsRead` was checked
  }

  #judgedFeed(sequencer: Sequencer): CatchUpFeed {
    const { feed, judge } = this.#ports;
    return {
      async position(...args) {
        const position = await feed.position(...args);
        await judge(sequencer);
        return position;
      },
      async stream(...args) {
        const snapshot = await feed.stream(...args);
        await judge(sequencer);
        return snapshot;
      },
      async messages(...args) {
        const slice = await feed.messages(...args);
        await judge(sequencer);
        return slice;
      },
    };
  }

  async #catchUpOnce(sequencer: Sequencer): Promise<void> {
    if (sequencer.isClosed) return;
    const feed = this.#judgedFeed(sequencer);
    if (sequencer.isNew) return startMidway(sequencer, feed);
    await catchUp(sequencer, feed);
    this.#ports.onCaughtUp();
  }
}

class RunningCatchUp {
  needsRead = true;
  #settled = deferred();
  #retryMs = RETRY_MS;
  #failingSince: number | undefined;
  #isReleased = false;
  #wake: () => void = () => {};

  get settled(): Promise<void> {
    return this.#settled.promise;
  }

  get isFailing(): boolean {
    return this.#failingSince !== undefined;
  }

  restart(): Promise<void> {
    this.needsRead = true;
    if (this.#isReleased) this.#settled = deferred();
    this.#isReleased = false;
    this.#failingSince = undefined;
    this.#retryMs = RETRY_MS;
    this.#wake();
    return this.settled;
  }

  /**
   * Waits until the next retry. Also resolves `settled`, for which callers of `catchUp` wait. If
   * Redis is unreachable, resolves `settled` only after reads have failed for `MAX_WAIT_MS`.
   */
  async waitForRetry(isAway: boolean): Promise<void> {
    this.needsRead = true;
    const now = performance.now();
    this.#failingSince ??= now;
    if (!isAway || now - this.#failingSince >= MAX_WAIT_MS) {
      this.#isReleased = true;
      this.#settled.resolve();
    }
    await new Promise<void>((go) => {
      this.#wake = go;
      setTimeout(go, this.#retryMs).unref();
    });
    this.#retryMs = Math.min(this.#retryMs * 2, MAX_RETRY_MS);
  }

  end(): void {
    this.#settled.resolve();
  }
}
