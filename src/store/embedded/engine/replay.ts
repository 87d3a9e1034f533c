// Brings messages back after a restart: replays each record of the WAL into the memtable. Records
// of streams go to who holds them. No state.

import { BrokerError } from "../../../broker/errors.ts";
import type { Message } from "../../../broker/model.ts";
import type { FolderLock } from "./folder-lock.ts";
import type { Memtable, MemtableChannel } from "./memtable.ts";
import {
  decodeRecord,
  ID_RESERVATION_RECORD,
  MESSAGE_RECORD,
  recordKind,
  STREAM_RECORD,
} from "./record.ts";
import { type Recovered, recover } from "./recover.ts";
import type { WalPosition } from "./segment.ts";

interface ReplayParts {
  readonly memtable: Memtable;
  /** What holds the streams. */
  readonly live: {
    /** The message of a stream was replayed. */
    replayMessage(channel: MemtableChannel, message: Message): void;
    /** Throws `internal` when an event before it is missing. */
    replayEvent(record: Buffer): void;
  };
  readonly owner: Pick<FolderLock, "assertHeldNow">;
  /** Of the machine, see `segment.ts`. */
  readonly boot: string;
}

interface Replayed extends Recovered {
  /** The greatest message id of all records. */
  readonly lastMessageId: number;
}

/** Replays the WAL in `folder` from `position` on. Throws `internal` when it is not whole. */
export function replay(
  folder: string,
  position: WalPosition,
  { memtable, live, owner, boot }: ReplayParts,
): Replayed {
  let lastMessageId = 0;
  const recovered = recover(folder, position, {
    boot,
    record(bytes) {
      if (recordKind(bytes) === STREAM_RECORD) live.replayEvent(bytes);
      else replayMessage(bytes);
    },
    assertOwned: () => owner.assertHeldNow(),
  });
  return { ...recovered, lastMessageId };

  function replayMessage(bytes: Buffer): void {
    const stored = decodeRecord(bytes);
    const { kind, message, isStream } = stored;
    lastMessageId = Math.max(lastMessageId, message.messageId);
    if (kind === ID_RESERVATION_RECORD) return;
    const channel = memtable.channel(message.key);
    if (kind === MESSAGE_RECORD) assertNext(channel, message);
    const at = { bytes, start: 0, end: bytes.length };
    memtable.commit(memtable.assign(channel, stored, at));
    if (isStream) live.replayMessage(channel, message);
  }
}

function assertNext({ log }: MemtableChannel, message: Message): void {
  const last = log.at(-1)?.messageSeq;
  if (last === undefined || message.messageSeq === last + 1) return;
  throw new BrokerError("internal", {
    message: `The journal skips from ${last} to ${message.messageSeq} in channel ${message.key}`,
  });
}
