// Ranges of the embedded store's binary tables, fetched a few rows at a time: no cursor stays open between them. No state.

import type { Tables } from "./database.ts";

const CHUNK = 500;
export const NUMBER_BYTES = 6;

export interface BinaryRow {
  readonly key: Buffer;
  readonly value: Buffer;
}

/** All rows whose keys begin with a channel's number. */
export function rowsOfNumber(
  table: Tables["own"],
  number: number,
): Generator<BinaryRow> {
  return rowsBetween(table, numberKey(number), numberKey(number + 1));
}

/** All rows from `start` to before `end`, which may be undefined: to the last one. */
export function* rowsBetween(
  table: Tables["own"],
  start: Buffer,
  end: Buffer | undefined,
): Generator<BinaryRow> {
  let from = start;
  for (;;) {
    const bounds = { start: from, limit: CHUNK };
    const chunk = [
      ...table.getRange(end === undefined ? bounds : { ...bounds, end }),
    ];
    yield* chunk;
    const last = chunk.at(-1);
    if (last === undefined || chunk.length < CHUNK) return;
    from = behind(last.key);
  }
}

/** The next possible key. */
export function behind(key: Buffer): Buffer {
  return Buffer.concat([key, Buffer.alloc(1)]);
}

/** Where the keys of a channel begin. */
export function numberKey(number: number): Buffer {
  const key = Buffer.alloc(NUMBER_BYTES);
  key.writeUIntBE(number, 0, NUMBER_BYTES);
  return key;
}
