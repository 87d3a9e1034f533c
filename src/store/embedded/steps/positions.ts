// Where users set their read positions: one row per user and channel they ever changed. No state but the table's.

import type { ChannelKey } from "../../../broker/model.ts";
import type { Tables } from "../engine/database.ts";
import { fieldsOf } from "../engine/tables.ts";

const VERSION = 1;

export type PositionTable = Pick<Tables, "positions">;

/** What a user set, and when. */
export interface Position {
  readonly readSeq: number;
  readonly deletedSeq: number;
  /** The channel's newest seq then: own messages behind it count as read again. */
  readonly headAtChange: number;
  readonly changedAtMs: number;
}

export function positionKey(uid: string, key: ChannelKey): string[] {
  return [uid, key];
}

/** Undefined: the user never set anything, or left the group since. */
export function readPosition(
  tables: PositionTable,
  uid: string,
  key: ChannelKey,
): Position | undefined {
  const stored = tables.positions.get(positionKey(uid, key));
  if (stored === undefined) return undefined;
  const [readSeq, deletedSeq, headAtChange, changedAtMs] = fieldsOf(
    stored,
    VERSION,
  );
  return {
    readSeq: Number(readSeq),
    deletedSeq: Number(deletedSeq),
    headAtChange: Number(headAtChange),
    changedAtMs: Number(changedAtMs),
  };
}

/** To be called inside `transact`. */
export function putPosition(
  tables: PositionTable,
  { uid, key }: { readonly uid: string; readonly key: ChannelKey },
  position: Position,
): void {
  const { readSeq, deletedSeq, headAtChange, changedAtMs } = position;
  void tables.positions.put(positionKey(uid, key), [
    VERSION,
    readSeq,
    deletedSeq,
    headAtChange,
    changedAtMs,
  ]);
}
