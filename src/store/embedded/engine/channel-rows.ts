// Reads and writes the table `heads`, and builds the keys of the tables `log` and `expiry`. A row
// of `heads` stores the number of its channel. Other tables use this number in place of the long
// channel key. Owns the channel number counter.

import type { ChannelKey } from "../../../broker/model.ts";
import { commit, fieldsOf } from "./database.ts";
import type { Tables } from "./tables.ts";

const ROW_VERSION = 3;
const NEXT_VERSION = 1;
const NEXT_NUMBER = "nextChannelNumber";
/** Size of a channel number in a key. Numbers are big-endian, so that keys sort by number. */
const NUMBER_BYTES = 6;

export interface ChannelRow {
  readonly number: number;
  readonly head: number;
  /** Value of `counted` in the newest message's record (see record.ts). 0 in version 1 rows. */
  readonly counted: number;
  /** Id of the newest message: 0 in an empty channel, `Infinity` in rows of versions 1 and 2. */
  readonly newestId: number;
}

export class ChannelRows {
  readonly #tables: Tables;
  #next: number;
  #storedNext: number;

  constructor(tables: Tables) {
    this.#tables = tables;
    const stored = tables.meta.get(NEXT_NUMBER);
    this.#next = stored === undefined ? 1 : Number(fieldsOf(stored)[0]);
    this.#storedNext = this.#next;
  }

  get(key: ChannelKey): ChannelRow | undefined {
    const row = this.#tables.heads.get(key);
    if (row === undefined) return undefined;
    const [number, head, counted, newestId] = fieldsOf(row, ROW_VERSION);
    return {
      number: Number(number),
      head: Number(head),
      counted: Number(counted ?? 0),
      newestId: Number(newestId ?? Number.POSITIVE_INFINITY),
    };
  }

  /**
   * Returns a new channel number. Before a row with this number is written, `storeCounter` must
   * complete, or `putCounter` must be called in the same transaction.
   */
  nextNumber(): number {
    return this.#next++;
  }

  async storeCounter(): Promise<void> {
    const next = this.#next;
    if (next === this.#storedNext) return;
    const put = () => void this.#tables.meta.put(NEXT_NUMBER, [NEXT_VERSION, next]);
    await commit(this.#tables, put, "flush");
    this.#storedNext = next;
  }

  /**
   * Puts the counter in the current transaction, which must also write the first row with a new
   * number. `storeCounter` stores the counter again, because this transaction may fail.
   */
  putCounter(): void {
    if (this.#next === this.#storedNext) return;
    void this.#tables.meta.put(NEXT_NUMBER, [NEXT_VERSION, this.#next]);
  }

  put(key: ChannelKey, row: ChannelRow): void {
    const { number, head, counted, newestId } = row;
    void this.#tables.heads.put(key, [ROW_VERSION, number, head, counted, newestId]);
  }
}

export function numberKey(number: number): Buffer {
  const key = Buffer.allocUnsafe(NUMBER_BYTES);
  key.writeUIntBE(number, 0, NUMBER_BYTES);
  return key;
}

/** Returns the range of all keys that begin with the number. */
export function rangeOf(number: number): { readonly start: Buffer; readonly end: Buffer } {
  return { start: numberKey(number), end: numberKey(number + 1) };
}

export function logKey(number: number, seq: number): Buffer {
  const key = Buffer.allocUnsafe(2 * NUMBER_BYTES);
  key.writeUIntBE(number, 0, NUMBER_BYTES);
  key.writeUIntBE(seq, NUMBER_BYTES, NUMBER_BYTES);
  return key;
}

export function numberIn(key: Buffer): number {
  return key.readUIntBE(0, NUMBER_BYTES);
}

export function seqIn(key: Buffer): number {
  return key.readUIntBE(NUMBER_BYTES, NUMBER_BYTES);
}

export function expiryKey(expiresAtMs: number, keyInLog: Buffer): Buffer {
  const key = Buffer.allocUnsafe(NUMBER_BYTES + keyInLog.length);
  key.writeUIntBE(Math.min(expiresAtMs, 2 ** 48 - 1), 0, NUMBER_BYTES);
  key.set(keyInLog, NUMBER_BYTES);
  return key;
}

export function logKeyIn(expiry: Buffer): Buffer {
  return expiry.subarray(NUMBER_BYTES);
}
