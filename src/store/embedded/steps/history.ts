// Reads a channel's messages: the database up to where the memtable begins, the memtable from
// there. No state of its own. Never shows a message before it is committed, nor one that expired.

import type { ChannelKey, Message } from "../../../broker/model.ts";
import type { Clock, HistoryRange, HistorySlice, ResumeSeqs } from "../../../broker/ports.ts";
import { contentBytes } from "../../held-bytes.ts";
import type { ChannelRows } from "../engine/channel-rows.ts";
import type { LogRows } from "../engine/log-rows.ts";
import type { Memtable, MemtableRecord } from "../engine/memtable.ts";
import { decodeRecord, peekTimes, type RecordTimes } from "../engine/record.ts";

interface HistoryParts {
  readonly logRows: Pick<LogRows, "up" | "down">;
  readonly rows: ChannelRows;
  readonly memtable: Memtable;
  /** Makes a stream's message, as its record has it, whole. */
  readonly withStream: (message: Message, number: number) => Message;
  readonly clock: Clock;
  /** Infinity: for ever. */
  readonly retentionMs: number;
}

/** Inclusive seqs, clipped to what the channel has. */
interface Part {
  readonly from: number;
  readonly to: number;
  readonly reverse: boolean;
}

const ONE = { limit: 1, maxBytes: 1 };

/** Makes a message whole; to be called before the next one is asked for, or not at all. */
type Take = () => Message;

export class History {
  readonly #parts: HistoryParts;

  constructor(parts: HistoryParts) {
    this.#parts = parts;
  }

  /** The port's `headSeq`. */
  headSeq(key: ChannelKey): number {
    const { memtable, rows } = this.#parts;
    return memtable.peek(key)?.head ?? rows.get(key)?.head ?? 0;
  }

  /** The port's `resumeSeqs`. */
  resumeSeqs(key: ChannelKey, lastSeq: number, lastId: number): ResumeSeqs {
    const isKnown = lastId === 0 || lastSeq === 0;
    const lastCommonSeq = isKnown ? lastSeq : this.#lastCommonSeq(key, lastSeq, lastId);
    return { headSeq: this.headSeq(key), lastCommonSeq };
  }

  /** Ids grow with seqs. */
  #lastCommonSeq(key: ChannelKey, lastSeq: number, lastId: number): number {
    const isShared = (through: number) => this.#newestId(key, through) <= lastId;
    if (isShared(lastSeq)) return lastSeq;
    let [low, high] = [0, lastSeq - 1];
    while (low < high) {
      const middle = high - Math.floor((high - low) / 2);
      if (isShared(middle)) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** The port's `readMessages`. */
  read(key: ChannelKey, range: HistoryRange): HistorySlice {
    const messages: Message[] = [];
    let bytes = 0;
    for (const take of this.#shown(key, range)) {
      if (messages.length >= range.limit) return { messages, more: true };
      const message = take();
      bytes += contentBytes(message);
      const isOver = messages.length > 0 && bytes > range.maxBytes;
      if (isOver) return { messages, more: true };
      messages.push(message);
    }
    return { messages, more: false };
  }

  /** Of what is shown through that seq; 0: nothing is. */
  #newestId(key: ChannelKey, toSeq: number): number {
    const range = { ...{ fromSeq: 1, toSeq, reverse: true }, ...ONE };
    return this.read(key, range).messages[0]?.messageId ?? 0;
  }

  /** Every message of the range that is shown, in the order asked for. */
  *#shown(key: ChannelKey, range: HistoryRange): Generator<Take> {
    const { memtable, rows } = this.#parts;
    const active = memtable.peek(key);
    const channel = active ?? rows.get(key);
    if (channel === undefined) return;
    const log = active?.log ?? [];
    const { reverse } = range;
    const from = Math.max(range.fromSeq, 1);
    const to = Math.min(range.toSeq, channel.head);
    const memtableFrom = log[0]?.messageSeq ?? channel.head + 1;
    const older = { from, to: Math.min(to, memtableFrom - 1), reverse };
    const newer = { from: Math.max(from, memtableFrom), to, reverse };
    const { number } = channel;
    if (reverse) yield* this.#fromMemtable(log, number, newer);
    yield* this.#fromTable(number, older);
    if (!reverse) yield* this.#fromMemtable(log, number, newer);
  }

  *#fromMemtable(
    log: readonly MemtableRecord[],
    number: number,
    { from, to, reverse }: Part,
  ): Generator<Take> {
    const memtableFrom = log[0]?.messageSeq ?? 0;
    const step = reverse ? -1 : 1;
    for (let seq = reverse ? to : from; seq >= from && seq <= to; seq += step) {
      const record = log[seq - memtableFrom];
      if (record === undefined) continue;
      const { bytes, start, end } = record;
      if (this.#isShown(peekTimes(bytes, start)))
        yield () => this.#whole(bytes.subarray(start, end), number);
    }
  }

  *#fromTable(number: number, { from, to, reverse }: Part): Generator<Take> {
    const { logRows } = this.#parts;
    const records = reverse ? logRows.down(number, from, to) : logRows.up(number, from, to);
    for (const { bytes } of records)
      if (this.#isShown(peekTimes(bytes))) yield () => this.#whole(bytes, number);
  }

  /** A message, a stream's with its stream. */
  #whole(record: Buffer, number: number): Message {
    const { message, isStream } = decodeRecord(record);
    return isStream ? this.#parts.withStream(message, number) : message;
  }

  #isShown({ timestampMs, expiresAtMs }: RecordTimes): boolean {
    const { clock, retentionMs } = this.#parts;
    const nowMs = clock();
    if (nowMs >= expiresAtMs) return false;
    return nowMs < timestampMs + retentionMs;
  }
}
