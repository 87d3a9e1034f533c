// Counts unread messages: shown ones with a red dot behind a position. Costs a few reads, however
// many there are: records carry how many came before them. Only those that expire are gone through,
// from the newest on, and no further than bounds allow. And a channel at one moment, for counting:
// its newest seq and count, and its records wherever they are. Owns what it learnt of the
// memtable's records when it was last asked, so that nothing is gone through twice. All of it is
// read at once: a state is of no use after an `await`.

import type { ChannelKey, MessageHead } from "../../../broker/model.ts";
import type { Clock } from "../../../broker/ports.ts";
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

/** Of messages that expire so many count at most [ports: ConversationStore]. */
const MAX_EXPIRING = 1000;
/** So many of their rows are looked at, for some may have expired and not be removed yet. */
const MAX_LOOKED_AT = 5000;

interface UnreadParts {
  readonly states: Pick<ChannelStates, "recordFrom" | "expiringDown">;
  readonly clock: Clock;
  /** Infinity: for ever. */
  readonly retentionMs: number;
}

export class Unread {
  readonly #parts: UnreadParts;

  constructor(parts: UnreadParts) {
    this.#parts = parts;
  }

  /** How many are unread behind the seq `position`. */
  count(state: ChannelState, position: number): number {
    return this.#countForEver(state, position) + this.#expiring(state, position).length;
  }

  /**
   * The greatest position from `lowest` on with `wanted` unread behind it, or as many as there are.
   */
  positionOf(state: ChannelState, wanted: number, lowest: number): number {
    const expiring = this.#expiring(state, lowest);
    const countBehind = (seq: number): number => {
      const older = expiring.findIndex((expiringSeq) => expiringSeq <= seq);
      const newer = older === -1 ? expiring.length : older;
      return this.#countForEver(state, seq) + newer;
    };
    const count = Math.min(wanted, countBehind(lowest));
    let low = lowest;
    let high = state.head;
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (countBehind(middle) >= count) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /**
   * No message from `seq` to before the answer is shown, for they are past retention; behind the
   * head: none at all is.
   */
  firstKeptSeq(state: ChannelState, seq: number): number {
    if (this.#parts.retentionMs === Infinity || seq > state.head) return seq;
    return this.#firstKept(state, seq)?.seq ?? state.head + 1;
  }

  /**
   * The first record from `seq` on that is not past retention; it may have expired by itself.
   * Messages pass it in the order of seqs.
   */
  #firstKept(state: ChannelState, seq: number): CountedRecord | undefined {
    const { states } = this.#parts;
    const first = states.recordFrom(state, seq);
    if (first === undefined || !this.#isPast(first)) return first;
    let low = first.seq + 1;
    let high = state.head + 1;
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      const there = states.recordFrom(state, middle);
      if (there !== undefined && this.#isPast(there)) low = there.seq + 1;
      else high = middle;
    }
    return states.recordFrom(state, low);
  }

  #countForEver(state: ChannelState, position: number): number {
    if (position >= state.head) return 0;
    const first = this.#firstKept(state, position + 1);
    if (first === undefined) return 0;
    return state.headCounted - first.counted + (first.counts ? 1 : 0);
  }

  /**
   * Seqs of those behind `position` that expire and have not yet, newest first, within the bounds.
   */
  #expiring(state: ChannelState, position: number): readonly number[] {
    const { states, clock } = this.#parts;
    const nowMs = clock();
    const seqs: number[] = [];
    let rowsLeft = MAX_LOOKED_AT;
    for (const row of states.expiringDown(state, position + 1)) {
      if (this.#isPast(row)) break; // so is what came before it
      if (nowMs < row.expiresAtMs) seqs.push(row.seq);
      if (seqs.length === MAX_EXPIRING || --rowsLeft === 0) break;
    }
    return seqs;
  }

  #isPast({ timestampMs }: { readonly timestampMs: number }): boolean {
    const { clock, retentionMs } = this.#parts;
    return clock() >= timestampMs + retentionMs;
  }
}

/** What counting needs of a record. */
interface CountedRecord {
  readonly seq: number;
  readonly timestampMs: number;
  /** See record.ts. */
  readonly counted: number;
  /** It is among the counted itself. */
  readonly counts: boolean;
}

export interface ChannelState {
  readonly number: number;
  readonly head: number;
  /** Of the message at the head. */
  readonly headCounted: number;
  /** Undefined: nothing of it is in memory. */
  readonly active: MemtableChannel | undefined;
}

/** What is known of a memtable's log from `firstSeq` through `lastSeq`. */
interface Seen {
  readonly firstSeq: number;
  lastSeq: number;
  /** Sender → newest seq. */
  readonly own: Map<string, number>;
  readonly expiring: ExpiringRow[];
}

export interface ChannelStatesParts {
  readonly logRows: Pick<LogRows, "firstFrom" | "down">;
  readonly rows: ChannelRows;
  readonly conversationRows: ConversationRows;
  readonly memtable: Memtable;
}

export class ChannelStates {
  readonly #parts: ChannelStatesParts;
  readonly #seen = new WeakMap<MemtableChannel, Seen>();

  constructor(parts: ChannelStatesParts) {
    this.#parts = parts;
  }

  now(key: ChannelKey): ChannelState {
    const active = this.#parts.memtable.peek(key);
    if (active !== undefined) {
      const { number, head, headCounted } = active;
      return { number, head, headCounted, active };
    }
    const row = this.#parts.rows.get(key);
    const { number = 0, head = 0, counted = 0 } = row ?? {};
    return { number, head, headCounted: counted, active };
  }

  /** The newest seq that `uid` sent; 0: none. */
  ownSeq({ number, active }: ChannelState, uid: string): number {
    const inMemtable = active && this.#look(active).own.get(uid);
    return inMemtable ?? this.#parts.conversationRows.ownSeq(number, uid);
  }

  /** The first record from `seq` on that is still kept. */
  recordFrom(state: ChannelState, seq: number): CountedRecord | undefined {
    const memtableFrom = memtableStart(state);
    const { logRows } = this.#parts;
    const stored = logRows.firstFrom(state.number, seq, memtableFrom);
    if (stored !== undefined) return countedRecord(stored.seq, stored.bytes, 0);
    const record = state.active?.log[Math.max(0, seq - memtableFrom)];
    return record && countedRecord(record.messageSeq, record.bytes, record.start);
  }

  /** The newest message from `fromSeq` on that `isShown` takes. */
  newest(
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
    const { logRows } = this.#parts;
    const toSeq = memtableStart(state) - 1;
    for (const { bytes } of logRows.down(state.number, fromSeq, toSeq))
      if (isShown(peekTimes(bytes))) return peekHead(bytes);
    return undefined;
  }

  /** Red-dot messages that expire, or did, newest first down to `fromSeq`. */
  *expiringDown(state: ChannelState, fromSeq: number): Generator<ExpiringRow> {
    const inMemtable = state.active && this.#look(state.active).expiring;
    for (let i = (inMemtable?.length ?? 0) - 1; i >= 0; i--) {
      const row = inMemtable?.[i];
      if (row === undefined || row.seq < fromSeq) return;
      yield row;
    }
    const { conversationRows } = this.#parts;
    const toSeq = memtableStart(state) - 1;
    yield* conversationRows.expiringDown(state.number, { fromSeq, toSeq });
  }

  #look(channel: MemtableChannel): Seen {
    const { log } = channel;
    const firstSeq = log[0]?.messageSeq ?? 0;
    let seen = this.#seen.get(channel);
    if (seen === undefined || seen.firstSeq !== firstSeq) {
      const lastSeq = firstSeq - 1;
      seen = { firstSeq, lastSeq, own: new Map(), expiring: [] };
      this.#seen.set(channel, seen);
    }
    for (let i = seen.lastSeq + 1 - firstSeq; i < log.length; i++) {
      const record = log[i];
      if (record === undefined) break;
      const { bytes, start, messageSeq: seq } = record;
      seen.lastSeq = seq;
      seen.own.set(peekText(bytes, start, FROM_UID), seq);
      if (hasRedDot(bytes, start) && expires(bytes, start))
        seen.expiring.push({ seq, ...peekTimes(bytes, start) });
    }
    return seen;
  }
}

/** The first seq that is read from the memtable. */
function memtableStart({ active, head }: ChannelState): number {
  return active?.log[0]?.messageSeq ?? head + 1;
}

function countedRecord(seq: number, bytes: Buffer, start: number): CountedRecord {
  const { timestampMs } = peekTimes(bytes, start);
  return { seq, timestampMs, ...peekCounted(bytes, start) };
}
