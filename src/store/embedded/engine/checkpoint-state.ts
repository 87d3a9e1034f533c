// How far the database has the WAL: one stored fact. No state of its own.

import type { Tables } from "./database.ts";
import type { WalPosition } from "./segment.ts";
import { fieldsOf } from "./tables.ts";

const STATE = "journal";
const VERSION = 1;

interface CheckpointState {
  /** The database has everything before it. */
  readonly position: WalPosition;
  /** No message id up to here is given again. */
  readonly lastMessageId: number;
}

/** Undefined: there was no checkpoint yet. */
export function readCheckpointState(
  tables: Tables,
): CheckpointState | undefined {
  const stored = tables.meta.get(STATE);
  if (stored === undefined) return undefined;
  const [segment, offset, lastMessageId] = fieldsOf(stored, VERSION);
  return {
    position: { segment: Number(segment), offset: Number(offset) },
    lastMessageId: Number(lastMessageId),
  };
}

/** To be called inside `commit`. */
export function putCheckpointState(
  tables: Tables,
  { position, lastMessageId }: CheckpointState,
): void {
  const { segment, offset } = position;
  const value = [VERSION, segment, offset, lastMessageId];
  void tables.meta.put(STATE, value);
}
