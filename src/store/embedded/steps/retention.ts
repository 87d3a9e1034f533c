// Removes messages past the retention time, and those beyond what their channel keeps, from the database, each with what belongs to it. In short
// steps, each one transaction. A row of the log goes by age when its newest message is past, until then reads hide the others; by number it is
// cut to what stays. No state.

import type { ChannelKey } from "../../../broker/model.ts";
import {
  type ChannelRow,
  type ChannelRows,
  expiryKey,
  logKey,
} from "../engine/channel-rows.ts";
import type { Tables } from "../engine/database.ts";
import {
  type LogRow,
  type LogRows,
  MAX_SEQ,
  recordAt,
  recordsFrom,
} from "../engine/log-rows.ts";
import type { Memtable } from "../engine/memtable.ts";
import { isStreamRecord, peekTimes } from "../engine/record.ts";
import { commit } from "../engine/tables.ts";
import type { LiveStreams } from "./live-streams.ts";
import type { StreamRows } from "./stream-rows.ts";
import type { TrimQueue } from "./trim-queue.ts";

/** Messages removed in one step, about, and channels looked at. */
const STEP = 200;

export interface RetentionParts {
  readonly tables: Tables;
  readonly rows: Pick<ChannelRows, "get">;
  readonly logRows: LogRows;
  readonly memtable: Pick<Memtable, "peek">;
  readonly live: LiveStreams;
  readonly streamRows: StreamRows;
  readonly trimQueue: TrimQueue;
  /** 0 = for ever. */
  readonly retentionMs: number;
}

/** Cuts the old end of every channel that may have one; returns how many messages that were. Throws `unavailable`. */
export async function trimAll(
  parts: RetentionParts,
  nowMs: number,
  isClosed: () => boolean,
): Promise<number> {
  const { retentionMs, trimQueue, tables } = parts;
  if (retentionMs === 0 && trimQueue.keeps === 0) return 0;
  const grown = trimQueue.take();
  const chunks =
    retentionMs > 0 || grown === undefined
      ? allChannels(tables)
      : inChunks([...grown]);
  let removed = 0;
  try {
    for (const keys of chunks) {
      for (const key of keys) {
        let count: number;
        do {
          if (isClosed()) return removed;
          count = await trim(parts, key, nowMs);
          removed += count;
        } while (count >= STEP);
      }
      await new Promise(setImmediate);
    }
  } catch (error) {
    trimQueue.failed();
    throw error;
  }
  return removed;
}

/** No cursor stays open between two chunks. */
function* allChannels({ heads }: Tables): Generator<readonly ChannelKey[]> {
  let after: string | undefined;
  let keys: readonly ChannelKey[];
  do {
    const start =
      after === undefined ? {} : { start: after, exclusiveStart: true };
    keys = [...heads.getKeys({ ...start, limit: STEP })];
    yield keys;
    after = keys.at(-1);
  } while (keys.length === STEP);
}

function* inChunks(
  keys: readonly ChannelKey[],
): Generator<readonly ChannelKey[]> {
  for (let at = 0; at < keys.length; at += STEP)
    yield keys.slice(at, at + STEP);
}

/** Cuts the oldest messages of a channel, about a step of them; returns how many. */
async function trim(
  parts: RetentionParts,
  key: ChannelKey,
  nowMs: number,
): Promise<number> {
  const { tables, rows } = parts;
  const row = rows.get(key);
  if (row === undefined) return 0;
  const old = oldRows(parts, { key, row }, nowMs);
  if (old.length > 0)
    await commit(tables, () => {
      for (const one of old) removeRow(parts, row.number, one);
    });
  return old.reduce((sum, { row, keptFrom }) => sum + keptFrom - row.first, 0);
}

interface OldRow {
  readonly row: LogRow;
  /** The first seq of the row that stays; behind its last one: none does. */
  readonly keptFrom: number;
}

function removeRow(
  { tables, logRows, streamRows }: RetentionParts,
  number: number,
  { row, keptFrom }: OldRow,
): void {
  logRows.remove(number, row);
  if (keptFrom <= row.last)
    logRows.put(number, keptFrom, recordsFrom(row, keptFrom));
  const { expiresAtMs } = peekTimes(recordAt(row, row.first));
  if (isStream(row)) streamRows.remove(number, row.value);
  if (!Number.isFinite(expiresAtMs)) return;
  const key = logKey(number, row.first);
  void tables.expiring.remove(key);
  void tables.expiry.remove(expiryKey(expiresAtMs, key));
}

function oldRows(
  parts: RetentionParts,
  { key, row: channel }: { readonly key: ChannelKey; readonly row: ChannelRow },
  nowMs: number,
): readonly OldRow[] {
  const { logRows, retentionMs, live, trimQueue, memtable } = parts;
  const { number, head } = channel;
  const trimThrough = trimQueue.keeps > 0 ? head - trimQueue.keeps : 0;
  const old: OldRow[] = [];
  if (retentionMs === 0 && trimThrough <= 0) return old;
  const to = retentionMs > 0 ? MAX_SEQ : trimThrough;
  /** A row of a checkpoint under way would be written whole again beside what is left of it. */
  const movingFrom = memtable.peek(key)?.log[0]?.messageSeq ?? MAX_SEQ;
  let count = 0;
  for (const row of logRows.rowsUp(number, 1, to)) {
    const isPast = retentionMs > 0 && newestMs(row) + retentionMs <= nowMs;
    const lastOld = isPast ? row.last : Math.min(row.last, trimThrough);
    const isCut = lastOld < row.last;
    if (lastOld < row.first) break;
    if (isStream(row) && live.at(key, row.first) !== undefined) {
      trimQueue.add(key);
      break; // goes when it is over
    }
    if (isCut && row.last >= movingFrom) {
      trimQueue.add(key);
      break;
    }
    old.push({ row, keptFrom: lastOld + 1 });
    count += lastOld + 1 - row.first;
    if (isCut || count >= STEP) break;
  }
  return old;
}

/** It stands alone. */
function isStream(row: LogRow): boolean {
  return isStreamRecord(recordAt(row, row.first));
}

/** When the newest message of a row was accepted. */
function newestMs(row: LogRow): number {
  let newest = 0;
  for (let seq = row.first; seq <= row.last; seq++)
    newest = Math.max(newest, peekTimes(recordAt(row, seq)).timestampMs);
  return newest;
}
