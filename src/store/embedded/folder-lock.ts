// Keeps a second process off the data folder. The owner stands in the database; taking and giving it up are LMDB transactions, which only
// one process at a time can be in, so of two that race one wins. Owns the token and the heartbeat timer.
// A dead owner does not block: within one boot and pid namespace the pid and its start time tell; across them a silent heartbeat does.

import { randomBytes } from "node:crypto";
import { closeSync, openSync, readFileSync, readlinkSync } from "node:fs";
import { stat, utimes } from "node:fs/promises";
import { hostname } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { TransactionFlags } from "lmdb";
import { BrokerError } from "../../broker/errors.ts";
import { fieldsOf, type Tables } from "./database.ts";

const OWNER = "owner";
const VERSION = 1;
const HEARTBEAT_FILE = "heartbeat";
const HEARTBEAT_MS = 1000;
/** An owner in another pid namespace that is silent for so long is dead. */
const SILENCE_MS = 5000;
/** How long a process may take to die, and between looks at it. */
const DYING_MS = 500;
const DYING_STEP_MS = 50;

/** Seen by every process; need not survive a power cut, which no owner does. */
const COMMITTED =
  TransactionFlags.SYNCHRONOUS_COMMIT | TransactionFlags.NO_SYNC_FLUSH;

interface Owner {
  readonly token: string;
  readonly pid: number;
  /** When the process started, in the system's own terms; "" where that is not known. */
  readonly startedAt: string;
  /** Within which pids mean something: boot and pid namespace, or host. */
  readonly scope: string;
}

export class FolderLock {
  readonly #tables: Tables;
  readonly #heartbeat: string;
  readonly #owner: Owner;
  #timer: NodeJS.Timeout | undefined;

  constructor(tables: Tables, folder: string) {
    this.#tables = tables;
    this.#heartbeat = join(folder, HEARTBEAT_FILE);
    this.#owner = {
      token: randomBytes(12).toString("hex"),
      pid: process.pid,
      startedAt: processStart(process.pid) ?? "",
      scope: pidScope(),
    };
  }

  /** Becomes the owner or throws `unavailable` with a sentence. `silenceMs`: how long a foreign owner's heartbeat is watched. */
  async acquire(silenceMs = SILENCE_MS): Promise<void> {
    let dead: string | undefined;
    for (;;) {
      const holder = this.#take(dead);
      if (holder === undefined) break;
      if (await this.#isAlive(holder, silenceMs))
        throw new BrokerError("unavailable", {
          message: `The data folder is in use by process ${holder.pid}; stop it first, or set another store.path`,
        });
      dead = holder.token;
    }
    closeSync(openSync(this.#heartbeat, "w"));
    this.#timer = setInterval(() => void this.#beat(), HEARTBEAT_MS);
    this.#timer.unref();
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

  /** Takes the folder unless somebody but `dead` has it; returns who has. */
  #take(dead: string | undefined): Owner | undefined {
    const { env, meta } = this.#tables;
    return env.transactionSync(() => {
      const held = toOwner(meta.get(OWNER));
      if (held !== undefined && held.token !== dead) return held;
      const { token, pid, startedAt, scope } = this.#owner;
      meta.putSync(OWNER, [VERSION, token, pid, startedAt, scope]);
      return undefined;
    }, COMMITTED);
  }

  async #isAlive(owner: Owner, silenceMs: number): Promise<boolean> {
    if (owner.scope === this.#owner.scope) return outlives(owner);
    const before = await this.#lastBeat();
    await pause(silenceMs);
    return (await this.#lastBeat()) !== before;
  }

  async #lastBeat(): Promise<number> {
    try {
      return (await stat(this.#heartbeat)).mtimeMs;
    } catch {
      return 0; // no file: it never beat
    }
  }

  async #beat(): Promise<void> {
    const now = new Date();
    try {
      await utimes(this.#heartbeat, now, now);
    } catch {
      clearInterval(this.#timer); // the folder is gone: nothing is left to guard
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

/** A process that was just killed takes a moment to be gone: whoever restarts it at once is not to be refused. */
async function outlives({ pid, startedAt }: Owner): Promise<boolean> {
  for (let waitedMs = 0; waitedMs < DYING_MS; waitedMs += DYING_STEP_MS) {
    if (processStart(pid) !== startedAt) return false;
    await pause(DYING_STEP_MS);
  }
  return processStart(pid) === startedAt;
}

/** When the process started; "" when that cannot be told; undefined when it does not run. */
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
    // The name in parentheses may hold anything; state is the 1st field behind it, the start time the 20th.
    const fields = line.slice(line.lastIndexOf(")") + 2).split(" ");
    return fields[0] === "Z" || fields[0] === "X" ? undefined : fields[19];
  } catch {
    return undefined; // ended just now
  }
}

function pidScope(): string {
  if (process.platform !== "linux") return hostname();
  const boot = readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
  return `${boot} ${readlinkSync("/proc/self/ns/pid")}`;
}
