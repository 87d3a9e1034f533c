// Opens the data folder and wires the parts of the embedded store; closes them in reverse order. Owns the parts while they are open.
// The order of opening is the order of safety: format, owner, replay, first checkpoint, and only then new writes.

import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { BrokerError } from "../../broker/errors.ts";
import type {
  ChannelStore,
  Clock,
  ManagerStore,
  Publisher,
  UserStore,
} from "../../broker/ports.ts";
import { KeyedLock } from "../../lib/keyed-lock.ts";
import { Appends } from "./appends.ts";
import { ChannelRows } from "./channel-rows.ts";
import { createChannelTables } from "./channels.ts";
import { Checkpoint } from "./checkpoint.ts";
import { readCheckpointState } from "./checkpoint-state.ts";
import { commit, DATA_FORMAT, openTables, type Tables } from "./database.ts";
import { DedupeIndex } from "./dedupe.ts";
import { FolderLock } from "./folder-lock.ts";
import { History } from "./history.ts";
import { Journal, type JournalFiles } from "./journal.ts";
import { createManagerTables } from "./managers.ts";
import { MessageIds } from "./message-ids.ts";
import { Placing } from "./placing.ts";
import { recover } from "./recovery.ts";
import { Sweep } from "./sweep.ts";
import { Tail } from "./tail.ts";
import { createTransact } from "./transact.ts";
import { createUserTable } from "./users.ts";

/** Plain values of the store's configuration (see `store/options.ts`) and the ports the store uses. */
export interface EmbeddedOptions {
  readonly path: string;
  readonly durability: "process" | "disk";
  readonly checkpointMs: number;
  readonly maxTailBytes: number;
  readonly maxTailRecords: number;
  readonly segmentBytes: number;
  readonly dedupeWindowS: number;
  readonly retentionS: number;
  readonly sweepIntervalMs: number;
  readonly publisher: Publisher;
  readonly clock: Clock;
  /** Hears of failures that no caller is told of. `what` names the activity. */
  readonly onProblem: (error: Error, what: string) => void;
  /** Only for tests that make files fail. */
  readonly files?: JournalFiles;
}

export interface Engine {
  readonly users: UserStore;
  readonly channels: ChannelStore;
  readonly managers: ManagerStore;
  readonly appends: Appends;
  readonly history: History;
  readonly tail: Tail;
  readonly journal: Journal;
  readonly checkpoint: Checkpoint;
  readonly sweep: Sweep;
  /** Finishes what is under way, moves everything into the database and lets go of the folder. */
  close(): Promise<void>;
}

/** Throws `internal` with a sentence when the data cannot be read, `unavailable` when the folder is in use or cannot be written. */
export async function openEngine(options: EmbeddedOptions): Promise<Engine> {
  const journalFolder = join(options.path, "journal");
  const tables = openFolder(options.path, journalFolder);
  const owner = new FolderLock(tables, options.path);
  const held = { tables, owner, journalFolder };
  try {
    await owner.acquire();
    return await openOwned(options, held);
  } catch (error) {
    await letGo(held, options.onProblem);
    throw error;
  }
}

function openFolder(path: string, journalFolder: string): Tables {
  try {
    mkdirSync(journalFolder, { recursive: true });
    return openTables(join(path, "lmdb"));
  } catch (cause) {
    if (cause instanceof BrokerError) throw cause;
    throw new BrokerError("unavailable", {
      message: `The data folder ${path} cannot be opened: ${String(cause)}`,
      cause,
    });
  }
}

interface Held {
  readonly tables: Tables;
  readonly owner: FolderLock;
  readonly journalFolder: string;
}

async function openOwned(
  options: EmbeddedOptions,
  held: Held,
): Promise<Engine> {
  const { tables } = held;
  const { clock, onProblem } = options;
  const synced = options.durability === "disk";
  const retentionMs = options.retentionS * 1000;
  await commit(tables, () => void tables.meta.put("format", [DATA_FORMAT]));

  const dedupe = new DedupeIndex(tables, options.dedupeWindowS * 1000);
  const { tail, rows, journal, ids } = openLog(options, held);
  const appends = new Appends({
    ...{ tail, journal, clock, synced, onProblem },
    placing: new Placing({ tail, dedupe, ids }),
    publisher: options.publisher,
  });
  const checkpoint = new Checkpoint({
    ...{ tables, rows, dedupe, tail, journal, appends, ids, clock, onProblem },
    intervalMs: options.checkpointMs,
  });
  const sweep = new Sweep({
    ...{ tables, clock, retentionMs, onProblem },
    intervalMs: options.sweepIntervalMs,
  });
  try {
    await checkpoint.first();
  } catch (error) {
    journal.close();
    throw error;
  }
  checkpoint.start();
  sweep.start();
  const filling = dedupe
    .fillFilters()
    .catch((error: Error) =>
      onProblem(error, "filling the filters of client message numbers"),
    );

  const lock = new KeyedLock();
  const transact = createTransact(tables, synced);
  const control = { tables, lock, transact };
  const parts = { appends, tail, journal, checkpoint, sweep };
  return {
    ...parts,
    users: createUserTable(control),
    channels: createChannelTables(control),
    managers: createManagerTables(control, clock),
    history: new History({ tables, rows, tail, clock, retentionMs }),
    async close() {
      await sweep.close();
      dedupe.close();
      await filling;
      await lock.idle();
      await appends.drain();
      await checkpoint.close();
      await closeLog(parts, onProblem);
      await letGo(held, onProblem);
    },
  };
}

/** An owner that cannot be taken out (a full disk) only matters to this very process: it counts as dead when the process is. */
async function letGo(
  { owner, tables }: Held,
  onProblem: EmbeddedOptions["onProblem"],
): Promise<void> {
  try {
    owner.release();
  } catch (error) {
    onProblem(error as Error, "release of the data folder"); // lmdb throws errors only
  }
  await tables.env.close();
}

/** Replays the journal and begins a new segment of it. */
function openLog(options: EmbeddedOptions, { tables, journalFolder }: Held) {
  const rows = new ChannelRows(tables);
  const tail = new Tail((key) => rows.get(key), {
    maxBytes: options.maxTailBytes,
    maxRecords: options.maxTailRecords,
  });
  const state = readCheckpointState(tables);
  const position = state?.position ?? { segment: 1, offset: 0 };
  const recovered = recover(journalFolder, position, tail);
  if (recovered.droppedBytes > 0)
    options.onProblem(
      new Error(
        `${recovered.droppedBytes} bytes of an unfinished write were cut off the journal`,
      ),
      "recovery",
    );
  const lastId = Math.max(state?.lastMessageId ?? 0, recovered.lastMessageId);
  return { rows, tail, ids: new MessageIds(lastId), journal: openJournal() };

  function openJournal(): Journal {
    try {
      return new Journal({
        folder: journalFolder,
        firstSegment: recovered.nextSegment,
        segmentBytes: options.segmentBytes,
        synced: options.durability === "disk",
        ...(options.files === undefined ? {} : { files: options.files }),
      });
    } catch (cause) {
      throw new BrokerError("unavailable", {
        message: `The journal in ${journalFolder} cannot be written`,
        cause,
      });
    }
  }
}

/** After an orderly end no journal is left; when that fails it stays and is replayed. */
async function closeLog(
  parts: Pick<Engine, "checkpoint" | "journal">,
  onProblem: EmbeddedOptions["onProblem"],
): Promise<void> {
  const { checkpoint, journal } = parts;
  const end = journal.position.segment + 1;
  try {
    await checkpoint.last();
    await journal.dropBefore({ segment: end, offset: 0 });
  } catch (error) {
    onProblem(error as Error, "last checkpoint"); // BrokerError, or the file system's error
  } finally {
    journal.close();
  }
}
