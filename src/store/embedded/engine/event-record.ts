// Encodes and decodes the WAL records of events. The event `message.stored` has no such record.
// Keeps no state.
//
// Layout, little-endian:
//
//   offset   field        type
//        0   version      u8      EVENT_VERSION
//        1   kind         u8      EVENT_RECORD
//        2   type         u16     index of the type in `EVENT_TYPES`
//        8   id           f64
//       16   outboxKey    f64     key in the table `outbox`, 0 if the event is not in it
//       24   messageSeq   f64     0 if the event does not refer to a message
//       32   key          string  length in bytes (u16), followed by the UTF-8 bytes
//            fields       bytes   JSON object, to the end of the record

import { EVENT_TYPES, type EventType } from "../../../broker/event-ports.ts";
import { writeText } from "../../../lib/write-text.ts";
import { assertVersion, EVENT_RECORD, EVENT_VERSION } from "./record.ts";

const TYPE_AT = 2;
const ID_AT = 8;
const OUTBOX_KEY_AT = 16;
const SEQ_AT = 24;
const KEY_LENGTH_AT = 32;
const KEY_AT = 34;

/** An event with its id, kept in memory until a checkpoint writes it. */
export interface EventRecord {
  readonly id: number;
  /** 0 if the event is not in the outbox. */
  readonly outboxKey: number;
  readonly type: EventType;
  readonly key: string;
  readonly messageSeq: number;
  /** JSON object. */
  readonly fields: string;
}

/**
 * Returns an upper bound for the size of a record. A UTF-16 code unit takes at most 3 bytes in
 * UTF-8.
 */
export function maxEventBytes({ key, fields }: Pick<EventRecord, "key" | "fields">): number {
  return KEY_AT + 3 * (key.length + fields.length);
}

/**
 * Encodes a record at the offset `at` and returns the offset of its end. The target must have room
 * for `maxEventBytes` bytes.
 */
export function encodeEventRecord(target: Buffer, at: number, event: EventRecord): number {
  target.fill(0, at, at + KEY_AT);
  target[at] = EVENT_VERSION;
  target[at + 1] = EVENT_RECORD;
  target.writeUInt16LE(EVENT_TYPES.indexOf(event.type), at + TYPE_AT);
  target.writeDoubleLE(event.id, at + ID_AT);
  target.writeDoubleLE(event.outboxKey, at + OUTBOX_KEY_AT);
  target.writeDoubleLE(event.messageSeq, at + SEQ_AT);
  const keyBytes = writeText(target, at + KEY_AT, event.key);
  target.writeUInt16LE(keyBytes, at + KEY_LENGTH_AT);
  const end = at + KEY_AT + keyBytes;
  return end + writeText(target, end, event.fields);
}

export function decodeEventRecord(bytes: Buffer): EventRecord {
  assertVersion(bytes[0]);
  const keyEnd = KEY_AT + bytes.readUInt16LE(KEY_LENGTH_AT);
  return {
    id: bytes.readDoubleLE(ID_AT),
    outboxKey: bytes.readDoubleLE(OUTBOX_KEY_AT),
    type: EVENT_TYPES[bytes.readUInt16LE(TYPE_AT)] ?? "message.stored",
    key: bytes.toString("utf8", KEY_AT, keyEnd),
    messageSeq: bytes.readDoubleLE(SEQ_AT),
    fields: bytes.toString("utf8", keyEnd),
  };
}
