// Removes messages past the retention time, and those beyond what their channel keeps, from the database, each with what belongs to it. In short
// steps, each one transaction. No state.

import type { ChannelKey } from "../../broker/model.ts";
import {
  type ChannelRow,
  type ChannelRows,
  expiryKey,
  logKey,
  seqIn,
} from "./channel-rows.ts";
import { commit, type Tables } from "./database.ts";
import type { LiveStreams } from "./live-streams.ts";
import { isStreamRecord, peekTimes } from "./record.ts";
import type { StreamRows } from "./stream-rows.ts";
import type { Surplus } from "./surplus.ts";

/** Entries looked at in one step. */
const STEP = 200;
const MAX_SEQ = 2 ** 48 - 1;

export interface RetentionParts {
  readonly tables: Tables;
  readonly rows: Pick<ChannelRows, "get">;
  readonly live: LiveStreams;
  readonly streamRows: StreamRows;
  readonly surplus: Surplus;
  /** 0 = for ever. */
  readonly retentionMs: number;
}

/** Cuts the old end of every channel that may have one; returns how many messages that were. Throws `unavailable`. */
export async function trimAll(
  parts: RetentionParts,
  nowMs: number,
  isClosed: () => boolean,
): Promise<number> {
  const { retentionMs, surplus, tables } = parts;
  if (retentionMs === 0 && surplus.keeps === 0) return 0;
  const grown = surplus.take();
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
        } while (count === STEP);
      }
      await new Promise(setImmediate);
    }
  } catch (error) {
    surplus.failed();
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

/** Cuts the oldest messages of a channel, at most a step of them; returns how many. */
async function trim(
  parts: RetentionParts,
  key: ChannelKey,
  nowMs: number,
): Promise<number> {
  const { tables, rows, streamRows } = parts;
  const row = rows.get(key);
  if (row === undefined) return 0;
  const { number } = row;
  const old = oldEntries(parts, { key, row }, nowMs);
  if (old.length > 0)
    await commit(tables, () => {
      for (const { key, expiresAtMs, stream } of old) {
        void tables.log.remove(key);
        if (stream !== undefined) streamRows.remove(number, stream);
        if (!Number.isFinite(expiresAtMs)) continue;
        void tables.expiring.remove(key);
        void tables.expiry.remove(expiryKey(expiresAtMs, key));
      }
    });
  return old.length;
}

interface OldEntry {
  readonly key: Buffer;
  readonly expiresAtMs: number;
  /** The record of a stream's message. */
  readonly stream: Buffer | undefined;
}

function oldEntries(
  parts: RetentionParts,
  { key, row }: { readonly key: ChannelKey; readonly row: ChannelRow },
  nowMs: number,
): readonly OldEntry[] {
  const { tables, retentionMs, live, surplus } = parts;
  const { number, head } = row;
  const surplusSeq = surplus.keeps > 0 ? head - surplus.keeps : 0;
  const old: OldEntry[] = [];
  if (retentionMs === 0 && surplusSeq <= 0) return old;
  const end = logKey(number, retentionMs > 0 ? MAX_SEQ : surplusSeq + 1);
  const bounds = { start: logKey(number, 0), end, limit: STEP };
  for (const { key: ofLog, value } of tables.log.getRange(bounds)) {
    const seq = seqIn(ofLog);
    const { timestampMs, expiresAtMs } = peekTimes(value);
    const isPast = retentionMs > 0 && timestampMs + retentionMs <= nowMs;
    if (!isPast && seq > surplusSeq) break;
    const isStream = isStreamRecord(value);
    if (isStream && live.at(key, seq) !== undefined) {
      surplus.add(key);
      break; // goes when it is over
    }
    const stream = isStream ? value : undefined;
    old.push({ key: ofLog, expiresAtMs, stream });
  }
  return old;
}
