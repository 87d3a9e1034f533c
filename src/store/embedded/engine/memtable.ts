// The memtable: records that are in the WAL and not yet in the database. Holds the newest messages
// of each channel and an index of their client message numbers. Owns this index, the map of
// channels in memory with their heads and records, and the counters to which the limits apply.
// Fields of a record are decoded from its bytes when they are needed. A record must never be
// dropped before the database has committed it.

import type { ChannelKey } from "../../../broker/model.ts";
import { hashText } from "../../../lib/text-hash.ts";
import type { ChannelRow } from "./channel-rows.ts";
import type { EncodedRecord } from "./log-rows.ts";
import { CLIENT_MSG_NO, FROM_UID, peekCounted, peekText, type StoredRecord } from "./record.ts";

/**
 * Number of channels in memory above which channels without records are dropped, oldest first.
 * Channels without records are kept only for their heads. Loading a dropped channel again takes one
 * database read.
 */
const MAX_IDLE_CHANNELS = 100_000;
/**
 * Lists that are shorter than this are immutable and have no spare capacity, because most channels
 * have few records between two checkpoints. Longer lists are appended to in place.
 */
const MAX_IMMUTABLE_LENGTH = 8;

/** A record in memory. It is assigned first, then written, then committed. */
export interface MemtableRecord extends EncodedRecord {
  readonly channel: MemtableChannel;
  /** Seq of the message, 0 if only its clientMsgNo is kept. */
  readonly messageSeq: number;
  /** Hash of channel, sender and clientMsgNo, 0 if retries must not find the record. */
  readonly hash: number;
  /** The next older record with the same hash. */
  next: MemtableRecord | undefined;
  /** True once the record is durable, published and visible to reads. */
  committed: boolean;
}

/** A channel in memory. */
export interface MemtableChannel {
  readonly key: ChannelKey;
  /** Number of the channel in database keys, 0 if it has none yet. */
  number: number;
  /** Highest seq that is assigned. */
  assigned: number;
  /** Value of `counted` of the message with the seq `assigned` (see record.ts). */
  counted: number;
  /** Highest seq that is visible to reads. */
  head: number;
  /** Value of `counted` of the message with the seq `head`. */
  headCounted: number;
  /** Committed messages that the database does not have, in the order of seqs and without gaps. */
  log: readonly MemtableRecord[];
  /** Committed records of which only the clientMsgNo is kept. */
  dedupeOnly: readonly MemtableRecord[];
  /** Number of records that are assigned and neither committed nor rolled back. */
  uncommitted: number;
}

/**
 * Records of a channel that a checkpoint writes: the records that were committed when the
 * checkpoint began.
 */
export interface ChannelFlush {
  readonly channel: MemtableChannel;
  readonly head: number;
  /** Value of `counted` of the message with the seq `head`. */
  readonly counted: number;
  readonly log: readonly MemtableRecord[];
  readonly dedupeOnly: readonly MemtableRecord[];
}

/** Limits of the memtable. */
interface MemtableLimits {
  readonly maxBytes: number;
  readonly maxRecords: number;
}

/**
 * Identifies the message that a send may repeat. A `clientMsgNo` is unique only per channel and
 * sender.
 */
export interface DedupeKey {
  readonly key: ChannelKey;
  readonly fromUid: string;
  readonly clientMsgNo: string;
}

/** The records that are not in the database, by channel. */
export class Memtable {
  readonly #loadRow: (key: ChannelKey) => ChannelRow | undefined;
  readonly #limits: MemtableLimits;
  readonly #channels = new Map<ChannelKey, MemtableChannel>();
  /** Channels with committed records. Channels of the current flush come first. */
  readonly #dirty: MemtableChannel[] = [];
  /** The newest record of each hash. */
  readonly #newestByHash = new Map<number, MemtableRecord>();
  #records = 0;
  #bytes = 0;

  constructor(loadRow: (key: ChannelKey) => ChannelRow | undefined, limits: MemtableLimits) {
    this.#loadRow = loadRow;
    this.#limits = limits;
  }

  /** Number of records in memory. */
  get records(): number {
    return this.#records;
  }

  /** Size of the encoded records in memory. */
  get bytes(): number {
    return this.#bytes;
  }

  /** True if the memtable reaches a limit when `more` is added to it. */
  isFull(more: { readonly records: number; readonly bytes: number }): boolean {
    return (
      this.#records + more.records >= this.#limits.maxRecords ||
      this.#bytes + more.bytes >= this.#limits.maxBytes
    );
  }

  /** True if a quarter of a limit is reached, so that the next checkpoint should run early. */
  get needsFlush(): boolean {
    const { maxRecords, maxBytes } = this.#limits;
    return this.#records * 4 >= maxRecords || this.#bytes * 4 >= maxBytes;
  }

  /** Returns the channel, and loads its head from the database if it is not in memory. */
  channel(key: ChannelKey): MemtableChannel {
    const loaded = this.#channels.get(key);
    if (loaded !== undefined) return loaded;
    const { number = 0, head = 0, counted = 0 } = this.#loadRow(key) ?? {};
    const channel: MemtableChannel = {
      key,
      number,
      assigned: head,
      counted,
      head,
      headCounted: counted,
      log: NO_RECORDS,
      dedupeOnly: NO_RECORDS,
      uncommitted: 0,
    };
    this.#channels.set(key, channel);
    return channel;
  }

  /** Returns the channel if it is in memory. */
  peek(key: ChannelKey): MemtableChannel | undefined {
    return this.#channels.get(key);
  }

  /** Returns the newest record with this channel, sender and clientMsgNo, committed or not. */
  find(draft: DedupeKey): MemtableRecord | undefined {
    const channel = this.#channels.get(draft.key);
    if (channel === undefined) return undefined;
    let record = this.#newestByHash.get(hashOf(draft));
    while (record !== undefined && (record.channel !== channel || !hasDedupeKey(record, draft)))
      record = record.next;
    return record;
  }

  /**
   * Adds an encoded record, both when it is appended and when it is replayed. All values that are
   * derived from a record are set here. From then on, the record's seq is in use, and retries of
   * its message find the record. Reads find it only after `commit`.
   */
  assign(
    channel: MemtableChannel,
    { message, dedupe, counted }: StoredRecord,
    { bytes, start, end }: EncodedRecord,
  ): MemtableRecord {
    const { messageSeq } = message;
    const hash = dedupe ? hashOf(message) : 0;
    const next = dedupe ? this.#newestByHash.get(hash) : undefined;
    const record: MemtableRecord = {
      channel,
      messageSeq,
      hash,
      next,
      bytes,
      start,
      end,
      committed: false,
    };
    if (dedupe) this.#newestByHash.set(hash, record);
    this.retain(end - start);
    channel.uncommitted++;
    if (messageSeq > channel.assigned) {
      channel.assigned = messageSeq;
      channel.counted = counted;
    }
    return record;
  }

  /**
   * Removes an assigned record that was not written. All other uncommitted records of the channel
   * must be rolled back too.
   */
  rollBack(record: MemtableRecord): void {
    this.#drop(record);
    const { channel } = record;
    channel.uncommitted--;
    channel.assigned = channel.head;
    channel.counted = channel.headCounted;
  }

  /** Counts a record of `bytes` bytes that another part keeps in memory. */
  retain(bytes: number): void {
    this.#records++;
    this.#bytes += bytes;
  }

  /** Stops counting a record that `retain` counted. */
  release(bytes: number): void {
    this.#records--;
    this.#bytes -= bytes;
  }

  /** Makes a durable record visible to reads. */
  commit(record: MemtableRecord): void {
    const { channel, messageSeq, bytes, start } = record;
    if (!hasRecords(channel)) this.#dirty.push(channel);
    record.committed = true;
    channel.uncommitted--;
    if (messageSeq > 0) channel.log = withRecord(channel.log, record);
    else channel.dedupeOnly = withRecord(channel.dedupeOnly, record);
    // After a power loss the database may contain more than the replayed WAL. The head must not
    // decrease, so that no seq is assigned twice.
    if (messageSeq <= channel.head) return;
    channel.head = messageSeq;
    channel.headCounted = peekCounted(bytes, start).counted;
  }

  /**
   * Returns everything committed, for a checkpoint to write. Also called again after a failed
   * checkpoint.
   */
  startFlush(): ChannelFlush[] {
    return this.#dirty.map((channel) => ({
      channel,
      head: channel.head,
      counted: channel.headCounted,
      log: frozen(channel.log),
      dedupeOnly: frozen(channel.dedupeOnly),
    }));
  }

  /**
   * Drops the records that were written. Called once the database has them. Yields after each
   * channel.
   */
  *finishFlush(flushed: readonly ChannelFlush[]): Generator<void> {
    this.#dirty.splice(0, flushed.length);
    for (const { channel, log, dedupeOnly } of flushed) {
      for (const record of log) this.#drop(record);
      for (const record of dedupeOnly) this.#drop(record);
      channel.log = withoutFirst(channel.log, log.length);
      channel.dedupeOnly = withoutFirst(channel.dedupeOnly, dedupeOnly.length);
      if (hasRecords(channel)) this.#dirty.push(channel);
      yield;
    }
    this.evictIdle();
  }

  /** Drops a record from the counters and from the index of client message numbers. */
  #drop(record: MemtableRecord): void {
    const { hash, next, start, end } = record;
    this.release(end - start);
    if (hash === 0) return;
    let newer = this.#newestByHash.get(hash);
    if (newer !== record) {
      while (newer !== undefined && newer.next !== record) newer = newer.next;
      if (newer !== undefined) newer.next = next;
    } else if (next === undefined) this.#newestByHash.delete(hash);
    else this.#newestByHash.set(hash, next);
  }

  /**
   * If more than MAX_IDLE_CHANNELS channels are in memory, examines as many of the oldest ones as
   * exceed that number, and drops those that have no records.
   */
  evictIdle(): void {
    let excess = this.#channels.size - MAX_IDLE_CHANNELS;
    if (excess <= 0) return;
    for (const [key, channel] of this.#channels) {
      if (excess-- <= 0) return;
      if (!hasRecords(channel) && channel.uncommitted === 0) this.#channels.delete(key);
    }
  }
}

function hashOf({ key, fromUid, clientMsgNo }: DedupeKey): number {
  return hashText(clientMsgNo, hashText(fromUid, hashText(key))) || 1;
}

/**
 * True if the record has this sender and clientMsgNo. Records with other values may have the same
 * hash.
 */
function hasDedupeKey(
  { bytes, start }: EncodedRecord,
  { fromUid, clientMsgNo }: DedupeKey,
): boolean {
  return (
    peekText(bytes, start, CLIENT_MSG_NO) === clientMsgNo &&
    peekText(bytes, start, FROM_UID) === fromUid
  );
}

function hasRecords({ log, dedupeOnly }: MemtableChannel): boolean {
  return log.length > 0 || dedupeOnly.length > 0;
}

type Records = readonly MemtableRecord[];

const NO_RECORDS: Records = [];

/** Returns the list with the record at its end. The list itself must not be used afterwards. */
function withRecord(records: Records, record: MemtableRecord): Records {
  if (records.length === 0) return [record];
  if (records.length < MAX_IMMUTABLE_LENGTH) return records.concat([record]);
  (records as MemtableRecord[]).push(record); // lists of this length are not shared
  return records;
}

/** Returns a list that does not change when records are added to `records`. */
function frozen(records: Records): Records {
  return records.length < MAX_IMMUTABLE_LENGTH ? records : records.slice();
}

/** Returns the list without its first `count` records. */
function withoutFirst(records: Records, count: number): Records {
  return count === records.length ? NO_RECORDS : records.slice(count);
}
