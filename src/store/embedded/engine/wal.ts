// Writes the write-ahead log (WAL): append-only segment files in one folder. A write is synchronous
// and goes to the page cache, where it survives a crash of the process. `sync` waits for the disk.
// A partial frame must never precede another frame, so the bytes of a failed write are truncated.

import * as fs from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import type { FolderLock } from "./folder-lock.ts";
import { createFile } from "./private-files.ts";
import {
  listSegments,
  newSegmentHeader,
  type SegmentWriter,
  sealFrame,
  segmentName,
  type WalPosition,
} from "./segment.ts";

/** File system calls that the WAL makes. Tests replace them to simulate failures. */
export interface WalFiles {
  writeSync(fd: number, data: Uint8Array, offset: number, length: number, position: number): number;
  ftruncateSync(fd: number, length: number): void;
  fdatasync(fd: number, done: (error: Error | null) => void): void;
  fsyncSync(fd: number): void;
}

interface WalOptions {
  readonly folder: string;
  /** Number of the first new segment. A higher number is used if this segment already exists. */
  readonly firstSegment: number;
  readonly segmentBytes: number;
  /** True if the caller calls `sync` after each frame, before it writes the next frame. */
  readonly synced: boolean;
  readonly boot: string;
  readonly storeId: string;
  readonly owner: Pick<FolderLock, "assertHeldNow" | "assertWasHeld">;
  /**
   * Returns true if the disk has little space (see `DiskSpace.isTight`). Segments are then short,
   * so that they can be deleted sooner.
   */
  readonly isTight?: () => boolean;
  readonly onError: (error: Error, what: string) => void;
  readonly files?: WalFiles | undefined;
}

interface OpenSegment {
  readonly index: number;
  readonly fd: number;
  readonly salt: number;
  end: number;
}

const PROBE = Buffer.alloc(4096);
const ROLL_RETRY_BYTES = 1024 * 1024;
const SHORT_SEGMENT_BYTES = 1024 * 1024;
/** Size of a segment at which writes fail if no new segment can be opened. */
const MAX_SEGMENT_BYTES = 1024 * 1024 * 1024;

export class Wal {
  readonly #folder: string;
  readonly #segmentBytes: number;
  readonly #writer: SegmentWriter;
  readonly #storeId: string;
  readonly #owner: WalOptions["owner"];
  readonly #onError: WalOptions["onError"];
  readonly #files: WalFiles;
  readonly #isTight: () => boolean;
  #current: OpenSegment;
  #rollAt: number;
  #retryAt = 0;
  #broken: Error | undefined;

  constructor(options: WalOptions) {
    this.#folder = options.folder;
    this.#segmentBytes = options.segmentBytes;
    this.#rollAt = options.segmentBytes;
    this.#writer = { synced: options.synced, boot: options.boot };
    this.#storeId = options.storeId;
    this.#owner = options.owner;
    this.#onError = options.onError;
    this.#files = options.files ?? fs;
    this.#isTight = options.isTight ?? (() => false);
    this.#current = this.#create(options.firstSegment);
  }

  get broken(): Error | undefined {
    return this.#broken;
  }

  get writer(): SegmentWriter {
    return this.#writer;
  }

  get position(): WalPosition {
    return { segment: this.#current.index, offset: this.#current.end };
  }

  /**
   * Appends a frame and fills in its header. If the method returns, this process still owned the
   * folder after the write. If it throws and `broken` is not set, no part of the frame remains in
   * the file.
   */
  write(frame: Buffer): void {
    if (this.#broken !== undefined) throw this.#broken;
    if (this.#current.end >= this.#rollAt || this.#isLongForTightDisk()) this.#roll();
    const segment = this.#current;
    sealFrame(frame, segment.salt);
    this.#writeAtEnd(segment, frame);
    try {
      this.#owner.assertWasHeld();
    } catch (error) {
      this.#truncate(segment);
      throw error;
    }
    segment.end += frame.length;
  }

  /**
   * Waits until all frames are on the disk. No frame may be written during the wait. A failure is
   * permanent: the kernel drops pages that it failed to write, so a second fdatasync would succeed
   * although data is lost.
   */
  async sync(): Promise<void> {
    if (this.#broken !== undefined) throw this.#broken;
    try {
      await new Promise<void>((resolve, reject) => {
        const done = (error: Error | null) => (error ? reject(error) : resolve());
        this.#files.fdatasync(this.#current.fd, done);
      });
    } catch (cause) {
      throw this.#markBroken("The WAL cannot be flushed to disk. Restart the broker.", cause);
    }
    try {
      this.#owner.assertWasHeld();
    } catch (cause) {
      throw this.#markBroken(
        "Ownership of the data folder could not be confirmed. Restart the broker.",
        cause,
      );
    }
  }

  #markBroken(message: string, cause: unknown): Error {
    this.#broken = new Error(message, { cause });
    return this.#broken;
  }

  probe(): void {
    if (this.#broken !== undefined) throw this.#broken;
    this.#writeAtEnd(this.#current, PROBE);
    this.#truncate(this.#current);
  }

  async deleteBefore(position: WalPosition): Promise<void> {
    for (const index of listSegments(this.#folder))
      if (index < position.segment)
        await rm(join(this.#folder, segmentName(index)), { force: true });
  }

  bytes(): number {
    let sum = 0;
    for (const index of listSegments(this.#folder)) sum += this.#sizeOf(index);
    return sum;
  }

  #sizeOf(index: number): number {
    const path = join(this.#folder, segmentName(index));
    return fs.statSync(path, { throwIfNoEntry: false })?.size ?? 0;
  }

  close(): void {
    this.#broken ??= new Error("The WAL is closed"); // the fd may be reused for another file
    fs.closeSync(this.#current.fd);
  }

  #isLongForTightDisk(): boolean {
    const { end } = this.#current;
    return end >= SHORT_SEGMENT_BYTES && end >= this.#retryAt && this.#isTight();
  }

  /**
   * Opens the next segment. If that fails, writes continue in the current segment up to
   * MAX_SEGMENT_BYTES.
   */
  #roll(): void {
    const previous = this.#current;
    try {
      this.#current = this.#create(previous.index + 1);
    } catch (error) {
      if (previous.end >= MAX_SEGMENT_BYTES) throw error;
      this.#retryAt = Math.min(previous.end + ROLL_RETRY_BYTES, MAX_SEGMENT_BYTES);
      this.#rollAt = Math.max(this.#rollAt, this.#retryAt);
      this.#onError(error as Error, "Could not open the next WAL segment");
      return;
    }
    this.#rollAt = this.#segmentBytes;
    this.#retryAt = 0;
    fs.closeSync(previous.fd);
  }

  #create(minIndex: number): OpenSegment {
    const { header, salt } = newSegmentHeader(this.#writer, this.#storeId);
    const { index, path, fd } = this.#openNew(minIndex);
    const segment: OpenSegment = { index, fd, salt, end: 0 };
    try {
      this.#writeAtEnd(segment, header);
      if (this.#writer.synced) {
        this.#files.fsyncSync(fd); // a checkpoint can refer to a segment without frames
        this.#syncFolder();
      }
    } catch (error) {
      fs.closeSync(fd);
      fs.rmSync(path, { force: true });
      throw error;
    }
    segment.end = header.length;
    return segment;
  }

  /**
   * Opens a new segment. If a file with this number already exists, a former owner created it after
   * losing the folder. Nothing in that file was acknowledged, so the next number is used.
   */
  #openNew(index: number): { index: number; path: string; fd: number } {
    const path = join(this.#folder, segmentName(index));
    try {
      return { index, path, fd: createFile(path, "wx") };
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      this.#owner.assertHeldNow();
      return this.#openNew(index + 1);
    }
  }

  /** Writes after the valid data without moving `end`. */
  #writeAtEnd(segment: OpenSegment, data: Buffer): void {
    let written = 0;
    try {
      while (written < data.length) {
        const { fd, end } = segment;
        const remaining = data.length - written;
        const count = this.#files.writeSync(fd, data, written, remaining, end + written);
        if (count === 0)
          throw new Error(
            "A write added no bytes to the WAL file. Check the free space of its disk.",
          );
        written += count;
      }
    } catch (error) {
      this.#truncate(segment);
      throw error;
    }
  }

  #syncFolder(): void {
    const fd = fs.openSync(this.#folder, "r");
    try {
      this.#files.fsyncSync(fd);
    } finally {
      fs.closeSync(fd);
    }
  }

  #truncate(segment: OpenSegment): void {
    try {
      this.#files.ftruncateSync(segment.fd, segment.end);
    } catch (cause) {
      throw this.#markBroken(
        "The bytes of a failed write cannot be removed from the WAL. Restart the broker.",
        cause,
      );
    }
  }
}
