// Opens the data folder and wires engine and steps; closes them in reverse order. Owns the parts
// while they are open. The order of opening is the order of safety: format, owner, replay, first
// checkpoint, and only then new writes.

import { join } from "node:path";
import { BrokerError } from "../../broker/errors.ts";
import type { Clock, Publisher } from "../../broker/ports.ts";
import { KeyedLock } from "../../lib/keyed-lock.ts";
import { ChannelRows } from "./engine/channel-rows.ts";
import { Checkpoint, readCheckpointState } from "./engine/checkpoint.ts";
import { commit, type DatabaseWrites } from "./engine/database.ts";
import { bootId, FolderLock, HEARTBEAT_FILE } from "./engine/folder-lock.ts";
import { Frame } from "./engine/frame.ts";
import { LogRows } from "./engine/log-rows.ts";
import { Memtable } from "./engine/memtable.ts";
import { closeToOthers } from "./engine/private-files.ts";
import type { Recovery } from "./engine/recover.ts";
import { replay } from "./engine/replay.ts";
import { UNKNOWN_BOOT } from "./engine/segment.ts";
import { DATA_FORMAT, openTables, type Tables } from "./engine/tables.ts";
import { Wal, type WalFiles } from "./engine/wal.ts";
import { Appends } from "./steps/append.ts";
import { Assigner, MessageIds } from "./steps/assigner.ts";
import { ChannelTables } from "./steps/channel-tables.ts";
import { createChannels } from "./steps/channels.ts";
import { lastCommandId } from "./steps/commands.ts";
import { ConversationRows } from "./steps/conversation-rows.ts";
import { Conversations } from "./steps/conversations.ts";
import { DedupeIndex } from "./steps/dedupe.ts";
import { History } from "./steps/history.ts";
import { Inbox } from "./steps/inbox.ts";
import { LiveStreams } from "./steps/live-streams.ts";
import { createManagers } from "./steps/managers.ts";
import { createJudge } from "./steps/permissions.ts";
import { Sweep, TrimQueue } from "./steps/retention.ts";
import { createSessions } from "./steps/sessions.ts";
import { createWithStream } from "./steps/stream-reads.ts";
import { removeOrphanedStreams, StreamRows } from "./steps/stream-rows.ts";
import { createStreams } from "./steps/streams.ts";
import { createSystemAccounts } from "./steps/system-accounts.ts";
import { createLoginSweep, createNewestLogins, createUsers } from "./steps/users.ts";

/**
 * Plain values of the store's configuration (see `store/options.ts`) and the ports the store uses.
 */
export interface EmbeddedOptions {
  readonly path: string;
  readonly durability: "process" | "disk";
  readonly maxMemtableBytes: number;
  readonly dedupeWindowS: number;
  readonly retentionS: number;
  /** How many messages each channel keeps; 0 = all. */
  readonly maxChannelMessages: number;
  readonly sweepIntervalMs: number;
  /** Data of all events of one stream. */
  readonly maxStreamBytes: number;
  /** Memory of all active streams, about. */
  readonly maxActiveStreamBytes: number;
  /** Commands a user's inbox holds at most. */
  readonly maxInbox: number;
  /** How long a command waits to be acknowledged. */
  readonly inboxTtlS: number;
  readonly publisher: Publisher;
  readonly clock: Clock;
  /** Receives failures that no caller gets. `what` names the activity. */
  readonly onError: (error: Error, what: string) => void;
  /**
   * Called once, when another process has taken the data folder while this one was paused. Must end
   * the process at once: nothing is written or answered any more.
   */
  readonly onLost: (error: BrokerError) => void;
  /** Milliseconds between flushes. Tests and benchmarks set it, and the next two. */
  readonly checkpointMs?: number;
  readonly maxMemtableRecords?: number;
  readonly segmentBytes?: number;
  /** Only for tests that make files fail. */
  readonly files?: WalFiles;
  /** Only for tests that make the database fail. */
  readonly databaseWrites?: DatabaseWrites;
}

/** The parts of an open store. */
export type OpenStore = Awaited<ReturnType<typeof openOwned>>;

/**
 * Time between flushes. Longer, a restart replays more; shorter, fewer messages of a channel share
 * a row. At most half of the shortest dedupe window, 1 s: a message must not leave it before its
 * flush.
 */
const CHECKPOINT_MS = 200;
/**
 * Where messages are small: a record holds hundreds of bytes that `maxMemtableBytes` does not count.
 */
const MAX_MEMTABLE_RECORDS = 500_000;
/** As large as the memtable by default: one or two segments are on the disk at a time. */
const SEGMENT_BYTES = 64 * 1024 * 1024;
const JOURNAL = "journal";
const DATABASE = "lmdb";

/**
 * Throws `internal` with an error message when the data cannot be read, `unavailable` when the
 * folder is in use or cannot be written.
 */
export async function openStore(options: EmbeddedOptions): Promise<OpenStore> {
  const tables = openFolder(options);
  const owner = new FolderLock(tables, options.path, options.onLost);
  const release = () => letGo(tables, owner, options.onError);
  try {
    await owner.acquire();
    return await openOwned(options, tables, owner, release);
  } catch (error) {
    await release();
    throw error;
  }
}

function openFolder(options: EmbeddedOptions): Tables {
  const { path, databaseWrites: writes, onError } = options;
  const synced = options.durability === "disk";
  const parts = { folders: [JOURNAL, DATABASE], file: HEARTBEAT_FILE };
  try {
    closeToOthers(path, parts, onError);
    const tables = openTables(join(path, DATABASE), { synced, writes });
    closeToOthers(path, parts, onError); // LMDB makes its files open to all
    return tables;
  } catch (cause) {
    if (cause instanceof BrokerError) throw cause;
    // LMDB gives each pid one place among its readers, and lmdb then reads through a transaction
    // that it did not get.
    if (cause instanceof TypeError)
      throw new BrokerError("unavailable", {
        message: `The data folder ${path} is in use by a process of another container that also has the pid ${process.pid}; stop it first, or set another store.path`,
      });
    throw new BrokerError("unavailable", {
      message: `The data folder ${path} cannot be opened: ${String(cause)}`,
      cause,
    });
  }
}

/**
 * An owner that cannot be taken out (a full disk) only matters to this very process: it counts as
 * dead when the process is.
 */
async function letGo(
  tables: Tables,
  owner: FolderLock,
  onError: EmbeddedOptions["onError"],
): Promise<void> {
  try {
    owner.release();
  } catch (error) {
    onError(error as Error, "The data folder could not be released"); // lmdb throws errors only
  }
  await tables.env.close();
}

async function openOwned(
  options: EmbeddedOptions,
  tables: Tables,
  owner: FolderLock,
  release: () => Promise<void>,
) {
  const { clock, onError } = options;
  const publisher = guarded(options.publisher, onError);
  const retentionMs = options.retentionS === 0 ? Infinity : options.retentionS * 1000;
  await commit(tables, () => void tables.meta.put("format", [DATA_FORMAT]));
  const channelTables = new ChannelTables(tables);
  const conversationRows = new ConversationRows(tables);
  await conversationRows.complete();
  await removeOrphanedStreams(tables, onError);

  const rows = new ChannelRows(tables);
  const memtable = new Memtable(
    (key) => {
      const row = rows.get(key);
      if (row === undefined) conversationRows.noteNew(key);
      return row;
    },
    {
      maxBytes: options.maxMemtableBytes,
      maxRecords: options.maxMemtableRecords ?? MAX_MEMTABLE_RECORDS,
    },
  );
  const streamRows = new StreamRows(tables, rows);
  const live = new LiveStreams(memtable, streamRows, {
    maxStreamBytes: options.maxStreamBytes,
    maxActiveBytes: options.maxActiveStreamBytes,
  });
  live.load(clock());
  const parts = { tables, owner, memtable, live };
  const { wal, lastMessageId } = openWal(options, parts);

  const logRows = new LogRows(tables);
  const dedupe = new DedupeIndex(tables, options.dedupeWindowS * 1000);
  const ids = new MessageIds(lastMessageId);
  const frame = new Frame();
  const assigner = new Assigner({ memtable, rows, dedupe, ids, frame });
  const lock = new KeyedLock();
  const appends = new Appends({
    memtable,
    wal,
    owner,
    synced: tables.synced,
    assigner,
    judge: createJudge(channelTables),
    clock,
    publisher,
    onError,
  });
  /** What several steps use. */
  const common = {
    tables,
    rows,
    logRows,
    memtable,
    live,
    streamRows,
    channelTables,
    conversationRows,
    dedupe,
    ids,
    assigner,
    appends,
    trimQueue: new TrimQueue(options.maxChannelMessages),
    lock,
    clock,
    retentionMs,
    publisher,
    onError,
  };
  const history = new History({
    ...common,
    withStream: createWithStream(common),
  });
  const streams = createStreams({
    ...common,
    frame,
    maxStreamBytes: options.maxStreamBytes,
  });
  const inbox = new Inbox({
    ...common,
    maxInbox: options.maxInbox,
    inboxTtlMs: options.inboxTtlS * 1000,
  });
  const logins = createNewestLogins(tables, clock);
  const users = createUsers({ ...common, logins });
  const headSeq = history.headSeq.bind(history);
  const channels = createChannels({ ...common, headSeq });
  const sessions = createSessions({ ...common, users, channels, logins });
  const managers = createManagers(common);
  const systemAccounts = createSystemAccounts(tables);
  const conversations = new Conversations({ ...common, history });

  const checkpoint = new Checkpoint({
    ...common,
    wal,
    intervalMs: options.checkpointMs ?? CHECKPOINT_MS,
  });
  const sweep = new Sweep({
    ...common,
    inbox,
    sweepLogins: createLoginSweep(tables),
    intervalMs: options.sweepIntervalMs,
  });
  try {
    await checkpoint.first();
  } catch (error) {
    wal.close();
    throw error;
  }
  checkpoint.start();
  sweep.start();
  const filling = dedupe
    .fillFilters()
    .catch((error: Error) =>
      onError(error, "The filters of client message numbers could not be filled"),
    );

  return {
    /** What a move reads; everything the store knew when it was opened is in them. */
    tables,
    users,
    sessions,
    channels,
    managers,
    systemAccounts,
    appends,
    history,
    streams,
    live,
    inbox,
    conversations,
    memtable,
    wal,
    owner,
    checkpoint,
    sweep,
    /** Finishes what is under way, moves everything into the database and lets go of the folder. */
    async close() {
      await sweep.close();
      dedupe.close();
      await filling;
      await inbox.drain();
      await appends.turn.drain();
      await checkpoint.close();
      await moveLast();
      await release();
    },
  };

  /** After an orderly end no WAL is left; when that fails it stays and is replayed. */
  async function moveLast(): Promise<void> {
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
}

/** What is stored stays stored, and is answered, when a receiver of its event throws. */
function guarded(publisher: Publisher, onError: EmbeddedOptions["onError"]): Publisher {
  return {
    publish(event) {
      try {
        publisher.publish(event);
      } catch (error) {
        onError(error as Error, "A stored event could not be published"); // a bug in the receiver
      }
    },
  };
}

/** Replays the WAL and begins a new segment of it. */
function openWal(
  { path, segmentBytes = SEGMENT_BYTES, files, onError }: EmbeddedOptions,
  parts: {
    readonly tables: Tables;
    readonly owner: FolderLock;
    readonly memtable: Memtable;
    readonly live: LiveStreams;
  },
): { readonly wal: Wal; readonly lastMessageId: number } {
  const { tables, owner } = parts;
  const folder = join(path, JOURNAL);
  const state = readCheckpointState(tables);
  const position = state?.position ?? { segment: 1, offset: 0 };
  const boot = bootId()?.replaceAll("-", "") ?? UNKNOWN_BOOT;
  const replayed = replay(folder, position, { ...parts, boot });
  reportCut(replayed, onError);
  const lastMessageId = Math.max(
    state?.lastMessageId ?? 0,
    replayed.lastMessageId,
    lastCommandId(tables),
  );
  try {
    const wal = new Wal({
      folder,
      firstSegment: replayed.nextSegment,
      segmentBytes,
      synced: tables.synced,
      boot,
      owner,
      onError,
      files,
    });
    return { wal, lastMessageId };
  } catch (cause) {
    throw new BrokerError("unavailable", {
      message: `The journal in ${folder} cannot be written`,
      cause,
    });
  }
}

function reportCut({ droppedBytes, isLoss }: Recovery, onError: EmbeddedOptions["onError"]): void {
  if (isLoss)
    onError(
      new Error(
        `The machine went down before its disk had all of the journal: ${droppedBytes} bytes from the first damaged place on were cut off, and the messages in them are lost. With store.durability = disk messages survive a power loss`,
      ),
      "The journal lost messages when the machine went down",
    );
  else if (droppedBytes > 0)
    onError(
      new Error(
        `${droppedBytes} bytes of an unfinished write, which was not acknowledged, were cut off the journal`,
      ),
      "An unfinished write was cut off the journal",
    );
}
