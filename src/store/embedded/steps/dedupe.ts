// The database's memory of clientMsgNos. Two tables take turns: when the current one has been
// written to for a whole window, the other holds nothing of any use any more, is emptied at once
// and becomes the current one. A lookup is at most two reads and exact by time. Commands are
// remembered in the same tables, under the number 0 and with the channel's key: their channel may
// have no number. What a command on its way into the database will be remembered as is kept beside.
// Before it all a filter answers most questions: has this sender ever used this number? Each table
// has one, filled from the table after a start; until then everything is looked up. Owns the number
// and start of the current generation, the filters, and the commands under way.

import { setImmediate as nextTurn } from "node:timers/promises";
import type { Message } from "../../../broker/model.ts";
import { PairFilter } from "../../../lib/pair-filter.ts";
import { writeText } from "../../../lib/write-text.ts";
import { commit, fieldsOf } from "../engine/database.ts";
import type { MemtableRecord } from "../engine/memtable.ts";
import {
  CLIENT_MSG_NO,
  FROM_UID,
  peekId,
  peekTimes,
  TEXT_LENGTH_BYTES,
  textAt,
} from "../engine/record.ts";
import type { Tables } from "../engine/tables.ts";

const STATE = "dedupe";
const VERSION = 1;
/** Version u8, messageId f64, messageSeq f64, timestampMs f64. */
const VALUE_BYTES = 25;
const NUMBER_BYTES = 6;
/** Between uid, clientMsgNo and a command's channel key: ids hold no control characters. */
const SEPARATOR = 0x0a;
/** In the place of a channel's number in the keys of commands. */
const COMMANDS = 0;
/** Longest key of a command that the database takes, and less. */
const MAX_KEY_BYTES = 1900;
const KEYS_PER_TURN = 500;

export interface FirstMessage {
  readonly messageId: number;
  readonly messageSeq: number;
}

/** A command that is on its way into the database: undefined when it failed. */
export interface FirstToCome {
  readonly settling: Promise<FirstMessage | undefined>;
}

type Sender = Pick<Message, "fromUid" | "clientMsgNo">;
type Addressed = Sender & Pick<Message, "key">;
type Remembered = FirstMessage & Pick<Message, "timestampMs">;

export class DedupeIndex {
  readonly #tables: Tables;
  readonly #windowMs: number;
  /** Reused for lookups: they are synchronous. */
  readonly #key = Buffer.allocUnsafe(4096);
  readonly #filters = [new PairFilter(), new PairFilter()] as const;
  #areFiltersFull = false;
  #isClosed = false;
  /** What was noted while a rotation was under way: it belongs to the generation that begins. */
  #noted: [string, string][] = [];
  #isRotating = false;
  readonly #underWay = new Map<string, FirstToCome>();
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

  /**
   * Whether a retry now of a message of then is still one. A clock that went back does not end the
   * window.
   */
  isInWindow(first: Pick<Message, "timestampMs">, nowMs: number): boolean {
    return nowMs - first.timestampMs < this.#windowMs;
  }

  /** False: nobody of this name used this number within the window, in any channel. */
  mayKnow({ fromUid, clientMsgNo }: Sender): boolean {
    if (!this.#areFiltersFull) return true;
    const [even, odd] = this.#filters;
    return even.mayHave(fromUid, clientMsgNo) || odd.mayHave(fromUid, clientMsgNo);
  }

  /** To be called for everything that is remembered, before it can be asked for. */
  note({ fromUid, clientMsgNo }: Sender): void {
    this.#filters[slot(this.#generation)].add(fromUid, clientMsgNo);
    if (this.#isRotating) this.#noted.push([fromUid, clientMsgNo]);
  }

  /**
   * Fills the filters with what the tables hold, a little per event-loop turn. Until it is done
   * `mayKnow` says yes to all.
   */
  async fillFilters(): Promise<void> {
    for (const at of [0, 1] as const) {
      let start: Buffer | undefined = Buffer.alloc(1);
      while (start !== undefined && !this.#isClosed) {
        start = this.#fillSome(at, start);
        await nextTurn();
      }
    }
    this.#areFiltersFull = !this.#isClosed;
  }

  /** Ends `fillFilters` early. */
  close(): void {
    this.#isClosed = true;
  }

  /** Adds the numbers of some keys from `start` on; returns where to go on. */
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
    return Buffer.concat([lastKey, Buffer.alloc(1)]); // the next possible key
  }

  /**
   * The first message with this sender and clientMsgNo in the channel, if it is within the window.
   */
  find(number: number, sender: Sender, nowMs: number): FirstMessage | undefined {
    const size = writeKey(this.#key, number, sender);
    return this.#read(this.#key.subarray(0, size), nowMs);
  }

  /**
   * The command with this sender and clientMsgNo in the channel, if it is within the window or on
   * its way.
   */
  findCommand(command: Addressed, nowMs: number): FirstMessage | FirstToCome | undefined {
    const underWay = this.#underWay.get(nameOf(command));
    if (underWay !== undefined) return underWay;
    const size = writeCommandKey(this.#key, command);
    return size > MAX_KEY_BYTES ? undefined : this.#read(this.#key.subarray(0, size), nowMs);
  }

  #read(key: Buffer, nowMs: number): FirstMessage | undefined {
    const [even, odd] = this.#tables.dedupe;
    // The first generation is odd, and until the second one the even table is empty.
    for (const table of this.#generation <= 1 ? [odd] : [odd, even]) {
      const value = table.getBinaryFast(key);
      if (value === undefined) continue;
      const timestampMs = value.readDoubleLE(17);
      if (this.isInWindow({ timestampMs }, nowMs))
        return {
          messageId: value.readDoubleLE(1),
          messageSeq: value.readDoubleLE(9),
        };
    }
    return undefined;
  }

  /** Whether a new generation is due, or none was begun yet. */
  isRotationDue(nowMs: number): boolean {
    if (this.#startedAtMs === undefined) return true;
    // A clock that went back must not make a generation last for ages.
    this.#startedAtMs = Math.min(this.#startedAtMs, nowMs);
    return nowMs - this.#startedAtMs >= this.#windowMs;
  }

  /** Empties the older table and makes it the current one. */
  async rotate(nowMs: number): Promise<void> {
    const next = this.#generation + 1;
    this.#isRotating = true;
    try {
      await commit(this.#tables, () => {
        void this.#table(next).clearAsync();
        void this.#tables.meta.put(STATE, [VERSION, next, nowMs]);
      });
      this.#filters[slot(next)].clear();
      this.#generation = next;
      this.#startedAtMs = nowMs;
      for (const [uid, no] of this.#noted) this.#filters[slot(next)].add(uid, no);
    } finally {
      this.#isRotating = false;
      this.#noted = [];
    }
  }

  /** To be called inside `commit`. */
  put(number: number, { bytes, start, messageSeq }: MemtableRecord): void {
    const uidAt = textAt(bytes, start, FROM_UID);
    const noAt = textAt(bytes, start, CLIENT_MSG_NO);
    const separatorAt = NUMBER_BYTES + bytes.readUInt16LE(uidAt);
    const size = separatorAt + 1 + bytes.readUInt16LE(noAt);
    const room = Buffer.allocUnsafe(size + VALUE_BYTES);
    const key = room.subarray(0, size);
    key.writeUIntBE(number, 0, NUMBER_BYTES);
    let from = uidAt + TEXT_LENGTH_BYTES;
    // Loops: so few bytes are not worth a call into C++.
    for (let i = NUMBER_BYTES; i < separatorAt; i++) key[i] = bytes[from++] ?? 0;
    key[separatorAt] = SEPARATOR;
    from = noAt + TEXT_LENGTH_BYTES;
    for (let i = separatorAt + 1; i < size; i++) key[i] = bytes[from++] ?? 0;
    const { timestampMs } = peekTimes(bytes, start);
    const messageId = peekId(bytes, start);
    const first = { messageId, messageSeq, timestampMs };
    const value = dedupeValue(first, room.subarray(size));
    void this.#table(this.#generation).put(key, value);
  }

  /**
   * Makes retries of a command find it from now on, until it is committed (then the database
   * answers them).
   */
  expectCommand(command: Addressed, settling: Promise<FirstMessage | undefined>): void {
    const name = nameOf(command);
    this.note(command);
    this.#underWay.set(name, { settling });
    void settling.then(() => this.#underWay.delete(name));
  }

  /** Whether the database can remember a command of this name. */
  isCommandTooLong(command: Addressed): boolean {
    const { key, fromUid, clientMsgNo } = command;
    const units = key.length + fromUid.length + clientMsgNo.length;
    if (units * 3 < MAX_KEY_BYTES) return false;
    if (units > MAX_KEY_BYTES) return true;
    return writeCommandKey(this.#key, command) > MAX_KEY_BYTES;
  }

  /** To be called inside `commit`. */
  putCommand(command: Addressed & Remembered): void {
    const key = Buffer.from(this.#key.subarray(0, writeCommandKey(this.#key, command)));
    void this.#table(this.#generation).put(key, dedupeValue(command));
  }

  #table(generation: number) {
    return this.#tables.dedupe[slot(generation)];
  }
}

/** Which of the two tables and filters a generation has. */
function slot(generation: number): 0 | 1 {
  return generation % 2 === 0 ? 0 : 1;
}

function dedupeValue(message: Remembered, value = Buffer.allocUnsafe(VALUE_BYTES)): Buffer {
  value[0] = VERSION;
  value.writeDoubleLE(message.messageId, 1);
  value.writeDoubleLE(message.messageSeq, 9);
  value.writeDoubleLE(message.timestampMs, 17);
  return value;
}

function nameOf({ key, fromUid, clientMsgNo }: Addressed): string {
  return `${fromUid}\n${clientMsgNo}\n${key}`;
}

function writeCommandKey(target: Buffer, command: Addressed): number {
  let at = writeKey(target, COMMANDS, command);
  target[at++] = SEPARATOR;
  return at + writeText(target, at, command.key);
}

function writeKey(target: Buffer, number: number, sender: Sender): number {
  target.writeUIntBE(number, 0, NUMBER_BYTES);
  let at = NUMBER_BYTES;
  at += writeText(target, at, sender.fromUid);
  target[at++] = SEPARATOR;
  return at + writeText(target, at, sender.clientMsgNo);
}
