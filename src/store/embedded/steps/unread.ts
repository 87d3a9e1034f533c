// Counts unread messages: visible messages with a red dot after a read position. A count costs only
// a few reads, because each record stores how many messages, up to and including its own, have a
// red dot and do not expire. Messages that expire are counted one by one, newest first, up to
// `MAX_EXPIRING` messages. A `ChannelState` must not be used after an `await`.

import type { ChannelKey, MessageHead } from "../../../broker/model.ts";
import type { Clock } from "../../../broker/ports.ts";
import { ifReadable } from "../../../lib/readable.ts";
import type { ChannelRows } from "../engine/channel-rows.ts";
import type { LogRows } from "../engine/log-rows.ts";
import type { Memtable, MemtableChannel } from "../engine/memtable.ts";
import {
  expires,
  FROM_UID,
  hasRedDot,
  peekCounted,
  peekHead,
  peekText,
  peekTimes,
  type RecordTimes,
} from "../engine/record.ts";
import type { ConversationRows, ExpiringRow } from "./conversation-rows.ts";

/** Maximum number of expiring messages that are counted [ports: ConversationStore]. */
const MAX_EXPIRING = 1000;
/**
 * Maximum number of rows read to count expiring messages, including rows of messages that have
 * expired.
 */
const MAX_ROWS_READ = 5000;

interface UnreadPorts {
  readonly states: Pick<ChannelStates, "recordFrom" | "expiringNewestFirst">;
  readonly clock: Clock;
  readonly retentionMs: number;
}

export class UnreadCounter {
  readonly #ports: UnreadPorts;

  constructor(ports: UnreadPorts) {
    this.#ports = ports;
  }

  count(state: ChannelState, position: number): number {
    return this.#countPermanent(state, position) + this.#expiring(state, position).length;
  }

  /**
   * Returns the highest read position, at least `lowest`, that leaves at least `unread` messages
   * unread. If fewer than `unread` messages after `lowest` count as unread, the position leaves
   * all of these messages unread.
   */
  positionOf(state: ChannelState, unread: number, lowest: number): number {
    const expiring = this.#expiring(state, lowest);
    const countAfter = (seq: number): number => {
      const older = expiring.findIndex((expiringSeq) => expiringSeq <= seq);
      const newer = older === -1 ? expiring.length : older;
      return this.#countPermanent(state, seq) + newer;
    };
    const count = Math.min(unread, countAfter(lowest));
    let low = lowest;
    let high = state.head;
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (countAfter(middle) >= count) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  firstKeptSeq(state: ChannelState, seq: number): number {
    if (this.#ports.retentionMs === Infinity || seq > state.head) return seq;
    return this.#firstKept(state, seq)?.seq ?? state.head + 1;
  }

  /** Returns the first record at or after `seq` that is not older than the retention time. */
  #firstKept(state: ChannelState, seq: number): CountedRecord | undefined {
    const { states } = this.#ports;
    const first = states.recordFrom(state, seq);
    if (first === undefined || !this.#isPastRetention(first)) return first;
    let low = first.seq + 1;
    let high = state.head + 1;
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      const record = states.recordFrom(state, middle);
      if (record !== undefined && this.#isPastRetention(record)) low = record.seq + 1;
      else high = middle;
    }
    return states.recordFrom(state, low);
  }

  #countPermanent(state: ChannelState, position: number): number {
    if (position >= state.head) return 0;
    const first = this.#firstKept(state, position + 1);
    if (first === undefined) return 0;
    return state.headCounted - first.counted + (first.isCounted ? 1 : 0);
  }

  #expiring(state: ChannelState, position: number): readonly number[] {
    const { states, clock } = this.#ports;
    const nowMs = clock();
    const seqs: number[] = [];
    let rowsLeft = MAX_ROWS_READ;
    for (const row of states.expiringNewestFirst(state, position + 1)) {
      if (this.#isPastRetention(row)) break; // all older messages are past the retention time too
      if (nowMs < row.expiresAtMs) seqs.push(row.seq);
      if (seqs.length === MAX_EXPIRING || --rowsLeft === 0) break;
    }
    return seqs;
  }

  #isPastRetention({ acceptedMs }: { readonly acceptedMs: number }): boolean {
    const { clock, retentionMs } = this.#ports;
    return clock() >= acceptedMs + retentionMs;
  }
}

interface CountedRecord {
  readonly seq: number;
  readonly acceptedMs: number;
  readonly counted: number;
  readonly isCounted: boolean;
}

export interface ChannelState {
  readonly number: number;
  readonly head: number;
  readonly headCounted: number;
  /** `undefined` if the channel is not in memory. */
  readonly active: MemtableChannel | undefined;
}

interface ScannedLog {
  readonly firstSeq: number;
  lastSeq: number;
  readonly own: Map<string, number>;
  readonly expiring: ExpiringRow[];
}

export interface ChannelStatesPorts {
  readonly logRows: Pick<LogRows, "firstFrom" | "scanReverse">;
  readonly rows: ChannelRows;
  readonly conversationRows: ConversationRows;
  readonly memtable: Memtable;
  readonly onError: (error: Error, what: string) => void;
}

export class ChannelStates {
  readonly #ports: ChannelStatesPorts;
  readonly #scans = new WeakMap<MemtableChannel, ScannedLog>();

  constructor(ports: ChannelStatesPorts) {
    this.#ports = ports;
  }

  stateOf(key: ChannelKey): ChannelState {
    const active = this.#ports.memtable.peek(key);
    if (active !== undefined) {
      const { number, head, headCounted } = active;
      return { number, head, headCounted, active };
    }
    const row = this.#ports.rows.get(key);
    const { number = 0, head = 0, counted = 0 } = row ?? {};
    return { number, head, headCounted: counted, active };
  }

  ownSeq({ number, active }: ChannelState, uid: string): number {
    const inMemtable = active && this.#scan(active).own.get(uid);
    return inMemtable ?? this.#ports.conversationRows.ownSeq(number, uid);
  }

  /** Returns the first record at or after `seq` that can be read. */
  recordFrom(state: ChannelState, seq: number): CountedRecord | undefined {
    const memtableFrom = memtableStart(state);
    const { logRows } = this.#ports;
    let stored = logRows.firstFrom(state.number, seq, memtableFrom);
    while (stored !== undefined) {
      const { seq: storedSeq, bytes } = stored;
      const counted = this.#readable(() => countedRecord(storedSeq, bytes, 0));
      if (counted !== undefined) return counted;
      stored = logRows.firstFrom(state.number, storedSeq + 1, memtableFrom);
    }
    const record = state.active?.log[Math.max(0, seq - memtableFrom)];
    return record && countedRecord(record.messageSeq, record.bytes, record.start);
  }

  /** Returns the newest message at or after `fromSeq` that can be read and is shown. */
  newestVisible(
    state: ChannelState,
    fromSeq: number,
    isShown: (times: RecordTimes) => boolean,
  ): MessageHead | undefined {
    const log = state.active?.log ?? [];
    for (let i = log.length - 1; i >= 0; i--) {
      const record = log[i];
      if (record === undefined || record.messageSeq < fromSeq) return undefined;
      const { bytes, start } = record;
      if (isShown(peekTimes(bytes, start))) return peekHead(bytes, start);
    }
    const { logRows } = this.#ports;
    const toSeq = memtableStart(state) - 1;
    for (const { bytes } of logRows.scanReverse(state.number, fromSeq, toSeq)) {
      const head = this.#readable(() => (isShown(peekTimes(bytes)) ? peekHead(bytes) : undefined));
      if (head !== undefined) return head;
    }
    return undefined;
  }

  #readable<Result>(read: () => Result): Result | undefined {
    const what = "Could not read a stored message, so it is left out of conversations";
    return ifReadable(read, what, this.#ports.onError);
  }

  *expiringNewestFirst(state: ChannelState, fromSeq: number): Generator<ExpiringRow> {
    const inMemtable = state.active && this.#scan(state.active).expiring;
    for (let i = (inMemtable?.length ?? 0) - 1; i >= 0; i--) {
      const row = inMemtable?.[i];
      if (row === undefined || row.seq < fromSeq) return;
      yield row;
    }
    const { conversationRows } = this.#ports;
    const toSeq = memtableStart(state) - 1;
    yield* conversationRows.expiringNewestFirst(state.number, { fromSeq, toSeq });
  }

  #scan(channel: MemtableChannel): ScannedLog {
    const { log } = channel;
    const firstSeq = log[0]?.messageSeq ?? 0;
    let scan = this.#scans.get(channel);
    if (scan === undefined || scan.firstSeq !== firstSeq) {
      const lastSeq = firstSeq - 1;
      scan = { firstSeq, lastSeq, own: new Map(), expiring: [] };
      this.#scans.set(channel, scan);
    }
    for (let i = scan.lastSeq + 1 - firstSeq; i < log.length; i++) {
      const record = log[i];
      if (record === undefined) break;
      const { bytes, start, messageSeq: seq } = record;
      scan.lastSeq = seq;
      scan.own.set(peekText(bytes, start, FROM_UID), seq);
      if (hasRedDot(bytes, start) && expires(bytes, start))
        scan.expiring.push({ seq, ...peekTimes(bytes, start) });
    }
    return scan;
  }
}

function memtableStart({ active, head }: ChannelState): number {
  return active?.log[0]?.messageSeq ?? head + 1;
}

function countedRecord(seq: number, bytes: Buffer, start: number): CountedRecord {
  const { acceptedMs } = peekTimes(bytes, start);
  return { seq, acceptedMs, ...peekCounted(bytes, start) };
}
