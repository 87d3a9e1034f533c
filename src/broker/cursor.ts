// A cursor follows a log or a stream's events for one reader. It first reads the store, and holds
// the events that are published during the read. Afterwards it is live: it passes on each event as
// soon as the event is published. A cursor whose reader is slow is paused, and reads the store
// again when the reader continues. In this way, a reader gets every item once and in order, and
// uses a bounded amount of memory. The `CursorFeed` of a cursor stores the position, and defines
// how items are read and ordered.

import type { Topic } from "./model.ts";
import type { Reader } from "./reader-table.ts";

/**
 * `revoked`: the viewer may no longer read. `failed`: the store could not be read, or all cursors
 * were closed.
 */
export type CursorEnd = "closed" | "missing" | "deleted" | "lost" | "revoked" | "failed";

/** A user on whose behalf a cursor reads. */
export interface CursorViewer {
  readonly uid: string;
  /** Resolves to true if the user may still read. Must not reject. */
  mayStay(): Promise<boolean>;
}

/** Result of reading the store from a cursor's position. */
export type CursorRead<Item> =
  | {
      readonly items: Iterable<Item>;
      /** True if the store has no further items now. */
      readonly isUpToDate: boolean;
      /** True if there will never be further items. */
      readonly isEnded: boolean;
    }
  | { readonly end: CursorEnd };

/**
 * Defines how a cursor treats a published event. `old` means that the reader already has the event.
 * `reread` means that items are missing before the event, so the store must be read.
 */
export type CursorStep<Item> =
  | { readonly item: Item }
  | { readonly end: CursorEnd }
  | "old"
  | "reread";

/** The reader of a cursor, and its position. */
export interface CursorFeed<Item, Event> {
  read(): Promise<CursorRead<Item>>;
  /** Compares an event with the position. */
  judge(event: Event): CursorStep<Item>;
  /**
   * Passes an item to the reader and advances the position past it. Returns `ended` if the item is
   * the last item, and `paused` if the reader accepts no further items until `resume`.
   */
  push(item: Item): "next" | "paused" | "ended";
  /** Called once when the cursor ends, unless it was stopped or never started. */
  ended(why: CursorEnd): void;
}

interface CursorPlace extends Reader {
  readonly viewer: CursorViewer | undefined;
}

interface CursorPorts {
  /**
   * Maximum number of events that are held during a read. If more events are published, the store
   * is read again.
   */
  readonly maxHeld: number;
  readonly onEnd: () => void;
  /** Called if the store could not be read. */
  readonly onError: (error: unknown) => void;
}

type Status = "opening" | "reading" | "live" | "paused" | "ended";

export class Cursor<Item, Event> implements CursorPlace {
  readonly source: string;
  readonly topics: ReadonlySet<Topic>;
  readonly viewer: CursorViewer | undefined;
  readonly bearer: string | undefined;
  readonly #feed: CursorFeed<Item, Event>;
  readonly #ports: CursorPorts;
  #status: Status = "opening";
  /** Events that were published during the current read. */
  #held: Event[] = [];
  /** True if the store must be read again, for example because an event was not held. */
  #missed = false;
  /**
   * Increases when the cursor starts to read, is paused or ends. The result of a read that began at
   * a lower value is ignored.
   */
  #turn = 0;

  constructor(
    { source, topics, viewer, bearer }: CursorPlace,
    feed: CursorFeed<Item, Event>,
    ports: CursorPorts,
  ) {
    this.source = source;
    this.topics = topics;
    this.viewer = viewer;
    this.bearer = bearer;
    this.#feed = feed;
    this.#ports = ports;
  }

  get hasEnded(): boolean {
    return this.#status === "ended";
  }

  start(): void {
    this.#run();
  }

  resume(): void {
    if (this.#status === "paused") this.#run();
  }

  /** Ends the cursor without calling `ended`. */
  stop(): void {
    if (this.hasEnded) return;
    this.#status = "ended";
    this.#turn += 1;
    this.#held = [];
    this.#ports.onEnd();
  }

  finish(why: CursorEnd): void {
    const isStarted = this.#status !== "opening" && !this.hasEnded;
    this.stop();
    if (isStarted) this.#feed.ended(why);
  }

  /**
   * Reads the store again, because events may have been missed. Has no effect before the first read
   * or while the cursor is paused, because a read follows anyway.
   */
  reread(): void {
    if (this.#status === "reading") this.#missed = true;
    else if (this.#status === "live") this.#run();
  }

  /**
   * Checks whether the viewer may still read. If the cursor is not paused, the call reads the store
   * again, because every read includes the check. Has no effect before the first read.
   */
  recheck(): void {
    const { viewer } = this;
    if (viewer === undefined || this.#status === "opening") return;
    if (this.#status === "paused") void this.#recheckPaused(viewer);
    else if (!this.hasEnded) this.#run();
  }

  published(event: Event): void {
    if (this.#status === "live") this.#follow(event);
    else if (this.#status !== "reading") return;
    else if (this.#held.length < this.#ports.maxHeld) this.#held.push(event);
    else this.#missed = true;
  }

  async #recheckPaused(viewer: CursorViewer): Promise<void> {
    const turn = this.#turn;
    const mayStay = await viewer.mayStay();
    if (this.#turn === turn && !mayStay) this.finish("revoked");
  }

  #run(): void {
    this.#turn += 1;
    const turn = this.#turn;
    this.#catchUp(turn).catch((error) => {
      if (this.#turn !== turn) return; // a later read replaces this one, or the cursor has ended
      this.#ports.onError(error);
      this.finish("failed");
    });
  }

  async #catchUp(turn: number): Promise<void> {
    this.#status = "reading";
    this.#held = [];
    do {
      this.#missed = false;
      const read = await this.#feed.read();
      const mayStay = (await this.viewer?.mayStay()) ?? true;
      if (this.#turn !== turn) return;
      if (!mayStay) return this.finish("revoked");
      if ("end" in read) return this.finish(read.end);
      for (const item of read.items) if (!this.#push(item)) return;
      if (read.isEnded) return this.finish("closed");
      if (read.isUpToDate) this.#applyHeld();
      else this.#missed = true;
      if (this.#turn !== turn || this.#status !== "reading") return;
    } while (this.#missed);
    this.#status = "live";
  }

  /** Delivers the held events. Sets `#missed` if they do not follow the position. */
  #applyHeld(): void {
    const held = this.#held;
    this.#held = [];
    for (const event of held) {
      if (this.#status !== "reading") return;
      this.#follow(event);
    }
  }

  #follow(event: Event): void {
    const step = this.#feed.judge(event);
    if (step === "reread") this.reread();
    else if (step === "old") return;
    else if ("end" in step) this.finish(step.end);
    else this.#push(step.item);
  }

  /** Delivers an item. Returns false if the cursor must not deliver further items now. */
  #push(item: Item): boolean {
    const outcome = this.#feed.push(item);
    if (this.hasEnded) return false;
    if (outcome === "ended") this.finish("closed");
    else if (outcome === "paused") {
      this.#turn += 1;
      this.#status = "paused";
    }
    return outcome === "next";
  }
}
