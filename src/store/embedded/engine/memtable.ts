// The memtable: records that are in the WAL and not yet in the database, and an index of their
// client message numbers. A record must never be dropped before the database has committed it.

import type { ChannelKey } from "../../../broker/model.ts";
import { LinkedMap } from "../../../lib/linked-map.ts";
import { hashText } from "../../../lib/text-hash.ts";
import type { ChannelRow } from "./channel-rows.ts";
import type { EncodedRecord } from "./log-rows.ts";
import {
  CLIENT_MSG_NO,
  FROM_UID,
  hasEvent,
  peekCounted,
  peekId,
  peekText,
  type StoredRecord,
} from "./record.ts";

/**
 * Number of channels above which channels without records are dropped. A channel without records
 * is in memory only for its head, which can be read from the database again.
 */
const MAX_IDLE_CHANNELS = 100_000;
const MAX_NEWEST = 500_000;
/**
 * Length below which a list is copied for each new record, because an array that grows in place
 * has unused capacity. Other lists are extended in place.
 */
const MAX_IMMUTABLE_LENGTH = 8;

/** A record in memory. It is assigned first, then written, then committed. */
export interface MemtableRecord extends EncodedRecord {
  readonly channel: MemtableChannel;
  /** 0 if the message is not stored and the record only keeps its clientMsgNo. */
  readonly messageSeq: number;
  /** Hash of the `DedupeKey`, or 0 if retries must not find the record. */
  readonly hash: number;
  next: MemtableRecord | undefined;
  /** True once the record is durable and visible to reads. */
  committed: boolean;
}

export interface MemtableChannel {
  readonly key: ChannelKey;
  /** 0 if the channel has no number yet. */
  number: number;
  /** Partition in the event feed, or -1 until the channel's first event is added. */
  partition: number;
  assigned: number;
  /** Value of `counted` for the message with the seq `assigned` (see record.ts). */
  counted: number;
  head: number;
  headCounted: number;
  /** Id of the message with the seq `head`, see `ChannelRow.newestId`. */
  newestId: number;
  /**
   * Newest message, shared by all conversation lists. `undefined` if no list has requested it or if
   * it was dropped.
   */
  newest: NewestMessage | undefined;
  /** Committed messages that no checkpoint has written yet, in seq order and without gaps. */
  log: readonly MemtableRecord[];
  dedupeOnly: readonly MemtableRecord[];
  uncommitted: number;
}

/** Records of a channel that had been committed before the checkpoint began. */
export interface ChannelFlush {
  readonly channel: MemtableChannel;
  readonly head: number;
  readonly counted: number;
  readonly newestId: number;
  readonly log: readonly MemtableRecord[];
  readonly dedupeOnly: readonly MemtableRecord[];
}

/** Newest committed message of a channel. The memtable keeps it up to date. */
export interface NewestMessage {
  readonly key: ChannelKey;
  /** 0 if the channel has no message, `Infinity` if the id is unknown or no longer updated. */
  id: number;
  seq: number;
}

interface MemtableLimits {
  readonly maxBytes: number;
  readonly maxRecords: number;
}

/** A `clientMsgNo` is unique only per channel and sender. */
export interface DedupeKey {
  readonly key: ChannelKey;
  readonly fromUid: string;
  readonly clientMsgNo: string;
}

export class Memtable {
  readonly #loadRow: (key: ChannelKey) => ChannelRow | undefined;
  readonly #limits: MemtableLimits;
  readonly #channels = new Map<ChannelKey, MemtableChannel>();
  /** Channels with committed records. Channels of the current flush come first. */
  readonly #dirty: MemtableChannel[] = [];
  readonly #newestByHash = new Map<number, MemtableRecord>();
  readonly #newest = new LinkedMap<ChannelKey, NewestMessage>();
  #records = 0;
  #bytes = 0;
  #onFirstRecord = () => {};
  #onEvent = (_record: MemtableRecord) => {};

  constructor(loadRow: (key: ChannelKey) => ChannelRow | undefined, limits: MemtableLimits) {
    this.#loadRow = loadRow;
    this.#limits = limits;
  }

  get records(): number {
    return this.#records;
  }

  onFirstRecord(callback: () => void): void {
    this.#onFirstRecord = callback;
  }

  /** Sets the callback for each committed message that has an event in the feed. */
  onEvent(callback: (record: MemtableRecord) => void): void {
    this.#onEvent = callback;
  }

  get bytes(): number {
    return this.#bytes;
  }

  isFull(more: { readonly records: number; readonly bytes: number }): boolean {
    return (
      this.#records + more.records >= this.#limits.maxRecords ||
      this.#bytes + more.bytes >= this.#limits.maxBytes
    );
  }

  get needsFlush(): boolean {
    const { maxRecords, maxBytes } = this.#limits;
    return this.#records * 4 >= maxRecords || this.#bytes * 4 >= maxBytes;
  }

  channel(key: ChannelKey): MemtableChannel {
    const loaded = this.#channels.get(key);
    if (loaded !== undefined) return loaded;
    const { number = 0, head = 0, counted = 0, newestId = 0 } = this.#loadRow(key) ?? {};
    const channel: MemtableChannel = {
      key,
      number,
      partition: -1,
      assigned: head,
      counted,
      head,
      headCounted: counted,
      newestId,
      newest: this.#newest.get(key),
      log: NO_RECORDS,
      dedupeOnly: NO_RECORDS,
      uncommitted: 0,
    };
    this.#channels.set(key, channel);
    return channel;
  }

  peek(key: ChannelKey): MemtableChannel | undefined {
    return this.#channels.get(key);
  }

  /** Updates a channel without records after its rows in the database were changed. */
  refresh(key: ChannelKey, { number, head, counted, newestId }: ChannelRow): void {
    const channel = this.#channels.get(key);
    if (channel !== undefined)
      Object.assign(channel, {
        ...{ number, head, assigned: head, counted, headCounted: counted, newestId },
      });
    const newest = this.#newest.get(key);
    if (newest !== undefined) Object.assign(newest, { id: newestId, seq: head });
  }

  newestOf(key: ChannelKey, row: () => ChannelRow | undefined): NewestMessage {
    const existing = this.#newest.get(key);
    if (existing !== undefined) return existing;
    const channel = this.#channels.get(key);
    const { newestId = 0, head = 0 } = channel ?? row() ?? {};
    const newest = { key, id: newestId, seq: head };
    if (channel !== undefined) channel.newest = newest;
    this.#newest.set(key, newest);
    if (this.#newest.size > MAX_NEWEST) this.#dropNewest();
    return newest;
  }

  /**
   * Drops the oldest `NewestMessage`. Its id becomes `Infinity`, because conversation lists may
   * still refer to the object.
   */
  #dropNewest(): void {
    const { oldest } = this.#newest;
    if (oldest === undefined) return;
    const { key, value: newest } = oldest;
    newest.id = Number.POSITIVE_INFINITY;
    this.#newest.delete(key);
    const channel = this.#channels.get(key);
    if (channel !== undefined) channel.newest = undefined;
  }

  /**
   * Returns the newest record with this dedupe key, committed or not, or `undefined` if there is no
   * such record.
   */
  find(draft: DedupeKey): MemtableRecord | undefined {
    const channel = this.#channels.get(draft.key);
    if (channel === undefined) return undefined;
    let record = this.#newestByHash.get(hashOf(draft));
    while (record !== undefined && (record.channel !== channel || !hasDedupeKey(record, draft)))
      record = record.next;
    return record;
  }

  /** Adds a record. Reads see it only after `commit`. */
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
   * Removes an uncommitted record. All other uncommitted records of the channel must be rolled back
   * too.
   */
  rollBack(record: MemtableRecord): void {
    this.#drop(record);
    const { channel } = record;
    channel.uncommitted--;
    channel.assigned = channel.head;
    channel.counted = channel.headCounted;
  }

  retain(bytes: number): void {
    if (this.#records === 0) this.#onFirstRecord();
    this.#records++;
    this.#bytes += bytes;
  }

  release(bytes: number, records = 1): void {
    this.#records -= records;
    this.#bytes -= bytes;
  }

  commit(record: MemtableRecord): void {
    const { channel, messageSeq, bytes, start } = record;
    if (!hasRecords(channel)) this.#dirty.push(channel);
    record.committed = true;
    channel.uncommitted--;
    if (messageSeq > 0) channel.log = withRecord(channel.log, record);
    else channel.dedupeOnly = withRecord(channel.dedupeOnly, record);
    if (hasEvent(bytes, start)) this.#onEvent(record);
    // After a power loss the database may contain more than the replayed WAL. The head must not
    // decrease, so that no seq is assigned twice.
    if (messageSeq <= channel.head) return;
    channel.head = messageSeq;
    channel.headCounted = peekCounted(bytes, start).counted;
    channel.newestId = peekId(bytes, start);
    const { newest } = channel;
    if (newest === undefined) return;
    newest.id = channel.newestId;
    newest.seq = messageSeq;
  }

  startFlush(): ChannelFlush[] {
    return this.#dirty.map((channel) => ({
      channel,
      head: channel.head,
      counted: channel.headCounted,
      newestId: channel.newestId,
      log: frozen(channel.log),
      dedupeOnly: frozen(channel.dedupeOnly),
    }));
  }

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

  evictIdle(): void {
    let excess = this.#channels.size - MAX_IDLE_CHANNELS;
    if (excess <= 0) return;
    for (const [key, channel] of this.#channels) {
      if (hasRecords(channel) || channel.uncommitted > 0) continue;
      this.#channels.delete(key);
      if (--excess === 0) return;
    }
  }
}

function hashOf({ key, fromUid, clientMsgNo }: DedupeKey): number {
  return hashText(clientMsgNo, hashText(fromUid, hashText(key))) || 1;
}

/** Compares the keys themselves, because two different keys may have the same hash. */
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

/** Adds a record, possibly in place. Only the returned list may be used afterwards. */
function withRecord(records: Records, record: MemtableRecord): Records {
  if (records.length === 0) return [record];
  if (records.length < MAX_IMMUTABLE_LENGTH) return records.concat([record]);
  (records as MemtableRecord[]).push(record); // lists of this length are not shared
  return records;
}

function frozen(records: Records): Records {
  return records.length < MAX_IMMUTABLE_LENGTH ? records : records.slice();
}

function withoutFirst(records: Records, count: number): Records {
  return count === records.length ? NO_RECORDS : records.slice(count);
}
