// Removes from the channels' logs the messages that have expired, are past retention, or exceed a
// channel's maximum number of messages. Any node may sweep, and two nodes may sweep at the same
// time, because each script processes a single channel.

import type { RedisLink } from "../../../redis/link.ts";
import { loadScript } from "../../../redis/script.ts";
import { SweepFailures } from "../../sweep-failures.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { ALL_BUCKETS, bucketsWithWork, type ScoreRange } from "./sweep-buckets.ts";

const RECLAIM = loadScript(lua("reclaim"), lua("entry"), lua("snapshot"));

const MESSAGES_PER_CALL = 200;
const CHANNELS_PER_PAGE = 50;
/** Maximum time by which the store's clock may be ahead of a server's clock. */
const MAX_AHEAD_MS = 60_000;
/** Maximum time between two sweeps of a channel, so that a lowered limit is applied. */
const MAX_VISIT_INTERVAL_MS = 86_400_000;

type Server = ReturnType<RedisLink["primaryOf"]>;
type ClockAt = (server: Server) => number | Promise<number>;

/** Additional work of each sweep. It must end early when `isStopped` returns true. */
type SweepTask = (isStopped: () => boolean) => Promise<unknown>;

export class Sweep {
  readonly #ports: RedisStorePorts;
  readonly #tasks: readonly SweepTask[];
  #timer: NodeJS.Timeout | undefined;
  #running: Promise<number> | undefined;
  #isStopped = false;

  constructor(ports: RedisStorePorts, tasks: readonly SweepTask[]) {
    this.#ports = ports;
    this.#tasks = tasks;
  }

  start(): void {
    const { sweepIntervalMs } = this.#ports.limits;
    this.#timer = setInterval(() => void this.#tick(), sweepIntervalMs);
    this.#timer.unref();
  }

  /**
   * Sweeps all buckets, then runs the tasks, and returns the number of removed messages. On a Redis
   * Cluster, skips the tasks if every bucket failed. If a sweep is in progress, waits for that
   * sweep instead. Throws the first error after all buckets and tasks have been processed.
   */
  run(): Promise<number> {
    return this.#run(this.#ports.clock);
  }

  /** Stops the timer. A sweep in progress stops after its current script. Safe to call twice. */
  async close(): Promise<void> {
    this.#isStopped = true;
    clearInterval(this.#timer);
    await this.#running?.catch(() => 0); // the caller of the sweep receives the rejection
  }

  async #tick(): Promise<void> {
    const { link, onError } = this.#ports;
    if (!link.isUp) return;
    try {
      await this.#run((server) => this.#comparedClock(server));
    } catch (error) {
      onError(error, "Could not remove expired data");
    }
  }

  #run(clockAt: ClockAt): Promise<number> {
    this.#running ??= this.#sweep(clockAt).finally(() => {
      this.#running = undefined;
    });
    return this.#running;
  }

  /**
   * Returns the store's time. Throws if it is more than `MAX_AHEAD_MS` ahead of the server's clock,
   * because data must not be removed on the basis of a wrong clock.
   */
  async #comparedClock(server: Server): Promise<number> {
    const nowMs = this.#ports.clock();
    const [seconds] = await server.time();
    if (nowMs > Number(seconds) * 1000 + MAX_AHEAD_MS)
      throw new Error(
        "A Redis server's clock is more than a minute behind those of the other servers, so its expired data is not removed. Correct that clock",
      );
    return nowMs;
  }

  async #sweep(clockAt: ClockAt): Promise<number> {
    const buckets = await this.#dueBuckets(clockAt);
    const sweeps = buckets.map((bucket) => this.#sweepBucket(bucket, clockAt));
    const results: PromiseSettledResult<unknown>[] = await Promise.allSettled(sweeps);
    // If every bucket of a Redis Cluster failed, the store's clock is wrong or Redis is
    // unreachable. The tasks would fail too. On a single server, `#dueBuckets` has already checked
    // the clock and the connection.
    const anySucceeded =
      !this.#ports.link.isCluster || results.some(({ status }) => status === "fulfilled");
    let removed = 0;
    for (const result of results)
      if (result.status === "fulfilled") removed += Number(result.value);
    for (const task of anySucceeded ? this.#tasks : [])
      if (!this.#isStopped)
        results.push(...(await Promise.allSettled([task(() => this.#isStopped)])));
    for (const result of results) if (result.status === "rejected") throw result.reason;
    return removed;
  }

  async #dueBuckets(clockAt: ClockAt): Promise<readonly number[]> {
    const { link } = this.#ports;
    if (link.isCluster) return ALL_BUCKETS;
    const nowMs = await clockAt(link.primaryOf(link.keys.bucket("due", 0)));
    return bucketsWithWork(link, "due", this.#rangesAt(nowMs));
  }

  async #sweepBucket(bucket: number, clockAt: ClockAt): Promise<number> {
    const { link } = this.#ports;
    const due = link.keys.bucket("due", bucket);
    const nowMs = await clockAt(link.primaryOf(due));
    let removed = 0;
    let channels: readonly string[];
    const failures = new SweepFailures();
    /** Channels that could not be reclaimed. They stay in `due`, so later pages contain them. */
    const failed = new Set<string>();
    do {
      channels = [];
      for (const range of this.#rangesAt(nowMs)) {
        const page = await this.#channelsIn(due, range, CHANNELS_PER_PAGE + failed.size);
        channels = channels.concat(page.filter((key) => !failed.has(key)));
      }
      for (const key of channels) {
        if (this.#isStopped) return removed;
        const count = await failures.attempt(() => this.#reclaim(key, due, nowMs));
        if (count === undefined) failed.add(key);
        removed += count ?? 0;
      }
    } while (channels.length > 0);
    failures.throwFirst();
    return removed;
  }

  /**
   * Returns the ranges of scores in `due` whose channels are swept. The second range contains the
   * channels that were added to `due` while different limits applied.
   */
  #rangesAt(nowMs: number): readonly ScoreRange[] {
    const { retentionS, maxChannelMessages } = this.#ports.limits;
    const past: ScoreRange = ["-inf", `${nowMs}`];
    if (maxChannelMessages > 0) return [past, [`(${nowMs + MAX_VISIT_INTERVAL_MS}`, "+inf"]];
    return retentionS > 0 ? [past, ["+inf", "+inf"]] : [past];
  }

  async #channelsIn(
    due: string,
    [from, to]: ScoreRange,
    limit: number,
  ): Promise<readonly string[]> {
    const { link } = this.#ports;
    const keys = await link.call("zrangebyscore", due, from, to, "LIMIT", 0, limit);
    return (keys as readonly Buffer[]).map(String);
  }

  async #reclaim(key: string, due: string, nowMs: number): Promise<number> {
    const { link, limits } = this.#ports;
    const keyOf = (part: string) => link.keys.channel(part, key);
    const names = ["head", "log", "expiry", "redDots"].map(keyOf);
    const { retentionS, maxChannelMessages: maxMessages } = limits;
    const nextVisitMs = maxMessages > 0 ? nowMs + MAX_VISIT_INTERVAL_MS : 0;
    const removed = await link.run(
      RECLAIM,
      [...names, due, keyOf("labels")],
      [nowMs, retentionS * 1000, key, MESSAGES_PER_CALL, maxMessages, nextVisitMs],
    );
    return Number(removed);
  }
}
