// Rows of conversations: read positions, personal channels by user, the newest seq of each sender,
// and messages that have a red dot and expire. Owns the list of personal channels that have no row
// in the database yet. The caller of a generator may await other work between two rows.

import type { ChannelKey } from "../../../broker/model.ts";
import { PERSON_CHANNEL } from "../../../broker/model.ts";
import { writeText } from "../../../lib/write-text.ts";
import { logKey, seqIn } from "../engine/channel-rows.ts";
import { commit, fieldsOf, rowsOf, type Stored } from "../engine/database.ts";
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
const NUMBER_BYTES = 6;
const PEERS_COMPLETE = "peersComplete";
const LAST_CHANGE_ID = "lastChangeId";
const PERSON_PREFIX = `${PERSON_CHANNEL}:`;
/** A key that sorts after the keys of all personal channels. */
const END_OF_PERSONS = `${PERSON_CHANNEL};`;
const PEER_VALUE = [VERSION];
const ROWS_PER_BACKFILL = 1000;
/**
 * Length of the list of channels without rows above which `removeStored` also removes channels that
 * have left the memtable.
 */
const MAX_UNSTORED = 100_000;

export interface ExpiringRow {
  readonly seq: number;
  readonly acceptedMs: number;
  readonly expiresAtMs: number;
}

export class ConversationRows {
  readonly #tables: Tables;
  /** Peers of each user in personal channels that may have no row yet. */
  readonly #unstoredPeers = new Map<string, Set<string>>();
  readonly #unstoredKeys = new Set<ChannelKey>();
  #onNewPeer = (_uid: string) => {};

  constructor(tables: Tables) {
    this.#tables = tables;
  }

  /** Adds rows for personal channels that were stored before the table `peers` existed. */
  async backfillPeers(): Promise<void> {
    const tables = this.#tables;
    if (tables.meta.get(PEERS_COMPLETE) !== undefined) return;
    let start = PERSON_PREFIX;
    for (;;) {
      const bounds = { start, end: END_OF_PERSONS, limit: ROWS_PER_BACKFILL };
      const keys = [...tables.heads.getKeys(bounds)];
      await commit(tables, () => {
        for (const key of keys) this.#putPeers(key);
      });
      const last = keys.at(-1);
      if (last === undefined || keys.length < ROWS_PER_BACKFILL) break;
      start = `${last}\0`;
    }
    await commit(tables, () => void tables.meta.put(PEERS_COMPLETE, [VERSION]));
  }

  onNewPeer(callback: (uid: string) => void): void {
    this.#onNewPeer = callback;
  }

  /** Records that a personal channel without a row in `heads` may need rows in `peers`. */
  addNew(key: ChannelKey): void {
    const pair = pairOf(key);
    if (pair === undefined) return;
    this.#unstoredKeys.add(key);
    for (const [uid, peer] of bothWays(pair)) {
      const peers = this.#unstoredPeers.get(uid);
      if (peers === undefined) this.#unstoredPeers.set(uid, new Set([peer]));
      else peers.add(peer);
      this.#onNewPeer(uid);
    }
  }

  /**
   * Puts the missing rows of a personal channel. Must be called in the transaction that writes the
   * channel's row in `heads`.
   */
  putChannel(key: ChannelKey): void {
    if (this.#unstoredKeys.has(key)) this.#putPeers(key);
  }

  /**
   * Removes the flushed channels from the list of channels without rows. If more than
   * `MAX_UNSTORED` channels remain, also removes the channels for which `inMemory` returns
   * `undefined`, because they will not get a row.
   */
  removeStored(flushed: readonly ChannelFlush[], inMemory: (key: ChannelKey) => unknown): void {
    for (const { channel } of flushed) this.#forget(channel.key);
    if (this.#unstoredKeys.size <= MAX_UNSTORED) return;
    for (const key of this.#unstoredKeys) if (inMemory(key) === undefined) this.#forget(key);
  }

  #forget(key: ChannelKey): void {
    if (!this.#unstoredKeys.delete(key)) return;
    for (const [uid, peer] of bothWays(pairOf(key))) {
      const peers = this.#unstoredPeers.get(uid);
      peers?.delete(peer);
      if (peers?.size === 0) this.#unstoredPeers.delete(uid);
    }
  }

  /**
   * Puts the row of an expiring message with a red dot. Must be called in the message's
   * transaction.
   */
  putMessage(key: Buffer, { bytes, start }: MemtableRecord): void {
    if (!hasRedDot(bytes, start) || !expires(bytes, start)) return;
    const value = expiringValue(peekTimes(bytes, start));
    void this.#tables.expiring.put(key, value);
  }

  /**
   * Puts each sender's newest seq. With `isFirst`, keeps newer rows, which may exist after a power
   * loss.
   */
  *putOwnSeqs(number: number, log: readonly MemtableRecord[], isFirst: boolean): Generator<void> {
    const newest = new Map<string, number>();
    for (const { bytes, start, messageSeq } of log)
      newest.set(peekText(bytes, start, FROM_UID), messageSeq);
    for (const [uid, seq] of newest) {
      if (!isFirst || this.ownSeq(number, uid) < seq)
        void this.#tables.own.put(ownKey(number, uid), seqValue(seq));
      yield;
    }
  }

  /** Yields the user's peers, including peers with whom no message is stored. */
  *peersOf(uid: string): Generator<string> {
    const unstored = new Set(this.#unstoredPeers.get(uid));
    yield* unstored;
    for (const { second: peer } of rowsOf(this.#tables.peers, uid))
      if (!unstored.has(peer)) yield peer;
  }

  ownSeq(number: number, uid: string): number {
    if (number === 0) return 0;
    const value = this.#tables.own.getBinaryFast(ownKey(number, uid));
    return value === undefined ? 0 : value.readUIntBE(1, NUMBER_BYTES);
  }

  /** Yields the rows from seq `toSeq` down to `fromSeq`, which must be at least 1. */
  *expiringNewestFirst(
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
        acceptedMs: value.readDoubleBE(1),
        expiresAtMs: value.readDoubleBE(9),
      };
  }

  #putPeers(key: ChannelKey): void {
    for (const pair of bothWays(pairOf(key))) void this.#tables.peers.put([...pair], PEER_VALUE);
  }
}

type Pair = readonly [string, string];

/** Returns the uids of a personal channel, or `undefined` for other channels. */
function pairOf(key: ChannelKey): Pair | undefined {
  if (!key.startsWith(PERSON_PREFIX)) return undefined;
  const at = key.indexOf("@");
  return [key.slice(PERSON_PREFIX.length, at), key.slice(at + 1)];
}

function bothWays(pair: Pair | undefined): readonly Pair[] {
  return pair === undefined ? [] : [pair, [pair[1], pair[0]]];
}

function ownKey(number: number, uid: string): Buffer {
  const key = Buffer.allocUnsafe(NUMBER_BYTES + uid.length * 3);
  key.writeUIntBE(number, 0, NUMBER_BYTES);
  return key.subarray(0, NUMBER_BYTES + writeText(key, NUMBER_BYTES, uid));
}

function seqValue(seq: number): Buffer {
  const value = Buffer.allocUnsafe(1 + NUMBER_BYTES);
  value[0] = VERSION;
  value.writeUIntBE(seq, 1, NUMBER_BYTES);
  return value;
}

function expiringValue({ acceptedMs, expiresAtMs }: RecordTimes): Buffer {
  const value = Buffer.allocUnsafe(17);
  value[0] = VERSION;
  value.writeDoubleBE(acceptedMs, 1);
  value.writeDoubleBE(expiresAtMs, 9);
  return value;
}

export type PositionTable = Pick<Tables, "positions">;

export interface Position {
  readonly readSeq: number;
  readonly deletedSeq: number;
  /**
   * The channel's newest seq when the position was changed. A later message from the user moves the
   * read position again.
   */
  readonly headAtChange: number;
  readonly changedAtMs: number;
}

export function positionKey(uid: string, key: ChannelKey): string[] {
  return [uid, key];
}

export function* positionsOf(
  { positions }: PositionTable,
  uid: string,
): Generator<Position & { readonly key: ChannelKey }> {
  for (const { second: key, value } of rowsOf(positions, uid)) yield { key, ...positionIn(value) };
}

export function readPosition(
  tables: PositionTable,
  uid: string,
  key: ChannelKey,
): Position | undefined {
  const stored = tables.positions.get(positionKey(uid, key));
  return stored === undefined ? undefined : positionIn(stored);
}

function positionIn(stored: Stored): Position {
  const [readSeq, deletedSeq, headAtChange, changedAtMs] = fieldsOf(stored, POSITION_VERSION);
  return {
    readSeq: Number(readSeq),
    deletedSeq: Number(deletedSeq),
    headAtChange: Number(headAtChange),
    changedAtMs: Number(changedAtMs),
  };
}

/**
 * Returns the id of the last position change or imported message. Message ids that are assigned
 * later must be higher.
 */
export function lastChangeId(tables: Pick<Tables, "meta">): number {
  const stored = tables.meta.get(LAST_CHANGE_ID);
  return stored === undefined ? 0 : Number(fieldsOf(stored, VERSION)[0]);
}

/** Stores the id that `lastChangeId` returns. Must be called inside `transact`. */
export function putLastChangeId(tables: Pick<Tables, "meta">, id: number): void {
  void tables.meta.put(LAST_CHANGE_ID, [VERSION, id]);
}

/** Stores a position. Must be called inside `transact`. */
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
