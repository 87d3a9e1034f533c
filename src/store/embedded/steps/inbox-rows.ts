// Keys and values of the command inbox tables. Numbers are big-endian, so that keys sort by number.
// A command key is the key of a row in the table `commands`.
//
//   table           key                               value
//   inboxes         uid size u16, uid                 version u8, last inboxSeq u48,
//                                                     number of copies u48
//   inbox           uid size u16, uid, inboxSeq u48   version u8, sender size u16, sender,
//                                                     command key
//   inboxSenders    uid size u16, uid, sender         version u8, number of the sender's copies
//                                                     u32. No row for backends
//   commands        expiry time u48, message id f64   record (see record.ts)
//   commandCopies   command key                       version u8, number of copies u32 (not in
//                                                     version 1), key in `inbox` of each copy
//   commandLeft     command key                       version u8, number of copies still in
//                                                     inboxes u32; no row means all copies

import { BrokerError } from "../../../broker/errors.ts";
import { writeText } from "../../../lib/write-text.ts";

const VERSION = 1;
const COPY_VERSION = 2;
const COPIES_VERSION = 2;
const COPIES_AT = 5;
const SIZE_BYTES = 2;
const SENDER_AT = 1 + SIZE_BYTES;
const SEQ_BYTES = 6;
const ID_BYTES = 8;
const MAX_TIME = 2 ** 48 - 1;
export const MAX_INBOX_SEQ = 2 ** 48 - 1;

interface InboxState {
  readonly last: number;
  readonly count: number;
}

/** Allocates small buffers from larger buffers, so that many keys need few allocations. */
export class Arena {
  #block = Buffer.alloc(0);
  #used = 0;

  allocate(size: number): Buffer {
    if (this.#used + size > this.#block.length) {
      this.#block = Buffer.allocUnsafeSlow(Math.max(64 * 1024, size));
      this.#used = 0;
    }
    const start = this.#used;
    this.#used += size;
    return this.#block.subarray(start, this.#used);
  }

  shrinkLast(size: number): void {
    this.#used -= size;
  }
}

/** Allocates single keys, for which the blocks of an arena (at least 64 KiB) would be too large. */
const NO_ARENA: Pick<Arena, "allocate" | "shrinkLast"> = {
  allocate: (size) => Buffer.allocUnsafe(size),
  shrinkLast() {},
};

export function inboxKey(uid: string, arena = NO_ARENA): Buffer {
  const room = SIZE_BYTES + uid.length * 3;
  const key = arena.allocate(room);
  const size = writeText(key, SIZE_BYTES, uid);
  key.writeUInt16BE(size, 0);
  arena.shrinkLast(room - SIZE_BYTES - size);
  return key.subarray(0, SIZE_BYTES + size);
}

export function copyKey(inbox: Buffer, seq: number, arena = NO_ARENA): Buffer {
  const key = arena.allocate(inbox.length + SEQ_BYTES);
  key.set(inbox);
  writeSeq(key, seq);
  return key;
}

export function writeSeq(key: Buffer, seq: number): void {
  key.writeUIntBE(seq, key.length - SEQ_BYTES, SEQ_BYTES);
}

export function seqOfCopy(key: Buffer): number {
  return key.readUIntBE(key.length - SEQ_BYTES, SEQ_BYTES);
}

/** Returns the value of a copy. `sender` is "" if a backend sent the command. */
export function copyValue(command: Buffer, sender: string, arena: Arena): Buffer {
  const size = Buffer.byteLength(sender);
  const value = arena.allocate(SENDER_AT + size + command.length);
  value[0] = COPY_VERSION;
  value.writeUInt16BE(size, 1);
  value.write(sender, SENDER_AT);
  value.set(command, SENDER_AT + size);
  return value;
}

export function commandOf(value: Buffer): Buffer {
  assertVersion(value, COPY_VERSION);
  return value.subarray(SENDER_AT + value.readUInt16BE(1));
}

export function senderOf(value: Buffer): string {
  assertVersion(value, COPY_VERSION);
  return value.toString("utf8", SENDER_AT, SENDER_AT + value.readUInt16BE(1));
}

export function senderKey(inbox: Buffer, sender: string, arena: Arena): Buffer {
  const key = arena.allocate(inbox.length + Buffer.byteLength(sender));
  key.set(inbox);
  key.write(sender, inbox.length);
  return key;
}

export function senderOfKey(key: Buffer, inbox: Buffer): string {
  return key.toString("utf8", inbox.length);
}

export function stateValue({ last, count }: InboxState, arena: Arena): Buffer {
  const value = arena.allocate(1 + 2 * SEQ_BYTES);
  value[0] = VERSION;
  value.writeUIntBE(last, 1, SEQ_BYTES);
  value.writeUIntBE(count, 1 + SEQ_BYTES, SEQ_BYTES);
  return value;
}

export function readState(value: Buffer | undefined): InboxState {
  if (value === undefined) return { last: 0, count: 0 };
  assertVersion(value);
  return {
    last: value.readUIntBE(1, SEQ_BYTES),
    count: value.readUIntBE(1 + SEQ_BYTES, SEQ_BYTES),
  };
}

/** Returns a command's key. Without an id, returns the prefix of all keys with this expiry time. */
export function commandKey(expiresAtMs: number, messageId?: number): Buffer {
  const key = Buffer.alloc(messageId === undefined ? SEQ_BYTES : SEQ_BYTES + ID_BYTES);
  key.writeUIntBE(Math.min(expiresAtMs, MAX_TIME), 0, SEQ_BYTES);
  if (messageId !== undefined) key.writeDoubleBE(messageId, SEQ_BYTES);
  return key;
}

export function expiryOf(command: Buffer): number {
  return command.readUIntBE(0, SEQ_BYTES);
}

export function idOf(command: Buffer): number {
  return command.readDoubleBE(SEQ_BYTES);
}

export function copiesValue(keys: readonly Buffer[]): Buffer {
  const start = Buffer.alloc(COPIES_AT);
  start[0] = COPIES_VERSION;
  start.writeUInt32BE(keys.length, 1);
  return Buffer.concat([start, ...keys]);
}

/** Returns the original number of copies, or 0 if the command is no longer stored. */
export function countCopies(value: Buffer | undefined): number {
  return value?.[0] === COPIES_VERSION ? value.readUInt32BE(1) : readCopies(value).length;
}

export function leftValue(count: number): Buffer {
  const value = Buffer.alloc(5);
  value[0] = VERSION;
  value.writeUInt32BE(count, 1);
  return value;
}

export function readLeft(value: Buffer): number {
  assertVersion(value);
  return value.readUInt32BE(1);
}

export function readCopies(
  value: Buffer | undefined,
): { readonly uid: string; readonly seq: number }[] {
  if (value === undefined) return [];
  assertVersion(value, COPIES_VERSION);
  const copies: { uid: string; seq: number }[] = [];
  for (let at = value[0] === COPIES_VERSION ? COPIES_AT : 1; at < value.length; ) {
    const uidEnd = at + SIZE_BYTES + value.readUInt16BE(at);
    const uid = value.toString("utf8", at + SIZE_BYTES, uidEnd);
    copies.push({ uid, seq: value.readUIntBE(uidEnd, SEQ_BYTES) });
    at = uidEnd + SEQ_BYTES;
  }
  return copies;
}

function assertVersion(value: Buffer, newestVersion = VERSION): void {
  const [version = 0] = value;
  if (version >= 1 && version <= newestVersion) return;
  throw new BrokerError("internal", {
    message: `A stored command has format ${version}, but this build reads formats up to ${newestVersion}. Start the newer build that wrote it.`,
  });
}
