// Opens the data folder, creates all parts of the embedded store, and closes them again. The order
// of opening must not change: check the folder and the database, check the data format, acquire the
// folder, replay the WAL, run the first checkpoint, and only then accept calls.

import { join } from "node:path";
import { BrokerError } from "../../broker/errors.ts";
import type { LogLimits } from "../../broker/log-ports.ts";
import { MAX_MESSAGE_ID } from "../../broker/model.ts";
import { type Clock, LOGOUT_TTL_MS, type Publisher } from "../../broker/ports.ts";
import { KeyedLock } from "../../lib/keyed-lock.ts";
import { limitedReports } from "../../lib/limited-reports.ts";
import { ChannelRows } from "./engine/channel-rows.ts";
import { Checkpoint, readCheckpointState } from "./engine/checkpoint.ts";
import {
  assertUsable,
  createFolders,
  DATABASE_FOLDER,
  damagedDatabase,
  WAL_FOLDER,
} from "./engine/data-folder.ts";
import { commit, type DatabaseWrites, isDamage } from "./engine/database.ts";
import { checkDatabase, databaseState } from "./engine/database-check.ts";
import { EventLog } from "./engine/event-log.ts";
import { bootId, FolderLock } from "./engine/folder-lock.ts";
import { Frame } from "./engine/frame.ts";
import { HEARTBEAT_FILE } from "./engine/heartbeat.ts";
import { LogRows } from "./engine/log-rows.ts";
import { Memtable } from "./engine/memtable.ts";
import { restrictAccess } from "./engine/private-files.ts";
import type { Recovery } from "./engine/recover.ts";
import { replay } from "./engine/replay.ts";
import { UNKNOWN_BOOT } from "./engine/segment.ts";
import { assertWalOf, ensureStoreId } from "./engine/store-id.ts";
import { DATA_FORMAT, openTables, type Tables } from "./engine/tables.ts";
import { Wal, type WalFiles } from "./engine/wal.ts";
import { Appends } from "./steps/append.ts";
import { Assigner, MessageIds } from "./steps/assigner.ts";
import { ChannelTables } from "./steps/channel-tables.ts";
import { createEmbeddedChannels, type EmbeddedChannels } from "./steps/channels.ts";
import { lastCommandId } from "./steps/commands.ts";
import { ConversationRows, lastChangeId } from "./steps/conversation-rows.ts";
import { Conversations } from "./steps/conversations.ts";
import { DedupeIndex } from "./steps/dedupe.ts";
import { createEventDemand, type EmbeddedEventDemand } from "./steps/event-demand.ts";
import { EventOutbox } from "./steps/event-outbox.ts";
import { createEvents } from "./steps/events.ts";
import { History } from "./steps/history.ts";
import { Imports } from "./steps/imports.ts";
import { Inbox } from "./steps/inbox.ts";
import { createJoinState } from "./steps/join-state.ts";
import { createKeySets } from "./steps/key-sets.ts";
import { Leases } from "./steps/leases.ts";
import { LiveStreams } from "./steps/live-streams.ts";
import { createEmbeddedLogs, LogRules } from "./steps/logs.ts";
import { createEmbeddedManagers } from "./steps/managers.ts";
import { OpenLogs } from "./steps/open-logs.ts";
import { createPermissionCheck } from "./steps/permissions.ts";
import { createPush } from "./steps/push.ts";
import { Sweep, TrimQueue } from "./steps/retention.ts";
import { createEmbeddedSessions, type EmbeddedSessions } from "./steps/sessions.ts";
import { createSigningKeys } from "./steps/signing-keys.ts";
import { StoredLogs } from "./steps/stored-logs.ts";
import { StreamEnds } from "./steps/stream-ends.ts";
import { createWithStream } from "./steps/stream-reads.ts";
import { StreamRows } from "./steps/stream-rows.ts";
import { createEmbeddedStreams } from "./steps/streams.ts";
import { createSystemAccounts } from "./steps/system-accounts.ts";
import {
  createDeviceSweep,
  createDeviceTable,
  createEmbeddedUsers,
  createLoginSweep,
  createNewestLogins,
} from "./steps/users.ts";
import { createEmbeddedWebhooks } from "./steps/webhooks.ts";

/** Minimum time between two reports about the same kind of unreadable stored data. */
const UNREADABLE_REPORT_INTERVAL_MS = 60_000;

export interface EmbeddedOptions {
  readonly path: string;
  readonly durability: "process" | "disk";
  readonly maxMemtableBytes: number;
  readonly dedupeWindowS: number;
  readonly retentionS: number;
  /** 0 means no limit. */
  readonly maxChannelMessages: number;
  readonly sweepIntervalMs: number;
  readonly maxStreamBytes: number;
  readonly maxActiveStreamBytes: number;
  /** Maximum number of bytes of one event's data that viewers are shown. The default is 64 KiB. */
  readonly maxStreamDataBytes?: number;
  readonly maxInbox: number;
  readonly inboxTtlS: number;
  /**
   * Limits on logs. If omitted, logs have no limits. Only tests, benchmarks and the migration omit
   * the limits.
   */
  readonly logs?: LogLimits;
  /** True if banned accounts cannot log in. */
  readonly judgesBans?: boolean;
  /** Time for which logged-out devices are kept. The default is `LOGOUT_TTL_MS`. */
  readonly logoutMs?: number;
  readonly publisher: Publisher;
  readonly clock: Clock;
  /**
   * Clock that measures the idle time of streams and logs, in milliseconds from an arbitrary
   * origin. The default is `clock`.
   */
  readonly steadyClock?: Clock;
  readonly onError: (error: Error, what: string) => void;
  /**
   * Called if this process must not continue, for example because another process acquired the data
   * folder or a write to the database failed. Must end the process immediately.
   */
  readonly onLost: (error: BrokerError) => void;
  /** Called when the disk has no space left for new data, and when it has space again. */
  readonly onDiskChange?: (isFull: boolean, freeBytes: number) => void;
  readonly onNotice?: (facts: object, what: string) => void;
  /** Time between checkpoints. Only tests and benchmarks set this option and the next two. */
  readonly checkpointMs?: number;
  readonly maxMemtableRecords?: number;
  readonly segmentBytes?: number;
  /** Only tests set the next two options, to simulate failures. */
  readonly files?: WalFiles;
  readonly databaseWrites?: DatabaseWrites;
}

export type OpenStore = Awaited<ReturnType<typeof openOwned>>;

/**
 * Time between checkpoints. A longer interval makes a restart after a crash slower. With a shorter
 * interval, a row contains fewer messages.
 */
const CHECKPOINT_MS = 1000;
/** Fraction of the memory limits of logs and streams at which checkpoints become more frequent. */
const FILLING_SHARE = 1 / 4;
/**
 * Maximum number of records in the memtable. This limit is needed in addition to
 * `maxMemtableBytes`, because a record takes more memory than `Memtable.bytes` reports.
 */
const MAX_MEMTABLE_RECORDS = 500_000;
/**
 * Size of a WAL segment. It equals the default of `maxMemtableBytes`, so that usually one or two
 * segments exist.
 */
const SEGMENT_BYTES = 64 * 1024 * 1024;
const MAX_STREAM_DATA_BYTES = 65_536;
const NO_LOG_LIMITS: LogLimits = {
  ...{ maxBytes: Infinity, maxRecords: Infinity, maxProducers: Infinity },
  ...{ maxOpen: Infinity, maxActiveBytes: Infinity },
};

/**
 * Opens the data folder. Throws `internal` if the data cannot be read, `unavailable` if the folder
 * is in use, cannot be written, contains files of another program or has lost its database, and
 * `disk_full` if the disk is full. If `signal` is aborted during the check of the database or a
 * wait for another process, `openStore` rejects with the abort reason.
 */
export async function openStore(
  options: EmbeddedOptions,
  signal?: AbortSignal,
): Promise<OpenStore> {
  const tables = await openFolder(options, signal);
  const owner = new FolderLock(tables, options.path, options.onLost);
  const release = () => releaseFolder(options, tables, owner);
  try {
    await owner.acquire(signal, () =>
      options.onNotice?.(
        { path: options.path },
        "The node is waiting for a heartbeat from the last owner of the data folder, because it cannot determine whether that process is running",
      ),
    );
    signal?.throwIfAborted();
    return await openOwned(options, tables, owner, release);
  } catch (error) {
    if (!isDamage(error)) {
      await release();
      signal?.throwIfAborted();
      throw error;
    }
    // The release may fail because of the same damage, which the error below reports.
    await releaseFolder({ ...options, onError: () => {} }, tables, owner);
    throw damagedDatabase(options.path, error.message);
  }
}

async function openFolder(
  options: EmbeddedOptions,
  signal: AbortSignal | undefined,
): Promise<Tables> {
  const { path, databaseWrites: writes, onError } = options;
  const onNotice = options.onNotice ?? (() => {});
  try {
    assertUsable(path);
    createFolders(path);
    await checkDatabase(path, { onError, onNotice, signal });
    const synced = options.durability === "disk" || rollsBackOnKill();
    const tables = openTables(join(path, DATABASE_FOLDER), { synced, writes });
    const names = { folders: [WAL_FOLDER, DATABASE_FOLDER], file: HEARTBEAT_FILE };
    const failure = restrictAccess(path, names);
    if (failure !== undefined)
      onNotice(
        { reason: failure.message },
        "Could not deny other users access to the data folder, because the folder belongs to another user. If other users have access to this machine, change the permissions of the folder",
      );
    return tables;
  } catch (cause) {
    signal?.throwIfAborted();
    if (cause instanceof BrokerError) throw cause;
    const { code, message } = cause as Error & { readonly code?: string | number };
    if (typeof code === "number" && code < 0) throw damagedDatabase(path, message); // an LMDB code
    // LMDB locks one byte of its lock file for each pid that reads. If a process with the same pid
    // holds this lock, lmdb (the library) receives no transaction object and fails with a
    // TypeError.
    if (cause instanceof TypeError)
      throw new BrokerError("unavailable", {
        message: `The data folder ${path} is in use by a process of another container that has the same pid ${process.pid}. Stop that process, or set a different store.path.`,
      });
    throw new BrokerError("unavailable", {
      message: `The data folder ${path} cannot be opened: ${message}. Check the folder and its permissions, or set a different store.path.`,
    });
  }
}

/**
 * Returns true if lmdb rolls back to the last commit on the disk after this process is killed. This
 * happens on Linux if the boot id cannot be read. Otherwise, lmdb rolls back only after a reboot,
 * which it recognises by the boot id.
 */
function rollsBackOnKill(): boolean {
  return process.platform === "linux" && bootId() === undefined;
}

/**
 * Releases the folder. If the release fails, the next start finds that the owner has ended and
 * ignores the owner's row.
 */
async function releaseFolder(
  { path, onError }: EmbeddedOptions,
  tables: Tables,
  owner: FolderLock,
): Promise<void> {
  const attempt = <Result>(step: () => Result): Result | undefined => {
    try {
      return step();
    } catch (error) {
      onError(
        error as Error,
        "Could not release the data folder; the next start will recognise that this process has ended",
      );
      return undefined;
    }
  };
  const wasOwner = attempt(() => owner.release()) ?? false;
  await tables.space.close();
  await tables.env.close();
  if (wasOwner) attempt(() => owner.markStopped(databaseState(path)));
}

async function openOwned(
  options: EmbeddedOptions,
  tables: Tables,
  owner: FolderLock,
  release: () => Promise<void>,
) {
  const { clock, onError } = options;
  const onUnreadable = limitedReports(onError, UNREADABLE_REPORT_INTERVAL_MS);
  const publisher = withErrorsReported(options.publisher, onError);
  const retentionMs = options.retentionS === 0 ? Infinity : options.retentionS * 1000;
  await commit(tables, () => void tables.meta.put("format", [DATA_FORMAT]));
  const storeId = await ensureStoreId(tables);
  assertWalOf(storeId, join(options.path, WAL_FOLDER));
  const channelTables = new ChannelTables(tables);
  const conversationRows = new ConversationRows(tables);
  await conversationRows.backfillPeers();

  const rows = new ChannelRows(tables);
  const memtable = new Memtable(
    (key) => {
      const row = rows.get(key);
      if (row === undefined) conversationRows.addNew(key);
      return row;
    },
    {
      maxBytes: options.maxMemtableBytes,
      maxRecords: options.maxMemtableRecords ?? MAX_MEMTABLE_RECORDS,
    },
  );
  await tables.space.start({
    memtable,
    maxMemtableBytes: options.maxMemtableBytes,
    runExclusively: tables.fence.run,
    onChange: options.onDiskChange ?? (() => {}),
    onError,
    onFatal: options.onLost,
  });
  const storedLogs = new StoredLogs(tables);
  const logLimits = options.logs ?? NO_LOG_LIMITS;
  const logs = new OpenLogs(storedLogs, memtable, logLimits);
  const eventState = readCheckpointState(tables)?.events ?? [];
  const events = new EventLog(tables, memtable, eventState, onUnreadable);
  memtable.onEvent(events.addMessage);
  const ports = { tables, owner, memtable, logs, events, storeId };
  const { wal, lastMessageId, logNumbers } = openWal(options, ports);
  events.replayed();
  const viewLimits = {
    maxBytes: options.maxStreamBytes,
    maxDataBytes: options.maxStreamDataBytes ?? MAX_STREAM_DATA_BYTES,
  };
  const streamRows = new StreamRows({ tables, rows, memtable, logs, storedLogs, viewLimits });
  const live = new LiveStreams(memtable, streamRows, {
    view: viewLimits,
    maxActiveBytes: options.maxActiveStreamBytes,
    steadyClock: options.steadyClock ?? clock,
  });
  live.load(logNumbers, onError);

  const logRows = new LogRows(tables);
  const dedupe = new DedupeIndex(tables, options.dedupeWindowS * 1000);
  const ids = new MessageIds(lastMessageId);
  const frame = new Frame();
  const assigner = new Assigner({ memtable, rows, dedupe, ids, frame, events });
  const lock = new KeyedLock();
  const checkPermission = createPermissionCheck(channelTables);
  const appends = new Appends({
    memtable,
    wal,
    owner,
    synced: options.durability === "disk",
    space: tables.space,
    assigner,
    newestId: lastMessageId,
    checkPermission,
    clock,
    publisher,
    onError,
  });
  const outbox = new EventOutbox({ tables, events, appends, assigner, onError });
  const shared = {
    tables,
    rows,
    logRows,
    memtable,
    live,
    logs,
    storedLogs,
    frame,
    streamRows,
    streamEnds: new StreamEnds(live, streamRows),
    channelTables,
    conversationRows,
    dedupe,
    ids,
    assigner,
    appends,
    events,
    outbox,
    trimQueue: new TrimQueue(options.maxChannelMessages),
    lock,
    clock,
    retentionMs,
    publisher,
    onError,
  };
  const history = new History({
    ...shared,
    withStream: createWithStream(shared),
    onError: onUnreadable,
  });
  const logRules = new LogRules({
    ...{ logs, limits: logLimits },
    producerIdleMs: options.dedupeWindowS * 1000,
  });
  const idleClock = withoutSteps(clock, options.steadyClock ?? clock);
  const streams = createEmbeddedStreams({
    ...shared,
    checkPermission,
    idleClock,
    logRules,
    maxStreamBytes: options.maxStreamBytes,
    onError: onUnreadable,
  });
  const demand: EmbeddedEventDemand = createEventDemand(tables);
  const inbox = new Inbox({
    ...shared,
    demand,
    maxInbox: options.maxInbox,
    inboxTtlMs: options.inboxTtlS * 1000,
    onError: onUnreadable,
  });
  const logCalls = createEmbeddedLogs({
    ...shared,
    idleClock,
    limits: logLimits,
    logRules,
  });
  const logins = createNewestLogins(tables, clock);
  const devices = createDeviceTable(tables, options.judgesBans ?? false);
  const users = createEmbeddedUsers({ ...shared, devices, logins });
  const headSeq = history.headSeq.bind(history);
  const channels: EmbeddedChannels = createEmbeddedChannels({ ...shared, headSeq });
  const sessions: EmbeddedSessions = createEmbeddedSessions({
    ...shared,
    devices,
    channels,
    demand,
    logins,
  });
  const joinState = createJoinState({
    ...shared,
    sessions,
    channels,
    history,
    inbox,
    live,
    onError: onUnreadable,
  });
  const managers = createEmbeddedManagers(shared);
  const systemAccounts = createSystemAccounts(tables);
  const signingKeys = createSigningKeys(tables);
  const imports = new Imports({ ...shared, maxChannelMessages: options.maxChannelMessages });
  const conversations = new Conversations({
    ...{ ...shared, history, imports },
    onError: onUnreadable,
  });
  const keySets = createKeySets(tables);
  const eventCalls = createEvents({ ...shared, onError: onUnreadable });
  const leases = new Leases();
  const push = createPush({ ...shared, conversations });
  const webhooks = createEmbeddedWebhooks(tables, leases);

  const checkpoint = new Checkpoint({
    ...shared,
    wal,
    intervalMs: options.checkpointMs ?? CHECKPOINT_MS,
    isFilling: () =>
      logs.bytes >= FILLING_SHARE * logLimits.maxActiveBytes ||
      live.memory >= FILLING_SHARE * options.maxActiveStreamBytes,
  });
  const sweep = new Sweep({
    ...shared,
    inbox,
    logCalls,
    sweepLogins: createLoginSweep(tables),
    sweepDevices: createDeviceSweep(tables, options.logoutMs ?? LOGOUT_TTL_MS),
    intervalMs: options.sweepIntervalMs,
    onError: onUnreadable,
  });
  try {
    await outbox.recover();
    await checkpoint.runFirst();
    await tables.space.measure(); // the checkpoint may have used the room that the next writes need
  } catch (error) {
    outbox.close();
    wal.close();
    throw error;
  }
  checkpoint.start();
  sweep.start();
  const filling = dedupe
    .fillFilters()
    .catch((error: Error) =>
      onError(error, "Could not fill the filters that recognise retries, so lookups are slower"),
    );

  return {
    tables,
    users,
    sessions,
    joinState,
    channels,
    managers,
    systemAccounts,
    signingKeys,
    keySets,
    events,
    eventCalls,
    leases,
    push,
    demand,
    webhooks,
    appends,
    history,
    streams,
    live,
    streamRows,
    logs,
    logCalls,
    inbox,
    conversations,
    imports,
    memtable,
    wal,
    owner,
    checkpoint,
    sweep,
    async close() {
      await sweep.close();
      dedupe.close();
      await filling;
      await inbox.drain();
      await appends.turn.drain();
      outbox.close(); // after the last write, because a failed write starts the retry timer
      await checkpoint.close();
      await runLastCheckpoint();
      await release();
    },
  };

  /** Runs the last checkpoint. If it fails, the next start replays the segments. */
  async function runLastCheckpoint(): Promise<void> {
    const end = wal.position.segment + 1;
    try {
      await checkpoint.runLast();
      await wal.deleteBefore({ segment: end, offset: 0 });
    } catch (error) {
      onError(error as Error, "The last checkpoint before the shutdown failed");
    } finally {
      wal.close();
    }
  }
}

/** Returns a clock that starts at the current time of `clock` and advances with `steadyClock`. */
function withoutSteps(clock: Clock, steadyClock: Clock): Clock {
  const offsetMs = clock() - steadyClock();
  return () => Math.floor(offsetMs + steadyClock());
}

function withErrorsReported(publisher: Publisher, onError: EmbeddedOptions["onError"]): Publisher {
  return {
    publish(event) {
      try {
        publisher.publish(event);
      } catch (error) {
        onError(error as Error, "Could not publish a stored event"); // only a bug causes this
      }
    },
  };
}

function openWal(
  { path, durability, segmentBytes = SEGMENT_BYTES, files, onError }: EmbeddedOptions,
  ports: {
    readonly tables: Tables;
    readonly owner: FolderLock;
    readonly memtable: Memtable;
    readonly logs: OpenLogs;
    readonly events: EventLog;
    readonly storeId: string;
  },
): {
  readonly wal: Wal;
  readonly lastMessageId: number;
  readonly logNumbers: ReadonlySet<number>;
} {
  const { tables, owner, storeId } = ports;
  const folder = join(path, WAL_FOLDER);
  const state = readCheckpointState(tables);
  const position = state?.position ?? { segment: 1, offset: 0, synced: false, boot: UNKNOWN_BOOT };
  const boot = bootId()?.replaceAll("-", "") ?? UNKNOWN_BOOT;
  const recovery = replay(folder, position, { ...ports, boot });
  reportTruncation(recovery, onError);
  const lastMessageId = Math.max(
    state?.lastMessageId ?? 0,
    recovery.lastMessageId,
    lastCommandId(tables),
    lastChangeId(tables),
  );
  if (lastMessageId >= MAX_MESSAGE_ID)
    throw new BrokerError("internal", {
      message: `The store in ${path} has message ids above ${MAX_MESSAGE_ID - 1}. An earlier version assigned them while the clock showed a time after 2093, and may have assigned the same id to several messages. Restore the data folder from an older backup, or move it away to begin a new store.`,
    });
  try {
    const wal = new Wal({
      folder,
      firstSegment: recovery.nextSegment,
      segmentBytes,
      synced: durability === "disk",
      boot,
      storeId,
      owner,
      isTight: () => tables.space.isTight,
      onError,
      files,
    });
    return { wal, lastMessageId, logNumbers: recovery.logNumbers };
  } catch (cause) {
    throw new BrokerError("unavailable", {
      message: `The WAL in ${folder} cannot be written. Check the permissions of the folder and the free space of its disk.`,
      cause,
    });
  }
}

function reportTruncation(
  { droppedBytes, isDataLost }: Recovery,
  onError: EmbeddedOptions["onError"],
): void {
  if (isDataLost)
    onError(
      new Error(
        `The machine lost power before the whole WAL was on its disk. The ${droppedBytes} bytes after the first damaged place were removed, and the messages in them are lost. With store.durability = disk, messages survive a power loss.`,
      ),
      "Messages in the WAL were lost in a power failure",
    );
  else if (droppedBytes > 0)
    onError(
      new Error(
        `${droppedBytes} bytes at the end of the WAL were removed, because the last write was unfinished or damaged.`,
      ),
      "An unfinished or damaged last write was removed from the WAL",
    );
}
