// The write side of the write-ahead log (WAL): append-only segment files in one folder. Owns the
// open file, the end of the good data and whether writing failed permanently. Writes are
// synchronous (into the page cache: they survive the process); `sync` waits for the disk. Must
// never leave a partial frame before a later one: a failed write is cut off again.

import * as fs from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import type { FolderLock } from "./folder-lock.ts";
import { PRIVATE_FILE } from "./private-files.ts";
import {
  listSegments,
  newSegmentHeader,
  sealFrame,
  segmentName,
  type WalPosition,
} from "./segment.ts";

/** The calls on files that tests make fail. */
export interface WalFiles {
  writeSync(fd: number, data: Uint8Array, offset: number, length: number, position: number): number;
  ftruncateSync(fd: number, length: number): void;
  fdatasync(fd: number, done: (error: Error | null) => void): void;
}

interface WalOptions {
  readonly folder: string;
  /** Number of the first segment to create; no file has it yet. */
  readonly firstSegment: number;
  /** Bytes after which the next frame goes into a new segment. */
  readonly segmentBytes: number;
  /** `sync` is called after each frame, before the next one is written. */
  readonly synced: boolean;
  /** Of the machine, see `segment.ts`. */
  readonly boot: string;
  /** The owner of the folder. */
  readonly owner: Pick<FolderLock, "assertHeldNow" | "assertWasHeld">;
  /** Hears that no new segment can be opened. */
  readonly onError: (error: Error, what: string) => void;
  readonly files?: WalFiles | undefined;
}

interface Segment {
  readonly index: number;
  readonly fd: number;
  readonly salt: number;
  /** End of the good data. */
  end: number;
}

const PROBE = Buffer.alloc(4096);
/**
 * While no new segment can be opened the current one grows: by so much between two attempts, and to
 * so much at most.
 */
const ROLL_RETRY_BYTES = 1024 * 1024;
const MAX_SEGMENT_BYTES = 1024 * 1024 * 1024;

export class Wal {
  readonly #folder: string;
  readonly #segmentBytes: number;
  readonly #writer: Pick<WalOptions, "synced" | "boot">;
  readonly #owner: WalOptions["owner"];
  readonly #onError: WalOptions["onError"];
  readonly #files: WalFiles;
  #current: Segment;
  /** Where the current segment ends, or the next attempt to open another one is due. */
  #rollAt: number;
  #broken: Error | undefined;

  /** Creates the first segment. Throws what the file system throws. */
  constructor(options: WalOptions) {
    this.#folder = options.folder;
    this.#segmentBytes = options.segmentBytes;
    this.#rollAt = options.segmentBytes;
    this.#writer = options;
    this.#owner = options.owner;
    this.#onError = options.onError;
    this.#files = options.files ?? fs;
    this.#current = this.#create(options.firstSegment);
  }

  /** Why no write can ever succeed again, or undefined. */
  get broken(): Error | undefined {
    return this.#broken;
  }

  /** End of everything written. */
  get position(): WalPosition {
    return { segment: this.#current.index, offset: this.#current.end };
  }

  /**
   * Appends one frame; the first FRAME_HEADER_BYTES of `frame` are filled in here. When it throws,
   * nothing of the frame is left and a later write may succeed (unless `broken`). When it returns,
   * this process was still the owner after the write.
   */
  write(frame: Buffer): void {
    if (this.#broken !== undefined) throw this.#broken;
    if (this.#current.end >= this.#rollAt) this.#roll();
    const segment = this.#current;
    sealFrame(frame, segment.salt);
    this.#put(segment, frame);
    try {
      this.#owner.assertWasHeld();
    } catch (error) {
      this.#cut(segment);
      throw error;
    }
    segment.end += frame.length;
  }

  /**
   * Resolves when the disk has everything written before the call. No frame is written meanwhile,
   * so a segment before the current one is there already. A failure breaks the WAL: the kernel
   * forgets what it lost.
   */
  async sync(): Promise<void> {
    if (this.#broken !== undefined) throw this.#broken;
    try {
      await new Promise<void>((resolve, reject) => {
        const done = (error: Error | null) => (error ? reject(error) : resolve());
        this.#files.fdatasync(this.#current.fd, done);
      });
    } catch (cause) {
      throw this.#break("The journal cannot be flushed to disk; restart the broker", cause);
    }
    try {
      this.#owner.assertWasHeld();
    } catch (cause) {
      throw this.#break(
        "The data folder could not be confirmed as owned; restart the broker",
        cause,
      );
    }
  }

  #break(message: string, cause: unknown): Error {
    this.#broken = new Error(message, { cause });
    return this.#broken;
  }

  /** Throws when a write would fail now. Leaves nothing behind. */
  probe(): void {
    if (this.#broken !== undefined) throw this.#broken;
    this.#put(this.#current, PROBE);
    this.#cut(this.#current);
  }

  /** Deletes the segments that lie wholly before `position`. */
  async dropBefore(position: WalPosition): Promise<void> {
    for (const index of listSegments(this.#folder))
      if (index < position.segment)
        await rm(join(this.#folder, segmentName(index)), { force: true });
  }

  /** Bytes of all segment files. */
  bytes(): number {
    let sum = 0;
    for (const index of listSegments(this.#folder)) sum += this.#sizeOf(index);
    return sum;
  }

  /** 0 for one that is deleted just now. */
  #sizeOf(index: number): number {
    const path = join(this.#folder, segmentName(index));
    return fs.statSync(path, { throwIfNoEntry: false })?.size ?? 0;
  }

  /** Closes the file. Nothing may be called afterwards. */
  close(): void {
    fs.closeSync(this.#current.fd);
  }

  /**
   * Goes on in a new segment, or in the current one while none can be opened (no file descriptor is
   * left).
   */
  #roll(): void {
    const before = this.#current;
    try {
      this.#current = this.#create(before.index + 1);
    } catch (error) {
      if (before.end >= MAX_SEGMENT_BYTES) throw error;
      this.#rollAt = Math.min(before.end + ROLL_RETRY_BYTES, MAX_SEGMENT_BYTES);
      this.#onError(error as Error, "The next journal segment could not be opened"); // the file system's error
      return;
    }
    this.#rollAt = this.#segmentBytes;
    fs.closeSync(before.fd);
  }

  #create(wanted: number): Segment {
    const { header, salt } = newSegmentHeader(this.#writer);
    const { index, path, fd } = this.#openNew(wanted);
    const segment: Segment = { index, fd, salt, end: 0 };
    try {
      this.#put(segment, header);
      if (this.#writer.synced) syncFolder(this.#folder);
    } catch (error) {
      fs.closeSync(fd);
      fs.rmSync(path, { force: true });
      throw error;
    }
    segment.end = header.length;
    return segment;
  }

  /**
   * Makes the file of a segment. One that is there already was made, at that moment, by an owner
   * that had been paused and lost the folder: it holds nothing that was answered. That owner makes
   * no second one, for it looks again first.
   */
  #openNew(index: number): { index: number; path: string; fd: number } {
    const path = join(this.#folder, segmentName(index));
    try {
      return { index, path, fd: fs.openSync(path, "wx", PRIVATE_FILE) };
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      this.#owner.assertHeldNow();
      return this.#openNew(index + 1);
    }
  }

  /**
   * Writes all of `data` behind the good end, or throws having cut it off. Does not move the end.
   */
  #put(segment: Segment, data: Buffer): void {
    let done = 0;
    try {
      while (done < data.length) {
        const { fd, end } = segment;
        const left = data.length - done;
        const count = this.#files.writeSync(fd, data, done, left, end + done);
        if (count === 0) throw new Error("The file takes no more bytes");
        done += count;
      }
    } catch (error) {
      this.#cut(segment);
      throw error;
    }
  }

  #cut(segment: Segment): void {
    try {
      this.#files.ftruncateSync(segment.fd, segment.end);
    } catch (cause) {
      throw this.#break("The journal cannot be cut back; restart the broker", cause);
    }
  }
}

/** Makes created and deleted names durable. */
function syncFolder(folder: string): void {
  const fd = fs.openSync(folder, "r");
  try {
    fs.fsyncSync(fd);
  } finally {
    fs.closeSync(fd);
  }
}
