// Program that checks the database in the data folder given as its argument: it opens the database,
// reads every row, and allocates pages in a transaction that is not committed. If the database is
// damaged, a signal may end the program (see database-check.ts). A second thread does the reading,
// because a hanging disk blocks the thread that reads. The main thread prints lines of JSON:
// `WalkProgress` while rows are read, and one `WalkReport`. The main thread ends the program when
// standard input is closed, that is, when the parent process ends.

import { writeSync } from "node:fs";
import { join } from "node:path";
import { isMainThread, parentPort, Worker, workerData } from "node:worker_threads";
import { ABORT, type RootDatabase } from "lmdb";
import { DATABASE_FOLDER } from "./data-folder.ts";
import { openEnvironment, type Stored } from "./database.ts";
import { livenessOf, readOwner, scopeOf } from "./folder-lock.ts";
import { nextBeat } from "./heartbeat.ts";

export interface WalkProgress {
  readonly rows: number;
}

export interface WalkReport extends WalkProgress {
  /** True if the check ended early, because another process uses the folder. */
  readonly isInUse: boolean;
  readonly errors: readonly string[];
  readonly refusal?: string;
}

interface ReaderData {
  readonly path: string;
  /** Number of rows read so far, written by the reading thread. */
  readonly rows: Float64Array;
}

const PROGRESS_MS = 500;
const STANDARD_OUTPUT = 1;
/** Number of rows in the trial write, whose new pages make lmdb read its lists of free pages. */
const TRIAL_ROWS = 100;
const TRIAL_VALUE = Buffer.alloc(8000);

if (isMainThread) superviseReader(process.argv[2] ?? "");
else parentPort?.postMessage(await report(workerData as ReaderData)); // set by `superviseReader`

function superviseReader(path: string): void {
  const rows = new Float64Array(new SharedArrayBuffer(Float64Array.BYTES_PER_ELEMENT));
  const rowsRead = () => rows[0] ?? 0;
  const data: ReaderData = { path, rows };
  const reader = new Worker(new URL(import.meta.url), { workerData: data });
  reader.on("message", end);
  process.stdin.on("close", kill).resume();
  let printed = 0;
  setInterval(() => {
    if (rowsRead() === printed) return;
    printed = rowsRead();
    print({ rows: printed });
  }, PROGRESS_MS);
  void nextBeat(path).then(() => {
    print({ isInUse: true, rows: rowsRead(), errors: [] });
    kill();
  });
}

function end(report: WalkReport): void {
  print(report);
  process.exit();
}

/** Ends the program even if the reading thread is waiting for the disk. */
function kill(): void {
  process.kill(process.pid, "SIGKILL");
}

function print(line: WalkProgress | WalkReport): void {
  writeSync(STANDARD_OUTPUT, `${JSON.stringify(line)}\n`);
}

async function report({ path, rows }: ReaderData): Promise<WalkReport> {
  const unread = { isInUse: false, rows: 0, errors: [] };
  let env: RootDatabase;
  try {
    env = openEnvironment(join(path, DATABASE_FOLDER));
  } catch (error) {
    // LMDB locks one byte of its lock file for each pid that reads. A TypeError means that a
    // process with the same pid in another container holds this lock (see `openFolder`).
    if (error instanceof TypeError) return { ...unread, isInUse: true };
    return { ...unread, refusal: String(error) };
  }
  try {
    const owner = readOwner(env.openDB<Stored, string>({ name: "meta" }));
    if (owner !== undefined && (await livenessOf(owner, scopeOf(path))) === "running")
      return { ...unread, isInUse: true };
    return readAll(env, rows);
  } catch (error) {
    return { ...unread, refusal: String(error) };
  }
}

function readAll(env: RootDatabase, rows: Float64Array): WalkReport {
  let count = 0;
  const errors: string[] = [];
  const attempt = (step: string, run: () => void) => {
    try {
      run();
    } catch (error) {
      errors.push(`${step}: ${String(error)}`);
    }
  };
  for (const name of env.getKeys() as Iterable<string>)
    attempt(`Reading the table ${name}`, () => {
      const table = env.openDB({ name, encoding: "binary", keyEncoding: "binary" });
      for (const _row of table.getRange({})) rows[0] = ++count;
    });
  attempt("Allocating pages", () => tryToAllocate(env));
  return { isInUse: false, rows: count, errors };
}

function tryToAllocate(env: RootDatabase): void {
  const meta = env.openDB<Buffer, string>({ name: "meta", encoding: "binary" });
  env.transactionSync(() => {
    for (let row = 0; row < TRIAL_ROWS; row++) meta.putSync(`trial ${row}`, TRIAL_VALUE);
    return ABORT;
  });
}
