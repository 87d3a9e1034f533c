// Puts a checkpoint's records into the tables, in the order of keys. No state but the parts'. Writing a record again changes nothing.
// Of what is put side by side any part may fail and the rest be committed. So it comes in phases: nothing may stand in the tables before what it
// refers to surely does.

import { type ChannelRows, expiryKeyOf, logKey } from "./channel-rows.ts";
import type { ConversationRows } from "./conversation-rows.ts";
import type { Tables } from "./database.ts";
import type { DedupeIndex } from "./dedupe.ts";
import type { Frozen } from "./frozen.ts";
import type { StreamRows } from "./stream-rows.ts";
import type { TailChannel, TailRecord } from "./tail.ts";

const EXPIRY_VALUE = Buffer.from([1]);

export interface MovingParts {
  readonly tables: Tables;
  readonly rows: ChannelRows;
  readonly dedupe: DedupeIndex;
  readonly streamRows: StreamRows;
  readonly conversationRows: ConversationRows;
}

/**
 * Every put for what is frozen, phase by phase: all of one is to be committed before the next begins. Each stops after each record and is to be
 * advanced inside `commit`.
 */
export function phases(
  parts: MovingParts,
  frozen: Frozen,
): readonly Generator<void>[] {
  frozen.channels.sort((a, b) => a.number - b.number);
  return [
    numbers(parts, frozen),
    messages(parts, frozen),
    references(parts, frozen),
  ];
}

/** Which number a new channel has: records under a number are lost without it. */
function* numbers(
  { rows, conversationRows }: MovingParts,
  { channels }: Frozen,
): Generator<void> {
  for (const { key, number, isNumbered } of channels) {
    if (isNumbered) continue;
    rows.put(key, { number, head: 0, counted: 0 });
    conversationRows.putChannel(key);
    yield;
  }
}

/** Messages, each with what a sweep removes together with it: the sweep may come before the next phase. */
function* messages(parts: MovingParts, { channels }: Frozen): Generator<void> {
  for (const channel of channels) {
    const { key, number, log, frozenLog } = channel;
    const { frozenHead: head, frozenCounted: counted } = channel;
    parts.rows.put(key, { number, head, counted });
    for (let i = 0; i < frozenLog; i++) {
      const record = log[i];
      if (record !== undefined) putMessage(parts, number, record);
      yield;
    }
  }
}

/** What finds messages, says something of them, or goes on from one. */
function* references(
  { dedupe, conversationRows, streamRows }: MovingParts,
  { channels, streams }: Frozen,
): Generator<void> {
  for (const channel of channels) {
    const { number, log, marks, frozenLog, frozenMarks } = channel;
    for (let i = 0; i < frozenLog; i++) {
      const record = log[i];
      if (record?.remembered === true) dedupe.put(number, record);
      yield;
    }
    yield* conversationRows.putOwn(channel);
    for (let i = 0; i < frozenMarks; i++) {
      const record = marks[i];
      if (record !== undefined) dedupe.put(number, record);
      yield;
    }
  }
  for (const stream of streams) {
    streamRows.put(stream);
    yield;
  }
}

/** Numbers new channels; a number is taken for good before anything is stored under a number. Throws `unavailable`. */
export async function takeNumbers(
  rows: ChannelRows,
  channels: readonly TailChannel[],
): Promise<void> {
  for (const channel of channels)
    if (channel.number === 0) channel.number = rows.takeNumber();
  await rows.keepNumbers();
}

function putMessage(
  { tables, conversationRows }: MovingParts,
  number: number,
  record: TailRecord,
): void {
  const { bytes, start, end } = record;
  const key = logKey(number, record.messageSeq);
  void tables.log.put(key, bytes.subarray(start, end));
  if (record.expireS > 0)
    void tables.expiry.put(expiryKeyOf(record, key), EXPIRY_VALUE);
  conversationRows.putMessage(key, record);
}
