// Reads channels' logs out of the embedded store's database for a move, each with its streams, newest own seqs, remembered numbers and standing. Rows
// are fetched a few at a time and no cursor stays open between them. No state.

import type { Moved, MovedRow } from "../moved.ts";
import { type ChannelRow, ChannelRows } from "./channel-rows.ts";
import { exportFirsts } from "./export-firsts.ts";
import { edgeOf, messagesOf, ownOf } from "./export-log.ts";
import { exportStream, type StreamTables } from "./export-streams.ts";
import { rowsOf } from "./export-tables.ts";
import { StreamRows } from "./stream-rows.ts";

export const LOGS = "logs";

/** The channel under way, and the seq through which its log was dealt with; null: the channel is done. */
type LogPlace = readonly [key: string, seq: number | null];

/** Every channel with a log behind the place `at`. */
export function* exportLogs(
  tables: StreamTables["tables"],
  at: string,
): Generator<MovedRow> {
  const channelRows = new ChannelRows(tables);
  const parts = { tables, streamRows: new StreamRows(tables, channelRows) };
  const { heads } = tables;
  let behind = "";
  if (at !== "") {
    const [key, seq] = JSON.parse(at) as LogPlace;
    const row = channelRows.get(key);
    if (row !== undefined && seq !== null)
      yield* exportChannel(parts, key, { row, seq });
    behind = JSON.stringify(key);
  }
  for (const { key } of rowsOf<string>(heads, behind)) {
    const row = channelRows.get(key);
    if (row !== undefined) yield* exportChannel(parts, key, { row });
  }
}

function* exportChannel(
  parts: StreamTables,
  key: string,
  { row, seq = 0 }: { readonly row: ChannelRow; readonly seq?: number },
): Generator<MovedRow> {
  const { tables } = parts;
  const { number, head, counted } = row;
  const placed = (moved: Moved, through: LogPlace[1]): MovedRow => ({
    moved,
    place: { table: LOGS, at: JSON.stringify([key, through]) },
  });
  let last = seq;
  for (const moved of messagesOf(tables, number, seq)) {
    const { messageSeq } = moved.message;
    const stream = moved.isStream
      ? exportStream(parts, number, moved.message)
      : undefined;
    // Once more from here when the stream does not get as far as its message.
    if (stream !== undefined) yield placed(stream, last);
    last = messageSeq;
    yield placed({ ...moved, isStream: stream !== undefined }, last);
  }
  for (const moved of ownOf(tables, key, number)) yield placed(moved, last);
  for (const moved of exportFirsts(tables, number, key))
    yield placed(moved, last);
  const [newestAtMs, oldestAtMs] = [true, false].map((reverse) =>
    edgeOf(tables, number, reverse),
  );
  const standing = { kind: "head", key, seq: head, counted } as const;
  yield placed({ ...standing, newestAtMs, oldestAtMs }, null);
}
