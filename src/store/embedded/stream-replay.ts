// Brings streams back after a restart: the active ones from the database, then what the WAL has of any. What the database has already is
// not taken again. No state but the parts'.

import { BrokerError } from "../../broker/errors.ts";
import type { Message } from "../../broker/model.ts";
import type { LiveStream } from "./live-stream.ts";
import type { LiveStreams } from "./live-streams.ts";
import {
  decodeStreamRecord,
  type EncodedEvent,
  type StreamEvent,
} from "./stream-record.ts";
import type { StreamRows } from "./stream-rows.ts";
import type { Tail, TailChannel } from "./tail.ts";

export interface StreamReplayParts {
  readonly tail: Tail;
  readonly live: LiveStreams;
  readonly rows: StreamRows;
}

export class StreamReplay {
  readonly #parts: StreamReplayParts;
  readonly #nowMs: number;

  /** Takes the active streams from the database; each counts as heard of at `nowMs`. Throws `internal`. */
  constructor(parts: StreamReplayParts, nowMs: number) {
    this.#parts = parts;
    this.#nowMs = nowMs;
    const { live, rows, tail } = parts;
    for (const { head, parts: firsts, events } of rows.active()) {
      const stream = live.begin(tail.channel(head.key), head, nowMs);
      for (const first of firsts) stream.parts.add(first);
      for (const event of events) this.#take(stream, event);
      stream.stored = events.length;
    }
  }

  /** A stream's message from the WAL. */
  message(channel: TailChannel, message: Message): void {
    const { live, rows } = this.#parts;
    const { key, messageSeq } = message;
    if (live.at(key, messageSeq) !== undefined) return;
    if (rows.isEnded(channel.number, messageSeq)) return;
    live.begin(channel, message, this.#nowMs).show(0);
  }

  /** An event's record from the WAL. Throws `internal` when an earlier one of its stream is missing. */
  event(bytes: Buffer): void {
    const { tail, live, rows } = this.#parts;
    const { stream: name, event, body } = decodeStreamRecord(bytes);
    const { key, messageSeq } = name;
    const stream = live.at(key, messageSeq);
    if (stream === undefined) {
      if (rows.isEnded(tail.channel(key).number, messageSeq)) return;
      throw skips(key, messageSeq);
    }
    if (event.index < stream.placed) return;
    if (event.index > stream.placed) throw skips(key, messageSeq);
    this.#take(stream, event);
    const encoded: EncodedEvent = { bytes, start: 0, body, end: bytes.length };
    stream.pending.push(encoded);
    tail.hold(bytes.length);
    live.touch(stream);
  }

  #take(stream: LiveStream, event: StreamEvent): void {
    this.#parts.live.change(stream, () => stream.place(event));
    stream.show(event.index + 1);
  }
}

function skips(key: string, messageSeq: number): BrokerError {
  return new BrokerError("internal", {
    message: `The journal skips events of the stream with message ${messageSeq} in channel ${key}`,
  });
}
