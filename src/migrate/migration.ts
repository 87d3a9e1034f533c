// Moves the data of an embedded store's folder into Redis before a node serves. The process with
// the lease moves; the others wait and report the status. Failures are retried with increasing
// delay unless no retry helps. State: the status, the access tokens last read from the folder, the
// open connection.

import { setTimeout as pause } from "node:timers/promises";
import { BrokerError } from "../broker/errors.ts";
import type { RedisSettings } from "../redis/client.ts";
import { UnusableRedis } from "../redis/format.ts";
import { RedisLink } from "../redis/link.ts";
import { ReplicationBarrier } from "../redis/replication.ts";
import { openMoveSource, readSourceSummary, type SourceSummary } from "../store/embedded/export.ts";
import { accessTokenOwner } from "../store/redis/steps/managers.ts";
import { type CopyPorts, copyAll, MoveStuck } from "./copy.ts";
import { MoveTarget } from "./facts.ts";
import { Lease } from "./lease.ts";
import {
  enterMove,
  type MoveProgress,
  type MoveRecord,
  type MoveSnapshot,
  readMove,
  saveRecord,
} from "./record.ts";
import { MOVE_STEPS } from "./tables.ts";

type FolderOptions = Parameters<typeof openMoveSource>[0];

interface MoveSettings {
  /** The embedded store's folder; "": only waits for the move of another process. */
  readonly from: string;
  readonly redis: RedisSettings;
  /** A node without a heartbeat for so long is dead. */
  readonly deadAfterMs: number;
  /** A move without a process for so long is reported as abandoned. */
  readonly abandonedAfterMs?: number;
  /** The settings of the store on the folder. */
  readonly store: Omit<FolderOptions, "path" | "clock" | "onError" | "onLost"> & {
    readonly retentionS: number;
  };
}

/** Notifications about the move. */
export interface MoveEvents
  extends Pick<CopyPorts, "onProgress" | "onCompared">,
    Pick<FolderOptions, "onLost"> {
  /**
   * An attempt failed; the next one follows in `retryMs`, undefined: no retry helps.
   */
  readonly onFailure: (error: BrokerError, retryMs: number | undefined) => void;
  /** Called with each poll while another process moves, or none does. */
  readonly onWaiting: (other: OtherMove) => void;
  /** A failure that no caller receives. */
  readonly onError: (error: unknown, what: string) => void;
}

/** A move by another process. */
export interface OtherMove extends MoveProgress {
  /** Why its last attempt failed, until the next one begins; or that it is abandoned. */
  readonly lastErr: string | undefined;
  readonly isAbandoned: boolean;
}

/** As `/migrate/result` has it [spec: Migration result]. */
interface MigrationStatus {
  readonly status: "running" | "completed" | "migrated" | "failed";
  readonly step: string;
  readonly lastErr: string | null;
  readonly tryCount: number;
}

const POLL_MS = 250;
const MAX_POLL_MS = 1000;
const RETRY_MS = 1000;
const MAX_RETRY_MS = 30_000;
/**
 * Longer than a process pauses between two attempts, plus the time to open the folder.
 */
const ABANDONED_AFTER_MS = MAX_RETRY_MS + 5000;
const TOKEN_RETRY_MS = 5000;
const ABANDONED =
  "Nobody moves the data any more; start a process with migrate.from, or jindou migrate, which goes on where it was";
const LOST =
  "Redis has lost what it held of the move; start a process with migrate.from, or jindou migrate, which begins again; or this node again, which then serves what there is";

export class Migration {
  readonly #settings: MoveSettings;
  readonly #events: MoveEvents;
  readonly #clock: () => number;
  readonly #closing = new AbortController();
  #state: Omit<MigrationStatus, "tryCount"> = {
    ...{ status: "migrated", step: "", lastErr: null },
  };
  #tries = 0;
  /**
   * A record was read: if it disappears, Redis lost it, and the process keeps waiting.
   */
  #isAwaited = false;
  /** The error after which this process does not retry. */
  #stuck: MoveStuck | undefined;
  #nobodySinceMs: number | undefined;
  #link: RedisLink | undefined;
  #look: SourceSummary | undefined;

  /** Nothing is opened yet. `clock`: Unix milliseconds. */
  constructor(settings: MoveSettings, events: MoveEvents, clock: () => number = Date.now) {
    this.#settings = settings;
    this.#events = events;
    this.#clock = clock;
  }

  get state(): MigrationStatus {
    return { ...this.#state, tryCount: this.#tries };
  }

  /** The data is there. */
  get isOver(): boolean {
    const { status } = this.#state;
    return status === "completed" || status === "migrated";
  }

  /**
   * Whether the node must wait for a move. False for a node without a folder while Redis is away.
   * Throws `internal` with an error message when Redis holds what this build cannot use.
   */
  async isPending(): Promise<boolean> {
    await this.#lookIntoFolder();
    try {
      const now = await this.#use((link) => this.#read(link));
      if (await this.#isDone(now)) return false;
      this.#setStatus("running", now.record?.step);
      return true;
    } catch (error) {
      if (asProblem(error).code !== "unavailable") throw error;
      if (this.#hasFolder) this.#setStatus("running");
      return this.#hasFolder;
    }
  }

  /**
   * Throws `unavailable` with an error message when a move began after `isPending`. A node calls it
   * after its first heartbeat, which the process that moves looks for.
   */
  async assertNoneBegan(): Promise<void> {
    const { record, isMoving } = await this.#use(readMove);
    if (record === undefined ? isMoving : !record.isDone) throw began();
  }

  /**
   * The same for a node that serves and was declared dead, after the first heartbeat of its new
   * incarnation. Retries until Redis answers and no process holds the lease without a record.
   * Resolves after `close`.
   */
  async assertNoneBeganMeanwhile(): Promise<void> {
    const { signal } = this.#closing;
    while (!signal.aborted) {
      const now = await this.#use(readMove).catch(() => undefined);
      if (now?.record?.isDone === false) throw began();
      if (now?.record !== undefined || now?.isMoving === false) return;
      await pause(POLL_MS, undefined, { signal }).catch(() => undefined);
    }
  }

  /**
   * The owner of an access token as stored, by the token's SHA-256, until the move is done;
   * undefined: the token is not valid. Throws `unavailable` while that is unknown. Until all tokens
   * are in Redis those last read from the folder are valid: a logout at a node that still uses the
   * folder is noticed with the next attempt.
   */
  async accessTokenOwner(hash: Uint8Array): Promise<string | undefined> {
    const { step } = this.#state;
    const areMoved = step !== "" && step !== MOVE_STEPS[0];
    const link = this.#link?.isUp === true ? this.#link : undefined;
    if (this.#look !== undefined && !(areMoved && link)) {
      const known = this.#look.tokens.get(Buffer.from(hash).toString("hex"));
      return known && this.#clock() < known.expiresAtMs ? known.owner : undefined;
    }
    const parts = { link, clock: this.#clock };
    const owner = link && (await accessTokenOwner({ ...parts, link }, hash));
    if (owner === undefined && !(areMoved && link))
      throw new BrokerError("unavailable", {
        message:
          "The owner of this access token is unknown before the managers' data is moved; the static token of api.token can be used",
        retryAfterMs: TOKEN_RETRY_MS,
      });
    return owner;
  }

  /**
   * Retries until the data is in Redis; where no retry of this process helps it waits for another
   * process. Throws `unavailable` after `close`, and `internal` as `isPending`.
   */
  async run(): Promise<void> {
    for (let retryMs = RETRY_MS; ; ) {
      const error = await this.once().catch((thrown: unknown) => thrown);
      if (error === undefined) return;
      this.#assertOpen();
      const problem = asProblem(error);
      if (problem.cause instanceof UnusableRedis) throw problem;
      const isStuck = problem instanceof MoveStuck;
      this.#events.onFailure(problem, isStuck ? undefined : retryMs);
      if (isStuck) continue;
      await this.#pause(retryMs);
      retryMs = Math.min(retryMs * 2, MAX_RETRY_MS);
    }
  }

  /**
   * The same without retries: throws BrokerError.
   */
  async once(): Promise<void> {
    const before = this.#tries;
    try {
      await this.#use((link) => this.#follow(link));
    } catch (error) {
      const problem = asProblem(error);
      if (this.#tries === before) this.#tries += 1; // the attempt failed before it was counted
      this.#setStatus("failed", this.#state.step, problem.message);
      if (problem instanceof MoveStuck) this.#stuck = problem;
      throw error;
    }
  }

  /** Ends the attempt after the current page. Safe to call twice. */
  close(): void {
    this.#closing.abort();
  }

  get #hasFolder(): boolean {
    return this.#settings.from !== "";
  }

  /** Resolves when the data is in Redis or there is nothing to wait for. */
  async #follow(link: RedisLink): Promise<void> {
    for (let pollMs = POLL_MS; ; pollMs = Math.min(pollMs * 2, MAX_POLL_MS)) {
      this.#assertOpen();
      const now = await this.#read(link);
      if (await this.#isDone(now)) return;
      const mayMove = this.#hasFolder && !this.#stuckAt(now.record);
      if (mayMove && !now.isMoving && (await this.#attempt(link))) return;
      this.#wait(now);
      await this.#pause(pollMs);
    }
  }

  async #read(link: RedisLink): Promise<MoveSnapshot> {
    const now = await readMove(link);
    this.#isAwaited ||= now.record !== undefined;
    this.#tries = Math.max(this.#tries, now.record?.tries ?? 0);
    return now;
  }

  /**
   * Whether the data was moved before, or there is nothing to move. False where the data of another
   * folder was moved: the attempt then fails.
   */
  async #isDone({ record, isMoving }: MoveSnapshot): Promise<boolean> {
    const isNothing = !this.#hasFolder && !isMoving && !this.#isAwaited;
    if (!(record?.isDone ?? isNothing)) return false;
    if (record !== undefined && this.#hasFolder) {
      // The folder may have been removed, or be on another machine.
      const look = await readSourceSummary(this.#settings.from);
      if (look !== undefined && look.id !== record.source) return false;
    }
    this.#setStatus("migrated", record?.step);
    return true;
  }

  /**
   * True: this process has moved everything. False: another process has the lease or has moved
   * everything.
   */
  async #attempt(link: RedisLink): Promise<boolean> {
    const lease = new Lease(link);
    if (!(await lease.take())) return false;
    try {
      this.#tries += 1;
      this.#setStatus("running", "", this.#state.lastErr);
      await this.#lookIntoFolder();
      const { from, store } = this.#settings;
      const { onError, onLost } = this.#events;
      const source = await openMoveSource({
        ...{ ...store, path: from, clock: this.#clock, onError, onLost },
      });
      try {
        await lease.renew(); // opening may have held the event loop up
        return await this.#move(link, lease, source);
      } finally {
        await source.close();
      }
    } finally {
      await lease.release();
    }
  }

  async #move(link: RedisLink, lease: Lease, source: CopyPorts["source"]): Promise<boolean> {
    const { deadAfterMs, store } = this.#settings;
    const record = await enterMove({
      ...{ link, lease, source: source.id, nowMs: this.#clock(), deadAfterMs },
      pause: (ms) => this.#pause(ms),
    });
    if (record.isDone) return false; // by another process in the meantime
    const target = new MoveTarget(link, (key) => lease.untilOf(key));
    const save: CopyPorts["save"] = (change) => saveRecord(link, lease, change);
    const barrier = new ReplicationBarrier(link);
    try {
      await save({ tries: this.#tries, lastErr: "" });
      await copyAll({
        ...{ source, target, record, save },
        context: {
          ...{ link, clock: this.#clock, beganAtMs: record.beganAtMs },
          dedupeWindowMs: store.dedupeWindowS * 1000,
          retentionMs: store.retentionS * 1000,
        },
        assertGoing: () => {
          this.#assertOpen();
          lease.assertHeld();
        },
        onProgress: (progress) => {
          this.#state = { ...this.#state, step: progress.step };
          this.#events.onProgress(progress);
        },
        onCompared: this.#events.onCompared,
      });
      await barrier.wait();
      await save({ isDone: true, lastErr: "", differing: "" });
      this.#setStatus("completed", this.#state.step);
      return true;
    } catch (error) {
      if (!target.isAnswered) lease.noteUnanswered();
      const lastErr = asProblem(error).message;
      if (link.isUp) await save({ lastErr }).catch(() => undefined); // best effort, for waiting processes
      throw error;
    } finally {
      barrier.close();
    }
  }

  /** Updates the status while another process moves, or none does. */
  #wait({ record, isMoving }: MoveSnapshot): void {
    const nowMs = performance.now();
    if (isMoving) this.#nobodySinceMs = undefined;
    else this.#nobodySinceMs ??= nowMs;
    const { abandonedAfterMs = ABANDONED_AFTER_MS } = this.#settings;
    const forMs = nowMs - (this.#nobodySinceMs ?? nowMs);
    const isAbandoned = forMs > abandonedAfterMs;
    const stuck = isMoving ? undefined : this.#stuckAt(record);
    const itsErr = record?.lastErr || undefined;
    const why = record === undefined ? LOST : ABANDONED;
    const abandoned = itsErr ? `${why}; its last error: ${itsErr}` : why;
    const lastErr = stuck ?? (isAbandoned ? abandoned : itsErr);
    if (record !== undefined || !this.#hasFolder)
      this.#setStatus(lastErr ? "failed" : "running", record?.step, lastErr);
    if (stuck !== undefined && !isAbandoned) return; // `onFailure` reported it
    const { step = "", rows: done = 0, total = 0 } = record ?? {};
    this.#events.onWaiting({ step, done, total, lastErr, isAbandoned });
  }

  /** Why this process does not retry this move; undefined: it does. */
  #stuckAt(record: MoveRecord | undefined): string | undefined {
    const stuck = this.#stuck;
    return record?.beganAtMs === stuck?.beganAtMs ? stuck?.message : undefined;
  }

  #setStatus(status: MigrationStatus["status"], step = "", lastErr: string | null = null): void {
    this.#state = { status, step, lastErr };
  }

  /** Errors of the folder are reported when it is opened. */
  async #lookIntoFolder(): Promise<void> {
    if (!this.#hasFolder) return;
    this.#look = await readSourceSummary(this.#settings.from).catch(() => undefined);
  }

  /**
   * Runs `use` with a connection of its own. Throws BrokerError when Redis cannot be used.
   */
  async #use<T>(use: (link: RedisLink) => Promise<T>): Promise<T> {
    const { onError } = this.#events;
    const parts = { name: "jindou-migrate", onError };
    const link = new RedisLink(this.#settings.redis, parts);
    await link.start().catch(redisTrouble);
    this.#link = link;
    try {
      return await use(link);
    } finally {
      this.#link = undefined;
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

function redisTrouble(cause: unknown): never {
  const words = cause instanceof Error ? cause.message : String(cause);
  const message = `Redis cannot be used: ${words}`;
  const isUnusable = cause instanceof UnusableRedis; // no retry helps
  throw new BrokerError(isUnusable ? "internal" : "unavailable", {
    ...{ message, cause },
  });
}

/** Any other error keeps its message: the operator reads it. */
function asProblem(error: unknown): BrokerError {
  if (error instanceof BrokerError) return withWords(error);
  const message = error instanceof Error ? error.message : String(error);
  return new BrokerError("unavailable", { message, cause: error });
}

/** An error with the general message of its code gets that of its cause: a reply of Redis, say. */
function withWords(error: BrokerError): BrokerError {
  const { code, message, cause } = error;
  const isGeneral = message === new BrokerError(code).message;
  if (!(isGeneral && cause instanceof Error)) return error;
  return new BrokerError(code, { message: cause.message, cause: error });
}

function began(): BrokerError {
  return new BrokerError("unavailable", {
    message:
      "Data is being moved into this Redis since a moment ago; start the node again, it then waits for it",
  });
}
