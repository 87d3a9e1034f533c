// Opens the data folder and wires the parts of the embedded store; closes them in reverse order. Owns the parts while they are open.
// The order of opening is the order of safety: format, owner, replay, first checkpoint, and only then new writes.

import { join } from "node:path";
import { BrokerError } from "../../broker/errors.ts";
import type {
  ChannelStore,
  ConversationStore,
  ManagerStore,
  SessionStore,
  StreamStore,
} from "../../broker/ports.ts";
import { KeyedLock } from "../../lib/keyed-lock.ts";
import type { EmbeddedOptions } from "./embedded-options.ts";
import type { Checkpoint } from "./engine/checkpoint.ts";
import { DATA_FORMAT, openTables, type Tables } from "./engine/database.ts";
import { FolderLock, HEARTBEAT_FILE } from "./engine/folder-lock.ts";
import type { Memtable } from "./engine/memtable.ts";
import { closeToOthers } from "./engine/private-files.ts";
import { commit } from "./engine/tables.ts";
import type { Wal } from "./engine/wal.ts";
import {
  closeMessagePath,
  type LogPlace,
  openMessagePath,
  startMessagePath,
} from "./message-path.ts";
import type { Appends } from "./steps/append.ts";
import { ChannelTables } from "./steps/channel-tables.ts";
import { createChannelSteps } from "./steps/channels.ts";
import { ConversationRows } from "./steps/conversation-rows.ts";
import { Conversations } from "./steps/conversations.ts";
import type { History } from "./steps/history.ts";
import { Inbox } from "./steps/inbox.ts";
import type { LiveStreams } from "./steps/live-streams.ts";
import { createManagerTables } from "./steps/managers.ts";
import { createJudge } from "./steps/permissions.ts";
import { Sweep } from "./steps/retention.ts";
import { createSessions } from "./steps/sessions.ts";
import { removeOrphanedStreams } from "./steps/stream-rows.ts";
import {
  createLoginSweep,
  createNewestLogins,
  createUserTable,
  type DeviceStore,
} from "./steps/users.ts";

export interface Engine {
  /** What a move reads; everything the store knew when it was opened is in them. */
  readonly tables: Tables;
  readonly users: DeviceStore;
  readonly sessions: SessionStore;
  readonly channels: ChannelStore;
  readonly managers: ManagerStore;
  readonly appends: Appends;
  readonly streams: StreamStore;
  readonly live: LiveStreams;
  readonly history: History;
  readonly inbox: Inbox;
  readonly conversations: ConversationStore;
  readonly memtable: Memtable;
  readonly wal: Wal;
  readonly owner: FolderLock;
  readonly checkpoint: Checkpoint;
  readonly sweep: Sweep;
  /** Finishes what is under way, moves everything into the database and lets go of the folder. */
  close(): Promise<void>;
}

const JOURNAL = "journal";
const DATABASE = "lmdb";

/** Throws `internal` with a sentence when the data cannot be read, `unavailable` when the folder is in use or cannot be written. */
export async function openEngine(options: EmbeddedOptions): Promise<Engine> {
  const walFolder = join(options.path, JOURNAL);
  const tables = openFolder(options);
  const owner = new FolderLock(tables, options.path, options.onLost);
  const held = { tables, owner, walFolder };
  try {
    await owner.acquire();
    return await openOwned(options, held);
  } catch (error) {
    await letGo(held, options.onError);
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
    // LMDB gives each pid one place among its readers, and lmdb then reads through a transaction that it did not get.
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

type Held = Omit<LogPlace, "conversationRows" | "judge">;

async function openOwned(
  options: EmbeddedOptions,
  held: Held,
): Promise<Engine> {
  const { tables } = held;
  const { clock, onError, publisher } = options;
  const retentionMs = options.retentionS * 1000;
  await commit(tables, () => void tables.meta.put("format", [DATA_FORMAT]));
  const channelTables = new ChannelTables(tables);
  const conversationRows = new ConversationRows(tables);
  await conversationRows.complete();
  await removeOrphanedStreams(tables, onError);
  const judge = createJudge(channelTables);
  const path = openMessagePath(options, { ...held, conversationRows, judge });
  const { appends, assigner, dedupe, ids, history, memtable, wal } = path;
  const { checkpoint, live, streams, streamRows, rows, trimQueue, logRows } =
    path;
  const inbox = new Inbox({
    ...{ tables, ids, dedupe, assigner, appends, clock, onError },
    ...{ publisher, maxInbox: options.maxInbox },
    inboxTtlMs: options.inboxTtlS * 1000,
  });
  const sweep = new Sweep({
    ...{ tables, inbox, clock, retentionMs, onError, live, streamRows },
    ...{
      rows,
      logRows,
      memtable,
      trimQueue,
      sweepLogins: createLoginSweep(tables),
    },
    intervalMs: options.sweepIntervalMs,
  });
  await startMessagePath(path);
  sweep.start();
  const filling = dedupe
    .fillFilters()
    .catch((error: Error) =>
      onError(
        error,
        "The filters of client message numbers could not be filled",
      ),
    );

  const lock = new KeyedLock();
  const control = { tables, lock };
  const logins = createNewestLogins(tables, clock);
  const users = createUserTable(control, logins);
  const channels = createChannelSteps({
    ...{ tables, channelTables, lock, publisher, onError },
    headSeq: (key) => history.headSeq(key),
  });
  return {
    ...{ tables, appends, streams, live, history, memtable, wal },
    owner: held.owner,
    inbox,
    ...{ checkpoint, sweep },
    users,
    sessions: createSessions({
      ...{ users, channels, logins, lock, publisher, clock },
    }),
    channels,
    managers: createManagerTables(control, clock),
    conversations: new Conversations({
      ...{ tables, lock, channelTables, conversationRows, memtable, rows },
      ...{ logRows, history, clock, retentionMs },
    }),
    async close() {
      await sweep.close();
      dedupe.close();
      await filling;
      await lock.idle();
      await inbox.drain();
      await closeMessagePath(path, onError);
      await letGo(held, onError);
    },
  };
}

/** An owner that cannot be taken out (a full disk) only matters to this very process: it counts as dead when the process is. */
async function letGo(
  { owner, tables }: Held,
  onError: EmbeddedOptions["onError"],
): Promise<void> {
  try {
    owner.release();
  } catch (error) {
    onError(error as Error, "The data folder could not be released"); // lmdb throws errors only
  }
  await tables.env.close();
}
