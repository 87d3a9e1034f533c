// Lets readers follow logs. A cursor is a position in a log: it reads frames from the store, holds
// the frames that are published in the meantime, and is then live. A cursor whose reader is slow is
// paused, and reads the store again when the reader continues. So each reader gets every frame once
// and in order, and costs a bounded amount of memory. State: the open cursors of this node.

import { BrokerError } from "./errors.ts";
import type { Interest } from "./interest.ts";
import {
  isSameOffset,
  type LogName,
  type LogOffset,
  logBucket,
  logNameText,
  logTopic,
} from "./log-frame.ts";
import type { LogEnding, LogEvent, LogStore } from "./log-ports.ts";
import { groupTopic, type Topic, userTopic } from "./model.ts";
import type { ClusterEvent } from "./ports.ts";
import { ReaderTable } from "./reader-table.ts";

/** Frames that follow each other in a log. */
export interface LogBatch {
  readonly incarnation: number;
  readonly start: LogOffset;
  /** Offset after the last frame. */
  readonly next: LogOffset;
  /** Whole frames, in order. Empty if the reader has all frames. */
  readonly pieces: readonly Uint8Array[];
  /** True if the log has no frames after `next` now. */
  readonly isUpToDate: boolean;
  /** Set only if the log is closed and has no frames after `next`. */
  readonly closed: LogEnding | undefined;
}

/** `revoked`: the viewer may no longer read the log. `failed`: the store could not be read. */
export type CursorEnd = "closed" | "missing" | "deleted" | "lost" | "revoked" | "failed";

interface LogSink {
  /**
   * Receives the next frames. The first batch of a cursor may have none. Returns false to receive
   * nothing more until `resume`.
   */
  push(batch: LogBatch): boolean;
  /** Called once, unless the reader stops the cursor. */
  ended(why: CursorEnd): void;
}

interface LogCursor {
  resume(): void;
  /** Ends the cursor without a call of `ended`. */
  stop(): void;
}

/** A user on whose behalf a log is read. */
interface LogViewer {
  readonly uid: string;
  /** Group to which the log belongs. `undefined` for a personal channel. */
  readonly groupId: string | undefined;
  /** Returns whether the user may still read the log. Must not reject. */
  mayStay(): Promise<boolean>;
}

interface CursorTarget {
  readonly name: LogName;
  /** `undefined` for the tail. */
  readonly from: LogOffset | undefined;
  readonly viewer?: LogViewer | undefined;
  /** Bearer of a signed URL who reads, `undefined` for other readers. */
  readonly bearer?: string | undefined;
}

export interface LogCursors {
  /** Number of open cursors. */
  readonly size: number;
  /**
   * Opens a cursor. The first read has not begun when the promise resolves. Throws `overloaded` if
   * the node, the viewer or the bearer has too many cursors, or `unavailable`.
   */
  open(target: CursorTarget, sink: LogSink): Promise<LogCursor>;
  onEvent(event: ClusterEvent): void;
  /** Checks the viewers of a group's logs, because members may have been removed. */
  recheckGroup(groupId: string): void;
  close(): void;
}

interface CursorPorts {
  readonly store: Pick<LogStore, "readLog">;
  readonly interest: Pick<Interest, "listen" | "unlisten">;
  /** Maximum number of cursors of this node. */
  readonly maxCursors: number;
  /** Maximum number of cursors of one viewer. 0 means no limit. */
  readonly maxCursorsPerUser: number;
  readonly onError: (error: unknown, what: string) => void;
}

/** Maximum bytes of the frames of one read. */
const CURSOR_READ_BYTES = 65_536;
/** Maximum number of events that a cursor holds during a read. */
const MAX_HELD = 16;

type Status = "opening" | "reading" | "live" | "paused" | "ended";

export function createLogCursors(ports: CursorPorts): LogCursors {
  const { interest, maxCursors: maxReaders, maxCursorsPerUser: maxReadersPerUser } = ports;
  const table = new ReaderTable<Cursor>({ interest, maxReaders, maxReadersPerUser });

  function recheckGroup(groupId: string): void {
    for (const cursor of table.onTopic(groupTopic(groupId))) cursor.recheck();
  }

  return {
    get size() {
      return table.size;
    },

    async open(target, sink) {
      table.assertRoom(target);
      const cursor = new Cursor(target, sink, {
        ...ports,
        onEnd: () => table.leave(cursor),
      });
      try {
        await table.enter(cursor);
      } catch (error) {
        cursor.stop();
        throw error;
      }
      if (cursor.hasEnded) throw new BrokerError("unavailable"); // all cursors were closed
      cursor.start();
      return cursor;
    },

    onEvent(event) {
      switch (event.kind) {
        case "log":
          for (const cursor of table.ofSource(logNameText(event.name))) cursor.published(event);
          break;
        case "credential":
          for (const cursor of table.ofViewer(event.uid)) cursor.recheck();
          break;
        case "removal":
          recheckGroup(event.channelId);
          break;
        case "missed":
          for (const cursor of table.onTopic(event.topic)) cursor.reread();
          break;
        default:
      }
    },

    recheckGroup,

    close() {
      for (const cursor of table.all()) cursor.finish("failed");
    },
  };
}

class Cursor implements LogCursor {
  readonly source: string;
  readonly topics: ReadonlySet<Topic>;
  readonly viewer: LogViewer | undefined;
  readonly bearer: string | undefined;
  readonly #log: LogName;
  readonly #sink: LogSink;
  readonly #ports: Pick<CursorPorts, "store" | "onError"> & { onEnd(): void };
  #status: Status = "opening";
  /** `undefined` until the first read of a cursor that begins at the tail. */
  #position: LogOffset | undefined;
  #incarnation: number | undefined;
  /** Events that were published during the current read. */
  #held: LogEvent[] = [];
  /** True if an event was not held, so that the store must be read again. */
  #missed = false;
  /** True if the reader was notified that it has all frames. */
  #isUpToDate = false;
  /** Number of the last read. The result of an earlier read is ignored. */
  #turn = 0;

  constructor(
    { name, from, viewer, bearer }: CursorTarget,
    sink: LogSink,
    ports: Pick<CursorPorts, "store" | "onError"> & { onEnd(): void },
  ) {
    this.#log = name;
    this.#position = from;
    this.#sink = sink;
    this.#ports = ports;
    this.source = logNameText(name);
    this.viewer = viewer;
    this.bearer = bearer;
    this.topics = topicsOf(name, viewer);
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

  stop(): void {
    if (this.hasEnded) return;
    this.#status = "ended";
    this.#turn += 1;
    this.#held = [];
    this.#ports.onEnd();
  }

  finish(why: CursorEnd): void {
    if (this.hasEnded) return;
    this.stop();
    this.#sink.ended(why);
  }

  /** Reads the store again, because events may have been missed. */
  reread(): void {
    if (this.#status === "reading") this.#missed = true;
    else if (this.#status === "live") this.#run();
  }

  /** Checks whether the viewer may stay. A live cursor also reads the store again. */
  recheck(): void {
    const { viewer } = this;
    if (viewer === undefined || this.#status === "opening") return;
    if (this.#status === "paused") void this.#recheckPaused(viewer);
    else if (!this.hasEnded) this.#run();
  }

  published(event: LogEvent): void {
    if (this.#status === "live") this.#follow(event);
    else if (this.#status !== "reading") return;
    else if (this.#held.length < MAX_HELD) this.#held.push(event);
    else this.#missed = true;
  }

  async #recheckPaused(viewer: LogViewer): Promise<void> {
    const turn = this.#turn;
    const mayStay = await viewer.mayStay();
    if (this.#turn === turn && !mayStay) this.finish("revoked");
  }

  #run(): void {
    this.#catchUp().catch((error) => {
      this.#ports.onError(error, "Could not read a followed log");
      this.finish("failed");
    });
  }

  async #catchUp(): Promise<void> {
    this.#status = "reading";
    this.#held = [];
    this.#turn += 1;
    const turn = this.#turn;
    do {
      this.#missed = false;
      const range = { from: this.#position, maxBytes: CURSOR_READ_BYTES };
      const read = await this.#ports.store.readLog(this.#log, range);
      const mayStay = (await this.viewer?.mayStay()) ?? true;
      if (this.#turn !== turn) return;
      if (!mayStay) return this.finish("revoked");
      if (read.verdict !== "read") return this.finish(read.verdict);
      const { head, pieces, start, next } = read;
      const isUpToDate = isSameOffset(next, head.tail);
      this.#incarnation = head.incarnation;
      const batch = {
        ...{ incarnation: head.incarnation, start, next, pieces, isUpToDate },
        closed: isUpToDate ? head.closed : undefined,
      };
      if (!this.#push(batch)) return;
      if (!isUpToDate) this.#missed = true;
      else this.#applyHeld();
      if (this.#turn !== turn || this.#status !== "reading") return;
    } while (this.#missed);
    this.#status = "live";
  }

  /** Delivers the events that were held. Sets `#missed` if they do not follow the position. */
  #applyHeld(): void {
    const held = this.#held;
    this.#held = [];
    for (const event of held) {
      if (this.#status !== "reading") return;
      this.#follow(event);
    }
  }

  #follow(event: LogEvent): void {
    if (event.incarnation !== this.#incarnation) return this.reread();
    if (event.change === "deleted") return this.finish("deleted");
    const position = this.#position;
    if (position === undefined) return this.reread();
    const { from, tail, frame, closed, incarnation } = event;
    const isNext =
      isSameOffset(from, position) && (frame !== undefined || isSameOffset(from, tail));
    if (!isNext) {
      if (tail.position > position.position || closed !== undefined) this.reread();
      return;
    }
    const pieces = frame === undefined ? [] : [frame];
    this.#push({ incarnation, start: from, next: tail, pieces, isUpToDate: true, closed });
  }

  /** Returns false if the cursor must not deliver anything more now. */
  #push(batch: LogBatch): boolean {
    this.#position = batch.next;
    const isNews = batch.pieces.length > 0 || batch.closed !== undefined || !this.#isUpToDate;
    this.#isUpToDate = batch.isUpToDate;
    const wantsMore = isNews ? this.#sink.push(batch) : true;
    if (this.hasEnded) return false;
    if (batch.closed !== undefined) this.finish("closed");
    else if (!wantsMore) {
      this.#turn += 1;
      this.#status = "paused";
    }
    return !this.hasEnded && wantsMore;
  }
}

function topicsOf(name: LogName, viewer: LogViewer | undefined): ReadonlySet<Topic> {
  const topics = new Set([logTopic(logBucket(name))]);
  if (viewer === undefined) return topics;
  topics.add(userTopic(viewer.uid));
  if (viewer.groupId !== undefined) topics.add(groupTopic(viewer.groupId));
  return topics;
}
