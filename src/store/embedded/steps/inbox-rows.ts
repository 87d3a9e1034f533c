// Keys and values of the command inboxes' tables. Pure. Numbers are big-endian: keys sort by them.
//   inboxes:        uid size u16, uid → version u8, last inboxSeq u48, number of copies u48
//   inbox:          uid size u16, uid, inboxSeq u48 → version u8, then the command's key
//   commands:       expiry u48, message id f64 → record (see record.ts)
//   commandCopies:  the same key → version u8, number of copies u32 (not in version 1), then the
//     inbox keys of all its copies
//   commandLeft:    the same key → version u8, number of copies still in inboxes u32; no row: all
//     of them

import { BrokerError } from "../../../broker/errors.ts";
import { writeText } from "../../../lib/write-text.ts";

const VERSION = 1;
const COPIES_VERSION = 2;
/** Where the keys begin behind the count. */
const COPIES_AT = 5;
const SIZE = 2;
const SEQ = 6;
const ID = 8;
const MAX_TIME = 2 ** 48 - 1;
export const MAX_INBOX_SEQ = 2 ** 48 - 1;

/** Last seq and number of copies of an inbox. */
interface InboxState {
  readonly last: number;
  readonly count: number;
}

/**
 * Gives small pieces of larger buffers: tens of thousands of keys cost few allocations. Pieces stay
 * valid.
 */
export class Arena {
  #block = Buffer.alloc(0);
  #used = 0;

  take(size: number): Buffer {
    if (this.#used + size > this.#block.length) {
      this.#block = Buffer.allocUnsafeSlow(Math.max(64 * 1024, size));
      this.#used = 0;
    }
    const start = this.#used;
    this.#used += size;
    return this.#block.subarray(start, this.#used);
  }

  /** Gives the end of the last piece back. */
  giveBack(size: number): void {
    this.#used -= size;
  }
}

/** Of one key: an arena's block is many times larger. */
const ALONE: Pick<Arena, "take" | "giveBack"> = {
  take: (size) => Buffer.allocUnsafe(size),
  giveBack() {},
};

export function inboxKey(uid: string, arena = ALONE): Buffer {
  const room = SIZE + uid.length * 3;
  const key = arena.take(room);
  const size = writeText(key, SIZE, uid);
  key.writeUInt16BE(size, 0);
  arena.giveBack(room - SIZE - size);
  return key.subarray(0, SIZE + size);
}

export function copyKey(inbox: Buffer, seq: number, arena = ALONE): Buffer {
  const key = arena.take(inbox.length + SEQ);
  key.set(inbox);
  writeSeq(key, seq);
  return key;
}

/** Makes another copy's key of one of the same inbox. */
export function writeSeq(key: Buffer, seq: number): void {
  key.writeUIntBE(seq, key.length - SEQ, SEQ);
}

export function seqOfCopy(key: Buffer): number {
  return key.readUIntBE(key.length - SEQ, SEQ);
}

export function copyValue(command: Buffer, arena: Arena): Buffer {
  const value = arena.take(1 + command.length);
  value[0] = VERSION;
  value.set(command, 1);
  return value;
}

/** The key of the command that a copy is of. */
export function commandOf(value: Buffer): Buffer {
  assertVersion(value);
  return value.subarray(1);
}

export function stateValue({ last, count }: InboxState, arena: Arena): Buffer {
  const value = arena.take(1 + 2 * SEQ);
  value[0] = VERSION;
  value.writeUIntBE(last, 1, SEQ);
  value.writeUIntBE(count, 1 + SEQ, SEQ);
  return value;
}

export function readState(value: Buffer | undefined): InboxState {
  if (value === undefined) return { last: 0, count: 0 };
  assertVersion(value);
  return {
    last: value.readUIntBE(1, SEQ),
    count: value.readUIntBE(1 + SEQ, SEQ),
  };
}

/** Without an id: where the keys of that time begin. */
export function commandKey(expiresAtMs: number, messageId?: number): Buffer {
  const key = Buffer.alloc(messageId === undefined ? SEQ : SEQ + ID);
  key.writeUIntBE(Math.min(expiresAtMs, MAX_TIME), 0, SEQ);
  if (messageId !== undefined) key.writeDoubleBE(messageId, SEQ);
  return key;
}

export function expiryOf(command: Buffer): number {
  return command.readUIntBE(0, SEQ);
}

export function idOf(command: Buffer): number {
  return command.readDoubleBE(SEQ);
}

export function copiesValue(keys: readonly Buffer[]): Buffer {
  const start = Buffer.alloc(COPIES_AT);
  start[0] = COPIES_VERSION;
  start.writeUInt32BE(keys.length, 1);
  return Buffer.concat([start, ...keys]);
}

/** How many copies a command had; 0: nothing is kept of it. */
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

/** Whose inboxes got a command, and under which seqs. */
export function readCopies(
  value: Buffer | undefined,
): { readonly uid: string; readonly seq: number }[] {
  if (value === undefined) return [];
  assertVersion(value, COPIES_VERSION);
  const copies: { uid: string; seq: number }[] = [];
  for (let at = value[0] === COPIES_VERSION ? COPIES_AT : 1; at < value.length; ) {
    const uidEnd = at + SIZE + value.readUInt16BE(at);
    const uid = value.toString("utf8", at + SIZE, uidEnd);
    copies.push({ uid, seq: value.readUIntBE(uidEnd, SEQ) });
    at = uidEnd + SEQ;
  }
  return copies;
}

function assertVersion(value: Buffer, known = VERSION): void {
  const [version = 0] = value;
  if (version >= 1 && version <= known) return;
  throw new BrokerError("internal", {
    message: `A stored command has format ${version}; this build reads up to ${known}`,
  });
}
