// Removes messages past the retention time from the database, each with what belongs to it. In short steps, each one transaction. No state.

import type { ChannelKey } from "../../broker/model.ts";
import { logKey, numberIn, seqIn } from "./channel-rows.ts";
import { commit, type Tables } from "./database.ts";
import type { LiveStreams } from "./live-streams.ts";
import { isStreamRecord, peekTimes } from "./record.ts";
import type { StreamRows } from "./stream-rows.ts";

/** Entries looked at in one step. */
const STEP = 200;
const MAX_SEQ = 2 ** 48 - 1;

export interface RetentionParts {
  readonly tables: Tables;
  readonly live: LiveStreams;
  readonly streamRows: StreamRows;
  /** 0 = for ever. */
  readonly retentionMs: number;
}

/** Walks all channels and cuts the old end of each; returns how many messages that were. Throws `unavailable`. */
export async function trimAll(
  parts: RetentionParts,
  nowMs: number,
  isClosed: () => boolean,
): Promise<number> {
  const { heads } = parts.tables;
  if (parts.retentionMs === 0) return 0;
  let removed = 0;
  let after: string | undefined;
  while (!isClosed()) {
    const start =
      after === undefined ? {} : { start: after, exclusiveStart: true };
    const rows = [...heads.getRange({ ...start, limit: STEP })];
    for (const { key, value } of rows) {
      const channel = { key, number: numberIn(value) };
      let count: number;
      do {
        count = await trim(parts, channel, nowMs);
        removed += count;
      } while (count === STEP && !isClosed());
      after = key;
    }
    if (rows.length < STEP) break;
    await new Promise(setImmediate);
  }
  return removed;
}

/** Cuts the oldest messages of a channel, at most a step of them; returns how many. */
async function trim(
  { tables, retentionMs, live, streamRows }: RetentionParts,
  channel: { readonly key: ChannelKey; readonly number: number },
  nowMs: number,
): Promise<number> {
  const { number } = channel;
  const old: Buffer[] = [];
  const expiring: Buffer[] = [];
  const streams: Buffer[] = [];
  for (const { key, value } of tables.log.getRange({
    start: logKey(number, 0),
    end: logKey(number, MAX_SEQ),
    limit: STEP,
  })) {
    const { timestampMs, expiresAtMs } = peekTimes(value);
    if (timestampMs + retentionMs > nowMs) break;
    if (isStreamRecord(value)) {
      if (live.at(channel.key, seqIn(key)) !== undefined) break; // goes when it is over
      streams.push(value);
    }
    if (Number.isFinite(expiresAtMs)) expiring.push(key);
    old.push(key);
  }
  if (old.length > 0)
    await commit(tables, () => {
      for (const key of old) void tables.log.remove(key);
      for (const key of expiring) void tables.expiring.remove(key);
      for (const record of streams) streamRows.remove(number, record);
    });
  return old.length;
}
