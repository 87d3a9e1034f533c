// Visits all open feeds of server-sent events in turn. A visit keeps proxies from closing the
// connection, and ends the feed if its reader may no longer read. State: the feeds by slot.

/** Number of slots. Visiting one slot per tick spreads the work. */
const SLOTS = 15;
const KEEP_ALIVE_MS = 15_000;

/**
 * Resolves to true if the reader may continue. Called at each visit to the feed. Must not reject.
 */
export type MayStay = () => Promise<boolean>;

export interface VisitedFeed {
  /** Called at each visit, before `MayStay`. */
  keepAlive(): void;
  /** Called if the reader may not continue. */
  end(): void;
}

export class FeedWheel {
  readonly #slots = Array.from({ length: SLOTS }, () => new Map<VisitedFeed, MayStay>());
  readonly #tickMs: number;
  #count = 0;
  #visitedSlot = 0;
  #timer: NodeJS.Timeout | undefined;

  /** `keepAliveMs` is the interval between two visits to a feed. */
  constructor(keepAliveMs: number = KEEP_ALIVE_MS) {
    this.#tickMs = keepAliveMs / SLOTS;
  }

  add(feed: VisitedFeed, mayStay: MayStay): void {
    this.#slots[this.#count % SLOTS]?.set(feed, mayStay);
    this.#count += 1;
    this.#timer ??= setInterval(() => this.#tick(), this.#tickMs).unref();
  }

  delete(feed: VisitedFeed): void {
    for (const slot of this.#slots) slot.delete(feed);
    if (this.#slots.some((slot) => slot.size > 0)) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }

  #tick(): void {
    this.#visitedSlot = (this.#visitedSlot + 1) % SLOTS;
    for (const [feed, mayStay] of this.#slots[this.#visitedSlot] ?? []) {
      feed.keepAlive();
      void endUnless(mayStay, feed);
    }
  }
}

async function endUnless(mayStay: MayStay, feed: VisitedFeed): Promise<void> {
  if (!(await mayStay())) feed.end();
}
