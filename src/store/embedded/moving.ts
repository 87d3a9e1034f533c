// Puts a checkpoint's records into the tables, in the order of keys. No state but the parts'. Writing a record again changes nothing.

import { expiresAtMs } from "../../broker/model.ts";
import { type ChannelRows, expiryKey, logKey } from "./channel-rows.ts";
import type { Tables } from "./database.ts";
import type { DedupeIndex } from "./dedupe.ts";
import type { TailChannel, TailRecord } from "./tail.ts";

const EXPIRY_VALUE = Buffer.from([1]);

export interface MovingParts {
  readonly tables: Tables;
  readonly rows: ChannelRows;
  readonly dedupe: DedupeIndex;
}

/** Every put for what is frozen of `channels`; stops after each record. To be advanced inside `commit`. */
export function* puts(
  parts: MovingParts,
  channels: TailChannel[],
): Generator<void> {
  const { rows, dedupe } = parts;
  channels.sort((a, b) => a.number - b.number);
  for (const channel of channels) {
    const { key, number, log, marks, frozenLog, frozenMarks } = channel;
    rows.put(key, { number, head: channel.frozenHead });
    for (let i = 0; i < frozenLog; i++) {
      const record = log[i];
      if (record !== undefined) putMessage(parts, number, record);
      yield;
    }
    for (let i = 0; i < frozenMarks; i++) {
      const record = marks[i];
      if (record !== undefined) dedupe.put(number, record);
      yield;
    }
  }
}

/** Numbers new channels, for good before anything is stored under a number. Throws `unavailable`. */
export async function takeNumbers(
  rows: ChannelRows,
  channels: readonly TailChannel[],
): Promise<void> {
  for (const channel of channels)
    if (channel.number === 0) channel.number = rows.takeNumber();
  await rows.keepNumbers();
}

function putMessage(
  { tables, dedupe }: MovingParts,
  number: number,
  record: TailRecord,
): void {
  const { bytes, start, end } = record;
  const key = logKey(number, record.messageSeq);
  void tables.log.put(key, bytes.subarray(start, end));
  if (record.expireS > 0)
    void tables.expiry.put(expiryKey(expiresAtMs(record), key), EXPIRY_VALUE);
  if (record.remembered) dedupe.put(number, record);
}
