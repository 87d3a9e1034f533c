// Writes `user.offline` for users who have been announced as online and whose sessions have all
// ended or belong to dead nodes. Only one node at a time runs the sweep. State: the timer, the
// nodes that were live at the last turn, and the time of the last request to check all users.

import { isTransient, mayHaveRun } from "./errors.ts";
import type { DeadSession, OnlineStore } from "./online-ports.ts";
import type { Cluster, SessionEntry, SessionStore } from "./ports.ts";

interface SweepPorts {
  readonly store: OnlineStore & Pick<SessionStore, "sessionsOf">;
  readonly cluster: Pick<Cluster, "isLive" | "nodes">;
  readonly clock: () => number;
  readonly delayMs: number;
  /** Returns true if the feed is on. The sweep makes no call while the feed is off. */
  readonly isOn: () => boolean;
  onOffline(users: number): void;
  onError(error: unknown, message: string): void;
}

/** Maximum number of users that are checked per second. Documented in docs/events.md. */
const USERS_PER_SECOND = 2000;
const MAX_TURN_MS = 1000;
const MIN_TURN_MS = 50;
const USERS_PER_READ = 200;
const USERS_AT_ONCE = 50;
/** Interval at which all users are checked even if no node has died, in case a death was missed. */
const CHECK_MS = 300_000;

export class OnlineSweep {
  readonly #ports: SweepPorts;
  readonly #turnMs: number;
  #timer: NodeJS.Timeout | undefined;
  #running: Promise<void> = Promise.resolve();
  #isClosed = false;
  /**
   * Nodes that were live at the last turn. `undefined` before the first turn, or if the feed was
   * off at the last turn.
   */
  #nodes: ReadonlySet<string> | undefined;
  /** Users who were last checked before this time (Unix milliseconds) must be checked again. */
  #checkedMs = 0;
  /** Startup time on the monotonic clock. */
  #startedMs = Number.POSITIVE_INFINITY;

  constructor(ports: SweepPorts) {
    this.#ports = ports;
    this.#turnMs = Math.max(MIN_TURN_MS, Math.min(MAX_TURN_MS, ports.delayMs / 2));
  }

  start(): void {
    this.#startedMs = performance.now();
    this.#schedule();
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    await this.#running;
  }

  #schedule(): void {
    if (this.#isClosed) return;
    this.#timer = setTimeout(() => {
      this.#running = this.#turn()
        .catch((error: unknown) => {
          if (isTransient(error)) return; // a later turn of this or another node continues
          this.#ports.onError(error, "Could not write user.offline events; trying again");
        })
        .finally(() => this.#schedule());
    }, this.#turnMs).unref();
  }

  async #turn(): Promise<void> {
    const { store, clock, delayMs, isOn } = this.#ports;
    if (!isOn()) {
      this.#nodes = undefined;
      return;
    }
    const nowMs = clock();
    this.#checkedMs = Math.min(this.#checkedMs, nowMs); // the clock may have been set back
    const hasJustStarted = performance.now() - this.#startedMs < delayMs;
    await this.#noteDeaths(nowMs);
    const errors: unknown[] = [];
    let mayLackUsers = false;
    const note = (error: unknown) => {
      errors.push(error);
      mayLackUsers ||= mayHaveRun(error);
    };
    const uids = await store
      .takeOnline({
        limit: Math.floor((USERS_PER_SECOND * this.#turnMs) / 1000),
        turnMs: this.#turnMs,
        leftMs: nowMs - delayMs,
        checkedMs: hasJustStarted ? 0 : Math.max(this.#checkedMs, nowMs - CHECK_MS),
        onFailure: note,
      })
      .catch((error: unknown) => {
        note(error);
        return [];
      });
    for (let at = 0; at < uids.length && !this.#isClosed; at += USERS_PER_READ) {
      const failures = await this.#judge(uids.slice(at, at + USERS_PER_READ), nowMs - delayMs);
      errors.push(...failures);
      mayLackUsers ||= failures.some(isTransient);
    }
    if (errors.length === 0) return;
    // Without a new check of all users, two groups of users would be checked again only after
    // `CHECK_MS`: users who could not be checked, and users in a reply of `takeOnline` that was
    // lost.
    if (mayLackUsers) this.#checkedMs = clock();
    throw errors.find((error) => !isTransient(error)) ?? errors[0];
  }

  /**
   * Requests a check of all users if a node has died. Also requests a check at the first turn of
   * this node, and at the first turn after the feed was turned on.
   */
  async #noteDeaths(nowMs: number): Promise<void> {
    const infos = await this.#ports.cluster.nodes();
    const nodes = new Set(infos.map(({ nodeId, startedAtMs }) => `${nodeId} ${startedAtMs}`));
    const before = this.#nodes;
    this.#nodes = nodes;
    if (before === undefined || [...before].some((node) => !nodes.has(node)))
      this.#checkedMs = nowMs;
  }

  /** Checks users. Returns the errors for the users who could not be checked. */
  async #judge(uids: readonly string[], leftMs: number): Promise<readonly unknown[]> {
    const { store, onOffline } = this.#ports;
    const reads = await this.#sessionsOf(uids);
    const errors: unknown[] = [];
    let count = 0;
    const judge = async (uid: string, at: number) => {
      const read = reads[at];
      if (read?.status === "rejected") throw read.reason;
      const dead = await this.#deadAmong(read?.value ?? []);
      if (await store.endOnline(uid, dead, leftMs)) count += 1;
    };
    for (let at = 0; at < uids.length; at += USERS_AT_ONCE) {
      const group = uids.slice(at, at + USERS_AT_ONCE);
      const results = await Promise.allSettled(group.map((uid, n) => judge(uid, at + n)));
      for (const result of results) if (result.status === "rejected") errors.push(result.reason);
    }
    if (count > 0) onOffline(count);
    return errors;
  }

  /**
   * Reads the sessions of users. If the read fails, reads the sessions of each user separately,
   * because possibly only one server of a Redis Cluster is unavailable.
   */
  async #sessionsOf(
    uids: readonly string[],
  ): Promise<readonly PromiseSettledResult<readonly SessionEntry[]>[]> {
    const { store } = this.#ports;
    try {
      const all = await store.sessionsOf(uids);
      return all.map((value) => ({ status: "fulfilled" as const, value }));
    } catch {
      return Promise.allSettled(uids.map(async (uid) => (await store.sessionsOf([uid]))[0] ?? []));
    }
  }

  async #deadAmong(entries: readonly SessionEntry[]): Promise<readonly DeadSession[]> {
    const dead: DeadSession[] = [];
    for (const { session, incarnation } of entries)
      if (!(await this.#ports.cluster.isLive(incarnation)))
        dead.push({ sessionId: session.sessionId, incarnation });
    return dead;
  }
}
