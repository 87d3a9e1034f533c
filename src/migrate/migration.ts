// Migrates the data in an embedded store's folder to Redis before a node serves clients. The
// process that holds the lease copies the data. The other processes wait and report the status. A
// failed attempt is repeated after an increasing delay, unless retrying cannot help. Only a process
// with a folder loads the modules that read the folder.

import { setTimeout as pause } from "node:timers/promises";
import { BrokerError } from "../broker/errors.ts";
import { messageOf } from "../observe/error-fields.ts";
import type { RedisSettings } from "../redis/client.ts";
import { UnusableRedis } from "../redis/errors.ts";
import { RedisLink } from "../redis/link.ts";
import type { OutageReport } from "../redis/outage.ts";
import { ReplicationBarrier } from "../redis/replication.ts";
import type { openMoveSource, SourceSummary } from "../store/embedded/export.ts";
import { accessTokenOwner } from "../store/redis/steps/managers.ts";
import type { CopyPorts } from "./copy.ts";
import { MoveTarget } from "./facts.ts";
import { Lease } from "./lease.ts";
import {
  enterMove,
  MOVE_STEPS,
  type MoveProgress,
  type MoveRecord,
  type MoveSnapshot,
  readMove,
  StuckMoveError,
  saveRecord,
} from "./record.ts";

type FolderOptions = Parameters<typeof openMoveSource>[0];

interface MoveSettings {
  /** Folder of the embedded store, or "" if this process only waits for another process. */
  readonly from: string;
  readonly redis: RedisSettings;
  readonly deadAfterMs: number;
  /** Time after which the migration is reported as abandoned if no process is copying. */
  readonly abandonedAfterMs?: number;
  readonly store: Omit<FolderOptions, "path" | "clock" | "onError" | "onLost"> & {
    readonly retentionS: number;
  };
}

export interface MoveEvents
  extends Pick<CopyPorts, "onProgress" | "onCompared">,
    Pick<FolderOptions, "onLost"> {
  readonly onNotice: (facts: object, what: string) => void;
  /** Called when an attempt has failed. `retryMs` is `undefined` if retrying cannot help. */
  readonly onFailure: (error: BrokerError, retryMs: number | undefined) => void;
  /**
   * Called at each poll while this process waits. Not called after a failure that a retry cannot
   * fix, until another process copies the data or the migration is abandoned.
   */
  readonly onWaiting: (other: OtherMove) => void;
  readonly onError: (error: unknown, what: string) => void;
  readonly onWarning?: (warning: string) => void;
  readonly onOutage: (report: OutageReport) => void;
}

export interface OtherMove extends MoveProgress {
  /**
   * Error of the last attempt, or a message about the abandoned migration. `undefined` if the
   * last attempt did not fail and the migration is not abandoned.
   */
  readonly lastErr: string | undefined;
  readonly isAbandoned: boolean;
}

/** The reply of `/migrate/result` [spec: Migration result]. */
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
/** Default for `abandonedAfterMs`. It is longer than any pause between two attempts. */
const ABANDONED_AFTER_MS = MAX_RETRY_MS + 5000;
const TOKEN_RETRY_MS = 5000;
const ABANDONED =
  "No process is migrating the data. To resume, start a process with migrate.from or run jindou migrate";
const LOST =
  "Redis has lost the record of the migration. To begin again, start a process with migrate.from or run jindou migrate. To serve the data that is in Redis, restart this node";

export class Migration {
  readonly #settings: MoveSettings;
  readonly #events: MoveEvents;
  readonly #clock: () => number;
  readonly #closing = new AbortController();
  #state: Omit<MigrationStatus, "tryCount"> = {
    ...{ status: "migrated", step: "", lastErr: null },
  };
  #tryCount = 0;
  /**
   * True if this process has ever read a record. If Redis later loses the record, the process
   * continues to wait.
   */
  #isAwaited = false;
  #stuck: StuckMoveError | undefined;
  #idleSinceMs: number | undefined;
  #link: RedisLink | undefined;
  #summary: SourceSummary | undefined;

  constructor(settings: MoveSettings, events: MoveEvents, clock: () => number = Date.now) {
    this.#settings = settings;
    this.#events = events;
    this.#clock = clock;
  }

  get state(): MigrationStatus {
    return { ...this.#state, tryCount: this.#tryCount };
  }

  get isOver(): boolean {
    const { status } = this.#state;
    return status === "completed" || status === "migrated";
  }

  /**
   * Returns true if the node must wait for a migration. If Redis cannot be reached, returns true if
   * the node has a folder. Throws `internal` if this build cannot use Redis or its data.
   */
  async isPending(): Promise<boolean> {
    await this.#readSummary();
    if (this.#hasFolder) this.#setStatus("running");
    try {
      const snapshot = await this.#use((link) => this.#read(link));
      if (await this.#isDone(snapshot)) return false;
      this.#setStatus("running", snapshot.record?.step);
      return true;
    } catch (error) {
      if (toBrokerError(error).code !== "unavailable") throw error;
      return this.#hasFolder;
    }
  }

  /**
   * Throws `unavailable` if a migration started after `isPending` returned. Must be called after
   * the first heartbeat, which prevents new migrations.
   */
  async assertNoneBegan(): Promise<void> {
    const { record, isMoving } = await this.#use(readMove);
    if (record === undefined ? isMoving : !record.isDone) throw alreadyStartedError();
  }

  /**
   * Throws `unavailable` if a migration started while this node was considered dead. Retries while
   * Redis cannot be read or a migration may be starting. Also resolves after `close`.
   */
  async assertNoneBeganMeanwhile(): Promise<void> {
    const { signal } = this.#closing;
    while (!signal.aborted) {
      const snapshot = await this.#use(readMove).catch(() => undefined);
      if (snapshot?.record?.isDone === false) throw alreadyStartedError();
      if (snapshot?.record !== undefined || snapshot?.isMoving === false) return;
      await pause(POLL_MS, undefined, { signal }).catch(() => undefined);
    }
  }

  /**
   * Returns the owner of a token. Until all tokens are in Redis, and while Redis cannot be reached,
   * the tokens last read from the folder are valid. Each migration attempt reads the folder again,
   * and thus detects logouts on a node that still uses the folder. Throws `unavailable` while the
   * owner is unknown.
   */
  async accessTokenOwner(hash: Uint8Array): Promise<string | undefined> {
    const { step } = this.#state;
    const areMoved = step !== "" && step !== MOVE_STEPS[0];
    const link = this.#link?.isUp === true ? this.#link : undefined;
    if (this.#summary !== undefined && !(areMoved && link)) {
      const token = this.#summary.tokens.get(Buffer.from(hash).toString("hex"));
      return token && this.#clock() < token.expiresAtMs ? token.owner : undefined;
    }
    const ports = { link, clock: this.#clock };
    const owner = link && (await accessTokenOwner({ ...ports, link }, hash));
    if (owner === undefined && !(areMoved && link))
      throw new BrokerError("unavailable", {
        message:
          "The owner of this access token is unknown until the managers' data is migrated. Use the static token in api.token",
        retryAfterMs: TOKEN_RETRY_MS,
      });
    return owner;
  }

  /**
   * Repeats failed attempts until the data is in Redis. Throws `unavailable` after `close`, and
   * `internal` if this build cannot use Redis.
   */
  async run(): Promise<void> {
    for (let retryMs = RETRY_MS; ; ) {
      const error = await this.once().catch((thrown: unknown) => thrown);
      if (error === undefined) return;
      this.#assertOpen();
      const failure = toBrokerError(error);
      if (failure.cause instanceof UnusableRedis) throw failure;
      const isStuck = failure instanceof StuckMoveError;
      this.#events.onFailure(failure, isStuck ? undefined : retryMs);
      if (isStuck) continue;
      await this.#pause(retryMs);
      retryMs = Math.min(retryMs * 2, MAX_RETRY_MS);
    }
  }

  /** Makes one attempt or waits for another process. Rejects with the error of a failed attempt. */
  async once(): Promise<void> {
    const countBefore = this.#tryCount;
    try {
      await this.#use((link) => this.#runUntilDone(link));
    } catch (error) {
      const failure = toBrokerError(error);
      // An attempt that failed before it was counted is counted here.
      if (this.#tryCount === countBefore) this.#tryCount += 1;
      this.#setStatus("failed", this.#state.step, failure.message);
      if (failure instanceof StuckMoveError) this.#stuck = failure;
      throw error;
    }
  }

  /** Ends the attempt after the current page. May be called more than once. */
  close(): void {
    const message = "The migration was stopped. It resumes at the next start";
    this.#closing.abort(new BrokerError("unavailable", { message }));
  }

  get #hasFolder(): boolean {
    return this.#settings.from !== "";
  }

  async #runUntilDone(link: RedisLink): Promise<void> {
    for (let pollMs = POLL_MS; ; pollMs = Math.min(pollMs * 2, MAX_POLL_MS)) {
      this.#assertOpen();
      const snapshot = await this.#read(link);
      if (await this.#isDone(snapshot)) return;
      const mayMove = this.#hasFolder && !this.#stuckMessage(snapshot.record);
      if (mayMove && !snapshot.isMoving && (await this.#attempt(link))) return;
      this.#reportWaiting(snapshot);
      await this.#pause(pollMs);
    }
  }

  async #read(link: RedisLink): Promise<MoveSnapshot> {
    const snapshot = await readMove(link);
    this.#isAwaited ||= snapshot.record !== undefined;
    this.#tryCount = Math.max(this.#tryCount, snapshot.record?.tries ?? 0);
    return snapshot;
  }

  /**
   * Returns true, and sets the status to `migrated`, if the data is in Redis or there is nothing to
   * migrate. Returns false if Redis contains the data of a different folder, which the next attempt
   * reports.
   */
  async #isDone({ record, isMoving }: MoveSnapshot): Promise<boolean> {
    const isUnneeded = !this.#hasFolder && !isMoving && !this.#isAwaited;
    if (!(record?.isDone ?? isUnneeded)) return false;
    if (record !== undefined && this.#hasFolder) {
      // The folder may have been removed, or may be on a different machine.
      const summary = await this.#readFolder();
      if (summary !== undefined && summary.id !== record.source) return false;
    }
    this.#setStatus("migrated", record?.step);
    return true;
  }

  /** Makes one attempt. Returns false if another process copies the data or has copied it. */
  async #attempt(link: RedisLink): Promise<boolean> {
    const lease = new Lease(link);
    if (!(await lease.acquire())) return false;
    try {
      this.#tryCount += 1;
      this.#setStatus("running", "", this.#state.lastErr);
      await this.#readSummary();
      const { from, store } = this.#settings;
      const { onError, onNotice, onLost } = this.#events;
      const { openMoveSource } = await import("../store/embedded/export.ts");
      const source = await openMoveSource(
        { ...store, path: from, clock: this.#clock, onError, onNotice, onLost },
        this.#closing.signal,
      );
      try {
        await lease.renew(); // opening may have delayed the renewal timer
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
    if (record.isDone) return false; // another process has copied everything
    const target = new MoveTarget(link, (key) => lease.fenceOf(key));
    const save: CopyPorts["save"] = (change) => saveRecord(link, lease, change);
    const barrier = new ReplicationBarrier(link);
    const replicated = barrier.observe();
    try {
      await save({ tries: this.#tryCount, lastErr: "" });
      const { copyAll } = await import("./copy.ts");
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
      await replicated();
      await save({ isDone: true, lastErr: "", differing: "" });
      this.#setStatus("completed", this.#state.step);
      return true;
    } catch (error) {
      if (!target.isAnswered) lease.noteUnanswered();
      const lastErr = toBrokerError(error).message;
      // The error is saved so that waiting processes can report it. A failure to save it is
      // ignored.
      if (link.isUp) await save({ lastErr }).catch(() => undefined);
      throw error;
    } finally {
      barrier.close();
    }
  }

  #reportWaiting({ record, isMoving }: MoveSnapshot): void {
    const nowMs = performance.now();
    if (isMoving) this.#idleSinceMs = undefined;
    else this.#idleSinceMs ??= nowMs;
    const { abandonedAfterMs = ABANDONED_AFTER_MS } = this.#settings;
    const idleMs = nowMs - (this.#idleSinceMs ?? nowMs);
    const isAbandoned = idleMs > abandonedAfterMs;
    const stuck = isMoving ? undefined : this.#stuckMessage(record);
    const recordErr = record?.lastErr || undefined;
    const reason = record === undefined ? LOST : ABANDONED;
    const abandoned = recordErr ? `${reason}. The last error was: ${recordErr}` : reason;
    const lastErr = stuck ?? (isAbandoned ? abandoned : recordErr);
    if (record !== undefined || !this.#hasFolder)
      this.#setStatus(lastErr ? "failed" : "running", record?.step, lastErr);
    if (stuck !== undefined && !isAbandoned) return; // `onFailure` has already reported the error
    const { step = "", rows: done = 0, total = 0 } = record ?? {};
    this.#events.onWaiting({ step, done, total, lastErr, isAbandoned });
  }

  /**
   * Returns the reason why this process does not retry the migration, or `undefined` if it may
   * retry.
   */
  #stuckMessage(record: MoveRecord | undefined): string | undefined {
    const stuck = this.#stuck;
    return record?.beganAtMs === stuck?.beganAtMs ? stuck?.message : undefined;
  }

  #setStatus(status: MigrationStatus["status"], step = "", lastErr: string | null = null): void {
    this.#state = { status, step, lastErr };
  }

  /**
   * Reads the folder's summary. Ignores errors, because they are reported when the folder is
   * opened.
   */
  async #readSummary(): Promise<void> {
    if (!this.#hasFolder) return;
    this.#summary = await this.#readFolder().catch(() => undefined);
    this.#assertOpen();
  }

  async #readFolder(): Promise<SourceSummary | undefined> {
    const { onError, onNotice } = this.#events;
    const { signal } = this.#closing;
    const { readSourceSummary } = await import("../store/embedded/export.ts");
    return readSourceSummary(this.#settings.from, { onError, onNotice, signal });
  }

  async #use<T>(use: (link: RedisLink) => Promise<T>): Promise<T> {
    const { onError, onWarning, onOutage } = this.#events;
    const options = { name: "jindou-migrate", onError, onOutage, ...(onWarning && { onWarning }) };
    const link = new RedisLink(this.#settings.redis, options);
    await this.#start(link);
    this.#link = link;
    try {
      return await use(link);
    } finally {
      this.#link = undefined;
      await link.close();
    }
  }

  async #start(link: RedisLink): Promise<void> {
    const { signal } = this.#closing;
    const close = () => void link.close();
    signal.addEventListener("abort", close);
    await link
      .start()
      .catch(throwRedisError)
      .finally(() => signal.removeEventListener("abort", close));
  }

  async #pause(ms: number): Promise<void> {
    const { signal } = this.#closing;
    await pause(ms, undefined, { signal }).catch(() => undefined); // `close` ends the pause
    this.#assertOpen();
  }

  #assertOpen(): void {
    this.#closing.signal.throwIfAborted();
  }
}

function throwRedisError(cause: unknown): never {
  const detail = messageOf(cause);
  const message = `Redis cannot be used: ${detail}`;
  const isUnusable = cause instanceof UnusableRedis; // retrying cannot help
  throw new BrokerError(isUnusable ? "internal" : "unavailable", {
    ...{ message, cause },
  });
}

function toBrokerError(error: unknown): BrokerError {
  if (error instanceof BrokerError) return withCauseMessage(error);
  return new BrokerError("unavailable", { message: messageOf(error), cause: error });
}

/** Replaces an error code's general message with the cause's message. */
function withCauseMessage(error: BrokerError): BrokerError {
  const { code, message, cause } = error;
  const isGeneral = message === new BrokerError(code).message;
  if (!(isGeneral && cause instanceof Error)) return error;
  return new BrokerError(code, { message: messageOf(cause), cause: error });
}

function alreadyStartedError(): BrokerError {
  return new BrokerError("unavailable", {
    message: "A migration into this Redis has just started. Start the node again to wait for it",
  });
}
