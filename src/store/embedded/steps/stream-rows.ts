// The streams in the database. The content of a stream is its log. In addition, an active stream
// has a row that marks it as active, and an ended stream has rows that sort by the time of its end.
// The message of a stream is in the table `log`. State: the snapshots of ended streams that were
// read recently.

import { BrokerError } from "../../../broker/errors.ts";
import { LOG_START, visitEvents } from "../../../broker/log-frame.ts";
import type { LogEnding } from "../../../broker/log-ports.ts";
import {
  type ChannelKey,
  type Message,
  STREAM_CONTENT,
  STREAM_END,
  type StreamSnapshot,
} from "../../../broker/model.ts";
import type { StreamEnd } from "../../../broker/ports.ts";
import { givenEventId } from "../../../broker/stream-event.ts";
import {
  StreamFold,
  type StreamHead,
  stateAfter,
  type ViewLimits,
} from "../../../broker/stream-fold.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import { eventMark, SHARED_ID } from "../../event-ids.ts";
import { contentBytes } from "../../held-bytes.ts";
import { type ChannelRows, logKey, numberIn, numberKey } from "../engine/channel-rows.ts";
import { fieldsOf } from "../engine/database.ts";
import type { Memtable } from "../engine/memtable.ts";
import { decodeRecord } from "../engine/record.ts";
import { MAX_KEY_UNITS, MAX_LABEL_UNITS, type Tables } from "../engine/tables.ts";
import type { LiveStream } from "./live-stream.ts";
import type { OpenLog, OpenLogs } from "./open-logs.ts";
import type { StoredLogs } from "./stored-logs.ts";

const VERSION = 1;
const PRESENT = Buffer.from([VERSION]);
/** Maximum number of cached snapshots, enough for the streams on about two pages of history. */
const MAX_KEPT = 100;
const MAX_KEPT_BYTES = 128 * 1024;

/** A stream whose end is committed. */
export interface EndedStream {
  readonly log: OpenLog;
  readonly ending: LogEnding;
}

interface StreamRowsPorts {
  readonly tables: Tables;
  readonly rows: ChannelRows;
  readonly memtable: Pick<Memtable, "peek">;
  readonly logs: OpenLogs;
  readonly storedLogs: StoredLogs;
  readonly viewLimits: ViewLimits;
}

type StreamName = Pick<StreamHead, "key" | "clientMsgNo">;

export class StreamRows {
  readonly #ports: StreamRowsPorts;
  /** Snapshots of ended streams by log number. They never change. */
  readonly #snapshots = new BoundedMap<number, StreamSnapshot>(MAX_KEPT);

  constructor(ports: StreamRowsPorts) {
    this.#ports = ports;
  }

  get viewLimits(): ViewLimits {
    return this.#ports.viewLimits;
  }

  /** Puts the rows of a stream, except the rows of its log. Must be called inside `commit`. */
  put(stream: LiveStream): void {
    const { streamsActive, streamEnds } = this.#ports.tables;
    const { head, channel, endedMs, flushing } = stream;
    const active = numberKey(stream.log.number);
    if (!stream.isEndedBefore(flushing)) {
      if (!stream.isStoredActive) void streamsActive.put(active, PRESENT);
      return;
    }
    for (const scope of scopesOf(head.key)) {
      const endKey = [scope, endedMs, channel.number, head.messageSeq];
      void streamEnds.put(endKey, [VERSION, head.key, head.clientMsgNo]);
    }
    void streamsActive.remove(active);
  }

  /**
   * Removes the log and the rows of a stream that is not in memory. `number` is the number of its
   * channel. Must be called inside `commit`.
   */
  remove(number: number, { key, clientMsgNo, messageSeq }: StreamHead): void {
    const { tables, logs, storedLogs } = this.#ports;
    const log = this.#logNamed({ key, clientMsgNo });
    if (log === undefined || this.#seqOf(log) !== messageSeq) return;
    if (log.shown?.closed === undefined) void tables.streamsActive.remove(numberKey(log.number));
    else {
      const endedMs = this.#endedMs(log);
      for (const scope of scopesOf(key))
        void tables.streamEnds.remove([scope, endedMs, number, messageSeq]);
    }
    for (const _ of storedLogs.remove(log)); // the iteration removes the rows
    logs.forget(log);
    this.#snapshots.delete(log.number);
  }

  /** Yields the log numbers of active streams. */
  *active(): Generator<number> {
    for (const key of this.#ports.tables.streamsActive.getKeys({})) yield numberIn(key);
  }

  find(name: StreamName): EndedStream | undefined {
    const log = this.#logNamed(name);
    const ending = log?.shown?.closed;
    return log === undefined || ending === undefined ? undefined : { log, ending };
  }

  #logNamed({ key, clientMsgNo }: StreamName): OpenLog | undefined {
    if (!isStreamName({ key, clientMsgNo })) return undefined;
    const log = this.#ports.logs.find({ kind: "channel", key, clientMsgNo });
    return log?.shown?.status === "live" ? log : undefined;
  }

  /**
   * Returns a stream's log, or `undefined` if the log has been removed or does not belong to a
   * stream.
   */
  logOf(number: number): OpenLog | undefined {
    const log = this.#ports.logs.byNumber(number);
    return log?.shown?.status === "live" && log.name.kind === "channel" ? log : undefined;
  }

  /** Returns a stream's message, or `undefined` if the message has been removed. */
  messageOf(log: OpenLog): Message | undefined {
    const record = this.recordOf(log);
    if (record !== undefined) return decodeRecord(record).message;
    if (log.shown?.closed !== undefined) return undefined;
    throw new BrokerError("internal", {
      message: `The message of the active stream with the log number ${log.number} is missing. Restore the data folder from a backup.`,
    });
  }

  /** Returns the record of a stream's message, or `undefined` if the message has been removed. */
  recordOf(log: OpenLog): Buffer | undefined {
    const { name } = log;
    if (name.kind === "free") return undefined;
    return this.recordAt({ key: name.key, messageSeq: this.#seqOf(log) });
  }

  /**
   * Returns the record of a message that has its own row, or `undefined` if the message has been
   * removed.
   */
  recordAt({ key, messageSeq }: Pick<StreamHead, "key" | "messageSeq">): Buffer | undefined {
    const { tables, rows, memtable } = this.#ports;
    const recent = memtable.peek(key)?.log.find((record) => record.messageSeq === messageSeq);
    if (recent !== undefined) return recent.bytes.subarray(recent.start, recent.end);
    const number = rows.get(key)?.number;
    return number === undefined ? undefined : tables.log.get(logKey(number, messageSeq));
  }

  #seqOf(log: OpenLog): number {
    let seq = 0;
    const start = this.#ports.logs.frameAfter(log, LOG_START) ?? NO_FRAME;
    visitEvents(start, ({ detail }) => {
      seq = detail;
    });
    return seq;
  }

  #endedMs(log: OpenLog): number {
    let endedMs = 0;
    this.#visitPosted(log, ({ type, detail }) => {
      if (type === STREAM_END) endedMs = detail;
    });
    return endedMs;
  }

  /** Yields up to `limit` ends of a scope (see `scopesOf`) at `sinceMs` or later, newest first. */
  *ends(scope: string, sinceMs: number, limit: number): Generator<StreamEnd> {
    const range = { start: [scope, Number.MAX_SAFE_INTEGER], end: [scope, sinceMs] };
    const rows = this.#ports.tables.streamEnds.getRange({ ...range, reverse: true, limit });
    for (const { key, value } of rows) {
      const [, endedMs, , messageSeq] = key;
      const [channel, clientMsgNo] = fieldsOf(value, VERSION);
      yield {
        key: String(channel),
        clientMsgNo: String(clientMsgNo),
        messageSeq: Number(messageSeq),
        endedMs: Number(endedMs),
      };
    }
  }

  /** Returns the mark of an event id in an ended stream (see `event-ids.ts`). */
  markOf({ log }: EndedStream, clientMsgNo: string, eventId: string): string | undefined {
    const givenId = givenEventId(eventId);
    const marks: (string | undefined)[] = [];
    this.#visitPosted(log, (event) => {
      if (event.eventId === undefined || event.isHidden) return;
      if (givenEventId(event.eventId) !== givenId) return;
      const timestampMs = event.isTimed ? event.timestampMs : undefined;
      marks.push(eventMark({ ...event, clientMsgNo, timestampMs }));
    });
    return marks.length > 1 ? SHARED_ID : marks[0];
  }

  /**
   * Returns the number of UTF-16 code units of all text before an event, including text that
   * viewers are not shown.
   */
  textOffset({ log }: EndedStream, index: number): number | undefined {
    if (index < 0 || index > (log.shown?.records ?? 0)) return undefined;
    let units = 0;
    this.#visit(log, ({ type, data }, at) => {
      if (type === STREAM_CONTENT && at < index) units += data.length;
    });
    return units;
  }

  /**
   * Returns the snapshot of a message's stream, or `undefined` if the stream's end is not
   * committed.
   */
  snapshot(head: StreamHead, ended = this.find(head)): StreamSnapshot | undefined {
    if (ended === undefined) return undefined;
    const { log } = ended;
    const kept = this.#snapshots.get(log.number);
    if (kept !== undefined) return kept;
    const snapshot = this.#fold(head, ended);
    const bytes = contentBytes({ payload: NO_PAYLOAD, stream: snapshot });
    if (bytes <= MAX_KEPT_BYTES) this.#snapshots.set(log.number, snapshot);
    return snapshot;
  }

  #fold(head: StreamHead, { log, ending }: EndedStream): StreamSnapshot {
    const fold = new StreamFold(head, this.#ports.viewLimits);
    const state = stateAfter(ending);
    this.#visit(
      log,
      (event, index) => fold.add(event, event.type === STREAM_END ? state : "active", index),
      () => fold.isCut,
    );
    return fold.snapshot();
  }

  /** Adds the events of a log to a stream without events. */
  restore(stream: LiveStream, log: OpenLog): void {
    stream.showMessage();
    this.#visit(log, (event, index) => {
      const ending = event.type === STREAM_END ? log.shown?.closed : undefined;
      const placed = { ...event, index, ending, state: stateAfter(ending) };
      stream.assign(placed);
      stream.showEvent(placed);
    });
  }

  framesOf(log: OpenLog): Buffer {
    return Buffer.concat(this.#piecesOf(log));
  }

  #visit(log: OpenLog, visit: Visit, skipsRecords?: () => boolean): void {
    for (const piece of this.#piecesOf(log)) visitEvents(piece, visit, skipsRecords);
  }

  /**
   * Visits the events that `POST /event` or this node added. Skips the events of appended records.
   */
  #visitPosted(log: OpenLog, visit: Visit): void {
    this.#visit(log, visit, () => true);
  }

  #piecesOf(log: OpenLog): readonly Buffer[] {
    return this.#ports.logs.read(log, LOG_START, Number.MAX_SAFE_INTEGER)?.pieces ?? [];
  }
}

type Visit = Parameters<typeof visitEvents>[1];

const NO_FRAME = Buffer.alloc(0);
const NO_PAYLOAD = new Uint8Array(0);

export function isStreamName({ key, clientMsgNo }: StreamName): boolean {
  return key.length <= MAX_KEY_UNITS && clientMsgNo.length <= MAX_LABEL_UNITS;
}

/** Returns the names of the scopes under which the end of a stream in the channel is stored. */
export function scopesOf(key: ChannelKey): readonly string[] {
  return isPersonal(key) ? [...usersOf(key)].map(userScope) : [key];
}

export function userScope(uid: string): string {
  return `u:${uid}`;
}

function isPersonal(key: ChannelKey): boolean {
  return key.startsWith("1:");
}

/** Returns the users of a personal channel, or an empty set for a group. Uids contain no `@`. */
export function usersOf(key: ChannelKey): ReadonlySet<string> {
  return new Set(isPersonal(key) ? key.slice(2).split("@") : []);
}
