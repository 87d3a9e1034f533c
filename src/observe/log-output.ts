// The destination of log lines and other output for the operator: a file descriptor. Writing never
// blocks the event loop, and delays the exit of the process by at most `LAST_FLUSH_MS`, even if a
// pipe, socket or terminal is full because its reader hangs.

import { constants, fstatSync, openSync, write, writeSync } from "node:fs";
import { Socket } from "node:net";
import { isatty } from "node:tty";

const MAX_QUEUED_BYTES = 1_048_576;
const RESUME_BYTES = MAX_QUEUED_BYTES / 2;
const MAX_CHUNK_BYTES = 65_536;
const RETRY_MS = 10;
/** Pause after an error other than EAGAIN, for example ENOSPC on a full disk. */
const ERROR_RETRY_MS = 1000;
/** Maximum time that the process waits for a reader before it exits. */
export const LAST_FLUSH_MS = 500;

export class LogOutput {
  readonly #fd: number;
  /** True if a write fails at once with EAGAIN instead of waiting for a reader. */
  readonly #isNonBlocking: boolean;
  #lines: string[] = [];
  #queuedBytes = 0;
  /** The bytes that are written next. They count towards the queue's size. */
  #chunk = Buffer.alloc(0);
  #status: "idle" | "scheduled" | "writing" = "idle";
  #isDropping = false;
  #dropped = 0;
  #reported = 0;

  /**
   * Called when lines are accepted again. `dropped` is the number of lines dropped since the
   * previous call.
   */
  onResumed: (dropped: number) => void = () => {};

  constructor(fd: number) {
    const duplicate = reopenTerminal(fd);
    this.#fd = duplicate ?? fd;
    this.#isNonBlocking = duplicate !== undefined || setNonBlocking(fd);
  }

  get dropped(): number {
    return this.#dropped;
  }

  write(line: string): void {
    const bytes = Buffer.byteLength(line);
    if (this.#isDropping || this.#queuedBytes + bytes > MAX_QUEUED_BYTES) {
      // Lines are dropped until writes have shortened the queue to `RESUME_BYTES`. If the queue is
      // empty, no write follows, so only this line is dropped.
      this.#isDropping = this.#queuedBytes > 0;
      this.#dropped++;
      return;
    }
    this.#lines.push(line);
    this.#queuedBytes += bytes;
    if (this.#status !== "idle") return;
    this.#status = "scheduled"; // lines logged in the same turn are written together
    setImmediate(this.#flush);
  }

  /**
   * Writes the queue before the process exits. Gives up after `LAST_FLUSH_MS` if the destination is
   * full.
   */
  flushBeforeExit(): void {
    if (this.#status === "writing" && !this.#isNonBlocking) this.#take(this.#chunk.length);
    const untilMs = performance.now() + LAST_FLUSH_MS;
    while (this.#fillChunk()) {
      try {
        this.#take(writeSync(this.#fd, this.#chunk));
      } catch (error) {
        if (!isFull(error) || performance.now() > untilMs) return;
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, RETRY_MS);
      }
    }
  }

  readonly #flush = (): void => {
    this.#status = "writing";
    if (!this.#fillChunk()) {
      this.#status = "idle";
      return;
    }
    if (!this.#isNonBlocking) {
      write(this.#fd, this.#chunk, (error, bytes) => {
        if (error === null) this.#written(bytes);
        else this.#flushLater(error);
      });
      return;
    }
    try {
      this.#written(writeSync(this.#fd, this.#chunk));
    } catch (error) {
      this.#flushLater(error);
    }
  };

  #written(bytes: number): void {
    this.#take(bytes);
    if (this.#isDropping && this.#queuedBytes <= RESUME_BYTES) {
      this.#isDropping = false;
      const dropped = this.#dropped - this.#reported;
      this.#reported = this.#dropped;
      this.onResumed(dropped);
    }
    this.#status = "scheduled";
    setImmediate(this.#flush);
  }

  #flushLater(error: unknown): void {
    this.#status = "scheduled";
    setTimeout(this.#flush, isFull(error) ? RETRY_MS : ERROR_RETRY_MS).unref();
  }

  #fillChunk(): boolean {
    if (this.#chunk.length > 0) return true;
    if (this.#lines.length === 0) return false;
    let bytes = 0;
    let count = 0;
    while (count < this.#lines.length && bytes < MAX_CHUNK_BYTES)
      bytes += this.#lines[count++]?.length ?? 0;
    this.#chunk = Buffer.from(this.#lines.splice(0, count).join(""));
    return true;
  }

  #take(bytes: number): void {
    this.#chunk = this.#chunk.subarray(bytes);
    this.#queuedBytes -= bytes;
  }
}

function isFull(error: unknown): boolean {
  return error instanceof Error && "code" in error && error.code === "EAGAIN";
}

/**
 * Opens the terminal again for non-blocking writes. The shell shares the original descriptor, which
 * must stay blocking.
 */
function reopenTerminal(fd: number): number | undefined {
  if (!isatty(fd)) return undefined;
  const { O_WRONLY, O_NOCTTY, O_NONBLOCK } = constants;
  try {
    return openSync(`/proc/self/fd/${fd}`, O_WRONLY | O_NOCTTY | O_NONBLOCK);
  } catch {
    return undefined; // no /proc, or a terminal of another user
  }
}

/** Switches the descriptor to non-blocking writes. Node.js can do this only through a Socket. */
function setNonBlocking(fd: number): boolean {
  try {
    const stats = fstatSync(fd);
    if (!stats.isFIFO() && !stats.isSocket()) return false;
    new Socket({ fd, readable: false, writable: true }).unref();
    return true;
  } catch {
    return false; // closed, or a kind of socket that Node.js does not support
  }
}
