// Keeps a second process out of the data folder. The owner is recorded in a row of the database.
// The folder is acquired and released in LMDB transactions, which exclude each other, so only one
// of two competing processes gets the folder. A dead owner does not block a start. If the owner and
// this process run in the same scope (see `Owner`), the owner's pid and start time show whether the
// owner is alive. Otherwise, the owner counts as dead if it writes no heartbeat for SILENCE_MS. A
// paused owner may lose the folder in this way, and must notice the loss before it acknowledges a
// write: `assertHeld` and `assertWasHeld` check this for the WAL, `Fence` for the database.

import { randomBytes } from "node:crypto";
import { readFileSync, readlinkSync, statSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { TransactionFlags } from "lmdb";
import { BrokerError } from "../../../broker/errors.ts";
import { DATA_FILE, DATABASE_FOLDER } from "./data-folder.ts";
import { type Database, fieldsOf } from "./database.ts";
import { Heartbeat } from "./heartbeat.ts";

const OWNER = "owner";
const VERSION = 1;
const HEARTBEAT_MS = 1000;
/** Time without a heartbeat after which an owner counts as dead if its pid cannot be checked. */
export const SILENCE_MS = 5000;
/** Time after a heartbeat during which a write may begin without reading the owner's row. */
const LEASE_MS = 3000;
/** Time after a heartbeat during which writes may be acknowledged. Shorter than SILENCE_MS. */
const ANSWER_MS = 4000;
const EXIT_WAIT_MS = 500;
const EXIT_CHECK_MS = 50;

/**
 * Flags for a commit that does not wait for the disk. A change of owner need not survive a power
 * loss, because the power loss also ends the owner's process.
 */
const COMMITTED = TransactionFlags.SYNCHRONOUS_COMMIT | TransactionFlags.NO_SYNC_FLUSH;

interface Owner {
  readonly token: string;
  readonly pid: number;
  readonly startedAt: string;
  /**
   * Identifies where the pid is valid: the boot id (or the host name) and the pid namespace. Also
   * identifies the folder, because a copy of the folder contains the row of an owner that does not
   * use the copy.
   */
  readonly scope: string;
}

/** Whether an owner's process is running. `unknown` if this cannot be determined from its pid. */
type Liveness = "running" | "ended" | "unknown";

export class FolderLock {
  readonly #tables: Database;
  readonly #folder: string;
  readonly #file: string;
  readonly #fileId: string;
  readonly #heartbeat: Heartbeat;
  readonly #owner: Owner;
  readonly #onLost: (error: BrokerError) => void;
  #timer: NodeJS.Timeout | undefined;
  /** Start of the newest heartbeat that confirmed ownership, on the monotonic clock. */
  #confirmedAt = Number.NEGATIVE_INFINITY;
  #lost: BrokerError | undefined;

  /**
   * Must be called right after the database has been opened. `onLost` is called once if another
   * process acquires the folder or the database file is replaced. `onLost` must end the process.
   */
  constructor(tables: Database, folder: string, onLost: (error: BrokerError) => void) {
    this.#tables = tables;
    this.#folder = folder;
    this.#file = join(folder, DATABASE_FOLDER, DATA_FILE);
    this.#fileId = idOf(this.#file);
    this.#onLost = onLost;
    const token = randomBytes(12).toString("hex");
    this.#heartbeat = new Heartbeat(folder, token);
    this.#owner = {
      token,
      pid: process.pid,
      startedAt: processStart(process.pid) ?? "",
      scope: scopeOf(folder),
    };
  }

  /**
   * Acquires the folder. Calls `onWait` before it waits for a heartbeat from the previous owner.
   */
  async acquire(signal?: AbortSignal, onWait = () => {}): Promise<void> {
    let dead: { readonly token: string; readonly beat?: string } | undefined;
    for (;;) {
      const holder = this.#tryAcquire(dead?.token);
      if (holder === undefined) break;
      const beat = this.#heartbeat.read();
      let liveness = await livenessOf(holder, this.#owner.scope);
      dead = { token: holder.token };
      if (liveness === "unknown") {
        onWait();
        const isSilent = await this.#heartbeat.stays(beat, SILENCE_MS, signal);
        liveness = isSilent ? "ended" : "running";
        dead = { token: holder.token, beat };
      }
      if (liveness === "running")
        throw new BrokerError("unavailable", {
          message: `The data folder ${this.#folder} is in use by process ${holder.pid}. Stop that process, or set a different store.path.`,
        });
    }
    // A newer heartbeat means that the old owner resumed after the check above, before it lost the
    // folder. The old owner may acknowledge writes until its lease ends.
    if (dead?.beat !== undefined && this.#heartbeat.read() !== dead.beat)
      await pause(ANSWER_MS + HEARTBEAT_MS, undefined, { signal });
    this.#confirm();
    this.#timer = setInterval(() => this.#renewLease(), HEARTBEAT_MS);
    this.#timer.unref();
  }

  /**
   * Throws if another process may own the folder. Must be called before a write outside the
   * database.
   */
  assertHeld(): void {
    if (performance.now() - this.#confirmedAt >= LEASE_MS) this.#confirm();
  }

  /**
   * Throws if another process may own the folder. Must be called after a write outside the database
   * and before its acknowledgement, because the process may have been paused. If the method
   * returns, a later owner finds the write in the WAL.
   */
  assertWasHeld(): void {
    if (performance.now() - this.#confirmedAt >= ANSWER_MS) this.#confirm();
  }

  assertHeldNow(): void {
    this.#confirm();
  }

  release(): boolean {
    clearInterval(this.#timer);
    const { env, meta } = this.#tables;
    return env.transactionSync(() => {
      if (readOwner(meta)?.token !== this.#owner.token) return false;
      meta.removeSync(OWNER);
      return true;
    }, COMMITTED);
  }

  /** Records a clean stop. Must be called only after `release` has returned true. */
  markStopped(state: string): void {
    this.#heartbeat.stop(state);
  }

  #tryAcquire(deadToken: string | undefined): Owner | undefined {
    const { env, meta, fence } = this.#tables;
    return env.transactionSync(() => {
      const owner = readOwner(meta);
      if (owner !== undefined && owner.token !== deadToken) return owner;
      const { token, pid, startedAt, scope } = this.#owner;
      meta.putSync(OWNER, [VERSION, token, pid, startedAt, scope]);
      fence.open(fence.next(), () => this.#markLost());
      return undefined;
    }, COMMITTED);
  }

  /**
   * Confirms ownership. The order matters: first the heartbeat, then the read of the owner's row. A
   * process that acquires the folder does the opposite: it commits the row and then reads the
   * heartbeat. So at least one of the two processes notices the other process.
   */
  #confirm(): void {
    if (this.#lost !== undefined) throw this.#lost;
    const startedAt = performance.now();
    try {
      this.#heartbeat.beat();
    } catch (cause) {
      throw new BrokerError("unavailable", {
        message: `The heartbeat in the data folder ${this.#folder} cannot be written. Check the permissions of the folder and the free space of its disk.`,
        cause,
      });
    }
    this.#assertFileInPlace();
    const { env, meta } = this.#tables;
    env.resetReadTxn(); // the open read transaction may be older than a pause of this process
    if (readOwner(meta)?.token !== this.#owner.token) throw this.#markLost();
    this.#confirmedAt = startedAt;
  }

  /**
   * Throws if the database file is missing or was replaced. A missing file does not end the
   * process, because the operator can copy the open file from /proc only while the process runs.
   */
  #assertFileInPlace(): void {
    let id: string;
    try {
      id = idOf(this.#file);
    } catch (cause) {
      throw new BrokerError("unavailable", {
        message: `The database ${this.#file} cannot be found. Put the file back.`,
        cause,
      });
    }
    if (id === this.#fileId) return;
    throw this.#markLost(
      `The database ${this.#file} was replaced by a different file while this process was using it. This process ends now, because its writes would be lost. Stop the broker before you restore a copy, and restore the whole folder.`,
    );
  }

  #markLost(
    message = `Another process acquired the data folder ${this.#folder} while this process was paused, or its database was overwritten with a different one. This process ends now.`,
  ): BrokerError {
    if (this.#lost !== undefined) return this.#lost;
    clearInterval(this.#timer);
    this.#lost = new BrokerError("unavailable", { message });
    this.#onLost(this.#lost);
    return this.#lost;
  }

  #renewLease(): void {
    try {
      this.#confirm();
    } catch {
      // If the folder is lost, `onLost` was called. After any other error, a later write confirms
      // ownership again and fails if the error persists.
    }
  }
}

export function readOwner(meta: Pick<Database["meta"], "get">): Owner | undefined {
  const stored = meta.get(OWNER);
  if (stored === undefined) return undefined;
  const [token, pid, startedAt, scope] = fieldsOf(stored, VERSION);
  return {
    token: String(token),
    pid: Number(pid),
    startedAt: String(startedAt),
    scope: String(scope),
  };
}

/** Returns the state of the owner's process. Waits up to `EXIT_WAIT_MS` for the process to end. */
export async function livenessOf(owner: Owner, scope: string): Promise<Liveness> {
  if (owner.scope !== scope) return "unknown";
  for (let waitedMs = 0; ; waitedMs += EXIT_CHECK_MS) {
    const startedAt = processStart(owner.pid);
    if (startedAt === undefined) return "ended";
    if (startedAt !== owner.startedAt) return startedAt === "" ? "unknown" : "ended";
    if (waitedMs >= EXIT_WAIT_MS) break;
    await pause(EXIT_CHECK_MS);
  }
  // Without start times, the pid may now belong to another process, for example to this one.
  return owner.startedAt === "" && owner.pid === process.pid ? "unknown" : "running";
}

/**
 * Returns the start time of a process, "" if the system does not report it, or `undefined` if
 * the process is not running.
 */
function processStart(pid: number): string | undefined {
  if (!isRunning(pid)) return undefined;
  if (process.platform !== "linux") return "";
  try {
    const line = readFileSync(`/proc/${pid}/stat`, "utf8");
    // The process name in parentheses may contain anything. After the name, the state is the 1st
    // field and the start time the 20th.
    const fields = line.slice(line.lastIndexOf(")") + 2).split(" ");
    return fields[0] === "Z" || fields[0] === "X" ? undefined : fields[19];
  } catch {
    // The process has just ended, or /proc is missing or hides the processes of other users.
    return isRunning(pid) ? "" : undefined;
  }
}

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM"; // another user's process
  }
}

export function scopeOf(path: string): string {
  return `${bootId() ?? hostname()} ${pidNamespace()} ${idOf(path)}`;
}

function idOf(path: string): string {
  const { dev, ino } = statSync(path);
  return `${dev}:${ino}`;
}

function pidNamespace(): string {
  try {
    return readlinkSync("/proc/self/ns/pid");
  } catch {
    return ""; // not Linux, or /proc is missing
  }
}

/**
 * Returns the machine's boot id, or `undefined` if the boot id cannot be read (as in a sandbox
 * without /proc/sys).
 */
export function bootId(): string | undefined {
  try {
    return readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim() || undefined;
  } catch {
    return undefined;
  }
}
