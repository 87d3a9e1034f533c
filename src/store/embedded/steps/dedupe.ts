// Index of client message numbers in the database. There are two tables, one for each of the last
// two generations. A generation lasts for at least one dedupe window. When a new generation begins,
// the older table therefore has only expired entries. This table is emptied and becomes the current
// table. Commands have entries in the same tables, under the channel number 0 and with the
// channel's key, because their channel may have no number. A filter per table records which sender
// used which client message number, so that most lookups need no read.

import { setImmediate as nextTurn } from "node:timers/promises";
import type { Message } from "../../../broker/model.ts";
import type { MessageDraft } from "../../../broker/ports.ts";
import { writeHash } from "../../../lib/byte-hash.ts";
import { PairFilter } from "../../../lib/pair-filter.ts";
import { writeText } from "../../../lib/write-text.ts";
import {
  isOtherPayload,
  PAYLOAD_HASH_BYTES,
  payloadHash,
  STREAM_HASH,
} from "../../payload-hash.ts";
import { commit, fieldsOf } from "../engine/database.ts";
import type { DedupeKey, MemtableRecord } from "../engine/memtable.ts";
import {
  CLIENT_MSG_NO,
  DEDUPE_RECORD,
  FROM_UID,
  hasSentHash,
  isStreamRecord,
  payloadAt,
  peekId,
  peekTimes,
  TEXT_LENGTH_BYTES,
  textAt,
} from "../engine/record.ts";
import type { Tables } from "../engine/tables.ts";

const STATE = "dedupe";
const VERSION = 1;
/**
 * Size of a value: version u8, messageId f64, messageSeq f64, timestampMs f64, hash of the payload.
 * A value without the hash is shorter.
 */
const VALUE_BYTES = 33;
const HASH_AT = VALUE_BYTES - PAYLOAD_HASH_BYTES;
const NUMBER_BYTES = 6;
/** Separates the strings in a key. Ids contain no control characters. */
const SEPARATOR = 0x0a;
/** Number used in place of a channel number in the keys of commands. No channel has this number. */
const COMMANDS = 0;
/** Maximum size of a command's key. The database's own limit is slightly higher. */
const MAX_KEY_BYTES = 1900;
const KEY_BUFFER_BYTES = 4096;
const KEYS_PER_TURN = 500;

export interface FirstMessage {
  readonly messageId: number;
  readonly messageSeq: number;
}

/** The first message or command with a clientMsgNo, as the database stores it. */
interface StoredFirst extends FirstMessage {
  /** Hash of the payload, or `undefined` if it is unknown. */
  readonly payloadHash: Buffer | undefined;
}

/** A command that is being stored. `outcome` resolves to `undefined` if the command failed. */
export interface PendingCommand {
  readonly payloadHash: Buffer;
  readonly outcome: Promise<FirstMessage | undefined>;
}

export type RememberedMessage = MemtableRecord | StoredFirst | PendingCommand;

type Outcome = PendingCommand["outcome"];
type SentPayload = Pick<MessageDraft, "payload" | "sentPayload">;
type SenderKey = Pick<DedupeKey, "fromUid" | "clientMsgNo">;

export class DedupeIndex {
  readonly #tables: Tables;
  readonly #windowMs: number;
  /**
   * Buffer for the key of the current call. It can be shared, because calls are synchronous and the
   * database copies the key before `put` returns.
   */
  readonly #key = Buffer.allocUnsafe(KEY_BUFFER_BYTES);
  /** Views of the first n bytes of `#key`, by n. */
  readonly #keys: (Buffer | undefined)[] = new Array(KEY_BUFFER_BYTES + 1);
  readonly #filters = [new PairFilter(), new PairFilter()] as const;
  #areFiltersComplete = false;
  #isClosed = false;
  /** Filter entries that were added during a rotation and belong in the new filter too. */
  #addedDuringRotation: [string, string][] = [];
  #isRotating = false;
  readonly #pendingCommands = new Map<string, PendingCommand>();
  #generation = 0;
  #startedAtMs: number | undefined;

  constructor(tables: Tables, windowMs: number) {
    this.#tables = tables;
    this.#windowMs = windowMs;
    const state = tables.meta.get(STATE);
    if (state === undefined) return;
    const [generation, startedAtMs] = fieldsOf(state, VERSION);
    this.#generation = Number(generation);
    this.#startedAtMs = Number(startedAtMs);
  }

  /** Returns true if `first` was sent within the dedupe window or has a time in the future. */
  isInWindow(first: Pick<Message, "timestampMs">, nowMs: number): boolean {
    return nowMs - first.timestampMs < this.#windowMs;
  }

  /** Returns false only if it is certain that this sender has not used the clientMsgNo. */
  mayContain({ fromUid, clientMsgNo }: SenderKey): boolean {
    if (!this.#areFiltersComplete) return true;
    const [even, odd] = this.#filters;
    return even.mayHave(fromUid, clientMsgNo) || odd.mayHave(fromUid, clientMsgNo);
  }

  /** Adds an entry to the filter. Must be called before the entry can be looked up. */
  addToFilter({ fromUid, clientMsgNo }: SenderKey): void {
    this.#filters[slotOf(this.#generation)].add(fromUid, clientMsgNo);
    if (this.#isRotating) this.#addedDuringRotation.push([fromUid, clientMsgNo]);
  }

  /**
   * Adds the stored entries to the filters. Until this is complete, `mayContain` always returns
   * true.
   */
  async fillFilters(): Promise<void> {
    for (const at of [0, 1] as const) {
      let start: Buffer | undefined = Buffer.alloc(1);
      while (start !== undefined && !this.#isClosed) {
        start = this.#fillSome(at, start);
        await nextTurn();
      }
    }
    this.#areFiltersComplete = !this.#isClosed;
  }

  close(): void {
    this.#isClosed = true;
  }

  #fillSome(at: 0 | 1, start: Buffer): Buffer | undefined {
    let lastKey: Buffer | undefined;
    let count = 0;
    const { dedupe } = this.#tables;
    for (const key of dedupe[at].getKeys({ start, limit: KEYS_PER_TURN })) {
      const end = key.indexOf(SEPARATOR, NUMBER_BYTES);
      const fromUid = key.toString("utf8", NUMBER_BYTES, end);
      const isCommand = key.readUIntBE(0, NUMBER_BYTES) === COMMANDS;
      const last = isCommand ? key.lastIndexOf(SEPARATOR) : key.length;
      this.#filters[at].add(fromUid, key.toString("utf8", end + 1, last));
      lastKey = key;
      count++;
    }
    if (lastKey === undefined || count < KEYS_PER_TURN) return undefined;
    // The lowest key that is higher than `lastKey`.
    return Buffer.concat([lastKey, Buffer.alloc(1)]);
  }

  find(number: number, sender: SenderKey, nowMs: number): StoredFirst | undefined {
    const size = writeKey(this.#key, number, sender);
    return this.#read(this.#keyOf(size), nowMs);
  }

  findCommand(command: DedupeKey, nowMs: number): StoredFirst | PendingCommand | undefined {
    const pending = this.#pendingCommands.get(nameOf(command));
    if (pending !== undefined) return pending;
    const size = writeCommandKey(this.#key, command);
    return size > MAX_KEY_BYTES ? undefined : this.#read(this.#keyOf(size), nowMs);
  }

  #read(key: Buffer, nowMs: number): StoredFirst | undefined {
    // The newer table is read first, because the newer entry takes precedence if a clientMsgNo was
    // reused. Before the second generation, the other table is empty.
    const generations = this.#generation <= 1 ? [1] : [this.#generation, this.#generation - 1];
    for (const generation of generations) {
      const value = this.#table(generation).getBinaryFast(key);
      if (value === undefined) continue;
      const timestampMs = value.readDoubleLE(17);
      if (this.isInWindow({ timestampMs }, nowMs))
        return {
          messageId: value.readDoubleLE(1),
          messageSeq: value.readDoubleLE(9),
          payloadHash: payloadHashIn(value),
        };
    }
    return undefined;
  }

  isRotationDue(nowMs: number): boolean {
    if (this.#startedAtMs === undefined) return true;
    // If the clock was set back, the generation must not become longer.
    this.#startedAtMs = Math.min(this.#startedAtMs, nowMs);
    return nowMs - this.#startedAtMs >= this.#windowMs;
  }

  async rotate(nowMs: number): Promise<void> {
    const next = this.#generation + 1;
    this.#isRotating = true;
    try {
      await commit(
        this.#tables,
        () => {
          void this.#table(next).clearAsync();
          void this.#tables.meta.put(STATE, [VERSION, next, nowMs]);
        },
        "reclaim",
      );
      this.#filters[slotOf(next)].clear();
      this.#generation = next;
      this.#startedAtMs = nowMs;
      for (const [uid, no] of this.#addedDuringRotation) this.#filters[slotOf(next)].add(uid, no);
    } finally {
      this.#isRotating = false;
      this.#addedDuringRotation = [];
    }
  }

  put(number: number, record: MemtableRecord): void {
    const { bytes, start, messageSeq } = record;
    const uidAt = textAt(bytes, start, FROM_UID);
    const clientMsgNoAt = textAt(bytes, start, CLIENT_MSG_NO);
    const separatorAt = NUMBER_BYTES + bytes.readUInt16LE(uidAt);
    const size = separatorAt + 1 + bytes.readUInt16LE(clientMsgNoAt);
    const key = this.#keyOf(size);
    key.writeUIntBE(number, 0, NUMBER_BYTES);
    let from = uidAt + TEXT_LENGTH_BYTES;
    // The bytes are copied in loops, because a call into C++ would cost more for short strings.
    for (let i = NUMBER_BYTES; i < separatorAt; i++) key[i] = bytes[from++] ?? 0;
    key[separatorAt] = SEPARATOR;
    from = clientMsgNoAt + TEXT_LENGTH_BYTES;
    for (let i = separatorAt + 1; i < size; i++) key[i] = bytes[from++] ?? 0;
    const { timestampMs } = peekTimes(bytes, start);
    const value = newValue(peekId(bytes, start), messageSeq, timestampMs);
    const hasHash = writeRecordHash(value, HASH_AT, record);
    void this.#table(this.#generation).put(key, hasHash ? value : value.subarray(0, HASH_AT));
  }

  /** Tracks a command that is being stored. Its entry must be stored before `outcome` resolves. */
  trackCommand(command: DedupeKey & SentPayload, outcome: Outcome): void {
    const name = nameOf(command);
    const pending = { payloadHash: payloadHash(command.sentPayload ?? command.payload), outcome };
    this.addToFilter(command);
    this.#pendingCommands.set(name, pending);
    void outcome.then(() => {
      // A later command with the same clientMsgNo may have replaced the entry.
      if (this.#pendingCommands.get(name) === pending) this.#pendingCommands.delete(name);
    });
  }

  isCommandTooLong(command: DedupeKey): boolean {
    const { key, fromUid, clientMsgNo } = command;
    const units = key.length + fromUid.length + clientMsgNo.length;
    if (units * 3 < MAX_KEY_BYTES) return false;
    if (units > MAX_KEY_BYTES) return true;
    return writeCommandKey(this.#key, command) > MAX_KEY_BYTES;
  }

  /** Stores the entry of a command. Must be called inside `commit`. */
  putCommand(command: Message, sentPayload: Uint8Array | undefined): void {
    const key = this.#keyOf(writeCommandKey(this.#key, command));
    const { messageId, messageSeq, timestampMs, payload } = command;
    const value = newValue(messageId, messageSeq, timestampMs);
    writeHash(value, HASH_AT, sentPayload ?? payload);
    void this.#table(this.#generation).put(key, value);
  }

  #keyOf(size: number): Buffer {
    this.#keys[size] ??= this.#key.subarray(0, size);
    return this.#keys[size];
  }

  #table(generation: number) {
    return this.#tables.dedupe[slotOf(generation)];
  }
}

function slotOf(generation: number): 0 | 1 {
  return generation % 2 === 0 ? 0 : 1;
}

/** Returns a value whose hash is not written yet. */
function newValue(messageId: number, messageSeq: number, timestampMs: number): Buffer {
  const value = Buffer.allocUnsafe(VALUE_BYTES);
  value[0] = VERSION;
  value.writeDoubleLE(messageId, 1);
  value.writeDoubleLE(messageSeq, 9);
  value.writeDoubleLE(timestampMs, 17);
  return value;
}

/** Returns the hash in a value of a dedupe table, or `undefined` if the value has no hash. */
export function payloadHashIn(value: Buffer): Buffer | undefined {
  return value.length < VALUE_BYTES ? undefined : Buffer.from(value.subarray(HASH_AT, VALUE_BYTES));
}

/**
 * Returns the hash of the payload that the sender sent, or `undefined` if the record has no hash.
 */
function recordPayloadHash(record: MemtableRecord): Buffer | undefined {
  const hash = Buffer.allocUnsafe(PAYLOAD_HASH_BYTES);
  return writeRecordHash(hash, 0, record) ? hash : undefined;
}

/**
 * Writes the hash of the payload that the sender sent. Returns false if the record has no hash.
 * Called for each message, so it creates no view of the record.
 */
function writeRecordHash(
  target: Buffer,
  at: number,
  { bytes, start, end }: MemtableRecord,
): boolean {
  const from = payloadAt(bytes, start);
  if (isStreamRecord(bytes, start)) copyHash(target, at, STREAM_HASH, 0);
  else if (hasSentHash(bytes, start)) copyHash(target, at, bytes, from - PAYLOAD_HASH_BYTES);
  else if (bytes[start + 1] !== DEDUPE_RECORD) writeHash(target, at, bytes, from, end);
  else if (end - from === PAYLOAD_HASH_BYTES) copyHash(target, at, bytes, from);
  else return false;
  return true;
}

function copyHash(target: Buffer, at: number, source: Buffer, from: number): void {
  for (let i = 0; i < PAYLOAD_HASH_BYTES; i++) target[at + i] = source[from + i] ?? 0;
}

export function firstMessage(first: MemtableRecord | FirstMessage): FirstMessage {
  const { messageSeq } = first;
  const messageId = "committed" in first ? peekId(first.bytes, first.start) : first.messageId;
  return { messageId, messageSeq };
}

/** Returns true if the payload is known to differ from the payload that was sent first. */
export function hasOtherPayload(
  first: RememberedMessage,
  { payload, sentPayload = payload }: SentPayload,
): boolean {
  const remembered = "committed" in first ? recordPayloadHash(first) : first.payloadHash;
  return isOtherPayload(remembered, sentPayload);
}

function nameOf({ key, fromUid, clientMsgNo }: DedupeKey): string {
  return `${fromUid}\n${clientMsgNo}\n${key}`;
}

function writeCommandKey(target: Buffer, command: DedupeKey): number {
  let at = writeKey(target, COMMANDS, command);
  target[at++] = SEPARATOR;
  return at + writeText(target, at, command.key);
}

function writeKey(target: Buffer, number: number, sender: SenderKey): number {
  target.writeUIntBE(number, 0, NUMBER_BYTES);
  let at = NUMBER_BYTES;
  at += writeText(target, at, sender.fromUid);
  target[at++] = SEPARATOR;
  return at + writeText(target, at, sender.clientMsgNo);
}
