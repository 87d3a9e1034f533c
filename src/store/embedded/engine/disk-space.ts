// Prevents LMDB from running out of disk space. A write of lmdb 3.5.6 that meets a full disk can
// report success without its rows, never settle, or corrupt the heap. While the disk has little
// space left, the data file is kept longer than LMDB needs, and new data is accepted only if it
// fits into that room. Also notices a transaction that never settles. Owns the measurements of the
// disk.

import { closeSync, fstatSync, openSync, statfsSync, writeSync } from "node:fs";
import { join } from "node:path";
import { BrokerError } from "../../../broker/errors.ts";

const DATA_FILE = "data.mdb";
const MIB = 1024 * 1024;
/**
 * Free bytes, beyond four times the memtable, above which no room is held. Other programs do not
 * use up that much between two looks.
 */
const PLENTY_BYTES = 512 * MIB;
/** Room for the pages of the transactions in progress. LMDB copies every page that it changes. */
const PAGES_BYTES = 8 * MIB;
/** Room per byte and per record of the memtable. New pages are half full. */
const ROOM_PER_BYTE = 3;
const ROOM_PER_RECORD = 1024;
/** Room that is added at a time. */
const GROWTH_BYTES = 4 * MIB;
/** Room below which even flushes and removals are rejected. */
const MIN_ROOM_BYTES = 2 * MIB;
/** Free space that is left for the WAL. */
const WAL_BYTES = 2 * MIB;
/** Interval at which the disk is measured. */
const LOOK_MS = 50;
/** Time without progress after which a transaction counts as hanging. */
const HANG_MS = 8000;
/** Delay that is suggested to a caller that is rejected. */
const RETRY_AFTER_MS = 5000;
const ZEROS = Buffer.alloc(MIB);

/** What a write is for: new data, the memtable, or the removal of data. */
export type Purpose = "store" | "flush" | "reclaim";

/** Runs `steps` inside a write transaction, so that nothing else writes to the data file. */
type RunExclusively = (steps: () => void) => Promise<boolean>;

/** Facts about the database. */
interface DiskSpacePorts {
  /** Folder of the database. */
  readonly folder: string;
  /** End of the pages that LMDB uses, in bytes. */
  readonly usedBytes: () => number;
}

/** The parts that need space, and the receivers of changes. */
interface DiskSpaceUsers {
  readonly memtable: { readonly bytes: number; readonly records: number };
  /** Maximum of `memtable.bytes`. */
  readonly maxMemtableBytes: number;
  readonly runExclusively: RunExclusively;
  /** Called when the disk fills up, and when it has room again. */
  readonly onChange: (isFull: boolean, freeBytes: number) => void;
  /** Receives failures that no caller gets. `what` describes the failed activity. */
  readonly onError: (error: Error, what: string) => void;
  /** Called once if a write was lost or hangs. Must end the process at once. */
  readonly onFatal: (error: BrokerError) => void;
}

/** The space of the disk that holds the data folder. */
export class DiskSpace {
  readonly #ports: DiskSpacePorts;
  #users: DiskSpaceUsers | undefined;
  #timer: NodeJS.Timeout | undefined;
  #fd: number | undefined;
  #freeBytes = 0;
  #isTight = false;
  /** Bytes at the end of the data file that LMDB does not use yet, at the last look. */
  #roomBytes = 0;
  #wasFull = false;
  /** True if the last measurement failed. */
  #isBlind = false;
  #growing: Promise<void> | undefined;
  #openTransactions = 0;
  /** Number of looks since a transaction settled, while one is open. */
  #looksWithoutProgress = 0;
  #failure: BrokerError | undefined;

  constructor(ports: DiskSpacePorts) {
    this.#ports = ports;
  }

  /** Free bytes of the disk at the last look. */
  get freeBytes(): number {
    return this.#freeBytes;
  }

  /** True if the disk has so little space left that room is held in the data file. */
  get isTight(): boolean {
    return this.#isTight;
  }

  /** True if new data is rejected with `disk_full`. */
  get isFull(): boolean {
    if (!this.#isTight) return false;
    return this.#freeBytes < WAL_BYTES || this.#roomBytes < this.#neededBytes();
  }

  /** Starts to watch the disk. Resolves after the first look. */
  async start(users: DiskSpaceUsers): Promise<void> {
    this.#users = users;
    this.#fd = openSync(join(this.#ports.folder, DATA_FILE), "r+");
    await this.look();
    this.#timer = setInterval(() => {
      this.look().then(
        () => this.#measured(undefined),
        (error: Error) => this.#measured(error), // a file system error
      );
    }, LOOK_MS).unref();
  }

  /** Stops watching. Safe to call twice. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    await this.#growing;
    if (this.#fd !== undefined) closeSync(this.#fd);
    this.#fd = undefined;
  }

  /** Throws `disk_full` if a write for this purpose may not fit on the disk. */
  assertRoom(purpose: Purpose): void {
    if (this.#failure !== undefined) throw this.#failure;
    if (!this.#isTight) return;
    const isRejected = purpose === "store" ? this.isFull : this.#roomBytes < MIN_ROOM_BYTES;
    if (isRejected) throw diskFull();
  }

  /** Counts a transaction that begins. */
  begin(): void {
    this.#openTransactions++;
  }

  /** Counts a transaction that has settled. */
  settle(): void {
    this.#openTransactions--;
    this.#looksWithoutProgress = 0;
  }

  /** Reports that the database lost or rejected a write. The process must end. */
  fail(message: string, cause?: unknown): BrokerError {
    if (this.#failure !== undefined) return this.#failure;
    this.#failure = new BrokerError("unavailable", { message, cause });
    this.#users?.onFatal(this.#failure);
    return this.#failure;
  }

  /** Measures the disk, and extends the data file if it needs room and the disk has the space. */
  async look(): Promise<void> {
    if (this.#users === undefined || this.#fd === undefined) return;
    const { bavail, bsize } = statfsSync(this.#ports.folder);
    this.#freeBytes = bavail * bsize;
    this.#isTight = this.#freeBytes < PLENTY_BYTES + 4 * this.#users.maxMemtableBytes;
    if (this.#isTight) {
      this.#checkProgress();
      this.#measure(this.#fd);
      if (this.#roomBytes < this.#neededBytes() + GROWTH_BYTES) await this.#grow();
    }
    this.#report();
  }

  /** Room for the rows of the memtable and for the pages of the transactions in progress. */
  #neededBytes(): number {
    const { bytes = 0, records = 0 } = this.#users?.memtable ?? {};
    return PAGES_BYTES + ROOM_PER_BYTE * bytes + ROOM_PER_RECORD * records;
  }

  #measure(fd: number): void {
    this.#roomBytes = fstatSync(fd).size - this.#ports.usedBytes();
  }

  #grow(): Promise<void> {
    this.#growing ??= this.#append().finally(() => {
      this.#growing = undefined;
    });
    return this.#growing;
  }

  /**
   * Appends zeros to the data file. Runs inside a write transaction: if LMDB extended the file at
   * the same time, the zeros would overwrite its pages. Space for the WAL is left on the disk.
   */
  async #append(): Promise<void> {
    if (this.#freeBytes < GROWTH_BYTES + WAL_BYTES) return;
    try {
      await this.#users?.runExclusively(() => {
        if (this.#fd === undefined) return;
        const end = fstatSync(this.#fd).size;
        for (let added = 0; added < GROWTH_BYTES; added += ZEROS.length)
          writeSync(this.#fd, ZEROS, 0, ZEROS.length, end + added);
      });
    } catch {
      // The disk is full now, or another process owns the folder. The measurement below counts.
    }
    if (this.#fd !== undefined) this.#measure(this.#fd);
  }

  /** lmdb may never settle a transaction that met a full disk. */
  #checkProgress(): void {
    if (this.#openTransactions === 0) return;
    this.#looksWithoutProgress++;
    if (this.#looksWithoutProgress * LOOK_MS > HANG_MS)
      this.fail(
        "The database cannot finish a write, because its disk was full. Free space, then restart",
      );
  }

  /** Reports the first of several failed measurements, for example of a folder that was removed. */
  #measured(error: Error | undefined): void {
    if (error !== undefined && !this.#isBlind)
      this.#users?.onError(error, "Could not measure the free space of the disk");
    this.#isBlind = error !== undefined;
  }

  #report(): void {
    const { isFull } = this;
    if (isFull === this.#wasFull) return;
    this.#wasFull = isFull;
    this.#users?.onChange(isFull, this.#freeBytes);
  }
}

/** Returns the error of a call that the disk has no space for. */
export function diskFull(cause?: unknown): BrokerError {
  return new BrokerError("disk_full", { retryAfterMs: RETRY_AFTER_MS, cause });
}

/**
 * True if the error of a file system call says that the disk, or the user's share of it, is full.
 */
export function isDiskFull(error: unknown): boolean {
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  return code === "ENOSPC" || code === "EDQUOT";
}
