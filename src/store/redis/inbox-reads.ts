// Reads and empties a user's inbox: one step on the user's slot each. No state.

import { BrokerError } from "../../broker/errors.ts";
import type { InboxCommand } from "../../broker/model.ts";
import type { HistoryRange } from "../../broker/ports.ts";
import { loadScript, type Script } from "../../redis/script.ts";
import { decodeRecord } from "../../redis/wire.ts";
import { isTooLong } from "../command-draft.ts";
import type { RedisStoreParts } from "./parts.ts";

const lua = (name: string) => new URL(`./lua/${name}.lua`, import.meta.url);
const readScript = loadScript(lua("inbox_read"));
const takeScript = loadScript(lua("inbox_take"), lua("inbox_expire"));

/** What the link must know. */
export const inboxReadScripts: readonly Script[] = [readScript, takeScript];

const MAX_INBOX_SEQ = 2 ** 48 - 1;
/** Copies taken out in one step. */
const TAKEN = 1000;

/** How much of an inbox is read at once. */
export type InboxPage = Pick<HistoryRange, "limit" | "maxBytes">;

/** The port's `readInbox`. */
export async function readInbox(
  parts: RedisStoreParts,
  uid: string,
  { afterSeq, limit, maxBytes }: InboxPage & { readonly afterSeq: number },
): Promise<readonly InboxCommand[]> {
  const { link, clock, unreadable } = parts;
  if (isTooLong(uid)) throw new BrokerError("too_large");
  const from = Math.max(0, Math.floor(afterSeq)) + 1;
  if (!(limit > 0) || !(from <= MAX_INBOX_SEQ)) {
    await link.ping(); // an inbox that cannot be reached is not an empty one
    return [];
  }
  const args = [clock(), from, limit, maxBytes];
  const reply = await link.run(readScript, [link.keys.user("in", uid)], args);
  const copies = copiesOf(reply as Buffer[]);
  const found = unreadable.leaveOut(copies, commandOf);
  const last = copies.at(-1);
  if (found.length === 0 && last !== undefined)
    return readInbox(parts, uid, { afterSeq: last.inboxSeq, limit, maxBytes }); // no copy is the end only where none is left
  return found;
}

interface Copy {
  readonly inboxSeq: number;
  readonly messageId: number;
  readonly record: Buffer;
}

/** Of the reply of `lua/inbox_read.lua`. */
function copiesOf(fields: readonly Buffer[]): readonly Copy[] {
  const copies: Copy[] = [];
  for (let at = 0; at + 2 < fields.length; at += 3) {
    const [seq, id, record] = fields.slice(at, at + 3);
    if (record === undefined) break;
    copies.push({ inboxSeq: Number(seq), messageId: Number(id), record });
  }
  return copies;
}

function commandOf({ inboxSeq, messageId, record }: Copy): InboxCommand {
  const place = { messageId, messageSeq: inboxSeq };
  return { inboxSeq, message: decodeRecord(record, place) };
}

/** The port's `acknowledgeCommands`. */
export async function acknowledge(
  { link, clock, written }: RedisStoreParts,
  uid: string,
  inboxSeqs: readonly number[],
): Promise<number> {
  if (isTooLong(uid)) throw new BrokerError("too_large");
  const seqs = inboxSeqs.filter(
    (seq) => Number.isInteger(seq) && seq >= 1 && seq <= MAX_INBOX_SEQ,
  );
  const keys = ["in", "inx"].map((part) => link.keys.user(part, uid));
  const steps: Promise<unknown>[] = [];
  for (let at = 0; at < seqs.length; at += TAKEN) {
    const some = seqs.slice(at, at + TAKEN);
    steps.push(link.run(takeScript, keys, [clock(), ...some]));
  }
  const counts = await Promise.all(steps);
  await written(keys[0]);
  return counts.reduce<number>((sum, count) => sum + Number(count), 0);
}
