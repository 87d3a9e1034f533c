// What the database knows of a channel's log: its number (which stands for the long key in other
// tables) and its newest seq, and the keys of the log and expiry tables. Owns the counter of
// channel numbers. A number is never used for two channels.

import type { ChannelKey } from "../../../broker/model.ts";
import { commit, fieldsOf } from "./database.ts";
import type { Tables } from "./tables.ts";

const ROW_VERSION = 2;
const NEXT_VERSION = 1;
const NEXT_NUMBER = "nextChannelNumber";
const PART = 6; // bytes of a number in a key, big-endian: keys sort by value

export interface ChannelRow {
  readonly number: number;
  readonly head: number;
  /** Of the message at the head (see record.ts); 0 in a row of version 1. */
  readonly counted: number;
}

export class ChannelRows {
  readonly #tables: Tables;
  #next: number;
  /** What the database has of it. */
  #keptNext: number;

  constructor(tables: Tables) {
    this.#tables = tables;
    const stored = tables.meta.get(NEXT_NUMBER);
    this.#next = stored === undefined ? 1 : Number(fieldsOf(stored)[0]);
    this.#keptNext = this.#next;
  }

  get(key: ChannelKey): ChannelRow | undefined {
    const row = this.#tables.heads.get(key);
    if (row === undefined) return undefined;
    const [number, head, counted] = fieldsOf(row, ROW_VERSION);
    return {
      number: Number(number),
      head: Number(head),
      counted: Number(counted ?? 0),
    };
  }

  /**
   * A number no channel has. It is taken permanently once `keepNumbers` has resolved, which must be
   * before its first use.
   */
  takeNumber(): number {
    return this.#next++;
  }

  /**
   * Makes sure that no number taken so far is ever given again, also after a checkpoint that
   * failed. Throws `unavailable`.
   */
  async keepNumbers(): Promise<void> {
    const next = this.#next;
    if (next === this.#keptNext) return;
    await commit(this.#tables, () => void this.#tables.meta.put(NEXT_NUMBER, [NEXT_VERSION, next]));
    this.#keptNext = next;
  }

  /** To be called inside `commit`. */
  put(key: ChannelKey, row: ChannelRow): void {
    const { number, head, counted } = row;
    void this.#tables.heads.put(key, [ROW_VERSION, number, head, counted]);
  }
}

/** Key of a message in the log. */
export function logKey(number: number, seq: number): Buffer {
  const key = Buffer.allocUnsafe(2 * PART);
  key.writeUIntBE(number, 0, PART);
  key.writeUIntBE(seq, PART, PART);
  return key;
}

/** The seq in a key of the log. */
export function seqIn(ofLog: Buffer): number {
  return ofLog.readUIntBE(PART, PART);
}

/** Key of a message in the order of expiry. The part behind the time is its key in the log. */
export function expiryKey(expiresAtMs: number, ofLog: Buffer): Buffer {
  const key = Buffer.allocUnsafe(PART + ofLog.length);
  key.writeUIntBE(Math.min(expiresAtMs, 2 ** 48 - 1), 0, PART);
  key.set(ofLog, PART);
  return key;
}

/** The log's key inside an expiry key. */
export function logKeyIn(expiry: Buffer): Buffer {
  return expiry.subarray(PART);
}
