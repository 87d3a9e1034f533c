// The memory of what the WAL has and the database does not: per channel its newest messages, and
// who sent which clientMsgNo. Owns the map of active channels (their heads and records), the map of
// client message numbers, and the counts that bound all of it. What a record says is read from its
// bytes when asked for. Must never drop a record before the database has committed it.

import type { ChannelKey } from "../../../broker/model.ts";
import { hashText } from "../../../lib/text-hash.ts";
import type { ChannelRow } from "./channel-rows.ts";
import type { EncodedRecord } from "./log-rows.ts";
import { CLIENT_MSG_NO, FROM_UID, peekCounted, peekText, type StoredRecord } from "./record.ts";

/**
 * Idle channels kept in memory for their heads; beyond, the oldest are forgotten (one database read
 * brings them back).
 */
const MAX_IDLE_CHANNELS = 100_000;
/**
 * Lists below it are as long as what they hold and never change; most channels have few records
 * between two checkpoints.
 */
const MAX_EXACT = 8;

/** A record on its way: assigned, then written, then committed. */
export interface MemtableRecord extends EncodedRecord {
  readonly channel: MemtableChannel;
  /** 0: only the clientMsgNo is kept. */
  readonly messageSeq: number;
  /** Of channel, sender and clientMsgNo; 0 when no retry may find it. */
  readonly hash: number;
  /** The next older one with this hash. */
  next: MemtableRecord | undefined;
  /** Durable, published and shown to reads. */
  committed: boolean;
}

/** An active channel. */
export interface MemtableChannel {
  readonly key: ChannelKey;
  /** The channel's number in the database's keys; 0 = none yet. */
  number: number;
  /** The last seq given. */
  assigned: number;
  /** The count of the message at `assigned` (see record.ts). */
  counted: number;
  /** The last seq shown. */
  head: number;
  /** The count of the message at `head`. */
  headCounted: number;
  /** Committed messages that the database does not have, by seq without gaps. */
  log: readonly MemtableRecord[];
  /** Committed records of which only the clientMsgNo is kept. */
  dedupeOnly: readonly MemtableRecord[];
  /** Records assigned and neither committed nor rolled back. */
  uncommitted: number;
}

/** What a checkpoint writes of a channel: what was committed when it began. */
export interface ChannelFlush {
  readonly channel: MemtableChannel;
  readonly head: number;
  /** The count of the message at `head`. */
  readonly counted: number;
  readonly log: readonly MemtableRecord[];
  readonly dedupeOnly: readonly MemtableRecord[];
}

interface MemtableBounds {
  readonly maxBytes: number;
  readonly maxRecords: number;
}

/** Whose clientMsgNo it is: the same number may be used by others. */
interface Numbered {
  readonly key: ChannelKey;
  readonly fromUid: string;
  readonly clientMsgNo: string;
}

export class Memtable {
  readonly #loadRow: (key: ChannelKey) => ChannelRow | undefined;
  readonly #bounds: MemtableBounds;
  readonly #channels = new Map<ChannelKey, MemtableChannel>();
  /** Channels with committed records; those of the flush under way come first. */
  readonly #dirty: MemtableChannel[] = [];
  /** The newest record of each hash. */
  readonly #numbers = new Map<number, MemtableRecord>();
  #records = 0;
  #bytes = 0;

  constructor(loadRow: (key: ChannelKey) => ChannelRow | undefined, bounds: MemtableBounds) {
    this.#loadRow = loadRow;
    this.#bounds = bounds;
  }

  get records(): number {
    return this.#records;
  }

  /** Encoded bytes held. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Whether what is held and so much more reaches a bound. */
  isFull(more: { readonly records: number; readonly bytes: number }): boolean {
    return (
      this.#records + more.records >= this.#bounds.maxRecords ||
      this.#bytes + more.bytes >= this.#bounds.maxBytes
    );
  }

  /** A quarter of a bound is reached: time to move some of it. */
  get isHeavy(): boolean {
    const { maxRecords, maxBytes } = this.#bounds;
    return this.#records * 4 >= maxRecords || this.#bytes * 4 >= maxBytes;
  }

  /** The channel in memory, brought in when it is not there. */
  channel(key: ChannelKey): MemtableChannel {
    const known = this.#channels.get(key);
    if (known !== undefined) return known;
    const { number = 0, head = 0, counted = 0 } = this.#loadRow(key) ?? {};
    const channel: MemtableChannel = {
      key,
      number,
      assigned: head,
      counted,
      head,
      headCounted: counted,
      log: NONE,
      dedupeOnly: NONE,
      uncommitted: 0,
    };
    this.#channels.set(key, channel);
    return channel;
  }

  /** The channel if it is in memory. */
  peek(key: ChannelKey): MemtableChannel | undefined {
    return this.#channels.get(key);
  }

  /** The newest record that has this clientMsgNo of this sender and channel, committed or not. */
  seen(draft: Numbered): MemtableRecord | undefined {
    const channel = this.#channels.get(draft.key);
    if (channel === undefined) return undefined;
    let record = this.#numbers.get(hashOf(draft));
    while (record !== undefined && (record.channel !== channel || !isNumbered(record, draft)))
      record = record.next;
    return record;
  }

  /**
   * Takes in a record that stands encoded there, as it is appended and again as it is replayed:
   * everything that is derived from a record is derived here. Its seq is given and retries find it
   * from now on; reads show it once it is committed.
   */
  assign(
    channel: MemtableChannel,
    { message, dedupe, counted }: StoredRecord,
    { bytes, start, end }: EncodedRecord,
  ): MemtableRecord {
    const { messageSeq } = message;
    const hash = dedupe ? hashOf(message) : 0;
    const next = dedupe ? this.#numbers.get(hash) : undefined;
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
    if (dedupe) this.#numbers.set(hash, record);
    this.hold(end - start);
    channel.uncommitted++;
    if (messageSeq > channel.assigned) {
      channel.assigned = messageSeq;
      channel.counted = counted;
    }
    return record;
  }

  /**
   * Drops an assigned record that was not written, as all that are assigned and not committed must
   * be.
   */
  rollBack(record: MemtableRecord): void {
    this.#drop(record);
    const { channel } = record;
    channel.uncommitted--;
    channel.assigned = channel.head;
    channel.counted = channel.headCounted;
  }

  /** Counts in a record that others keep, of so many bytes. */
  hold(bytes: number): void {
    this.#records++;
    this.#bytes += bytes;
  }

  /** Counts out what `hold` counted in. */
  letGo(bytes: number): void {
    this.#records--;
    this.#bytes -= bytes;
  }

  /** Shows a durable record to reads. */
  commit(record: MemtableRecord): void {
    const { channel, messageSeq, bytes, start } = record;
    if (!hasRecords(channel)) this.#dirty.push(channel);
    record.committed = true;
    channel.uncommitted--;
    if (messageSeq > 0) channel.log = grown(channel.log, record);
    else channel.dedupeOnly = grown(channel.dedupeOnly, record);
    // After a power cut the database may be ahead of the WAL that is replayed: a seq that was shown
    // is never given again.
    if (messageSeq <= channel.head) return;
    channel.head = messageSeq;
    channel.headCounted = peekCounted(bytes, start).counted;
  }

  /**
   * Everything committed, to be written to the database. After a failure it is simply called again.
   */
  startFlush(): ChannelFlush[] {
    return this.#dirty.map((channel) => ({
      channel,
      head: channel.head,
      counted: channel.headCounted,
      log: fixed(channel.log),
      dedupeOnly: fixed(channel.dedupeOnly),
    }));
  }

  /** Lets go of what was written, for the database has it; stops after each channel. */
  *finishFlush(flushed: readonly ChannelFlush[]): Generator<void> {
    this.#dirty.splice(0, flushed.length);
    for (const { channel, log, dedupeOnly } of flushed) {
      for (const record of log) this.#drop(record);
      for (const record of dedupeOnly) this.#drop(record);
      channel.log = behind(channel.log, log.length);
      channel.dedupeOnly = behind(channel.dedupeOnly, dedupeOnly.length);
      if (hasRecords(channel)) this.#dirty.push(channel);
      yield;
    }
    this.forgetIdle();
  }

  /** Counts a record out; no retry finds it any more. */
  #drop(record: MemtableRecord): void {
    const { hash, next, start, end } = record;
    this.letGo(end - start);
    if (hash === 0) return;
    let newer = this.#numbers.get(hash);
    if (newer !== record) {
      while (newer !== undefined && newer.next !== record) newer = newer.next;
      if (newer !== undefined) newer.next = next;
    } else if (next === undefined) this.#numbers.delete(hash);
    else this.#numbers.set(hash, next);
  }

  /** Keeps the number of channels without records within its bound. */
  forgetIdle(): void {
    let excess = this.#channels.size - MAX_IDLE_CHANNELS;
    if (excess <= 0) return;
    for (const [key, channel] of this.#channels) {
      if (excess-- <= 0) return;
      if (!hasRecords(channel) && channel.uncommitted === 0) this.#channels.delete(key);
    }
  }
}

function hashOf({ key, fromUid, clientMsgNo }: Numbered): number {
  return hashText(clientMsgNo, hashText(fromUid, hashText(key))) || 1;
}

/** Two names may share a hash. */
function isNumbered({ bytes, start }: EncodedRecord, { fromUid, clientMsgNo }: Numbered): boolean {
  return (
    peekText(bytes, start, CLIENT_MSG_NO) === clientMsgNo &&
    peekText(bytes, start, FROM_UID) === fromUid
  );
}

function hasRecords({ log, dedupeOnly }: MemtableChannel): boolean {
  return log.length > 0 || dedupeOnly.length > 0;
}

type Records = readonly MemtableRecord[];

const NONE: Records = [];

function grown(records: Records, record: MemtableRecord): Records {
  if (records.length === 0) return [record];
  if (records.length < MAX_EXACT) return records.concat([record]);
  (records as MemtableRecord[]).push(record); // one that only `grown` made
  return records;
}

/** What does not grow with them. */
function fixed(records: Records): Records {
  return records.length < MAX_EXACT ? records : records.slice();
}

function behind(records: Records, count: number): Records {
  return count === records.length ? NONE : records.slice(count);
}
