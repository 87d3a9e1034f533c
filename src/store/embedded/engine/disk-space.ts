// Prevents LMDB from running out of disk space. If the disk is full, a write of lmdb 3.5.6 can
// report success although its rows are missing, never settle, or corrupt the heap. While the disk
// has little free space, the data file is kept larger than LMDB needs. The unused end of the file
// is its *room*. New data is then accepted only if the memtable fits into the room, or if the room
// and the free space together exceed the memtable's needs by at least `SPARE_BYTES`. These spare
// bytes bridge the time until the room is extended.

import { closeSync, fstatSync, openSync, statfsSync, writeSync } from "node:fs";
import { join } from "node:path";
import { BrokerError } from "../../../broker/errors.ts";
import { DATA_FILE } from "./data-folder.ts";

const MIB = 1024 * 1024;
/**
 * Space is reserved only while the disk has fewer free bytes than `PLENTY_BYTES` plus four times
 * `maxMemtableBytes`. This sum suffices for the largest memtable and `SPARE_BYTES`.
 */
const PLENTY_BYTES = 512 * MIB;
/** Space for the pages of open transactions. LMDB copies every page that it changes. */
const PAGES_BYTES = 8 * MIB;
/**
 * Space reserved for each byte and for each record of the memtable. The reserved space exceeds the
 * size of the data, because new pages may be only half full.
 */
const ROOM_PER_BYTE = 3;
const ROOM_PER_RECORD = 1024;
const GROWTH_BYTES = 4 * MIB;
/**
 * Free bytes that must remain after the memtable has been written. Other programs are assumed to
 * write fewer than `SPARE_BYTES` bytes before the room has been extended.
 */
const SPARE_BYTES = 64 * MIB;
/**
 * Bytes that must be available for a flush or a removal (see `#hasLessThan`). With fewer bytes,
 * even these writes are rejected.
 */
const MIN_ROOM_BYTES = 2 * MIB;
const WAL_BYTES = 2 * MIB;
/** Interval at which free space is measured while the store is writing or space is low. */
const MEASURE_MS = 50;
const REST_MS = 500;
/** Maximum time that a write may go without progress while `isTight` is true. */
const HANG_MS = 8000;
/**
 * Maximum time that a write may go without progress while `isTight` is false. Longer than
 * `HANG_MS`, because a slow disk may recover. A write can also hang because the quota is exhausted,
 * which the reported free space does not show.
 */
const HANG_WITH_SPACE_MS = 30_000;
const HANG =
  "The database could not finish a write, because its disk was full. Free some space, then restart";
const HANG_WITH_SPACE = `The database has not finished a write for ${HANG_WITH_SPACE_MS / 1000} s. Check the disk and its quota, then restart: the WAL still has the unwritten data`;
const RETRY_AFTER_MS = 5000;
const ZEROS = Buffer.alloc(MIB);

/** Purpose of a write: new data, a flush of the memtable, or a removal that frees space. */
export type Purpose = "store" | "flush" | "reclaim";

type RunExclusively = (steps: () => void) => Promise<boolean>;

interface DiskSpacePorts {
  readonly folder: string;
  /** Returns the end of the last page that LMDB uses, in bytes from the start of the data file. */
  readonly usedBytes: () => number;
}

interface DiskSpaceUsers {
  readonly memtable: { readonly bytes: number; readonly records: number };
  readonly maxMemtableBytes: number;
  readonly runExclusively: RunExclusively;
  readonly onChange: (isFull: boolean, freeBytes: number) => void;
  readonly onError: (error: Error, what: string) => void;
  /**
   * Called once, when a write fails, is lost or does not finish. Must end the process immediately.
   */
  readonly onFatal: (error: BrokerError) => void;
}

export class DiskSpace {
  readonly #ports: DiskSpacePorts;
  #users: DiskSpaceUsers | undefined;
  #timer: NodeJS.Timeout | undefined;
  #fd: number | undefined;
  #freeBytes = 0;
  #diskBytes = 0;
  #isTight = false;
  #roomBytes = 0;
  #wasFull = false;
  #isBlind = false;
  #growing: Promise<void> | undefined;
  #openTransactions = 0;
  #measurementsWithoutProgress = 0;
  #failure: BrokerError | undefined;
  #isResting = false;

  constructor(ports: DiskSpacePorts) {
    this.#ports = ports;
  }

  get freeBytes(): number {
    return this.#freeBytes;
  }

  get diskBytes(): number {
    return this.#diskBytes;
  }

  /** True if the free space is below the limit at which room is reserved (see `PLENTY_BYTES`). */
  get isTight(): boolean {
    return this.#isTight;
  }

  get isFull(): boolean {
    if (this.#isResting) this.#wake();
    return this.#hasNoRoom;
  }

  get #hasNoRoom(): boolean {
    if (!this.#isTight) return false;
    return this.#freeBytes < WAL_BYTES || this.#hasLessThan(this.#neededBytes());
  }

  /**
   * Returns true if the room has fewer than `bytes` bytes, and the room and the free space together
   * have fewer than `bytes + SPARE_BYTES`.
   */
  #hasLessThan(bytes: number): boolean {
    if (this.#roomBytes >= bytes) return false;
    return this.#roomBytes + this.#freeBytes < bytes + SPARE_BYTES;
  }

  async start(users: DiskSpaceUsers): Promise<void> {
    this.#users = users;
    this.#fd = openSync(join(this.#ports.folder, DATA_FILE), "r+");
    await this.measure();
    this.#measureAfter(MEASURE_MS);
  }

  #measureAfter(delayMs: number): void {
    this.#timer = setTimeout(() => {
      this.measure().then(
        () => this.#measured(undefined),
        (error: Error) => this.#measured(error), // a file system error
      );
      const hasRecords = (this.#users?.memtable.records ?? 0) > 0;
      this.#isResting = !this.#isTight && !hasRecords && this.#openTransactions === 0;
      this.#measureAfter(this.#isResting ? REST_MS : MEASURE_MS);
    }, delayMs).unref();
  }

  /**
   * Ends the long pause between measurements. The free space is measured in the next turn of the
   * event loop, before the records that the caller is about to add can be flushed.
   */
  #wake(): void {
    this.#isResting = false;
    clearTimeout(this.#timer);
    this.#measureAfter(0);
  }

  async close(): Promise<void> {
    clearTimeout(this.#timer);
    this.#isResting = false;
    await this.#growing;
    if (this.#fd !== undefined) closeSync(this.#fd);
    this.#fd = undefined;
  }

  /**
   * Throws `disk_full` if the space may not suffice for the write. After `fail`, throws the
   * recorded error.
   */
  assertRoom(purpose: Purpose): void {
    if (this.#failure !== undefined) throw this.#failure;
    if (this.#isResting) this.#wake();
    if (!this.#isTight) return;
    const isRejected = purpose === "store" ? this.#hasNoRoom : this.#hasLessThan(MIN_ROOM_BYTES);
    if (isRejected) throw diskFull();
  }

  begin(): void {
    this.#openTransactions++;
  }

  settle(): void {
    this.#openTransactions--;
    this.#measurementsWithoutProgress = 0;
  }

  /**
   * Records the first failure and passes it to `onFatal`. Returns the first failure, with which
   * every later write is rejected.
   */
  fail(error: BrokerError): BrokerError {
    if (this.#failure !== undefined) return this.#failure;
    this.#failure = error;
    this.#users?.onFatal(this.#failure);
    return this.#failure;
  }

  async measure(): Promise<void> {
    if (this.#users === undefined || this.#fd === undefined) return;
    this.#measureSpace(this.#fd);
    this.#isTight = this.#freeBytes < PLENTY_BYTES + 4 * this.#users.maxMemtableBytes;
    this.#checkProgress();
    if (this.#isTight && this.#isRoomSmall) await this.#grow();
    this.#report();
  }

  #neededBytes(): number {
    const { bytes = 0, records = 0 } = this.#users?.memtable ?? {};
    return PAGES_BYTES + ROOM_PER_BYTE * bytes + ROOM_PER_RECORD * records;
  }

  get #isRoomSmall(): boolean {
    return this.#roomBytes < this.#neededBytes() + GROWTH_BYTES;
  }

  #measureSpace(fd: number): void {
    const { bavail, blocks, bsize } = statfsSync(this.#ports.folder);
    this.#freeBytes = bavail * bsize;
    this.#diskBytes = blocks * bsize;
    this.#roomBytes = fstatSync(fd).size - this.#ports.usedBytes();
  }

  #grow(): Promise<void> {
    this.#growing ??= this.#extendRoom().finally(() => {
      this.#growing = undefined;
    });
    return this.#growing;
  }

  /** Extends the room until `#isRoomSmall` is false or the disk has no more space. */
  async #extendRoom(): Promise<void> {
    while (this.#isRoomSmall && this.#freeBytes >= GROWTH_BYTES + WAL_BYTES) {
      const before = this.#roomBytes;
      await this.#append();
      if (this.#roomBytes <= before) return;
    }
  }

  /** Appends zeros in a write transaction, so that LMDB cannot extend the file at the same time. */
  async #append(): Promise<void> {
    try {
      await this.#users?.runExclusively(() => {
        if (this.#fd === undefined) return;
        const end = fstatSync(this.#fd).size;
        for (let added = 0; added < GROWTH_BYTES; added += ZEROS.length)
          writeSync(this.#fd, ZEROS, 0, ZEROS.length, end + added);
      });
    } catch {
      // The disk may be full. The measurement below shows by how much the file has grown.
    }
    if (this.#fd !== undefined) this.#measureSpace(this.#fd);
  }

  /**
   * Records a failure if open transactions make no progress for `HANG_MS`, or for
   * `HANG_WITH_SPACE_MS` while `isTight` is false. On a full disk, lmdb may never settle a
   * transaction.
   */
  #checkProgress(): void {
    if (this.#openTransactions === 0) return;
    this.#measurementsWithoutProgress++;
    const hangMs = this.#isTight ? HANG_MS : HANG_WITH_SPACE_MS;
    if (this.#measurementsWithoutProgress * MEASURE_MS > hangMs)
      this.fail(
        new BrokerError("unavailable", { message: this.#isTight ? HANG : HANG_WITH_SPACE }),
      );
  }

  #measured(error: Error | undefined): void {
    if (error !== undefined && !this.#isBlind)
      this.#users?.onError(error, "Could not measure the disk's free space");
    this.#isBlind = error !== undefined;
  }

  #report(): void {
    const isFull = this.#hasNoRoom;
    if (isFull === this.#wasFull) return;
    this.#wasFull = isFull;
    this.#users?.onChange(isFull, this.#freeBytes);
  }
}

export function diskFull(cause?: unknown): BrokerError {
  return new BrokerError("disk_full", { retryAfterMs: RETRY_AFTER_MS, cause });
}

export function isDiskFull(error: unknown): boolean {
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  return code === "ENOSPC" || code === "EDQUOT";
}
