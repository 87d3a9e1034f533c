// The memory of what the WAL has and the database does not: per channel its newest messages, and who sent which clientMsgNo.
// Owns the map of active channels (their heads, records and numbers) and the counts that bound all of it.
// Must never drop a record before the database has committed it.

import type { ChannelKey, Message } from "../../../broker/model.ts";
import type { ChannelRow } from "./channel-rows.ts";
import { countsForEver, decodeRecord, type StoredRecord } from "./record.ts";

/** Idle channels kept in memory for their heads; beyond, the oldest are forgotten (one database read brings them back). */
const MAX_IDLE_CHANNELS = 100_000;

/** A record on its way: assigned, then written, then settled. Keeps what it is found by, and the message in its encoded form only. */
export interface MemtableRecord {
  readonly channel: MemtableChannel;
  readonly messageId: number;
  readonly messageSeq: number;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  readonly timestampMs: number;
  readonly expireS: number;
  readonly redDot: boolean;
  /** How many of its channel's messages through it count for ever (see record.ts). */
  readonly counted: number;
  /** Its channel's `numbers` have it: the sender chose the clientMsgNo. */
  readonly remembered: boolean;
  /** The next in its channel with the same clientMsgNo, of another sender. That is rare: no list, no joined key. */
  sameNo: MemtableRecord | undefined;
  /** The bytes that hold its encoded form, from `start` to `end`. */
  readonly bytes: Buffer;
  readonly start: number;
  readonly end: number;
  /** Durable, published and shown to reads. */
  settled: boolean;
}

/** Where a record stands encoded. */
interface EncodedAt {
  readonly bytes: Buffer;
  readonly start: number;
  readonly end: number;
}

export function memtableRecord(
  channel: MemtableChannel,
  message: Message,
  at: EncodedAt & { readonly remembered: boolean; readonly counted: number },
): MemtableRecord {
  return {
    channel,
    messageId: message.messageId,
    messageSeq: message.messageSeq,
    fromUid: message.fromUid,
    clientMsgNo: message.clientMsgNo,
    timestampMs: message.timestampMs,
    expireS: message.expireS,
    redDot: message.header.redDot,
    counted: at.counted,
    remembered: at.remembered,
    sameNo: undefined,
    bytes: at.bytes,
    start: at.start,
    end: at.end,
    settled: false,
  };
}

/** All of a record that was written. */
export function recordOf({ bytes, start, end }: MemtableRecord): StoredRecord {
  return decodeRecord(bytes.subarray(start, end));
}

/** An active channel. */
export interface MemtableChannel {
  readonly key: ChannelKey;
  /** The channel's number in the database's keys; 0 = none yet. */
  number: number;
  /** The database has a row that says so. */
  isNumbered: boolean;
  /** The last seq given. */
  assigned: number;
  /** The count of the message at `assigned` (see record.ts). */
  counted: number;
  /** The last seq shown. */
  head: number;
  /** The count of the message at `head`. */
  headCounted: number;
  /** Settled messages that the database does not have, by seq without gaps. */
  readonly log: MemtableRecord[];
  /** Settled records of which only the clientMsgNo is kept. */
  readonly dedupeOnly: MemtableRecord[];
  /** How many of `log` and `dedupeOnly` the running checkpoint writes. */
  flushingLog: number;
  flushingDedupeOnly: number;
  /** `head` and its count when they were marked. */
  flushingHead: number;
  flushingCounted: number;
  /** Who sent which clientMsgNo, of the records the database does not have; undefined: nobody. */
  numbers: DedupeMap | undefined;
  /** The part of it that the running checkpoint writes. */
  flushingNumbers: DedupeMap | undefined;
  /** Records assigned and neither settled nor rolled back. */
  unsettled: number;
  dirty: boolean;
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
  /** Channels with records the database does not have. */
  #dirty = new Set<MemtableChannel>();
  #records = 0;
  #bytes = 0;

  constructor(
    loadRow: (key: ChannelKey) => ChannelRow | undefined,
    bounds: MemtableBounds,
  ) {
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
    const row = this.#loadRow(key);
    const head = row?.head ?? 0;
    const counted = row?.counted ?? 0;
    const channel: MemtableChannel = {
      key,
      number: row?.number ?? 0,
      isNumbered: row !== undefined,
      assigned: head,
      counted,
      head,
      headCounted: counted,
      log: [],
      dedupeOnly: [],
      flushingLog: 0,
      flushingDedupeOnly: 0,
      flushingHead: head,
      flushingCounted: counted,
      numbers: undefined,
      flushingNumbers: undefined,
      unsettled: 0,
      dirty: false,
    };
    this.#channels.set(key, channel);
    return channel;
  }

  /** The channel if it is in memory. */
  peek(key: ChannelKey): MemtableChannel | undefined {
    return this.#channels.get(key);
  }

  /** The record that has this clientMsgNo of this sender and channel, settled or not. */
  seen(draft: Numbered): MemtableRecord | undefined {
    const channel = this.#channels.get(draft.key);
    return (
      find(channel?.numbers, draft) ?? find(channel?.flushingNumbers, draft)
    );
  }

  /** Takes a record's seq, counts it in and makes retries of it find it. */
  assign(record: MemtableRecord): void {
    const { channel, messageSeq } = record;
    this.#records++;
    this.#bytes += record.end - record.start;
    channel.unsettled++;
    if (messageSeq > 0) {
      channel.assigned = messageSeq;
      channel.counted = record.counted;
    }
    if (record.remembered) {
      channel.numbers ??= new Map();
      remember(channel.numbers, record);
    }
  }

  /** Rolls back an assigned record that was not written. Newest first, so that seqs go back in order. */
  rollBack(record: MemtableRecord): void {
    this.#records--;
    this.#bytes -= record.end - record.start;
    const { channel, messageSeq } = record;
    channel.unsettled--;
    if (record.remembered) {
      forget(channel.numbers, record);
      forget(channel.flushingNumbers, record);
    }
    if (messageSeq > 0) {
      channel.assigned = messageSeq - 1;
      const counts = countsForEver(record.redDot, record);
      channel.counted = record.counted - (counts ? 1 : 0);
    }
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
  settle(record: MemtableRecord): void {
    const { channel, messageSeq } = record;
    record.settled = true;
    channel.unsettled--;
    if (messageSeq > 0) {
      channel.log.push(record);
      channel.head = messageSeq;
      channel.headCounted = record.counted;
    } else channel.dedupeOnly.push(record);
    if (channel.dirty) return;
    channel.dirty = true;
    this.#dirty.add(channel);
  }

  /**
   * Marks everything settled as being written to the database and returns its channels. `unsettled` stays behind. After a failure it is
   * simply called again.
   */
  startFlush(unsettled: Iterable<MemtableRecord>): MemtableChannel[] {
    const channels = [...this.#dirty];
    for (const channel of channels) {
      channel.flushingLog = channel.log.length;
      channel.flushingDedupeOnly = channel.dedupeOnly.length;
      channel.flushingHead = channel.head;
      channel.flushingCounted = channel.headCounted;
      flushNumbers(channel);
    }
    for (const record of unsettled) {
      const { channel } = record;
      if (!record.remembered || !channel.dirty) continue;
      forget(channel.flushingNumbers, record);
      channel.numbers ??= new Map();
      remember(channel.numbers, record);
    }
    return channels;
  }

  /** Lets go of what the last `startFlush` marked: the database has it. */
  finishFlush(channels: readonly MemtableChannel[]): void {
    for (const channel of channels) {
      channel.isNumbered = true;
      channel.flushingNumbers = undefined;
      this.#drop(channel.log.splice(0, channel.flushingLog));
      this.#drop(channel.dedupeOnly.splice(0, channel.flushingDedupeOnly));
      channel.flushingLog = 0;
      channel.flushingDedupeOnly = 0;
      if (channel.log.length + channel.dedupeOnly.length > 0) continue;
      channel.dirty = false;
      this.#dirty.delete(channel);
    }
    this.forgetIdle();
  }

  #drop(records: readonly MemtableRecord[]): void {
    for (const { start, end } of records) this.letGo(end - start);
  }

  /** Keeps the number of channels without records within its bound. */
  forgetIdle(): void {
    let excess = this.#channels.size - MAX_IDLE_CHANNELS;
    if (excess <= 0) return;
    for (const [key, channel] of this.#channels) {
      if (excess-- <= 0) return;
      if (!channel.dirty && channel.unsettled === 0) this.#channels.delete(key);
    }
  }
}

/** One channel's, by clientMsgNo; what shares one hangs together by `sameNo`. */
type DedupeMap = Map<string, MemtableRecord>;

function find(
  map: DedupeMap | undefined,
  draft: Numbered,
): MemtableRecord | undefined {
  let record = map?.get(draft.clientMsgNo);
  while (record !== undefined && record.fromUid !== draft.fromUid)
    record = record.sameNo;
  return record;
}

function remember(map: DedupeMap, record: MemtableRecord): void {
  const { clientMsgNo } = record;
  record.sameNo = map.get(clientMsgNo);
  map.set(clientMsgNo, record);
}

/** Harmless when the map does not have it. */
function forget(map: DedupeMap | undefined, record: MemtableRecord): void {
  if (map === undefined) return;
  const { clientMsgNo } = record;
  let before = map.get(clientMsgNo);
  if (before === record) {
    if (record.sameNo === undefined) map.delete(clientMsgNo);
    else map.set(clientMsgNo, record.sameNo);
  } else {
    while (before !== undefined && before.sameNo !== record)
      before = before.sameNo;
    if (before !== undefined) before.sameNo = record.sameNo;
  }
}

/** Everything remembered so far is what the checkpoint writes; after a failure, together with what it was to write then. */
function flushNumbers(channel: MemtableChannel): void {
  const { numbers, flushingNumbers } = channel;
  channel.numbers = undefined;
  if (flushingNumbers === undefined) channel.flushingNumbers = numbers;
  else
    for (const record of unchained(numbers).reverse())
      remember(flushingNumbers, record);
}

/** All records of a map, each to be put elsewhere; of those that share a clientMsgNo the newest first. */
function unchained(map: DedupeMap | undefined): MemtableRecord[] {
  const records: MemtableRecord[] = [];
  for (const head of map?.values() ?? []) {
    let record: MemtableRecord | undefined = head;
    while (record !== undefined) {
      records.push(record);
      record = record.sameNo;
    }
  }
  return records;
}
