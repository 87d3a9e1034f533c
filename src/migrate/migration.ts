// Moves the data of an embedded store's folder into Redis before a node serves anybody: one process does it, others wait for it and tell how it
// stands. What fails is tried again, later each time. State: how it stands, the tries, whether it is to end.

import { setTimeout as pause } from "node:timers/promises";
import { BrokerError } from "../broker/errors.ts";
import { UnusableRedis } from "../redis/format.ts";
import type { RedisLink } from "../redis/link.ts";
import type { MoveSource } from "../store/moved.ts";
import { type MoveRecord, readRecord } from "./record.ts";
import { mixes } from "./target.ts";
import { type TurnParts, takeTurn } from "./turn.ts";

/** How a move stands [spec: Migration result]. */
export interface MigrationState {
  readonly status: "running" | "completed" | "migrated" | "failed";
  readonly step: string;
  readonly lastErr: string | null;
  readonly tryCount: number;
}

export interface MoveFolder {
  /** Throws BrokerError with a sentence. */
  open(): Promise<MoveSource>;
  /** Of what `open` would open, without opening it; "": it has none yet, undefined: there is no data. */
  id(): Promise<string | undefined>;
}

export interface MigrationParts {
  /** A link that is not started; each look and each attempt has its own. It knows `migrationScripts`. */
  readonly connect: () => RedisLink;
  /** What is to be moved; undefined: this process only waits for another's move. */
  readonly folder: MoveFolder | undefined;
  /** Unix milliseconds. */
  readonly clock: () => number;
  readonly dedupeWindowS: number;
  readonly retentionS: number;
  readonly onProgress: TurnParts["onProgress"];
  /** An attempt failed; another follows in so many milliseconds. */
  readonly onFailure: (error: BrokerError, retryMs: number) => void;
}

const POLL_MS = 250;
const RETRY_MS = 1000;
const MAX_RETRY_MS = 30_000;

type Outcome = "completed" | "earlier" | "another";

export class Migration {
  readonly #parts: MigrationParts;
  readonly #closing = new AbortController();
  #state: MigrationState = standing("migrated");
  /** Of this process, and of those before it. */
  #tries = 0;
  #triesBefore = 0;

  constructor(parts: MigrationParts) {
    this.#parts = parts;
  }

  get state(): MigrationState {
    return this.#state;
  }

  /**
   * Whether there is something to wait for. Without a folder to move that is not known, and not said, while Redis is away. Throws `internal` with a
   * sentence when Redis holds what this build cannot use.
   */
  async isPending(): Promise<boolean> {
    try {
      const record = await this.#withLink(readRecord);
      this.#triesBefore = record?.tries ?? 0;
      const isDone =
        record === undefined
          ? !this.#moves
          : record.isDone && (await this.#isOurs(record));
      this.#state = isDone ? migrated(record) : this.#running(record?.step);
      return !isDone;
    } catch (error) {
      if (asProblem(error).code !== "unavailable") throw error;
      if (this.#moves) this.#state = this.#running();
      return this.#moves;
    }
  }

  /** Throws `unavailable` with a sentence when a move began that nobody knew of when `isPending` was asked: to be called by a node that others see. */
  async assertNoneBegan(): Promise<void> {
    const record = await this.#withLink(readRecord);
    if (record === undefined || record.isDone) return;
    throw new BrokerError("unavailable", {
      message:
        "Data is being moved into this Redis since a moment ago; start the node again, it then waits for it",
    });
  }

  /** Resolves when the data is in Redis, however long that takes. Throws `unavailable` after `close`, and where no retry can help as `isPending`. */
  async run(): Promise<void> {
    for (let retryMs = RETRY_MS; ; retryMs = nextRetry(retryMs)) {
      const error = await this.once().catch((thrown: unknown) => thrown);
      if (error === undefined) return;
      this.#assertOpen();
      const problem = asProblem(error);
      if (problem.cause instanceof UnusableRedis) throw problem;
      this.#parts.onFailure(problem, retryMs);
      await this.#pause(retryMs);
    }
  }

  /** The same, but what goes wrong is thrown, as a BrokerError or what the link's `start` throws. */
  async once(): Promise<void> {
    const before = this.#tries;
    try {
      for (;;) {
        const outcome = await this.#withLink((link) => this.#look(link));
        if (outcome !== "another") return;
        await this.#pause(POLL_MS);
      }
    } catch (error) {
      if (this.#tries === before) this.#tries += 1; // it did not get as far as the folder
      this.#failed(asProblem(error).message);
      throw error;
    }
  }

  /** Ends what is under way after its page. Safe to call twice. */
  close(): void {
    this.#closing.abort();
  }

  get #moves(): boolean {
    return this.#parts.folder !== undefined;
  }

  async #look(link: RedisLink): Promise<Outcome> {
    this.#assertOpen();
    const record = await readRecord(link);
    this.#triesBefore = Math.max(
      this.#triesBefore,
      (record?.tries ?? 0) - this.#tries,
    );
    if (record?.isDone === true || (record === undefined && !this.#moves)) {
      if (record !== undefined && !(await this.#isOurs(record)))
        throw mixes(link);
      this.#state = migrated(record);
      return "earlier";
    }
    if (await this.#takeTurn(link)) return "completed";
    if (record !== undefined) this.#state = told(record);
    return "another";
  }

  /** What was moved is what this process is to move, as far as that can be told: the folder may be gone or on another machine. */
  async #isOurs({ source }: MoveRecord): Promise<boolean> {
    const id = await this.#parts.folder?.id();
    return id === undefined || id === source;
  }

  /** False: another process is at it. */
  async #takeTurn(link: RedisLink): Promise<boolean> {
    const { folder } = this.#parts;
    if (folder === undefined) return false;
    const hasMoved = await takeTurn({
      ...{ ...this.#parts, link },
      open: () => folder.open(),
      begun: () => {
        this.#tries += 1;
        this.#state = this.#running(undefined, this.#state.lastErr);
        return this.#count();
      },
      assertOpen: () => this.#assertOpen(),
      onProgress: (progress) => this.#progress(progress),
    });
    if (hasMoved) this.#completed();
    return hasMoved;
  }

  #progress(progress: Parameters<TurnParts["onProgress"]>[0]): void {
    this.#state = { ...this.#state, step: progress.step };
    this.#parts.onProgress(progress);
  }

  #running(step = "", lastErr: string | null = null): MigrationState {
    return standing("running", { step, lastErr, tryCount: this.#count() });
  }

  #completed(): void {
    const { step } = this.#state;
    this.#state = standing("completed", { step, tryCount: this.#count() });
  }

  #failed(message: string): void {
    const { step } = this.#state;
    const tryCount = this.#count();
    this.#state = standing("failed", { step, lastErr: message, tryCount });
  }

  #count(): number {
    return this.#triesBefore + this.#tries;
  }

  async #withLink<T>(use: (link: RedisLink) => Promise<T>): Promise<T> {
    const link = this.#parts.connect();
    await link.start().catch(redisTrouble);
    try {
      return await use(link);
    } finally {
      await link.close();
    }
  }

  async #pause(ms: number): Promise<void> {
    const { signal } = this.#closing;
    await pause(ms, undefined, { signal }).catch(() => undefined); // `close` ends it
    this.#assertOpen();
  }

  #assertOpen(): void {
    if (this.#closing.signal.aborted)
      throw new BrokerError("unavailable", {
        message: "The migration was ended; it goes on at the next start",
      });
  }
}

function nextRetry(ms: number): number {
  return Math.min(ms * 2, MAX_RETRY_MS);
}

function standing(
  status: MigrationState["status"],
  over: Partial<MigrationState> = {},
): MigrationState {
  return { status, step: "", lastErr: null, tryCount: 0, ...over };
}

/** Moved earlier, or nothing to move. */
function migrated(record: MoveRecord | undefined): MigrationState {
  const { step = "", tries = 0 } = record ?? {};
  return standing("migrated", { step, tryCount: tries });
}

/** By another process. */
function told({ step, tries, lastErr }: MoveRecord): MigrationState {
  const status = lastErr === undefined ? "running" : "failed";
  return standing(status, {
    ...{ step, lastErr: lastErr ?? null, tryCount: tries },
  });
}

function redisTrouble(cause: unknown): never {
  const words = cause instanceof Error ? cause.message : String(cause);
  const message = `Redis cannot be used: ${words}`;
  const isUnusable = cause instanceof UnusableRedis;
  throw new BrokerError(isUnusable ? "internal" : "unavailable", {
    ...{ message, cause },
  });
}

/** Anything but a BrokerError of ours is told in its own words: it is for the operator. */
function asProblem(error: unknown): BrokerError {
  if (error instanceof BrokerError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return new BrokerError("unavailable", { message, cause: error });
}
