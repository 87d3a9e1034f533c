// Reads what retries are answered out of the embedded store's database for a move. A row that was written twice comes twice, the older one first.
// No state.

import type { ChannelKey } from "../../broker/model.ts";
import type { MovedFirst, MovedRow } from "../moved.ts";
import type { Tables } from "./database.ts";
import {
  type BinaryRow,
  behind,
  NUMBER_BYTES,
  numberKey,
  rowsBetween,
  rowsOfNumber,
} from "./export-rows.ts";

const SEPARATOR = 0x0a;
/** In the place of a channel's number: commands, with the channel's key at the end. */
const COMMANDS = 0;

export const COMMAND_FIRSTS = "commandFirsts";

/** Of one channel's messages. */
export function* exportFirsts(
  { dedupe }: Tables,
  number: number,
  key: ChannelKey,
): Generator<MovedFirst> {
  for (const table of dedupe)
    for (const row of rowsOfNumber(table, number)) yield firstOf(row, key);
}

/** Of all commands, behind the place `at`: which of the two tables, and the key in hex. */
export function* exportCommandFirsts(
  { dedupe }: Tables,
  at: string,
): Generator<MovedRow> {
  const [from = "0", hex = ""] = at.split(" ");
  for (const [index, table] of dedupe.entries()) {
    if (index < Number(from)) continue;
    const isSame = index === Number(from) && hex !== "";
    const start = isSame
      ? behind(Buffer.from(hex, "hex"))
      : numberKey(COMMANDS);
    for (const row of rowsBetween(table, start, numberKey(COMMANDS + 1)))
      yield {
        moved: firstOf(row),
        place: {
          table: COMMAND_FIRSTS,
          at: `${index} ${row.key.toString("hex")}`,
        },
      };
  }
}

/** Without `channel` a command's, which names its channel itself. */
function firstOf({ key, value }: BinaryRow, channel?: ChannelKey): MovedFirst {
  const end = key.indexOf(SEPARATOR, NUMBER_BYTES);
  const last = channel === undefined ? key.lastIndexOf(SEPARATOR) : key.length;
  return {
    kind: "first",
    key: channel ?? key.toString("utf8", last + 1),
    fromUid: key.toString("utf8", NUMBER_BYTES, end),
    clientMsgNo: key.toString("utf8", end + 1, last),
    messageId: value.readDoubleLE(1),
    messageSeq: value.readDoubleLE(9),
    timestampMs: value.readDoubleLE(17),
  };
}
