// Program that opens the database of the data folder that its argument names, reads every row, and
// allocates pages in a transaction that is not committed. If the database is damaged, a signal may
// end the program (see database-check.ts).

import { join } from "node:path";
import { ABORT, type RootDatabase } from "lmdb";
import { DATABASE_FOLDER } from "./data-folder.ts";
import { openEnvironment, type Stored } from "./database.ts";
import { livenessOf, readOwner, scopeOf } from "./folder-lock.ts";

export interface WalkReport {
  /** True if a process that uses the folder is known to be running. Nothing was then read. */
  readonly isInUse: boolean;
  readonly rows: number;
  readonly errors: readonly string[];
  readonly refusal?: string;
}

const ROWS_PER_LOOK = 10_000;
/** The rows need new pages, so lmdb reads its lists of free pages. */
const TRIAL_ROWS = 100;
const TRIAL_VALUE = Buffer.alloc(8000);

const [path = ""] = process.argv.slice(2);
const parent = process.ppid;
process.stdout.write(JSON.stringify(await report()));

async function report(): Promise<WalkReport> {
  const unread = { isInUse: false, rows: 0, errors: [] };
  let env: RootDatabase;
  try {
    env = openEnvironment(join(path, DATABASE_FOLDER));
  } catch (error) {
    // A process of another container uses the reader slot of this pid (see `openFolder`).
    if (error instanceof TypeError) return { ...unread, isInUse: true };
    return { ...unread, refusal: String(error) };
  }
  try {
    const owner = readOwner(env.openDB<Stored, string>({ name: "meta" }));
    if (owner !== undefined && (await livenessOf(owner, scopeOf(path))) === "running")
      return { ...unread, isInUse: true };
    return readAll(env);
  } catch (error) {
    return { ...unread, refusal: String(error) };
  }
}

function readAll(env: RootDatabase): WalkReport {
  let rows = 0;
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
      for (const _row of table.getRange({})) if (++rows % ROWS_PER_LOOK === 0) exitWithParent();
    });
  attempt("Allocating pages", () => tryToAllocate(env));
  return { isInUse: false, rows, errors };
}

function tryToAllocate(env: RootDatabase): void {
  const meta = env.openDB<Buffer, string>({ name: "meta", encoding: "binary" });
  env.transactionSync(() => {
    for (let row = 0; row < TRIAL_ROWS; row++) meta.putSync(`trial ${row}`, TRIAL_VALUE);
    return ABORT;
  });
}

function exitWithParent(): void {
  if (process.ppid !== parent) process.exit(1);
}
