// Converts cursors of the event feed (a position in each partition) to text and back. Keeps no
// state.

import { EVENT_PARTITIONS, EVENTS_START, type EventPosition } from "./event-ports.ts";

/**
 * First character of a cursor. It distinguishes a cursor from a time, which begins with a digit.
 */
const PREFIX = "e";
const PARTITION_BYTES = 14;
const NUMBER_AT = 1;
const ID_AT = 7;
const NUMBER_BYTES = 6;
/** Divisor that splits an id, which has up to 53 bits, into the two numbers that are written. */
const ID_HIGH = 2 ** 32;

/**
 * Returns the text of the positions, one for each partition. Partitions whose position is
 * `EVENTS_START` are omitted.
 */
export function encodeCursor(positions: readonly EventPosition[]): string {
  const parts = positions.flatMap(({ number, id }, partition) => {
    if (number === 0) return [];
    const bytes = Buffer.allocUnsafe(PARTITION_BYTES);
    bytes[0] = partition;
    bytes.writeUIntBE(number, NUMBER_AT, NUMBER_BYTES);
    bytes.writeUIntBE(Math.floor(id / ID_HIGH), ID_AT, 3);
    bytes.writeUInt32BE(id % ID_HIGH, ID_AT + 3);
    return [bytes];
  });
  return PREFIX + Buffer.concat(parts).toString("base64url");
}

export function decodeCursor(text: string): readonly EventPosition[] | undefined {
  if (!text.startsWith(PREFIX)) return undefined;
  const bytes = Buffer.from(text.slice(PREFIX.length), "base64url");
  const isWhole = bytes.length % PARTITION_BYTES === 0;
  if (!isWhole || bytes.toString("base64url") !== text.slice(PREFIX.length)) return undefined;
  const positions = new Array<EventPosition>(EVENT_PARTITIONS).fill(EVENTS_START);
  let next = 0;
  for (let at = 0; at < bytes.length; at += PARTITION_BYTES) {
    const partition = bytes.readUInt8(at);
    if (partition < next || partition >= EVENT_PARTITIONS) return undefined;
    next = partition + 1;
    positions[partition] = {
      number: bytes.readUIntBE(at + NUMBER_AT, NUMBER_BYTES),
      id: bytes.readUIntBE(at + ID_AT, 3) * ID_HIGH + bytes.readUInt32BE(at + ID_AT + 3),
    };
  }
  return positions;
}
