// Checks the database before this process opens it with lmdb. If the file is damaged or cannot be
// opened, a signal (SIGBUS, SIGSEGV, SIGABRT) may end the process that opens or reads it. So after
// an unclean stop, another process opens and reads the database first.

import { spawn } from "node:child_process";
import { once } from "node:events";
import {
  accessSync,
  closeSync,
  constants,
  fstatSync,
  openSync,
  readSync,
  rmSync,
  statfsSync,
  truncateSync,
  writeSync,
} from "node:fs";
import { extname, join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable } from "node:stream";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { BrokerError } from "../../../broker/errors.ts";
import { crc32 } from "../../../lib/crc32.ts";
import {
  DATA_FILE,
  DATABASE_FOLDER,
  damagedDatabase,
  fileAt,
  isUsed,
  LOCK_FILE,
} from "./data-folder.ts";
import type { WalkProgress, WalkReport } from "./database-walk.ts";
import { diskFull, isDiskFull } from "./disk-space.ts";
import { wasStoppedIn } from "./heartbeat.ts";
import { createFile } from "./private-files.ts";

// Layout of the first two pages of the file, each of which describes the database (struct MDB_meta
// in mdb.c of lmdb 3.5.6).
const PAGE_FLAGS_AT = 18;
const MAGIC_AT = 24;
const FORMAT_AT = 28;
const PAGE_BYTES_AT = 48;
const LAST_PAGE_AT = 144;
const TRANSACTION_AT = 152;
const META_BYTES = 168;
const META_PAGE = 0x08;
const MAGIC = 0xbeef_c0de;
const FORMAT = 2;
const MIN_PAGE_BYTES = 512;
const MAX_PAGE_BYTES = 65_536;
/**
 * Maximum number of bytes that may be missing at the end of an undamaged file. No transaction
 * allocates more bytes than this.
 */
const MAX_MISSING_BYTES = 2n ** 40n;

const NEW_DATABASE_BYTES = 1024 * 1024;
const LOCK_FILE_BYTES = 16_384;
const LONG_CHECK_MS = 1000;
const REPORT_MS = 5000;
/** Time without progress after which the check is reported as stalled. */
const STALLED_MS = 10_000;
/** Signals that the operator or the system sends. They are not a sign of damage. */
const OUTSIDE_SIGNALS: readonly string[] = ["SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"];
const WALK = fileURLToPath(new URL(`database-walk${extname(import.meta.url)}`, import.meta.url));

interface CheckPorts {
  readonly onError: (error: Error, what: string) => void;
  readonly onNotice: (facts: object, what: string) => void;
  /** Aborting the signal ends the check, which then rejects with the abort reason. */
  readonly signal: AbortSignal | undefined;
}

/**
 * Throws `internal` if the database is damaged or lmdb cannot open it, `disk_full` if a new
 * database or its lock file does not fit on the disk, and `unavailable` if a file is not accessible
 * or if the process that checks the database ends early. A table that lmdb cannot read is only
 * reported. After a clean stop, reads only two pages.
 */
export async function checkDatabase(path: string, ports: CheckPorts): Promise<void> {
  const folder = join(path, DATABASE_FOLDER);
  const file = join(folder, DATA_FILE);
  prepareLockFile(join(folder, LOCK_FILE));
  const size = usableSize(file) ?? 0;
  if (size === 0) return assertRoomForNew(folder);
  const pages = readMetaPages(file);
  if (pages === undefined) {
    if (isUsed(path)) throw damagedDatabase(path, "it is not an LMDB database");
    // The first process that used the folder ended while it created the file.
    truncateSync(file);
    return;
  }
  if (!pages.isPlausible)
    throw damagedDatabase(path, "its last page is far beyond the end of the file");
  if (pages.isComplete && wasStoppedIn(path, pages.state)) return;
  await walk(path, ports);
}

/** Returns a string that changes with each commit, or "" if the first two pages are not valid. */
export function databaseState(path: string): string {
  return readMetaPages(join(path, DATABASE_FOLDER, DATA_FILE))?.state ?? "";
}

/**
 * Creates the lock file here, because lmdb would crash the process if it created the file on a full
 * disk.
 */
function prepareLockFile(file: string): void {
  if (usableSize(file) !== undefined) return;
  try {
    const fd = createFile(file, "wx");
    try {
      writeSync(fd, Buffer.alloc(LOCK_FILE_BYTES));
    } finally {
      closeSync(fd);
    }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return; // another process created it
    rmSync(file, { force: true });
    throw isDiskFull(error) ? diskFull(error) : cannotOpen(file, error);
  }
}

function usableSize(file: string): number | undefined {
  const stats = fileAt(file);
  if (stats === undefined) return undefined;
  try {
    // The file is not opened, because closing the lock file would drop the locks that lmdb holds on
    // it in this process.
    accessSync(file, constants.R_OK | constants.W_OK);
  } catch (error) {
    throw cannotOpen(file, error);
  }
  return stats.size;
}

function assertRoomForNew(folder: string): void {
  const { bavail, bsize } = statfsSync(folder);
  if (bavail * bsize < NEW_DATABASE_BYTES) throw diskFull();
}

interface MetaPages {
  /** String that changes with each commit and with the size of the file. */
  readonly state: string;
  /**
   * False if the file ends before the end of its last page. This is not always damage: pages that
   * one transaction allocates and frees are never written.
   */
  readonly isComplete: boolean;
  /** False if more bytes are missing than any transaction can have left unwritten. */
  readonly isPlausible: boolean;
}

function readMetaPages(file: string): MetaPages | undefined {
  const fd = openSync(file, "r");
  try {
    const { size } = fstatSync(fd);
    const first = readMetaPage(fd, 0);
    if (first === undefined) return undefined;
    const second = readMetaPage(fd, first.pageBytes);
    if (second === undefined || second.pageBytes !== first.pageBytes) return undefined;
    const newest = first.transaction >= second.transaction ? first : second;
    const minBytes = (newest.lastPage + 1n) * BigInt(first.pageBytes);
    const sum = crc32(second.bytes, crc32(first.bytes));
    const missingBytes = minBytes - BigInt(size);
    return {
      state: `${size} ${sum.toString(16)}`,
      isComplete: missingBytes <= 0n,
      isPlausible: missingBytes <= MAX_MISSING_BYTES,
    };
  } finally {
    closeSync(fd);
  }
}

function readMetaPage(fd: number, at: number) {
  const bytes = Buffer.alloc(META_BYTES);
  if (readSync(fd, bytes, 0, META_BYTES, at) < META_BYTES) return undefined;
  const pageBytes = bytes.readUInt32LE(PAGE_BYTES_AT);
  const isValid =
    (bytes.readUInt16LE(PAGE_FLAGS_AT) & META_PAGE) !== 0 &&
    bytes.readUInt32LE(MAGIC_AT) === MAGIC &&
    bytes.readUInt16LE(FORMAT_AT) === FORMAT &&
    pageBytes >= MIN_PAGE_BYTES &&
    pageBytes <= MAX_PAGE_BYTES &&
    (pageBytes & (pageBytes - 1)) === 0;
  if (!isValid) return undefined;
  const lastPage = bytes.readBigUInt64LE(LAST_PAGE_AT);
  const transaction = bytes.readBigUInt64LE(TRANSACTION_AT);
  return { bytes, pageBytes, lastPage, transaction };
}

async function walk(path: string, { onError, onNotice, signal }: CheckPorts): Promise<void> {
  const file = join(path, DATABASE_FOLDER, DATA_FILE);
  const startedAt = performance.now();
  const elapsedMs = () => Math.round(performance.now() - startedAt);
  const progress = { rows: 0, atMs: 0 };
  const reportProgress = () => {
    const ms = elapsedMs();
    const silentMs = ms - progress.atMs;
    if (silentMs < STALLED_MS)
      onNotice(
        { file, ms, rows: progress.rows },
        "The database is being checked after an unclean stop",
      );
    else
      onError(
        new Error(`No row of ${file} could be read for ${Math.round(silentMs / 1000)} s`),
        "The database check after an unclean stop is making no progress. Check the disk",
      );
  };
  const timers = [
    setTimeout(reportProgress, LONG_CHECK_MS),
    setInterval(reportProgress, REPORT_MS),
  ];
  try {
    const ended = await runWalk(path, {
      signal,
      onProgress({ rows }) {
        progress.rows = rows;
        progress.atMs = elapsedMs();
      },
    });
    const { report, output } = ended;
    // `npm run dev` runs the TypeScript sources, which the worker thread of database-walk.ts cannot
    // load.
    if (output.includes("ERR_UNKNOWN_FILE_EXTENSION")) return;
    if (report === undefined) throw failureOf(path, ended);
    if (report.refusal !== undefined) throw damagedDatabase(path, report.refusal);
    if (report.isInUse) return;
    onNotice(
      { ms: elapsedMs(), rows: report.rows },
      "The database was checked after an unclean stop",
    );
    if (report.errors.length > 0)
      onError(
        new Error(report.errors.join("; ")),
        "Parts of the database are damaged. Calls that need them will fail. Restore the data folder from a backup",
      );
  } catch (error) {
    signal?.throwIfAborted();
    if (error instanceof BrokerError) throw error;
    // The process could not be started. The store is opened anyway, because most databases are
    // sound after an unclean stop, and another attempt would probably fail too.
    onError(
      error as Error,
      "Could not check the database after an unclean stop; it is opened without a check",
    );
  } finally {
    for (const timer of timers) clearTimeout(timer);
  }
}

interface EndedWalk {
  /** `null` if a signal ended the process. */
  readonly code: number | null;
  /** Signal that ended the process, or `null` if it exited. */
  readonly signal: NodeJS.Signals | null;
  /** `undefined` if the process ended before it had printed its report. */
  readonly report: WalkReport | undefined;
  readonly output: string;
}

/**
 * Returns the error for a process that ended before it printed its report. The store is not opened,
 * because the damage that may have ended the process could also end this process.
 */
function failureOf(path: string, { code, signal, output }: EndedWalk): BrokerError {
  if (signal !== null && !OUTSIDE_SIGNALS.includes(signal))
    return damagedDatabase(path, `reading it ended with ${signal}`);
  const file = join(path, DATABASE_FOLDER, DATA_FILE);
  const [error = "no error was printed"] = /^\w*Error\b.*/m.exec(output) ?? [];
  const end =
    signal === null ? `ended early with code ${code} (${error})` : `was ended by ${signal}`;
  return new BrokerError("unavailable", {
    message: `The check of the database ${file} after an unclean stop ${end}. Start the broker again. If the machine is short of memory, add memory.`,
  });
}

interface WalkPorts {
  readonly signal: AbortSignal | undefined;
  readonly onProgress: (progress: WalkProgress) => void;
}

/**
 * Runs the program that reads the database. Rejects if the process cannot be started, or when
 * `signal` is aborted. An abort kills the process without waiting for it to exit.
 */
async function runWalk(path: string, { signal, onProgress }: WalkPorts): Promise<EndedWalk> {
  const child = spawn(process.execPath, [...process.execArgv, WALK, path], {
    stdio: ["pipe", "pipe", "pipe"],
    // Terminal signals, such as SIGHUP when the terminal closes, must not reach the process.
    detached: true,
    signal,
    killSignal: "SIGKILL",
  });
  const [report, output, [code, endSignal]] = await Promise.all([
    readReport(child.stdout, onProgress),
    text(child.stderr),
    once(child, "close") as Promise<[number | null, NodeJS.Signals | null]>,
  ]);
  return { report, output, code, signal: endSignal };
}

async function readReport(
  output: Readable,
  onProgress: (progress: WalkProgress) => void,
): Promise<WalkReport | undefined> {
  for await (const line of createInterface(output)) {
    const message = JSON.parse(line) as WalkProgress | WalkReport;
    if ("isInUse" in message) return message;
    onProgress(message);
  }
  return undefined;
}

function cannotOpen(file: string, error: unknown): BrokerError {
  return new BrokerError("unavailable", {
    message: `The file ${file} cannot be opened: ${(error as Error).message}. The user that runs the broker must be able to read and write it.`,
  });
}
