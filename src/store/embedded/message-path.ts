// Opens and wires the path of messages and streams: WAL, memtable, queue, checkpoint and what reads of them. No state of its own.
// What the WAL has is replayed before anything else; nothing is taken before the first checkpoint has moved it.

import { BrokerError } from "../../broker/errors.ts";
import type { ChannelKey } from "../../broker/model.ts";
import type { EmbeddedOptions } from "./embedded-options.ts";
import { ChannelRows } from "./engine/channel-rows.ts";
import { Checkpoint, readCheckpointState } from "./engine/checkpoint.ts";
import type { Tables } from "./engine/database.ts";
import type { FolderLock } from "./engine/folder-lock.ts";
import { Frame } from "./engine/frame.ts";
import { LogRows } from "./engine/log-rows.ts";
import { Memtable } from "./engine/memtable.ts";
import { replay } from "./engine/replay.ts";
import { Wal } from "./engine/wal.ts";
import { Appends } from "./steps/append.ts";
import { Assigner, MessageIds } from "./steps/assigner.ts";
import { lastCommandId } from "./steps/commands.ts";
import type { ConversationRows } from "./steps/conversation-rows.ts";
import { DedupeIndex } from "./steps/dedupe.ts";
import { History } from "./steps/history.ts";
import { LiveStreams } from "./steps/live-streams.ts";
import type { Judge } from "./steps/permissions.ts";
import { TrimQueue } from "./steps/retention.ts";
import { createWithStream } from "./steps/stream-reads.ts";
import { StreamRows } from "./steps/stream-rows.ts";
import { createStreams } from "./steps/streams.ts";

/** Where it is kept. */
export interface LogPlace {
  readonly tables: Tables;
  readonly walFolder: string;
  readonly owner: FolderLock;
  readonly conversationRows: ConversationRows;
  readonly judge: Judge;
}

type MessagePath = ReturnType<typeof openMessagePath>;

/** Throws `internal` when the WAL cannot be read, `unavailable` when it cannot be written. */
export function openMessagePath(options: EmbeddedOptions, place: LogPlace) {
  const { tables, owner, conversationRows, judge } = place;
  const { clock, onError, publisher } = options;
  const synced = options.durability === "disk";
  const retentionMs = options.retentionS * 1000;
  const dedupe = new DedupeIndex(tables, options.dedupeWindowS * 1000);
  const log = openLog(options, place);
  const { memtable, rows, wal, ids, live, streamRows } = log;
  const logRows = new LogRows(tables);
  const frame = new Frame();
  const assigner = new Assigner({ memtable, rows, dedupe, ids, frame });
  const appends = new Appends({
    ...{ memtable, wal, assigner, clock, publisher, synced, onError },
    ...{ owner, judge },
  });
  const trimQueue = new TrimQueue(options.maxChannelMessages);
  const checkpoint = new Checkpoint({
    ...{ tables, rows, dedupe, memtable, wal, appends, ids, clock, onError },
    ...{ live, conversationRows, trimQueue, logRows },
    intervalMs: options.checkpointMs,
  });
  const withStream = createWithStream({ live, rows: streamRows });
  const history = new History({
    ...{ logRows, rows, memtable, withStream, clock, retentionMs },
  });
  const streams = createStreams({
    ...{ memtable, live, rows: streamRows, assigner, frame, appends },
    ...{ clock, retentionMs, maxStreamBytes: options.maxStreamBytes },
  });
  return {
    ...{ ...log, dedupe, assigner, appends, checkpoint, history, streams },
    ...{ trimQueue, logRows },
  };
}

/** Moves what was replayed into the database, then goes on by itself. Throws `unavailable`, having closed the WAL. */
export async function startMessagePath({
  checkpoint,
  wal,
}: Pick<MessagePath, "checkpoint" | "wal">): Promise<void> {
  try {
    await checkpoint.first();
  } catch (error) {
    wal.close();
    throw error;
  }
  checkpoint.start();
}

/** Finishes what is under way. After an orderly end no WAL is left; when that fails it stays and is replayed. */
export async function closeMessagePath(
  { appends, checkpoint, wal }: MessagePath,
  onError: EmbeddedOptions["onError"],
): Promise<void> {
  await appends.turn.drain();
  await checkpoint.close();
  const end = wal.position.segment + 1;
  try {
    await checkpoint.last();
    await wal.dropBefore({ segment: end, offset: 0 });
  } catch (error) {
    onError(error as Error, "The last checkpoint failed"); // BrokerError, or the file system's error
  } finally {
    wal.close();
  }
}

/** Replays the WAL and begins a new segment of it. */
function openLog(
  options: EmbeddedOptions,
  { tables, walFolder, owner, conversationRows }: LogPlace,
) {
  const rows = new ChannelRows(tables);
  const loadRow = (key: ChannelKey) => {
    const row = rows.get(key);
    if (row === undefined) conversationRows.noteNew(key);
    return row;
  };
  const memtable = new Memtable(loadRow, {
    maxBytes: options.maxTailBytes,
    maxRecords: options.maxTailRecords,
  });
  const streamRows = new StreamRows(tables, rows);
  const live = new LiveStreams(memtable, streamRows, {
    maxStreamBytes: options.maxStreamBytes,
    maxActiveBytes: options.maxActiveStreamBytes,
  });
  live.load(options.clock());
  const state = readCheckpointState(tables);
  const position = state?.position ?? { segment: 1, offset: 0 };
  const recovered = replay(walFolder, position, { memtable, live, owner });
  if (recovered.droppedBytes > 0)
    options.onError(
      new Error(
        `${recovered.droppedBytes} bytes of an unfinished write were cut off the journal`,
      ),
      "Recovery found something it could not use",
    );
  const lastId = Math.max(
    state?.lastMessageId ?? 0,
    recovered.lastMessageId,
    lastCommandId(tables),
  );
  const ids = new MessageIds(lastId);
  return { rows, memtable, live, streamRows, ids, wal: openWal() };

  function openWal(): Wal {
    try {
      return new Wal({
        folder: walFolder,
        firstSegment: recovered.nextSegment,
        segmentBytes: options.segmentBytes,
        synced: options.durability === "disk",
        owner,
        onError: options.onError,
        ...(options.files === undefined ? {} : { files: options.files }),
      });
    } catch (cause) {
      throw new BrokerError("unavailable", {
        message: `The journal in ${walFolder} cannot be written`,
        cause,
      });
    }
  }
}
