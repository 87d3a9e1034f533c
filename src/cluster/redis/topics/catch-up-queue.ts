// CatchUpQueue lines from the store: few at a time, each until it succeeds or is closed; one whose channel cannot be read goes on without. State: which
// lines are being repaired.

import { isAway } from "../../../broker/errors.ts";
import { Line } from "../../../lib/line.ts";
import type { ChannelFeed } from "../../../redis/arrivals.ts";
import type { Sequencer } from "./sequencer.ts";
import { Gate } from "./deadline.ts";
import { begin, beginMidway, type CatchUpFeed, repair } from "./catch-up.ts";

export interface CatchUpQueueParts {
  readonly feed: ChannelFeed;
  /** Whether publications of a personal channel may overtake each other on the way. */
  readonly mayReorder: boolean;
  readonly onProblem: (error: unknown, what: string) => void;
  /** Ends or excludes who may not see what was read of the line's channel: called after each read, before anything of it is told. */
  readonly judge: (line: Sequencer) => Promise<void>;
  /** A line was repaired. */
  readonly onRepaired: () => void;
}

/** How a new line begins; `isAfterLoss`: the connection was lost, and the store has what was published meanwhile. */
export interface Beginning {
  readonly pub?: number;
  readonly isAfterLoss?: boolean;
}

const AT_ONCE = 64;
const RETRY_MS = 100;
const MAX_RETRY_MS = 2000;
/** Nobody waits longer for a line whose channel cannot be read just now. */
const TROUBLE_MS = 2500;
/** So often a channel is read in vain though Redis is there. */
const MAX_WRONG = 3;

export class CatchUpQueue {
  readonly #parts: CatchUpQueueParts;
  readonly #turns = new Line(AT_ONCE);
  readonly #running = new Map<Sequencer, Running>();

  constructor(parts: CatchUpQueueParts) {
    this.#parts = parts;
  }

  isRepairing(line: Sequencer): boolean {
    return this.#running.has(line);
  }

  /**
   * CatchUpQueue the line with reads that begin after this call. Resolves when that is done, the line is closed, or its channel could not be read for
   * some seconds: then it keeps what comes, and is repaired as soon as can be. Never rejects. A new line begins as told.
   */
  repair(line: Sequencer, beginning: Beginning = {}): Promise<void> {
    const found = this.#running.get(line);
    if (found !== undefined) {
      line.startRepair(); // what was read may be told already
      return found.anew();
    }
    const running = new Running();
    this.#running.set(line, running);
    this.#run(line, running, beginning)
      .catch((error) =>
        this.#parts.onProblem(
          error,
          "A channel could not be brought up to date",
        ),
      )
      .finally(() => {
        if (this.#running.get(line) === running) this.#running.delete(line);
        running.end();
      });
    return running.settled;
  }

  /** Gives a new line the position where its channel stands. Throws `unavailable`. */
  async begin(line: Sequencer): Promise<void> {
    const { feed, onProblem } = this.#parts;
    try {
      await begin(line, feed);
    } catch (error) {
      if (isAway(error)) throw error;
      onProblem(error, "The position of a channel could not be read");
      line.begin(await feed.pubOf(line.key), undefined);
    }
  }

  /** Redis is there again: what waits to be tried again is tried. */
  hurry(): void {
    for (const running of this.#running.values())
      if (running.isFailing) void running.anew();
  }

  /** Resolves when every line that is being repaired now is level, but for those that could not be read for some seconds. */
  async settled(): Promise<void> {
    await Promise.all([...this.#running.values()].map((one) => one.settled));
  }

  async #run(
    line: Sequencer,
    running: Running,
    beginning: Beginning,
  ): Promise<void> {
    const { onProblem } = this.#parts;
    let wrong = 0;
    while (running.again && line.startRepair())
      try {
        await this.#turns.run(() => {
          running.again = false;
          return this.#once(line, beginning);
        });
      } catch (error) {
        onProblem(error, "Missed messages of a channel could not be read");
        if (!isAway(error)) wrong += 1;
        const isSkipped = wrong >= MAX_WRONG && (await this.#skip(line));
        if (!isSkipped) await running.failed();
      }
    this.#running.delete(line); // in the same breath as nobody asked again
  }

  /** False: who may see what is kept cannot be told now. */
  async #skip(line: Sequencer): Promise<boolean> {
    try {
      await this.#parts.judge(line);
    } catch {
      return false;
    }
    line.skip();
    return true;
  }

  /** Reads, and judges before it gives. */
  #judgedFeed(line: Sequencer): CatchUpFeed {
    const { feed, judge } = this.#parts;
    return {
      async standing(...asked) {
        const found = await feed.standing(...asked);
        await judge(line);
        return found;
      },
      async messages(...asked) {
        const found = await feed.messages(...asked);
        await judge(line);
        return found;
      },
    };
  }

  async #once(line: Sequencer, beginning: Beginning): Promise<void> {
    const { mayReorder, onRepaired } = this.#parts;
    if (line.isClosed) return;
    const feed = this.#judgedFeed(line);
    if (line.isNew) {
      const { pub, isAfterLoss = false } = beginning;
      await beginMidway(line, feed, {
        pub,
        readsBack: mayReorder || isAfterLoss,
      });
    } else {
      await repair(line, feed);
      onRepaired();
    }
  }
}

/** The repair of one line, however often it is tried. */
class Running {
  /** It is to be done once more: what was read may be too old. */
  again = true;
  #settled = new Gate();
  #retryMs = RETRY_MS;
  #failingSince: number | undefined;
  #isInTrouble = false;
  #wake: () => void = () => {};

  /** Resolves when nobody is to wait for it any longer. */
  get settled(): Promise<void> {
    return this.#settled.passed;
  }

  get isFailing(): boolean {
    return this.#failingSince !== undefined;
  }

  /** It is asked for again: tried at once, and waited for. */
  anew(): Promise<void> {
    this.again = true;
    if (this.#isInTrouble) this.#settled = new Gate();
    this.#isInTrouble = false;
    this.#failingSince = undefined;
    this.#retryMs = RETRY_MS;
    this.#wake();
    return this.settled;
  }

  /** Resolves when it is time to try again. */
  async failed(): Promise<void> {
    this.again = true;
    const now = performance.now();
    this.#failingSince ??= now;
    if (now - this.#failingSince >= TROUBLE_MS) {
      this.#isInTrouble = true;
      this.#settled.open();
    }
    await new Promise<void>((go) => {
      this.#wake = go;
      setTimeout(go, this.#retryMs).unref();
    });
    this.#retryMs = Math.min(this.#retryMs * 2, MAX_RETRY_MS);
  }

  end(): void {
    this.#settled.open();
  }
}
