// Counts unread messages: shown ones with a red dot behind a position. No state. Costs a few reads, however many there are: records carry
// how many came before them. Only those that expire are gone through, from the newest on, and no further than bounds allow.

import type { Clock } from "../../../broker/ports.ts";
import type {
  ChannelState,
  ChannelStates,
  CountedRecord,
} from "./channel-state.ts";

/** Of messages that expire so many count at most [ports: ConversationStore]. */
const MAX_EXPIRING = 1000;
/** So many of their rows are looked at, for some may have expired and not be removed yet. */
const MAX_LOOKED_AT = 5000;

export interface UnreadParts {
  readonly states: Pick<ChannelStates, "recordFrom" | "expiringDown">;
  readonly clock: Clock;
  /** 0 = for ever. */
  readonly retentionMs: number;
}

export class Unread {
  readonly #parts: UnreadParts;

  constructor(parts: UnreadParts) {
    this.#parts = parts;
  }

  /** How many are unread behind the seq `position`. */
  count(state: ChannelState, position: number): number {
    return (
      this.#countForEver(state, position) +
      this.#expiring(state, position).length
    );
  }

  /** The greatest position from `lowest` on with `wanted` unread behind it, or as many as there are. */
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

  /** No message from `seq` to before the answer is shown, for they are past retention; behind the head: none at all is. */
  firstKeptSeq(state: ChannelState, seq: number): number {
    if (this.#parts.retentionMs === 0 || seq > state.head) return seq;
    return this.#firstKept(state, seq)?.seq ?? state.head + 1;
  }

  /** The first record from `seq` on that is not past retention; it may have expired by itself. Messages pass it in the order of seqs. */
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

  /** Seqs of those behind `position` that expire and have not yet, newest first, within the bounds. */
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
    return retentionMs > 0 && clock() >= timestampMs + retentionMs;
  }
}
