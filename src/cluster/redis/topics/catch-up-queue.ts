// Runs catch-ups: a bounded number at a time, each retried until it succeeds or the sequencer is
// closed. State: running catch-ups.

import { isTransient } from "../../../broker/errors.ts";
import { deferred } from "../../../lib/deferred.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import type { ChannelFeed } from "../../../redis/channel-feed.ts";
import { begin, type CatchUpFeed, catchUp, startMidway } from "./catch-up.ts";
import type { Sequencer } from "./sequencer.ts";

interface CatchUpQueueParts {
  readonly feed: ChannelFeed;
  readonly onError: (error: unknown, what: string) => void;
  /** Excludes users who lost access to the channel: called after each read, before delivery. */
  readonly judge: (sequencer: Sequencer) => Promise<void>;
  /** A catch-up finished. */
  readonly onCaughtUp: () => void;
}

const AT_ONCE = 64;
const RETRY_MS = 100;
const MAX_RETRY_MS = 2000;
/** Callers wait no longer than this for a channel whose server is away. */
const TROUBLE_MS = 2500;

export class CatchUpQueue {
  readonly #parts: CatchUpQueueParts;
  readonly #turns = new Semaphore(AT_ONCE);
  readonly #running = new Map<Sequencer, RunningCatchUp>();

  constructor(parts: CatchUpQueueParts) {
    this.#parts = parts;
  }

  isCatchingUp(sequencer: Sequencer): boolean {
    return this.#running.has(sequencer);
  }

  /**
   * Catches up with reads that start after this call. Resolves when done, when the sequencer is
   * closed, or when the channel was unreadable for some seconds; the catch-up then continues in the
   * background. Never rejects.
   */
  catchUp(sequencer: Sequencer): Promise<void> {
    const found = this.#running.get(sequencer);
    if (found !== undefined) {
      sequencer.startCatchUp(); // an earlier read may be too old
      return found.anew();
    }
    const running = new RunningCatchUp();
    this.#running.set(sequencer, running);
    this.#run(sequencer, running)
      .catch((error) => this.#parts.onError(error, "A channel could not be brought up to date"))
      .finally(() => {
        if (this.#running.get(sequencer) === running) this.#running.delete(sequencer);
        running.end();
      });
    return running.settled;
  }

  /**
   * Gives a new sequencer the channel's current position. Throws `unavailable`. A channel that
   * cannot be read gets its position later: it costs its members no connection.
   */
  async begin(sequencer: Sequencer): Promise<void> {
    const { feed, onError } = this.#parts;
    try {
      await begin(sequencer, feed);
    } catch (error) {
      if (isTransient(error)) throw error;
      onError(error, "The position of a channel could not be read");
      void this.catchUp(sequencer);
    }
  }

  /** Redis is back: retries now. */
  hurry(): void {
    for (const running of this.#running.values()) if (running.isFailing) void running.anew();
  }

  /** Resolves when all running catch-ups are done, except channels unreadable for some seconds. */
  async settled(): Promise<void> {
    await Promise.all([...this.#running.values()].map((one) => one.settled));
  }

  async #run(sequencer: Sequencer, running: RunningCatchUp): Promise<void> {
    const { onError } = this.#parts;
    while (running.again && sequencer.startCatchUp())
      try {
        await this.#turns.run(() => {
          running.again = false;
          return this.#once(sequencer);
        });
      } catch (error) {
        onError(error, "Missed messages of a channel could not be read");
        await running.failed(isTransient(error));
      }
    this.#running.delete(sequencer); // no await since the last look at `again`
  }

  /** Judges after each read, before the result is used. */
  #judgedFeed(sequencer: Sequencer): CatchUpFeed {
    const { feed, judge } = this.#parts;
    return {
      async position(...asked) {
        const found = await feed.position(...asked);
        await judge(sequencer);
        return found;
      },
      async messages(...asked) {
        const found = await feed.messages(...asked);
        await judge(sequencer);
        return found;
      },
    };
  }

  async #once(sequencer: Sequencer): Promise<void> {
    if (sequencer.isClosed) return;
    const feed = this.#judgedFeed(sequencer);
    if (sequencer.isNew) return startMidway(sequencer, feed);
    await catchUp(sequencer, feed);
    this.#parts.onCaughtUp();
  }
}

/** The catch-up of one sequencer with its retries. */
class RunningCatchUp {
  /** Read once more: the last read may be too old. */
  again = true;
  #settled = deferred();
  #retryMs = RETRY_MS;
  #failingSince: number | undefined;
  #isInTrouble = false;
  #wake: () => void = () => {};

  /** Resolves when callers need not wait any longer. */
  get settled(): Promise<void> {
    return this.#settled.promise;
  }

  get isFailing(): boolean {
    return this.#failingSince !== undefined;
  }

  /** Requested again: retries now; callers wait again. */
  anew(): Promise<void> {
    this.again = true;
    if (this.#isInTrouble) this.#settled = deferred();
    this.#isInTrouble = false;
    this.#failingSince = undefined;
    this.#retryMs = RETRY_MS;
    this.#wake();
    return this.settled;
  }

  /**
   * Resolves at the time of the next retry. Nobody waits for a channel that Redis has, but not as
   * one.
   */
  async failed(isAway: boolean): Promise<void> {
    this.again = true;
    const now = performance.now();
    this.#failingSince ??= now;
    if (!isAway || now - this.#failingSince >= TROUBLE_MS) {
      this.#isInTrouble = true;
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
