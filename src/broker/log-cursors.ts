// Lets readers follow logs, each with a cursor at an offset (see cursor.ts). State: open cursors.

import {
  Cursor,
  type CursorEnd,
  type CursorFeed,
  type CursorRead,
  type CursorStep,
  type CursorViewer,
} from "./cursor.ts";
import { BrokerError } from "./errors.ts";
import type { Interest } from "./interest.ts";
import {
  frameOf,
  isSameOffset,
  type LogName,
  type LogOffset,
  logBucket,
  logNameText,
  logTopic,
  recordCount,
} from "./log-frame.ts";
import type { LogEnding, LogEvent, LogStore } from "./log-ports.ts";
import { type ChannelEvent, GROUP_CHANNEL, groupTopic, type Topic, userTopic } from "./model.ts";
import type { ClusterEvent } from "./ports.ts";
import { ReaderTable } from "./reader-table.ts";

/** Consecutive frames of a log. */
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

interface LogSink {
  /**
   * Receives the next frames. The first batch of a cursor may be empty. Returns false to receive no
   * further batch until `resume`.
   */
  push(batch: LogBatch): boolean;
  /** Called once when the cursor ends, unless the reader stops it. */
  ended(why: CursorEnd): void;
}

interface LogCursor {
  resume(): void;
  /** Ends the cursor without calling `ended`. */
  stop(): void;
}

/** A user on whose behalf a log is read. */
interface LogViewer extends CursorViewer {
  /** Group to which the log belongs. `undefined` for a personal channel. */
  readonly groupId: string | undefined;
}

export interface CursorTarget {
  readonly name: LogName;
  /** Offset at which the cursor begins. `undefined` means the end of the log. */
  readonly from: LogOffset | undefined;
  readonly viewer?: LogViewer | undefined;
  /** Bearer of the signed URL that is used to read, or a name that waiting appends share. */
  readonly bearer?: string | undefined;
}

export interface LogCursors {
  /** Number of open cursors. */
  readonly size: number;
  /**
   * Opens a cursor. Nothing has been pushed to the sink when the promise resolves. Throws
   * `overloaded` if the node, the viewer or the bearer has reached its maximum number of cursors.
   * Throws `unavailable` if all cursors are closed during the call. Also throws the error of a
   * failed subscription.
   */
  open(target: CursorTarget, sink: LogSink): Promise<LogCursor>;
  onEvent(event: ClusterEvent): void;
  /**
   * Checks whether the viewers of a group's logs may still read, because members may have been
   * removed.
   */
  recheckGroup(groupId: string): void;
  close(): void;
}

interface CursorPorts {
  readonly store: Pick<LogStore, "readLog">;
  readonly interest: Pick<Interest, "listen" | "unlisten">;
  readonly maxCursors: number;
  /** Maximum number of cursors of one viewer. 0 means no limit. */
  readonly maxCursorsPerUser: number;
  readonly onError: (error: unknown, what: string) => void;
}

const CURSOR_READ_BYTES = 65_536;
/** Maximum number of events that a cursor holds during a read. */
const MAX_HELD = 16;

/**
 * A change to a log, or an event of the stream that the log belongs to. For a channel's stream,
 * Redis publishes only the event.
 */
type LogNews = LogEvent | ChannelEvent;

export function createLogCursors(ports: CursorPorts): LogCursors {
  const { interest, maxCursors: maxReaders, maxCursorsPerUser: maxReadersPerUser } = ports;
  const table = new ReaderTable<Cursor<LogBatch, LogNews>>({
    interest,
    maxReaders,
    maxReadersPerUser,
  });

  function recheckGroup(groupId: string): void {
    for (const cursor of table.onTopic(groupTopic(groupId))) cursor.recheck();
  }

  return {
    get size() {
      return table.size;
    },

    async open(target, sink) {
      const { name, viewer, bearer } = target;
      table.assertRoom(target);
      const source = logNameText(name);
      const place = { source, topics: topicsOf(name, viewer), viewer, bearer };
      const cursor = new Cursor(place, new LogFeed(target, sink, ports.store), {
        maxHeld: MAX_HELD,
        onEnd: () => table.leave(cursor),
        onError: (error) =>
          ports.onError(error, "Could not read a log for a client that follows it"),
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
          if (table.size === 0) break;
          for (const cursor of table.ofSource(event.nameText)) cursor.published(event);
          break;
        case "event": {
          const { key, clientMsgNo, stream } = event.event;
          if (stream === undefined || table.size === 0) break;
          const source = logNameText({ kind: "channel", key, clientMsgNo });
          for (const cursor of table.ofSource(source)) cursor.published(event.event);
          break;
        }
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

/** The reader of a log, and its offset. */
class LogFeed implements CursorFeed<LogBatch, LogNews> {
  readonly #log: LogName;
  readonly #sink: LogSink;
  readonly #store: Pick<LogStore, "readLog">;
  /** `undefined` until the first read of a cursor that begins at the tail. */
  #position: LogOffset | undefined;
  #incarnation: number | undefined;
  /** Number of records before the position, or a lower bound if the exact number is not known. */
  #records = 0;
  /** True if the reader has been notified that it has all frames. */
  #isUpToDate = false;

  constructor({ name, from }: CursorTarget, sink: LogSink, store: Pick<LogStore, "readLog">) {
    this.#log = name;
    this.#position = from;
    this.#sink = sink;
    this.#store = store;
  }

  async read(): Promise<CursorRead<LogBatch>> {
    const range = { from: this.#position, maxBytes: CURSOR_READ_BYTES };
    const read = await this.#store.readLog(this.#log, range);
    if (read.verdict !== "read") return { end: read.verdict };
    const { head, pieces, start, next } = read;
    const { incarnation } = head;
    const isUpToDate = isSameOffset(next, head.tail);
    this.#incarnation = incarnation;
    if (isUpToDate) this.#records = head.records;
    const closed = isUpToDate ? head.closed : undefined;
    const batch = { incarnation, start, next, pieces, isUpToDate, closed };
    return { items: [batch], isUpToDate, isEnded: closed !== undefined };
  }

  judge(event: LogNews): CursorStep<LogBatch> {
    if (!("incarnation" in event))
      return (event.stream?.nextIndex ?? 0) > this.#records ? "reread" : "old";
    if (event.incarnation !== this.#incarnation) return "reread";
    if (event.change === "deleted") return { end: "deleted" };
    const position = this.#position;
    if (position === undefined) return "reread";
    const { from, tail, frame, closed, incarnation } = event;
    const isNext =
      isSameOffset(from, position) && (frame !== undefined || isSameOffset(from, tail));
    if (!isNext)
      return tail.position > position.position || closed !== undefined ? "reread" : "old";
    const pieces = frame === undefined ? [] : [frame];
    if (frame !== undefined) this.#records = recordsBefore(frame);
    const batch = { incarnation, start: from, next: tail, pieces, isUpToDate: true, closed };
    return { item: batch };
  }

  push(batch: LogBatch): ReturnType<CursorFeed<LogBatch, LogNews>["push"]> {
    const { next, pieces, closed, isUpToDate } = batch;
    this.#position = next;
    const isNews = pieces.length > 0 || closed !== undefined || !this.#isUpToDate;
    this.#isUpToDate = isUpToDate;
    const wantsMore = isNews ? this.#sink.push(batch) : true;
    if (closed !== undefined) return "ended";
    return wantsMore ? "next" : "paused";
  }

  ended(why: CursorEnd): void {
    this.#sink.ended(why);
  }
}

function recordsBefore(frame: Uint8Array): number {
  const whole = frameOf(frame);
  return whole.first + recordCount(whole);
}

function topicsOf(name: LogName, viewer: LogViewer | undefined): ReadonlySet<Topic> {
  const topics = new Set([logTopic(logBucket(name))]);
  if (name.kind === "channel") topics.add(channelTopic(name.key));
  if (viewer === undefined) return topics;
  topics.add(userTopic(viewer.uid));
  if (viewer.groupId !== undefined) topics.add(groupTopic(viewer.groupId));
  return topics;
}

/** Returns a topic on which a channel's stream events are published. */
function channelTopic(key: string): Topic {
  const [type, id = ""] = [key.slice(0, 1), key.slice(2)];
  return type === String(GROUP_CHANNEL) ? groupTopic(id) : userTopic(id.split("@")[0] ?? "");
}
