// The database's memory of clientMsgNos. Two tables take turns: when the current one has been written to for a whole window, the other
// holds nothing of any use any more, is emptied at once and becomes the current one. A lookup is at most two reads and exact by time.
// Before it a filter answers most questions: has this sender ever used this number? Each table has one, filled from the table after a start;
// until then everything is looked up. Owns the number and start of the current generation, and the filters.

import { setImmediate as nextTurn } from "node:timers/promises";
import type { Message } from "../../broker/model.ts";
import { PairFilter } from "../../lib/pair-filter.ts";
import { commit, fieldsOf, type Tables } from "./database.ts";
import { writeText } from "./text.ts";

const STATE = "dedupe";
const VERSION = 1;
/** Version u8, messageId f64, messageSeq f64, timestampMs f64. */
const VALUE_BYTES = 25;
const NUMBER_BYTES = 6;
/** Between uid and clientMsgNo in a key: ids hold no control characters. */
const SEPARATOR = 0x0a;
const KEYS_PER_TURN = 500;

export interface FirstMessage {
  readonly messageId: number;
  readonly messageSeq: number;
}

type Sender = Pick<Message, "fromUid" | "clientMsgNo">;
type Remembered = Sender & FirstMessage & Pick<Message, "timestampMs">;

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

  /** Whether a retry now of a message of then is still one. A clock that went back does not end the window. */
  isInWindow(first: Pick<Message, "timestampMs">, nowMs: number): boolean {
    return nowMs - first.timestampMs < this.#windowMs;
  }

  /** False: nobody of this name used this number within the window, in any channel. */
  mayKnow({ fromUid, clientMsgNo }: Sender): boolean {
    if (!this.#areFiltersFull) return true;
    const [even, odd] = this.#filters;
    return (
      even.mayHave(fromUid, clientMsgNo) || odd.mayHave(fromUid, clientMsgNo)
    );
  }

  /** To be called for everything that is remembered, before it can be asked for. */
  note({ fromUid, clientMsgNo }: Sender): void {
    this.#filters[slot(this.#generation)].add(fromUid, clientMsgNo);
    if (this.#isRotating) this.#noted.push([fromUid, clientMsgNo]);
  }

  /** Fills the filters with what the tables hold, a little per event-loop turn. Until it is done `mayKnow` says yes to all. */
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
    let last: Buffer | undefined;
    let count = 0;
    const { dedupe } = this.#tables;
    for (const key of dedupe[at].getKeys({ start, limit: KEYS_PER_TURN })) {
      const end = key.indexOf(SEPARATOR, NUMBER_BYTES);
      const fromUid = key.toString("utf8", NUMBER_BYTES, end);
      this.#filters[at].add(fromUid, key.toString("utf8", end + 1));
      last = key;
      count++;
    }
    if (last === undefined || count < KEYS_PER_TURN) return undefined;
    return Buffer.concat([last, Buffer.alloc(1)]); // the next possible key
  }

  /** The first message with this sender and clientMsgNo in the channel, if it is within the window. */
  find(
    number: number,
    sender: Sender,
    nowMs: number,
  ): FirstMessage | undefined {
    const key = this.#key.subarray(0, writeKey(this.#key, number, sender));
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
      for (const [uid, no] of this.#noted)
        this.#filters[slot(next)].add(uid, no);
    } finally {
      this.#isRotating = false;
      this.#noted = [];
    }
  }

  /** To be called inside `commit`. */
  put(number: number, message: Remembered): void {
    const { fromUid, clientMsgNo } = message;
    const size = NUMBER_BYTES + 1 + (fromUid.length + clientMsgNo.length) * 3;
    const room = Buffer.allocUnsafe(VALUE_BYTES + size);
    const value = room.subarray(size);
    const key = room.subarray(0, writeKey(room, number, message));
    value[0] = VERSION;
    value.writeDoubleLE(message.messageId, 1);
    value.writeDoubleLE(message.messageSeq, 9);
    value.writeDoubleLE(message.timestampMs, 17);
    void this.#table(this.#generation).put(key, value);
  }

  #table(generation: number) {
    return this.#tables.dedupe[slot(generation)];
  }
}

/** Which of the two tables and filters a generation has. */
function slot(generation: number): 0 | 1 {
  return generation % 2 === 0 ? 0 : 1;
}

function writeKey(target: Buffer, number: number, sender: Sender): number {
  target.writeUIntBE(number, 0, NUMBER_BYTES);
  let at = NUMBER_BYTES;
  at += writeText(target, at, sender.fromUid);
  target[at++] = SEPARATOR;
  return at + writeText(target, at, sender.clientMsgNo);
}
