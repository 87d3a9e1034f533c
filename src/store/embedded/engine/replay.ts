// Brings messages and streams back after a restart: the active streams from the database, then each
// record of the WAL. What the database has of a stream is not taken again. State: the greatest
// message id it met.

import { BrokerError } from "../../../broker/errors.ts";
import type { Message } from "../../../broker/model.ts";
import type { LiveStream } from "../steps/live-stream.ts";
import type { LiveStreams } from "../steps/live-streams.ts";
import {
  decodeStreamRecord,
  type EncodedEvent,
  type StreamEvent,
} from "../steps/stream-record.ts";
import type { StreamRows } from "../steps/stream-rows.ts";
import {
  type Memtable,
  type MemtableChannel,
  memtableRecord,
} from "./memtable.ts";
import {
  decodeRecord,
  ID_RESERVATION_RECORD,
  MESSAGE_RECORD,
  recordKind,
  STREAM_RECORD,
} from "./record.ts";

interface ReplayParts {
  readonly memtable: Memtable;
  readonly live: LiveStreams;
  readonly rows: StreamRows;
}

export class Replay {
  readonly #parts: ReplayParts;
  readonly #nowMs: number;
  #lastMessageId = 0;

  /** Takes the active streams from the database; each counts as heard of at `nowMs`. Throws `internal`. */
  constructor(parts: ReplayParts, nowMs: number) {
    this.#parts = parts;
    this.#nowMs = nowMs;
    const { live, rows, memtable } = parts;
    for (const { head, parts: firsts, events } of rows.active()) {
      const stream = live.begin(memtable.channel(head.key), head, nowMs);
      for (const first of firsts) stream.parts.add(first);
      for (const event of events) this.#take(stream, event);
      stream.stored = events.length;
    }
  }

  /** The greatest message id of all records. */
  get lastMessageId(): number {
    return this.#lastMessageId;
  }

  /** Puts one record back where it was. Throws `internal` when one before it is missing. */
  record(bytes: Buffer): void {
    if (recordKind(bytes) === STREAM_RECORD) this.#event(bytes);
    else this.#message(bytes);
  }

  #message(bytes: Buffer): void {
    const { memtable } = this.#parts;
    const { kind, message, dedupe, counted, isStream } = decodeRecord(bytes);
    this.#lastMessageId = Math.max(this.#lastMessageId, message.messageId);
    if (kind === ID_RESERVATION_RECORD) return;
    const channel = memtable.channel(message.key);
    const before = { head: channel.head, counted: channel.headCounted };
    const record = memtableRecord(channel, message, {
      ...{ remembered: dedupe, counted },
      ...{ bytes, start: 0, end: bytes.length },
    });
    if (kind === MESSAGE_RECORD) {
      const last = channel.log.at(-1)?.messageSeq;
      if (last !== undefined && message.messageSeq !== last + 1)
        throw new BrokerError("internal", {
          message: `The journal skips from ${last} to ${message.messageSeq} in channel ${message.key}`,
        });
    }
    memtable.assign(record);
    memtable.settle(record);
    // After a power cut the database may be ahead of the WAL: a seq that was shown is never given again.
    if (before.head > channel.head) {
      channel.head = before.head;
      channel.headCounted = before.counted;
    }
    channel.assigned = channel.head;
    channel.counted = channel.headCounted;
    if (isStream) this.#stream(channel, message);
  }

  #stream(channel: MemtableChannel, message: Message): void {
    const { live, rows } = this.#parts;
    const { key, messageSeq } = message;
    if (live.at(key, messageSeq) !== undefined) return;
    if (rows.isEnded(channel.number, messageSeq)) return;
    live.begin(channel, message, this.#nowMs).show(0);
  }

  #event(bytes: Buffer): void {
    const { memtable, live, rows } = this.#parts;
    const { stream: name, event, body } = decodeStreamRecord(bytes);
    const { key, messageSeq } = name;
    const stream = live.at(key, messageSeq);
    if (stream === undefined) {
      if (rows.isEnded(memtable.channel(key).number, messageSeq)) return;
      throw skips(key, messageSeq);
    }
    if (event.index < stream.assigned) return;
    if (event.index > stream.assigned) throw skips(key, messageSeq);
    this.#take(stream, event);
    const encoded: EncodedEvent = { bytes, start: 0, body, end: bytes.length };
    stream.pending.push(encoded);
    memtable.hold(bytes.length);
    live.touch(stream);
  }

  #take(stream: LiveStream, event: StreamEvent): void {
    this.#parts.live.change(stream, () => stream.assign(event));
    stream.show(event.index + 1);
  }
}

function skips(key: string, messageSeq: number): BrokerError {
  return new BrokerError("internal", {
    message: `The journal skips events of the stream with message ${messageSeq} in channel ${key}`,
  });
}
