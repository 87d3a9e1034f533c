// The rows of conversations. Where users set their read positions; and what a checkpoint keeps
// beside the messages: who has a personal channel with whom, each sender's newest own seq, and the
// red-dot messages that expire. Owns the list of personal channels that the database does not know
// yet. Nothing here is asked for per message.

import type { ChannelKey } from "../../../broker/model.ts";
import { PERSON_CHANNEL } from "../../../broker/model.ts";
import { writeText } from "../../../lib/write-text.ts";
import { logKey, seqIn } from "../engine/channel-rows.ts";
import { commit, fieldsOf, rowsOf } from "../engine/database.ts";
import type { ChannelFlush, MemtableRecord } from "../engine/memtable.ts";
import {
  expires,
  FROM_UID,
  hasRedDot,
  peekText,
  peekTimes,
  type RecordTimes,
} from "../engine/record.ts";
import type { Tables } from "../engine/tables.ts";

const VERSION = 1;
const POSITION_VERSION = 1;
const NUMBER = 6;
const COMPLETE = "peersComplete";
const PERSON_PREFIX = `${PERSON_CHANNEL}:`;
/** Sorts behind all personal channels' keys. */
const BEHIND_PERSONS = `${PERSON_CHANNEL};`;
const PEER_VALUE = [VERSION];
const BACKFILL_STEP = 1000;
/**
 * Channels without a row of which none was written: above it, those that left memory are forgotten.
 */
const MANY_UNKEPT = 100_000;

/** A red-dot message that expires. */
export interface ExpiringRow {
  readonly seq: number;
  readonly timestampMs: number;
  readonly expiresAtMs: number;
}

export class ConversationRows {
  readonly #tables: Tables;
  /** Personal channels that may have no row yet, by both users. */
  readonly #unkept = new Map<string, Set<string>>();
  readonly #unkeptKeys = new Set<ChannelKey>();

  constructor(tables: Tables) {
    this.#tables = tables;
  }

  /** Enters the personal channels of data that is older than this table. Throws `unavailable`. */
  async complete(): Promise<void> {
    const tables = this.#tables;
    if (tables.meta.get(COMPLETE) !== undefined) return;
    let start = PERSON_PREFIX;
    for (;;) {
      const bounds = { start, end: BEHIND_PERSONS, limit: BACKFILL_STEP };
      const keys = [...tables.heads.getKeys(bounds)];
      await commit(tables, () => {
        for (const key of keys) this.#putPeers(key);
      });
      const last = keys.at(-1);
      if (last === undefined || keys.length < BACKFILL_STEP) break;
      start = `${last}\0`;
    }
    await commit(tables, () => void tables.meta.put(COMPLETE, [VERSION]));
  }

  /** To be called for every channel that comes into memory without a row. */
  noteNew(key: ChannelKey): void {
    const pair = pairOf(key);
    if (pair === undefined) return;
    this.#unkeptKeys.add(key);
    for (const [uid, peer] of bothWays(pair)) {
      const peers = this.#unkept.get(uid);
      if (peers === undefined) this.#unkept.set(uid, new Set([peer]));
      else peers.add(peer);
    }
  }

  /** To be called inside `commit`, together with the channel's first row. */
  putChannel(key: ChannelKey): void {
    if (this.#unkeptKeys.has(key)) this.#putPeers(key);
  }

  /**
   * The channels' rows are committed. `inMemory` returns which others are still there to get one.
   */
  kept(flushed: readonly ChannelFlush[], inMemory: (key: ChannelKey) => unknown): void {
    for (const { channel } of flushed) this.#forget(channel.key);
    if (this.#unkeptKeys.size <= MANY_UNKEPT) return;
    for (const key of this.#unkeptKeys) if (inMemory(key) === undefined) this.#forget(key);
  }

  #forget(key: ChannelKey): void {
    if (!this.#unkeptKeys.delete(key)) return;
    for (const [uid, peer] of bothWays(pairOf(key))) {
      const peers = this.#unkept.get(uid);
      peers?.delete(peer);
      if (peers?.size === 0) this.#unkept.delete(uid);
    }
  }

  /** To be called inside `commit`, with the message. */
  putMessage(ofLog: Buffer, { bytes, start }: MemtableRecord): void {
    if (!hasRedDot(bytes, start) || !expires(bytes, start)) return;
    const value = expiringValue(peekTimes(bytes, start));
    void this.#tables.expiring.put(ofLog, value);
  }

  /**
   * Every put of newest own seqs for what is being flushed; stops after each. To be advanced inside
   * `commit`. `isFirst`: after a power loss the database may be ahead of what was replayed.
   */
  *putOwn(number: number, log: readonly MemtableRecord[], isFirst: boolean): Generator<void> {
    const newest = new Map<string, number>();
    for (const { bytes, start, messageSeq } of log)
      newest.set(peekText(bytes, start, FROM_UID), messageSeq);
    for (const [uid, seq] of newest) {
      if (!isFirst || this.ownSeq(number, uid) < seq)
        void this.#tables.own.put(ownKey(number, uid), seqValue(seq));
      yield;
    }
  }

  /**
   * The users that have a personal channel with `uid`, also one that holds no message. The caller
   * may let other work run in between: each page is read when it is asked for.
   */
  *peersOf(uid: string): Generator<string> {
    const unkept = new Set(this.#unkept.get(uid));
    yield* unkept;
    for (const { second: peer } of rowsOf(this.#tables.peers, uid))
      if (!unkept.has(peer)) yield peer;
  }

  /** The newest seq of `uid` that the database has; 0: none. */
  ownSeq(number: number, uid: string): number {
    if (number === 0) return 0;
    const value = this.#tables.own.getBinaryFast(ownKey(number, uid));
    return value === undefined ? 0 : value.readUIntBE(1, NUMBER);
  }

  /**
   * Red-dot messages that expire and that the database has, from `toSeq` down to `fromSeq`, which
   * is at least 1.
   */
  *expiringDown(
    number: number,
    { fromSeq, toSeq }: { readonly fromSeq: number; readonly toSeq: number },
  ): Generator<ExpiringRow> {
    if (number === 0 || fromSeq > toSeq) return;
    const { expiring } = this.#tables;
    for (const { key, value } of expiring.getRange({
      start: logKey(number, toSeq),
      end: logKey(number, fromSeq - 1),
      reverse: true,
    }))
      yield {
        seq: seqIn(key),
        timestampMs: value.readDoubleBE(1),
        expiresAtMs: value.readDoubleBE(9),
      };
  }

  #putPeers(key: ChannelKey): void {
    for (const pair of bothWays(pairOf(key))) void this.#tables.peers.put([...pair], PEER_VALUE);
  }
}

type Pair = readonly [string, string];

/** The two users of a personal channel; ids hold no `@`. */
function pairOf(key: ChannelKey): Pair | undefined {
  if (!key.startsWith(PERSON_PREFIX)) return undefined;
  const at = key.indexOf("@");
  return [key.slice(PERSON_PREFIX.length, at), key.slice(at + 1)];
}

function bothWays(pair: Pair | undefined): readonly Pair[] {
  return pair === undefined ? [] : [pair, [pair[1], pair[0]]];
}

function ownKey(number: number, uid: string): Buffer {
  const key = Buffer.allocUnsafe(NUMBER + uid.length * 3);
  key.writeUIntBE(number, 0, NUMBER);
  return key.subarray(0, NUMBER + writeText(key, NUMBER, uid));
}

function seqValue(seq: number): Buffer {
  const value = Buffer.allocUnsafe(1 + NUMBER);
  value[0] = VERSION;
  value.writeUIntBE(seq, 1, NUMBER);
  return value;
}

function expiringValue({ timestampMs, expiresAtMs }: RecordTimes): Buffer {
  const value = Buffer.allocUnsafe(17);
  value[0] = VERSION;
  value.writeDoubleBE(timestampMs, 1);
  value.writeDoubleBE(expiresAtMs, 9);
  return value;
}

export type PositionTable = Pick<Tables, "positions">;

/** What a user set, and when. */
export interface Position {
  readonly readSeq: number;
  readonly deletedSeq: number;
  /** The channel's newest seq then: own messages behind it count as read again. */
  readonly headAtChange: number;
  readonly changedAtMs: number;
}

export function positionKey(uid: string, key: ChannelKey): string[] {
  return [uid, key];
}

/** Undefined: the user never set anything, or left the group since. */
export function readPosition(
  tables: PositionTable,
  uid: string,
  key: ChannelKey,
): Position | undefined {
  const stored = tables.positions.get(positionKey(uid, key));
  if (stored === undefined) return undefined;
  const [readSeq, deletedSeq, headAtChange, changedAtMs] = fieldsOf(stored, POSITION_VERSION);
  return {
    readSeq: Number(readSeq),
    deletedSeq: Number(deletedSeq),
    headAtChange: Number(headAtChange),
    changedAtMs: Number(changedAtMs),
  };
}

/** To be called inside `transact`. */
export function putPosition(
  tables: PositionTable,
  { uid, key }: { readonly uid: string; readonly key: ChannelKey },
  position: Position,
): void {
  const { readSeq, deletedSeq, headAtChange, changedAtMs } = position;
  void tables.positions.put(positionKey(uid, key), [
    POSITION_VERSION,
    readSeq,
    deletedSeq,
    headAtChange,
    changedAtMs,
  ]);
}
