// Keeps a second process off the data folder. The owner is a row in the database; taking and giving
// it up are LMDB transactions, which only one process at a time can be in, so of two that race one
// wins. Owns the token, the lease and the heartbeat timer. A dead owner does not block: within one
// boot and pid namespace the pid and its start time decide; across them a silent heartbeat does. An
// owner that was only paused finds out before it answers anything: see `assertHeld` for the WAL and
// `Fence` for the database.

import { randomBytes } from "node:crypto";
import { closeSync, openSync, readFileSync, readlinkSync, statSync, utimesSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { TransactionFlags } from "lmdb";
import { BrokerError } from "../../../broker/errors.ts";
import { type Database, fieldsOf } from "./database.ts";
import { PRIVATE_FILE } from "./private-files.ts";

const OWNER = "owner";
const VERSION = 1;
export const HEARTBEAT_FILE = "heartbeat";
const HEARTBEAT_MS = 1000;
/** An owner in another pid namespace that is silent for so long is dead. */
const SILENCE_MS = 5000;
/**
 * For how long after a heartbeat the owner may begin a write, and answer it, without looking again:
 * less than SILENCE_MS.
 */
const LEASE_MS = 3000;
const ANSWER_MS = 4000;
/** How long a process may take to die, and between looks at it. */
const DYING_MS = 500;
const DYING_STEP_MS = 50;

/** Seen by every process; need not survive a power cut, which no owner does. */
const COMMITTED = TransactionFlags.SYNCHRONOUS_COMMIT | TransactionFlags.NO_SYNC_FLUSH;

interface Owner {
  readonly token: string;
  readonly pid: number;
  /** When the process started, in the system's own terms; "" where that is not known. */
  readonly startedAt: string;
  /** Within which pids mean something: boot and pid namespace, or host. */
  readonly scope: string;
}

export class FolderLock {
  readonly #tables: Database;
  readonly #folder: string;
  readonly #heartbeat: string;
  readonly #owner: Owner;
  readonly #onLost: (error: BrokerError) => void;
  #timer: NodeJS.Timeout | undefined;
  /** When the newest heartbeat that found this process the owner began, on the monotonic clock. */
  #confirmedAt = Number.NEGATIVE_INFINITY;
  #beatMs = 0;
  #lost: BrokerError | undefined;

  /**
   * `onLost` is called once, when another process has taken the folder; it must end the process.
   */
  constructor(tables: Database, folder: string, onLost: (error: BrokerError) => void) {
    this.#tables = tables;
    this.#folder = folder;
    this.#heartbeat = join(folder, HEARTBEAT_FILE);
    this.#onLost = onLost;
    this.#owner = {
      token: randomBytes(12).toString("hex"),
      pid: process.pid,
      startedAt: processStart(process.pid) ?? "",
      scope: pidScope(),
    };
  }

  /** Becomes the owner or throws `unavailable` with an error message. */
  async acquire(): Promise<void> {
    let dead: { readonly token: string; readonly beatMs?: number } | undefined;
    for (;;) {
      const holder = this.#take(dead?.token);
      if (holder === undefined) break;
      const beatMs = this.#lastBeat();
      if (holder.scope !== this.#owner.scope) {
        await pause(SILENCE_MS);
        dead = { token: holder.token, beatMs };
      } else dead = { token: holder.token };
      const isAlive =
        dead.beatMs === undefined ? await outlives(holder) : this.#lastBeat() !== beatMs;
      if (isAlive)
        throw new BrokerError("unavailable", {
          message: `The data folder is in use by process ${holder.pid}; stop it first, or set another store.path`,
        });
    }
    // It woke between the last look at it and its loss of the folder: it may answer until its lease
    // ends.
    if (dead?.beatMs !== undefined && this.#lastBeat() !== dead.beatMs)
      await pause(ANSWER_MS + HEARTBEAT_MS);
    this.#confirm();
    this.#timer = setInterval(() => this.#beat(), HEARTBEAT_MS);
    this.#timer.unref();
  }

  /**
   * To be called before a write outside the database. Costs a look at the clock, except after a
   * pause of more than LEASE_MS: then the owner's row is read again. Throws `unavailable`.
   */
  assertHeld(): void {
    if (performance.now() - this.#confirmedAt >= LEASE_MS) this.#confirm();
  }

  /**
   * To be called between a write outside the database and its answer: the process may have been
   * paused in between. Throws `unavailable`: then nothing of the write may be answered.
   *
   * When it returns, no other process has begun to read the WAL yet: one takes the folder only
   * after SILENCE_MS without a heartbeat, or waits until this lease is over (`acquire`). So it will
   * find what was written, and the answer stays true however late it leaves.
   */
  assertWasHeld(): void {
    if (performance.now() - this.#confirmedAt >= ANSWER_MS) this.#confirm();
  }

  /** As `assertHeld`, without trust in the lease. */
  assertHeldNow(): void {
    this.#confirm();
  }

  /** Gives the folder up. Safe to call twice. */
  release(): void {
    clearInterval(this.#timer);
    const { env, meta } = this.#tables;
    env.transactionSync(() => {
      const held = toOwner(meta.get(OWNER));
      if (held?.token === this.#owner.token) meta.removeSync(OWNER);
    }, COMMITTED);
  }

  /** Takes the folder unless a process other than `dead` has it; returns the owner then. */
  #take(dead: string | undefined): Owner | undefined {
    const { env, meta, fence } = this.#tables;
    return env.transactionSync(() => {
      const held = toOwner(meta.get(OWNER));
      if (held !== undefined && held.token !== dead) return held;
      const { token, pid, startedAt, scope } = this.#owner;
      meta.putSync(OWNER, [VERSION, token, pid, startedAt, scope]);
      fence.open(fence.next(), () => this.#lose());
      return undefined;
    }, COMMITTED);
  }

  /**
   * Extends the lease. The order matters: a heartbeat that others see, then the look at the row. A
   * process that takes the folder commits the row first and looks at the heartbeat then; so one of
   * the two notices the other.
   */
  #confirm(): void {
    if (this.#lost !== undefined) throw this.#lost;
    const startedAt = performance.now();
    try {
      this.#touch();
    } catch (cause) {
      throw new BrokerError("unavailable", {
        message: `The heartbeat in the data folder ${this.#folder} cannot be written`,
        cause,
      });
    }
    const { env, meta } = this.#tables;
    env.resetReadTxn(); // what it has may be older than the pause
    if (toOwner(meta.get(OWNER))?.token !== this.#owner.token) throw this.#lose();
    this.#confirmedAt = startedAt;
  }

  #lose(): BrokerError {
    if (this.#lost !== undefined) return this.#lost;
    clearInterval(this.#timer);
    this.#lost = new BrokerError("unavailable", {
      message: `Another process has taken the data folder ${this.#folder} while this one was paused; this one must end`,
    });
    this.#onLost(this.#lost);
    return this.#lost;
  }

  #lastBeat(): number {
    // No file: it never beat.
    return statSync(this.#heartbeat, { throwIfNoEntry: false })?.mtimeMs ?? 0;
  }

  #touch(): void {
    this.#beatMs = Math.max(Date.now(), this.#beatMs + 1); // no two beats look the same
    const at = this.#beatMs / 1000;
    try {
      utimesSync(this.#heartbeat, at, at);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
      closeSync(openSync(this.#heartbeat, "w", PRIVATE_FILE));
    }
  }

  #beat(): void {
    try {
      this.#confirm();
    } catch {
      // Lost: `onLost` was called. Else the next write is refused with the reason.
    }
  }
}
function toOwner(stored: readonly unknown[] | undefined): Owner | undefined {
  if (stored === undefined) return undefined;
  const [token, pid, startedAt, scope] = fieldsOf(stored, VERSION);
  return {
    token: String(token),
    pid: Number(pid),
    startedAt: String(startedAt),
    scope: String(scope),
  };
}

/**
 * A process that was just killed takes a moment to be gone: a restart at once must not be refused.
 */
async function outlives({ pid, startedAt }: Owner): Promise<boolean> {
  for (let waitedMs = 0; waitedMs < DYING_MS; waitedMs += DYING_STEP_MS) {
    if (processStart(pid) !== startedAt) return false;
    await pause(DYING_STEP_MS);
  }
  return processStart(pid) === startedAt;
}

/** When the process started; "" when that is unknown; undefined when it does not run. */
function processStart(pid: number): string | undefined {
  try {
    process.kill(pid, 0);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== "EPERM") return undefined;
  }
  if (process.platform !== "linux") return "";
  try {
    const line = readFileSync(`/proc/${pid}/stat`, "utf8");
    // The name in parentheses may hold anything; state is the 1st field behind it, the start time
    // the 20th.
    const fields = line.slice(line.lastIndexOf(")") + 2).split(" ");
    return fields[0] === "Z" || fields[0] === "X" ? undefined : fields[19];
  } catch {
    return undefined; // ended just now
  }
}

function pidScope(): string {
  const boot = bootId();
  if (boot === undefined) return hostname();
  return `${boot} ${readlinkSync("/proc/self/ns/pid")}`;
}

/** A UUID that the machine has until it boots again; undefined: the system does not give one. */
export function bootId(): string | undefined {
  if (process.platform !== "linux") return undefined;
  return readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
}
