// Loads the records of the WAL into memory after a restart: messages into the memtable, log changes
// into `logs`, and events that have a separate record into `events`.

import { BrokerError } from "../../../broker/errors.ts";
import type { Message } from "../../../broker/model.ts";
import type { FolderLock } from "./folder-lock.ts";
import type { Memtable, MemtableChannel } from "./memtable.ts";
import {
  decodeRecord,
  EVENT_RECORD,
  ID_RESERVATION_RECORD,
  LOG_RECORD,
  MESSAGE_RECORD,
  recordKind,
} from "./record.ts";
import { type Recovery, recover } from "./recover.ts";
import type { StoredPosition } from "./segment.ts";

interface ReplayPorts {
  readonly memtable: Memtable;
  readonly logs: { replay(record: Buffer): number };
  readonly events: { replay(record: Buffer): { readonly id: number } };
  readonly owner: Pick<FolderLock, "assertHeldNow">;
  readonly boot: string;
}

interface ReplayResult extends Recovery {
  readonly lastMessageId: number;
  /** Numbers of the logs that have changes in the WAL. */
  readonly logNumbers: ReadonlySet<number>;
}

export function replay(
  folder: string,
  position: StoredPosition,
  { memtable, logs, events, owner, boot }: ReplayPorts,
): ReplayResult {
  let lastMessageId = 0;
  const logNumbers = new Set<number>();
  const recovery = recover(folder, position, {
    boot,
    record(bytes) {
      const kind = recordKind(bytes);
      if (kind === LOG_RECORD) logNumbers.add(logs.replay(bytes));
      else if (kind === EVENT_RECORD)
        lastMessageId = Math.max(lastMessageId, events.replay(bytes).id);
      else replayMessage(bytes);
    },
    assertOwned: () => owner.assertHeldNow(),
  });
  return { ...recovery, lastMessageId, logNumbers };

  function replayMessage(bytes: Buffer): void {
    const stored = decodeRecord(bytes);
    const { kind, message } = stored;
    lastMessageId = Math.max(lastMessageId, message.messageId);
    if (kind === ID_RESERVATION_RECORD) return;
    const channel = memtable.channel(message.key);
    if (kind === MESSAGE_RECORD) assertNext(channel, message);
    const location = { bytes, start: 0, end: bytes.length };
    memtable.commit(memtable.assign(channel, stored, location));
  }
}

function assertNext({ log }: MemtableChannel, message: Message): void {
  const last = log.at(-1)?.messageSeq;
  if (last === undefined || message.messageSeq === last + 1) return;
  throw new BrokerError("internal", {
    message: `The WAL skips from seq ${last} to seq ${message.messageSeq} of the channel ${message.key}. Restore the data folder from a backup.`,
  });
}
