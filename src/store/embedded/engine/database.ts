// Opens an LMDB environment that has a data format and a single owner, and commits writes to it.
// Every asynchronous write must go through `commit` or `persist` (puts that do not depend on reads)
// or through `transact` or `commitStep` (a step that reads, decides and writes). For any other
// write, lmdb starts a transaction by itself. If that transaction fails, lmdb rejects promises that
// nobody awaits.

import { dirname } from "node:path";
import { type Database as LmdbTable, open, type RootDatabase } from "lmdb";
import { BrokerError } from "../../../broker/errors.ts";
import { damagedDatabase } from "./data-folder.ts";
import { DiskSpace, type Purpose } from "./disk-space.ts";

const FENCE = "owner";
export const MAX_TABLES = 48;

export type Table<
  Value,
  Key extends Buffer | string | number | string[] | (string | number)[],
> = LmdbTable<Value, Key>;
export type BinaryTable = LmdbTable<Buffer, Buffer>;
export type Snapshot = ReturnType<RootDatabase["useReadTransaction"]>;
/** A stored value: its format version, followed by its fields. */
export type Stored = readonly unknown[];

/** Runs `steps` in a transaction. Resolves to false if another process owns the folder. */
type RunTransaction = (steps: () => void) => Promise<boolean>;

/** Database calls that tests replace to simulate failures. */
export interface DatabaseWrites {
  batch(env: RootDatabase, steps: () => void, write: RunTransaction): Promise<boolean>;
  /** Resolves when every transaction that was committed before the call is on the disk. */
  flushed(env: RootDatabase): Promise<unknown>;
}

const REAL_WRITES: DatabaseWrites = {
  batch: (_env, steps, write) => write(steps),
  flushed: (env) => env.flushed,
};

/** The owner's fencing token, which LMDB checks inside every write transaction. */
class Fence {
  readonly #table: Table<Stored, string>;
  #incarnation: number | undefined;
  #onLost: (() => BrokerError) | undefined;

  /** The table must store versions. The version of its only row is the owner's incarnation. */
  constructor(table: Table<Stored, string>) {
    this.#table = table;
  }

  /** Stores and returns a new incarnation. After the commit, no earlier owner can write. */
  next(): number {
    const incarnation = (this.#table.getEntry(FENCE)?.version ?? 0) + 1;
    this.#table.putSync(FENCE, [1], incarnation);
    return incarnation;
  }

  open(incarnation: number, onLost: () => BrokerError): void {
    this.#incarnation = incarnation;
    this.#onLost = onLost;
  }

  /** Runs `steps` now. LMDB later writes the puts and removes of `steps` as one transaction. */
  readonly write: RunTransaction = (steps) => this.#table.ifVersion(FENCE, this.#owner(), steps);

  /** Runs `steps` inside the write transaction. The steps see all earlier writes. */
  readonly run: RunTransaction = (steps) => {
    const incarnation = this.#owner();
    return this.#table.childTransaction(() => {
      const isOwner = this.#table.doesExist(FENCE, incarnation);
      if (isOwner) steps();
      return isOwner;
    });
  };

  #owner(): number {
    if (this.#incarnation === undefined) throw new Error("The data folder has no owner yet");
    return this.#incarnation;
  }

  lost(): BrokerError {
    return this.#onLost?.() ?? new BrokerError("unavailable");
  }
}

export interface Database {
  readonly env: RootDatabase;
  readonly folder: string;
  readonly synced: boolean;
  readonly writes: DatabaseWrites;
  readonly fence: Fence;
  readonly space: DiskSpace;
  /** Single values that concern the whole database, by name. */
  readonly meta: Table<Stored, string>;
}

export interface DatabaseOptions {
  /**
   * True if a write must be on the disk before it is acknowledged. If false, an acknowledged write
   * may be only in the page cache.
   */
  readonly synced?: boolean;
  readonly writes?: DatabaseWrites | undefined;
}

/** Opens the database. Some failures end the process (see database-check.ts). */
export function openEnvironment(folder: string): RootDatabase {
  return open({
    path: folder,
    maxDbs: MAX_TABLES,
    // Writes are batched explicitly, because only an explicit batch is atomic and leaves no promise
    // unawaited (see the file header).
    eventTurnBatching: false,
  });
}

export function openDatabase(
  folder: string,
  format: number,
  { synced = false, writes = REAL_WRITES }: DatabaseOptions,
): Database {
  const env = openEnvironment(folder);
  try {
    const meta = env.openDB<Stored, string>({ name: "meta" });
    assertFormat(meta.get("format"), format);
    const fence = new Fence(env.openDB({ name: "fence", useVersions: true }));
    const space = new DiskSpace({ folder, usedBytes: () => usedBytes(env) });
    return { env, folder, synced, writes, fence, space, meta };
  } catch (error) {
    void env.close();
    throw error;
  }
}

function usedBytes(env: RootDatabase): number {
  env.resetReadTxn();
  const { lastPageNumber, pageSize } = env.getStats() as Readonly<
    Record<"lastPageNumber" | "pageSize", number>
  >; // lmdb does not declare the fields
  return (lastPageNumber + 1) * pageSize;
}

export function binaryTable({ env }: Database, name: string): BinaryTable {
  return env.openDB({ name, encoding: "binary", keyEncoding: "binary" });
}

function assertFormat(stored: Stored | undefined, format: number): void {
  if (stored === undefined) return;
  const [version] = stored;
  if (version === format) return;
  throw new BrokerError("internal", {
    message: `The data has format ${version}, but this build reads only format ${format}. Start the build that wrote the data, or set store.path to a different folder.`,
  });
}

/**
 * Commits the puts and removes that `steps` issues synchronously, as one transaction. If `steps`
 * throws, lmdb still writes what `steps` issued before the error, so reads that may throw must come
 * first. A `BrokerError` of `steps` is rethrown. Throws `disk_full` if the disk has no space for a
 * write of this purpose, `internal` if the database is damaged, and `unavailable` on any other
 * failure.
 */
export async function commit(
  database: WritableDatabase,
  steps: () => void,
  purpose: Purpose = "store",
): Promise<void> {
  database.space.assertRoom(purpose);
  await write(database, steps, database.fence.write);
}

type WritableDatabase = Pick<Database, "env" | "folder" | "writes" | "fence" | "space">;

async function write(
  { env, folder, writes, fence, space }: WritableDatabase,
  steps: () => void,
  runTransaction: RunTransaction,
): Promise<void> {
  let isOwner: boolean;
  space.begin();
  try {
    isOwner = await writes.batch(env, steps, runTransaction);
  } catch (error) {
    if (error instanceof BrokerError) throw error; // thrown by the step itself
    const cause = await causeOf(error);
    if (isDamage(cause)) throw space.fail(damagedDatabase(dirname(folder), cause.message));
    if (isFailedWrite(cause)) throw space.fail(failedWrite(cause));
    throw new BrokerError("unavailable", { cause });
  } finally {
    space.settle();
  }
  if (!isOwner) throw fence.lost();
}

const FAILED_WRITE =
  "The database could not be written, and lmdb cannot continue after that. Check the disk, then restart: the WAL still has the unwritten data";

function failedWrite(cause: unknown): BrokerError {
  return new BrokerError("unavailable", { message: FAILED_WRITE, cause });
}

/**
 * LMDB error codes that indicate damage: MDB_PAGE_NOTFOUND, MDB_CORRUPTED, MDB_PANIC, MDB_INVALID
 * and MDB_BAD_TXN.
 */
const DAMAGE: readonly unknown[] = [-30797, -30796, -30795, -30793, -30782];

export function isDamage(error: unknown): error is Error {
  return error instanceof Error && "code" in error && DAMAGE.includes(error.code);
}

/**
 * Returns true if the file system rejected a write (EIO, ENOSPC or EDQUOT) or LMDB failed (LMDB's
 * own error codes are negative). After such a failure, the results of later transactions are
 * unreliable.
 */
function isFailedWrite(cause: unknown): boolean {
  const code = cause instanceof Error && "code" in cause ? cause.code : undefined;
  return typeof code === "number" && (code < 0 || code === 5 || code === 28 || code === 122);
}

/** Returns the cause of an lmdb error. The cause may be in a promise that must be awaited. */
async function causeOf(error: unknown): Promise<unknown> {
  if (!(error instanceof Error) || !("commitError" in error)) return error;
  try {
    await error.commitError;
    return error;
  } catch (cause) {
    return cause;
  }
}

export async function awaitFlush(tables: Pick<Database, "env" | "writes">): Promise<void> {
  try {
    await tables.writes.flushed(tables.env);
  } catch (cause) {
    throw new BrokerError("unavailable", { cause: await causeOf(cause) });
  }
}

export async function ensureDurable(database: Database): Promise<void> {
  if (database.synced) await awaitFlush(database);
}

/** Commits writes that do not depend on reads, as durably as `store.durability` requires. */
export async function persist(
  database: Database,
  steps: () => void,
  purpose: Purpose = "store",
): Promise<void> {
  await commit(database, steps, purpose);
  await ensureDurable(database);
}

/**
 * Runs a synchronous step inside a write transaction, as durably as `store.durability` requires.
 * Steps run in the order of the calls, and the data cannot change between the reads and the writes
 * of a step. A `commit` that was called later may be written before such a step. If a step throws a
 * `BrokerError`, nothing is written and the error is rethrown.
 */
export async function transact<Result>(
  database: Database,
  step: () => Result,
  purpose?: Purpose,
): Promise<Result> {
  const result = await commitStep(database, step, purpose);
  await ensureDurable(database);
  return result;
}

/** Runs a step like `transact`, but does not wait until the commit is on the disk. */
export async function commitStep<Result>(
  database: Database,
  step: () => Result,
  purpose: Purpose = "store",
): Promise<Result> {
  database.space.assertRoom(purpose);
  let result: { readonly value: Result } | undefined;
  const runStep = () => {
    result = { value: step() };
  };
  await write(database, runStep, database.fence.run);
  if (result === undefined) throw new Error("A transaction was committed without running its step");
  return result.value;
}

export function fieldsOf(value: Stored, newestVersion = 1): readonly unknown[] {
  const [version, ...fields] = value;
  if (typeof version === "number" && version <= newestVersion) return fields;
  throw new BrokerError("internal", {
    message: `A stored value has format ${version}, but this build reads formats up to ${newestVersion}. Start the newer build that wrote it.`,
  });
}

const END_OF_STRINGS = Buffer.from([0xff]);
const ROWS_PER_PAGE = 128;

export function endOfPrefix<Part extends string | number>(prefix: readonly Part[]): Part[] {
  // The key type of a table describes only the parts of stored keys, not this end marker.
  return [...prefix, END_OF_STRINGS] as unknown as Part[];
}

/** Yields the rows whose key begins with `first`. The caller may await other work between rows. */
export function* rowsOf<Value>(
  table: Table<Value, string[]>,
  first: string,
): Generator<{ readonly second: string; readonly value: Value }> {
  let start = [first];
  let size: number;
  do {
    const page = [
      ...table.getRange({
        ...{ start, exclusiveStart: start.length > 1 },
        ...{ end: endOfPrefix([first]), limit: ROWS_PER_PAGE },
      }),
    ];
    size = page.length;
    for (const { key, value } of page) {
      const second = String(key[1]);
      start = [first, second];
      yield { second, value };
    }
  } while (size === ROWS_PER_PAGE);
}
