// Reads a user's inbox. No state. Shows no copy that expired, nor one before it is published.

import type { InboxCommand } from "../../../broker/model.ts";
import type { HistoryRange } from "../../../broker/ports.ts";
import type { TimeSlice } from "../../../lib/time-slice.ts";
import type { Tables } from "../engine/database.ts";
import { decodeRecord } from "../engine/record.ts";
import {
  commandOf,
  copyKey,
  expiryOf,
  idOf,
  inboxKey,
  MAX_INBOX_SEQ,
  readState,
  seqOfCopy,
  writeSeq,
} from "./inbox-rows.ts";

/** How much of an inbox is read at once. */
export type InboxPage = Pick<HistoryRange, "limit" | "maxBytes">;

export interface InboxRange extends InboxPage {
  readonly uid: string;
  readonly afterSeq: number;
}

/** The port's `readInbox`. */
export function readInbox(
  tables: Pick<Tables, "inbox" | "commands">,
  { uid, afterSeq, limit, maxBytes }: InboxRange,
  now: {
    readonly nowMs: number;
    readonly isUnshown: (messageId: number) => boolean;
  },
): readonly InboxCommand[] {
  const found: InboxCommand[] = [];
  const from = Math.max(0, Math.floor(afterSeq)) + 1;
  if (!(limit > 0) || !(from <= MAX_INBOX_SEQ)) return found;
  const inbox = inboxKey(uid);
  const start = copyKey(inbox, from);
  const end = copyKey(inbox, MAX_INBOX_SEQ);
  let bytes = 0;
  for (const { key, value } of tables.inbox.getRange({ start, end })) {
    const command = commandOf(value);
    if (expiryOf(command) <= now.nowMs || now.isUnshown(idOf(command)))
      continue;
    const record = tables.commands.get(command);
    if (record === undefined) continue; // all of it is being removed
    const inboxSeq = seqOfCopy(key);
    const { message } = decodeRecord(record);
    bytes += message.payload.length;
    if (bytes > maxBytes && found.length > 0) break;
    found.push({ inboxSeq, message: { ...message, messageSeq: inboxSeq } });
    if (found.length >= limit) break;
  }
  return found;
}

/** Those of the seqs that copies are under: each costs one look at most, in slices of the event loop. */
export async function seqsThere(
  tables: Pick<Tables, "inbox" | "inboxes">,
  {
    uid,
    inboxSeqs,
    slice,
  }: {
    readonly uid: string;
    readonly inboxSeqs: readonly number[];
    readonly slice: TimeSlice;
  },
): Promise<readonly number[]> {
  const inbox = inboxKey(uid);
  const { last, count } = readState(tables.inboxes.get(inbox));
  const found: number[] = [];
  const key = copyKey(inbox, 0);
  for (const seq of new Set(inboxSeqs)) {
    if (found.length === count) break;
    if (!Number.isInteger(seq) || seq < 1 || seq > last) continue;
    if (slice.isUsedUp()) await slice.rest();
    writeSeq(key, seq);
    if (tables.inbox.getBinaryFast(key) !== undefined) found.push(seq);
  }
  return found;
}
