// Reads a channel's messages: older messages from the database, newer messages from the memtable.
// Must never return a message that is uncommitted or has expired. A message that cannot be read is
// reported and left out, so that it does not hide the other messages.

import type { ChannelKey, Message } from "../../../broker/model.ts";
import type { Clock, HistoryRange, HistorySlice, ResumeSeqs } from "../../../broker/ports.ts";
import { ifReadable } from "../../../lib/readable.ts";
import { contentBytes } from "../../held-bytes.ts";
import type { ChannelRows } from "../engine/channel-rows.ts";
import type { LogRows } from "../engine/log-rows.ts";
import type { Memtable, MemtableRecord } from "../engine/memtable.ts";
import { decodeRecord, peekTimes } from "../engine/record.ts";

interface HistoryPorts {
  readonly logRows: Pick<LogRows, "scan" | "scanReverse">;
  readonly rows: ChannelRows;
  readonly memtable: Memtable;
  readonly withStream: (message: Message) => Message;
  readonly clock: Clock;
  readonly retentionMs: number;
  readonly onError: (error: Error, what: string) => void;
}

/** A range of seqs that includes both ends. */
interface SeqRange {
  readonly from: number;
  readonly to: number;
  readonly reverse: boolean;
}

const NEWEST = { limit: 1, maxBytes: 1 };

/**
 * Decodes the current message. Must be called before the next message is read. Returns `undefined`
 * if the message cannot be read.
 */
type DecodeMessage = () => Message | undefined;

export class History {
  readonly #ports: HistoryPorts;

  constructor(ports: HistoryPorts) {
    this.#ports = ports;
  }

  headSeq(key: ChannelKey): number {
    const { memtable, rows } = this.#ports;
    return memtable.peek(key)?.head ?? rows.get(key)?.head ?? 0;
  }

  resumeSeqs(key: ChannelKey, lastSeq: number, lastId: number): ResumeSeqs {
    const isEverythingCommon = lastId === 0 || lastSeq === 0;
    const lastCommonSeq = isEverythingCommon ? lastSeq : this.#lastCommonSeq(key, lastSeq, lastId);
    return { headSeq: this.headSeq(key), lastCommonSeq };
  }

  /**
   * Returns the highest seq, at most `lastSeq`, up to which no message has an id above `lastId`.
   */
  #lastCommonSeq(key: ChannelKey, lastSeq: number, lastId: number): number {
    const hasCommonIds = (seq: number) => this.#newestId(key, seq) <= lastId;
    if (hasCommonIds(lastSeq)) return lastSeq;
    let [low, high] = [0, lastSeq - 1];
    while (low < high) {
      const middle = high - Math.floor((high - low) / 2);
      if (hasCommonIds(middle)) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  read(key: ChannelKey, range: HistoryRange): HistorySlice {
    const messages: Message[] = [];
    let bytes = 0;
    for (const decode of this.#shown(key, range)) {
      if (messages.length >= range.limit) return { messages, more: true };
      const message = decode();
      if (message === undefined) continue;
      bytes += contentBytes(message);
      const isOver = messages.length > 0 && bytes > range.maxBytes;
      if (isOver) return { messages, more: true };
      messages.push(message);
    }
    return { messages, more: false };
  }

  #newestId(key: ChannelKey, toSeq: number): number {
    const range = { ...{ fromSeq: 1, toSeq, reverse: true }, ...NEWEST };
    return this.read(key, range).messages[0]?.messageId ?? 0;
  }

  *#shown(key: ChannelKey, range: HistoryRange): Generator<DecodeMessage> {
    const { memtable, rows } = this.#ports;
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
    if (reverse) yield* this.#fromMemtable(log, newer);
    yield* this.#fromTable(number, older);
    if (!reverse) yield* this.#fromMemtable(log, newer);
  }

  *#fromMemtable(
    log: readonly MemtableRecord[],
    { from, to, reverse }: SeqRange,
  ): Generator<DecodeMessage> {
    const memtableFrom = log[0]?.messageSeq ?? 0;
    const step = reverse ? -1 : 1;
    for (let seq = reverse ? to : from; seq >= from && seq <= to; seq += step) {
      const record = log[seq - memtableFrom];
      if (record === undefined) continue;
      const { bytes, start, end } = record;
      const messageBytes = bytes.subarray(start, end);
      if (this.#isShown(messageBytes)) yield () => this.#decode(messageBytes);
    }
  }

  *#fromTable(number: number, { from, to, reverse }: SeqRange): Generator<DecodeMessage> {
    const { logRows } = this.#ports;
    const records = reverse
      ? logRows.scanReverse(number, from, to)
      : logRows.scan(number, from, to);
    for (const { bytes } of records) if (this.#isShown(bytes)) yield () => this.#decode(bytes);
  }

  #decode(record: Buffer): Message | undefined {
    return this.#readable(() => {
      const { message, isStream } = decodeRecord(record);
      return isStream ? this.#ports.withStream(message) : message;
    });
  }

  /**
   * Returns false if the message has expired, is older than the retention time or cannot be read.
   */
  #isShown(record: Buffer): boolean {
    const times = this.#readable(() => peekTimes(record));
    if (times === undefined) return false;
    const { clock, retentionMs } = this.#ports;
    const nowMs = clock();
    return nowMs < times.expiresAtMs && nowMs < times.acceptedMs + retentionMs;
  }

  #readable<Result>(read: () => Result): Result | undefined {
    const what = "Could not read a stored message, so it is left out of the history";
    return ifReadable(read, what, this.#ports.onError);
  }
}
