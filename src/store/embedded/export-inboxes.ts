// Reads command inboxes out of the embedded store's database for a move: of each its newest seq, then its copies. No state.

import type { Moved, MovedRow } from "../moved.ts";
import type { Tables } from "./database.ts";
import { behind, rowsBetween } from "./export-rows.ts";
import {
  commandOf,
  copyKey,
  expiryOf,
  MAX_INBOX_SEQ,
  readState,
  seqOfCopy,
} from "./inbox-rows.ts";
import { decodeRecord } from "./record.ts";

const UID_AT = 2;

export const INBOXES = "inboxes";

/** Every inbox behind the place `at`: the key of the one that is done, in hex. */
export function* exportInboxes(
  tables: Tables,
  at: string,
): Generator<MovedRow> {
  let done = at;
  const start = at === "" ? Buffer.alloc(1) : behind(Buffer.from(at, "hex"));
  for (const { key, value } of rowsBetween(tables.inboxes, start, undefined)) {
    const uid = key.toString("utf8", UID_AT);
    const placed = (moved: Moved): MovedRow => ({
      moved,
      place: { table: INBOXES, at: done },
    });
    // Until the last of its rows, whoever goes on begins the inbox again.
    for (const copy of copiesOf(tables, key, uid)) yield placed(copy);
    done = key.toString("hex");
    yield placed({ kind: "inbox", uid, lastSeq: readState(value).last });
  }
}

function* copiesOf(
  tables: Tables,
  inbox: Buffer,
  uid: string,
): Generator<Moved> {
  const [start, end] = [copyKey(inbox, 0), copyKey(inbox, MAX_INBOX_SEQ)];
  for (const { key, value } of rowsBetween(tables.inbox, start, end)) {
    const command = commandOf(value);
    const record = tables.commands.get(command);
    if (record === undefined) continue; // expired and removed
    yield {
      ...{ kind: "copy", uid, inboxSeq: seqOfCopy(key) },
      message: decodeRecord(record).message,
      endMs: expiryOf(command),
    };
  }
}
