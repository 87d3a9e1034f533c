// An LMDB environment with a format and an owner. Owns nothing after the opening: tables are used
// by the parts that know them. All writes go through `commit` (puts that are decided already) or
// `transact` (a step that reads, decides and writes): lmdb must not start writing outside a batch,
// or a failed commit rejects promises nobody holds.

import { type Database as LmdbTable, open, type RootDatabase } from "lmdb";
import { BrokerError } from "../../../broker/errors.ts";

const FENCE = "owner";
export const MAX_TABLES = 48;

export type Table<Value, Key extends Buffer | string | string[] | (string | number)[]> = LmdbTable<
  Value,
  Key
>;
export type BinaryTable = LmdbTable<Buffer, Buffer>;
/** What was committed at one moment, for reads. */
export type Snapshot = ReturnType<RootDatabase["useReadTransaction"]>;
/** A stored value: its format version, then its fields. */
export type Stored = readonly unknown[];

/**
 * Makes what `steps` issues one transaction; resolves when it is committed, false: nothing was
 * written, the folder has another owner.
 */
type Batch = (steps: () => void) => Promise<boolean>;

/** The calls on the database that tests make fail. */
export interface DatabaseWrites {
  /** `write` is the real one. */
  batch(env: RootDatabase, steps: () => void, write: Batch): Promise<boolean>;
  /** Resolves when everything committed before is on the disk. */
  flushed(env: RootDatabase): Promise<unknown>;
}

const REAL_WRITES: DatabaseWrites = {
  batch: (_env, steps, write) => write(steps),
  flushed: (env) => env.flushed,
};

/**
 * The fencing token of the folder's owner. LMDB compares it inside every write transaction, so a
 * process that lost the folder while it was paused writes nothing, at whatever instruction it was
 * paused.
 */
class Fence {
  readonly #table: Table<Stored, string>;
  #incarnation: number | undefined;
  #onLost: (() => BrokerError) | undefined;

  /** `table` keeps versions: that of the one row is the owner's incarnation. */
  constructor(table: Table<Stored, string>) {
    this.#table = table;
  }

  /**
   * To be called inside a transaction: no owner before may write from its commit on. Returns the
   * new owner's incarnation.
   */
  next(): number {
    const incarnation = (this.#table.getEntry(FENCE)?.version ?? 0) + 1;
    this.#table.putSync(FENCE, [1], incarnation);
    return incarnation;
  }

  /**
   * Lets this process write while it is the owner. `onLost` is called when a write finds that it is
   * not.
   */
  open(incarnation: number, onLost: () => BrokerError): void {
    this.#incarnation = incarnation;
    this.#onLost = onLost;
  }

  /** The steps only issue: LMDB's own thread writes. */
  readonly write: Batch = (steps) => this.#table.ifVersion(FENCE, this.#owner(), steps);

  /**
   * The steps run inside the transaction: they read what is written before them. One that throws
   * writes nothing.
   */
  readonly run: Batch = (steps) => {
    const incarnation = this.#owner();
    return this.#table.childTransaction(() => {
      const isOwner = this.#table.doesExist(FENCE, incarnation);
      if (isOwner) steps();
      return isOwner;
    });
  };

  #owner(): number {
    if (this.#incarnation === undefined) throw new Error("The data folder has no owner yet"); // a bug
    return this.#incarnation;
  }

  lost(): BrokerError {
    return this.#onLost?.() ?? new BrokerError("unavailable");
  }
}

/** What every part of the engine may use. */
export interface Database {
  readonly env: RootDatabase;
  /** What was promised durable must be on the disk. */
  readonly synced: boolean;
  readonly writes: DatabaseWrites;
  readonly fence: Fence;
  /** Single facts about the whole: name → value. */
  readonly meta: Table<Stored, string>;
}

export interface DatabaseOptions {
  /** What was promised durable must be on the disk; else in the page cache. */
  readonly synced?: boolean;
  readonly writes?: DatabaseWrites | undefined;
}

/**
 * Opens or creates the environment in `folder`. Throws `internal` when its format is newer than
 * `format`.
 */
export function openDatabase(
  folder: string,
  format: number,
  { synced = false, writes = REAL_WRITES }: DatabaseOptions,
): Database {
  const env = open({
    path: folder,
    maxDbs: MAX_TABLES,
    // Only explicit batches are atomic and only they hand out every promise (see the head of this
    // file).
    eventTurnBatching: false,
  });
  try {
    const meta = env.openDB<Stored, string>({ name: "meta" });
    assertFormat(meta.get("format"), format);
    const fence = new Fence(env.openDB({ name: "fence", useVersions: true }));
    return { env, synced, writes, fence, meta };
  } catch (error) {
    void env.close();
    throw error;
  }
}

/** A table whose keys and values are bytes. */
export function binaryTable({ env }: Database, name: string): BinaryTable {
  return env.openDB({ name, encoding: "binary", keyEncoding: "binary" });
}

function assertFormat(format: Stored | undefined, known: number): void {
  if (format === undefined) return;
  const [version] = format;
  if (typeof version === "number" && version <= known) return;
  throw new BrokerError("internal", {
    message: `The data has format ${version}; this build reads up to ${known}. Start the newer build that wrote it`,
  });
}

/**
 * Makes the puts and removes that `steps` issues (synchronously) one transaction; resolves when it
 * is committed. Throws `unavailable`, also when the folder has another owner: nothing is written
 * then.
 */
export async function commit(database: WritableDatabase, steps: () => void): Promise<void> {
  await write(database, steps, database.fence.write);
}

type WritableDatabase = Pick<Database, "env" | "writes" | "fence">;

async function write(
  { env, writes, fence }: WritableDatabase,
  steps: () => void,
  how: Batch,
): Promise<void> {
  let isOwner: boolean;
  try {
    isOwner = await writes.batch(env, steps, how);
  } catch (cause) {
    if (cause instanceof BrokerError) throw cause; // the step's own
    throw new BrokerError("unavailable", { cause: await causeOf(cause) });
  }
  if (!isOwner) throw fence.lost();
}

/**
 * lmdb rejects with an error that holds a promise of the real one; unread, that promise would count
 * as unhandled.
 */
async function causeOf(error: unknown): Promise<unknown> {
  if (!(error instanceof Error) || !("commitError" in error)) return error;
  try {
    await error.commitError;
    return error;
  } catch (cause) {
    return cause;
  }
}

/** Resolves when everything committed before is on the disk. Throws `unavailable`. */
export async function flushed(tables: Pick<Database, "env" | "writes">): Promise<void> {
  try {
    await tables.writes.flushed(tables.env);
  } catch (cause) {
    throw new BrokerError("unavailable", { cause: await causeOf(cause) });
  }
}

/**
 * Resolves when everything committed before is as durable as the store promises. Throws
 * `unavailable`.
 */
export async function secure(database: Database): Promise<void> {
  if (database.synced) await flushed(database);
}

/**
 * Commits puts and removes that need no reading; resolves when they are as durable as the store
 * promises. Cheaper than `transact`. Throws `unavailable`.
 */
export async function persist(database: Database, steps: () => void): Promise<void> {
  await commit(database, steps);
  await secure(database);
}

/**
 * Runs a synchronous step inside a write transaction: what it reads and what it writes is one, so
 * no lock is needed. Steps run in the order of the calls and after the commits issued before them;
 * a commit issued later may be written before them. Resolves to the answer when it is as durable as
 * the store promises. A step that throws writes nothing. Throws the step's own `BrokerError`, else
 * `unavailable`, also when the folder has another owner.
 */
export async function transact<Answer>(database: Database, step: () => Answer): Promise<Answer> {
  let answer: { readonly of: Answer } | undefined;
  const run = () => {
    answer = { of: step() };
  };
  await write(database, run, database.fence.run);
  await secure(database);
  if (answer === undefined) throw new Error("A step did not run"); // a bug
  return answer.of;
}

/**
 * The fields of a stored value behind its version. Throws `internal` when the value is newer than
 * `known`.
 */
export function fieldsOf(value: Stored, known = 1): readonly unknown[] {
  const [version, ...fields] = value;
  if (typeof version === "number" && version <= known) return fields;
  throw new BrokerError("internal", {
    message: `A stored value has format ${version}; this build reads up to ${known}`,
  });
}

/** Behind every text in LMDB's order of keys. */
const LAST = Buffer.from([0xff]);
const ROWS_PER_PAGE = 128;

/** The end of the keys that begin with `parts`. */
export function behindAll<Part extends string | number>(parts: readonly Part[]): Part[] {
  return [...parts, LAST] as unknown as Part[]; // a key part may be bytes; the tables' types name what is stored
}

/**
 * The rows whose key is `first` and one more text. The caller may let other work run in between:
 * each page is read when it is asked for.
 */
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
        ...{ end: behindAll([first]), limit: ROWS_PER_PAGE },
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
