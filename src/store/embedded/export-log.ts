// Reads one channel's messages and its users' newest own seqs out of the embedded store's database for a move. Rows are fetched a few at a time and no
// cursor stays open between them. No state.

import type { Moved, MovedMessage } from "../moved.ts";
import { logKey, seqIn } from "./channel-rows.ts";
import type { Tables } from "./database.ts";
import { NUMBER_BYTES, rowsOfNumber } from "./export-rows.ts";
import { decodeRecord, peekCounted, peekTimes } from "./record.ts";

/** Messages fetched at once. */
const MESSAGES = 64;
const MAX_SEQ = 2 ** 48 - 1;

/** The messages behind the seq `behind`. */
export function* messagesOf(
  { log }: Tables,
  number: number,
  behind: number,
): Generator<MovedMessage> {
  let previousSeq = behind;
  for (;;) {
    const chunk = [
      ...log.getRange({
        start: logKey(number, previousSeq + 1),
        end: logKey(number, MAX_SEQ),
        limit: MESSAGES,
      }),
    ];
    for (const { key, value } of chunk) {
      const { message, isStream } = decodeRecord(value);
      const counted = countThrough(value);
      yield { kind: "message", message, previousSeq, counted, isStream };
      previousSeq = seqIn(key);
    }
    if (chunk.length < MESSAGES) return;
  }
}

/** Of a record that counts no red dot of its own although it has one (of an old format), one more: whoever reads it here takes one off. */
function countThrough(value: Buffer): number {
  const { counted, counts } = peekCounted(value);
  const { message } = decodeRecord(value);
  const hasDot = message.header.redDot && message.expireS === 0;
  return hasDot && !counts ? counted + 1 : counted;
}

/** When the newest or oldest message that is kept was accepted. */
export function edgeOf(
  { log }: Tables,
  number: number,
  reverse: boolean,
): number | undefined {
  const [low, high] = [logKey(number, 0), logKey(number, MAX_SEQ)];
  const [start, end] = reverse ? [high, low] : [low, high];
  const [edge] = log.getRange({ start, end, reverse, limit: 1 });
  return edge && peekTimes(edge.value).timestampMs;
}

/** Everybody's newest own seq. */
export function* ownOf(
  { own }: Tables,
  key: string,
  number: number,
): Generator<Moved> {
  for (const { key: at, value } of rowsOfNumber(own, number)) {
    const uid = at.toString("utf8", NUMBER_BYTES);
    yield { kind: "own", key, uid, seq: value.readUIntBE(1, NUMBER_BYTES) };
  }
}
