// Moves the data of an embedded store's folder into Redis before a node serves anybody: the process with the lease does it, others wait for it and tell how
// it stands. What fails is tried again, later each time, unless that cannot help. State: how it stands, owners of access tokens as of the last look into the
// folder, the connection under way.

import { setTimeout as pause } from "node:timers/promises";
import { BrokerError } from "../broker/errors.ts";
import type { RedisSettings } from "../redis/client.ts";
import { UnusableRedis } from "../redis/format.ts";
import { RedisLink } from "../redis/link.ts";
import { ReplicationBarrier } from "../redis/replication.ts";
import {
  lookInto,
  openMoveSource,
  type SourceLook,
} from "../store/embedded/export.ts";
import { accessTokenOwner } from "../store/redis/steps/managers.ts";
import { type CopyParts, copyAll, MoveStuck } from "./copy.ts";
import { MoveTarget } from "./facts.ts";
import { Lease } from "./lease.ts";
import {
  enterMove,
  type MoveNow,
  type MoveProgress,
  type MoveRecord,
  mixes,
  readMove,
  saveRecord,
} from "./record.ts";
import { MOVE_STEPS } from "./tables.ts";

type FolderOptions = Parameters<typeof openMoveSource>[0];

export interface MoveSettings {
  /** The embedded store's folder; "": nothing is moved, another process's move is waited for. */
  readonly from: string;
  readonly redis: RedisSettings;
  /** Without a sign of life for so long a node is dead. */
  readonly deadAfterMs: number;
  /** Without a process that moves for so long a move counts as abandoned. */
  readonly abandonedAfterMs?: number;
  /** How the folder is read, and what is still of use in it. */
  readonly store: Omit<
    FolderOptions,
    "path" | "clock" | "onProblem" | "onLost"
  > & { readonly retentionS: number };
}

/** What others are told. */
export interface MoveEvents
  extends Pick<CopyParts, "onProgress" | "onCompared">,
    Pick<FolderOptions, "onLost"> {
  /** An attempt failed; another follows in so many milliseconds, or (undefined) none: it could not help. */
  readonly onFailure: (error: BrokerError, retryMs: number | undefined) => void;
  /** Another process moves, or did: with each look. */
  readonly onWaiting: (other: OtherMove) => void;
  /** A failure that no caller is told of. */
  readonly onProblem: (error: unknown, what: string) => void;
}

/** A move by another process. */
export interface OtherMove extends MoveProgress {
  /** Why its last try failed, until the next one begins; or that nobody goes on with it. */
  readonly lastErr: string | undefined;
  readonly isAbandoned: boolean;
}

/** As `/migrate/result` has it [spec: Migration result]. */
export interface MigrationStatus {
  readonly status: "running" | "completed" | "migrated" | "failed";
  readonly step: string;
  readonly lastErr: string | null;
  readonly tryCount: number;
}

const POLL_MS = 250;
const MAX_POLL_MS = 1000;
const RETRY_MS = 1000;
const MAX_RETRY_MS = 30_000;
/** Longer than a process that moves pauses between two tries, and is held up by the opening of its folder. */
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
  /** A move was seen that was under way: that Redis holds none any more does not mean that there is nothing to wait for. */
  #isAwaited = false;
  /** No further try of this process can help. */
  #stuck: MoveStuck | undefined;
  #nobodySinceMs: number | undefined;
  #link: RedisLink | undefined;
  #look: SourceLook | undefined;

  /** Nothing is opened yet. `clock`: Unix milliseconds. */
  constructor(
    settings: MoveSettings,
    events: MoveEvents,
    clock: () => number = Date.now,
  ) {
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
   * Whether there is something to wait for. Without a folder to move that is not known, and not said, while Redis is away. Throws `internal` with a
   * sentence when Redis holds what this build cannot use.
   */
  async isPending(): Promise<boolean> {
    await this.#lookIntoFolder();
    try {
      const now = await this.#use((link) => this.#read(link));
      if (await this.#isDone(now, () => false)) return false;
      this.#turn("running", now.record?.step);
      return true;
    } catch (error) {
      if (asProblem(error).code !== "unavailable") throw error;
      if (this.#hasFolder) this.#turn("running");
      return this.#hasFolder;
    }
  }

  /** Throws `unavailable` with a sentence when a move began that nobody knew of when `isPending` was asked: to be called by a node that others see. */
  async assertNoneBegan(): Promise<void> {
    const { record, isMoving } = await this.#use(readMove);
    if (record === undefined ? isMoving : !record.isDone) throw began();
  }

  /**
   * The same for a node that serves, was dead for others and lives on, which they see: a move may have begun meanwhile that takes it for dead. Asks
   * until Redis answers and no process merely looks whether it may move. Resolves after `close`.
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
   * The owner of an access token as stored, by the token's SHA-256, until the data is there; undefined: the token is not valid. Throws `unavailable` while
   * that cannot be told. Before all tokens are in Redis the folder's are those of the last look into it: a logout at a node that still uses it is not
   * noticed earlier.
   */
  async accessTokenOwner(hash: Uint8Array): Promise<string | undefined> {
    const { step } = this.#state;
    const areMoved = step !== "" && step !== MOVE_STEPS[0];
    const link = this.#link?.isUp === true ? this.#link : undefined;
    if (this.#look !== undefined && !(areMoved && link)) {
      const known = this.#look.tokens.get(Buffer.from(hash).toString("hex"));
      return known && this.#clock() < known.expiresAtMs
        ? known.owner
        : undefined;
    }
    const parts = { link, clock: this.#clock };
    const owner = link && (await accessTokenOwner({ ...parts, link }, hash));
    if (owner === undefined && !(areMoved && link))
      throw new BrokerError("unavailable", {
        message:
          "Whose access token this is cannot be told before the managers' data is moved; the static token of api.token can be used",
        retryAfterMs: TOKEN_RETRY_MS,
      });
    return owner;
  }

  /**
   * Resolves when the data is in Redis, however long that takes: where no try of this process can help it waits for another's. Throws `unavailable`
   * after `close`, and where nothing at all can help as `isPending`.
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

  /** The same, but what goes wrong is thrown, as a BrokerError or what the link's `start` throws. */
  async once(): Promise<void> {
    const before = this.#tries;
    try {
      await this.#use((link) => this.#follow(link));
    } catch (error) {
      const problem = asProblem(error);
      if (this.#tries === before) this.#tries += 1; // it did not get as far as the folder
      this.#turn("failed", this.#state.step, problem.message);
      if (problem instanceof MoveStuck) this.#stuck = problem;
      throw error;
    }
  }

  /** Ends what is under way after its page. Safe to call twice. */
  close(): void {
    this.#closing.abort();
  }

  get #hasFolder(): boolean {
    return this.#settings.from !== "";
  }

  /** Resolves when the data is there, or there is nothing to wait for. */
  async #follow(link: RedisLink): Promise<void> {
    for (let pollMs = POLL_MS; ; pollMs = Math.min(pollMs * 2, MAX_POLL_MS)) {
      this.#assertOpen();
      const now = await this.#read(link);
      const isOver = await this.#isDone(now, () => {
        throw mixes(link);
      });
      if (isOver) return;
      const mayMove = this.#hasFolder && !this.#stuckAt(now.record);
      if (mayMove && !now.isMoving && (await this.#takeTurn(link))) return;
      this.#wait(now);
      await this.#pause(pollMs);
    }
  }

  async #read(link: RedisLink): Promise<MoveNow> {
    const now = await readMove(link);
    this.#isAwaited ||= now.record !== undefined;
    this.#tries = Math.max(this.#tries, now.record?.tries ?? 0);
    return now;
  }

  /** By another process or an earlier start, or there is nothing to move. `onOther`: another folder's data was moved. */
  async #isDone(
    { record, isMoving }: MoveNow,
    onOther: () => false,
  ): Promise<boolean> {
    const isNothing = !this.#hasFolder && !isMoving && !this.#isAwaited;
    if (!(record?.isDone ?? isNothing)) return false;
    if (record !== undefined && this.#hasFolder) {
      // The folder may be gone, or on another machine.
      const look = await lookInto(this.#settings.from);
      if (look !== undefined && look.id !== record.source) return onOther();
    }
    this.#turn("migrated", record?.step);
    return true;
  }

  /** True: this process has moved all of it. False: another one has the lease, or has moved all of it. */
  async #takeTurn(link: RedisLink): Promise<boolean> {
    const lease = new Lease(link);
    if (!(await lease.take())) return false;
    try {
      this.#tries += 1;
      this.#turn("running", "", this.#state.lastErr);
      await this.#lookIntoFolder();
      const { from, store } = this.#settings;
      const { onProblem, onLost } = this.#events;
      const source = await openMoveSource({
        ...{ ...store, path: from, clock: this.#clock, onProblem, onLost },
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

  async #move(
    link: RedisLink,
    lease: Lease,
    source: CopyParts["source"],
  ): Promise<boolean> {
    const { deadAfterMs, store } = this.#settings;
    const record = await enterMove({
      ...{ link, lease, source: source.id, nowMs: this.#clock(), deadAfterMs },
      pause: (ms) => this.#pause(ms),
    });
    if (record.isDone) return false; // by another process, just now
    const target = new MoveTarget(link, (key) => lease.untilOf(key));
    const save: CopyParts["save"] = (change) =>
      saveRecord(target, link, change);
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
      this.#turn("completed", this.#state.step);
      return true;
    } catch (error) {
      const lastErr = asProblem(error).message;
      if (link.isUp) await save({ lastErr }).catch(() => undefined); // for those who wait; it may go away just now
      throw error;
    } finally {
      barrier.close();
    }
  }

  /** To be called again and again while another process moves, or nobody does. */
  #wait({ record, isMoving }: MoveNow): void {
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
      this.#turn(lastErr ? "failed" : "running", record?.step, lastErr);
    if (stuck !== undefined && !isAbandoned) return; // what this process found itself was said
    const { step = "", rows: done = 0, total = 0 } = record ?? {};
    this.#events.onWaiting({ step, done, total, lastErr, isAbandoned });
  }

  /** Why no further try of this process at this move can help; undefined: one may. */
  #stuckAt(record: MoveRecord | undefined): string | undefined {
    const stuck = this.#stuck;
    return record?.beganAtMs === stuck?.beganAtMs ? stuck?.message : undefined;
  }

  #turn(
    status: MigrationStatus["status"],
    step = "",
    lastErr: string | null = null,
  ): void {
    this.#state = { status, step, lastErr };
  }

  /** What is wrong with the folder is said when it is opened. */
  async #lookIntoFolder(): Promise<void> {
    if (!this.#hasFolder) return;
    this.#look = await lookInto(this.#settings.from).catch(() => undefined);
  }

  /** Gives back what `use` does with a connection that is ended with it. Throws BrokerError where there is none to be had. */
  async #use<T>(use: (link: RedisLink) => Promise<T>): Promise<T> {
    const { onProblem } = this.#events;
    const parts = { name: "jindou-migrate", onProblem };
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

/** Anything but a BrokerError of ours is told in its own words: it is for the operator. */
function asProblem(error: unknown): BrokerError {
  if (error instanceof BrokerError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return new BrokerError("unavailable", { message, cause: error });
}

function began(): BrokerError {
  return new BrokerError("unavailable", {
    message:
      "Data is being moved into this Redis since a moment ago; start the node again, it then waits for it",
  });
}
