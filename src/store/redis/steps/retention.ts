// Removes from the channels' logs what expired, is past retention or beyond what a channel keeps.
// What has a time reads hide before; this gives Redis its memory back. Any node does it, each
// channel in steps of its own: two at once do no harm. State: the timer and the run under way.

import { BUCKETS } from "../../../redis/keys.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";

const RECLAIM = loadScript(lua("reclaim"), lua("entry"), lua("snapshot"));

/** Messages removed in one step, and channels looked for at once: about a millisecond. */
const STEP = 200;
const CHANNELS = 50;
/** How far a node's clock may be ahead of Redis'. */
const MAX_AHEAD_MS = 60_000;
/**
 * With a limit of messages each channel is looked at so often at least: it may have been another
 * one.
 */
const LOOK_MS = 86_400_000;

type Server = ReturnType<RedisLink["primaryOf"]>;
/** Unix milliseconds to go by on a server. */
type ClockAt = (server: Server) => number | Promise<number>;
/** Of scores, as Redis takes them. */
type Range = readonly [from: string, to: string];

/** Other work of each sweep. It ends early once the sweep is stopped. */
type Also = (isStopped: () => boolean) => Promise<unknown>;

export class Sweep {
  readonly #parts: RedisStorePorts;
  readonly #also: readonly Also[];
  #timer: NodeJS.Timeout | undefined;
  #running: Promise<number> | undefined;
  #isStopped = false;

  constructor(parts: RedisStorePorts, also: readonly Also[]) {
    this.#parts = parts;
    this.#also = also;
  }

  start(): void {
    const { sweepIntervalMs } = this.#parts.limits;
    this.#timer = setInterval(() => void this.#tick(), sweepIntervalMs);
    this.#timer.unref();
  }

  /**
   * Removes everything that is due and returns how many messages that were. Joins a run under way.
   * Throws as the link does, when all was done that could be: of a Cluster some servers may be
   * away.
   */
  run(): Promise<number> {
    return this.#run(this.#parts.clock);
  }

  /** Ends the timer and, after its step, the run under way. Safe to call twice. */
  async close(): Promise<void> {
    this.#isStopped = true;
    clearInterval(this.#timer);
    await this.#running?.catch(() => 0); // its caller hears of it
  }

  async #tick(): Promise<void> {
    const { link, onError } = this.#parts;
    if (!link.isUp) return;
    try {
      await this.#run((server) => this.#comparedClock(server));
    } catch (error) {
      onError(error, "Expired data could not be removed");
    }
  }

  #run(clockAt: ClockAt): Promise<number> {
    this.#running ??= this.#sweep(clockAt).finally(() => {
      this.#running = undefined;
    });
    return this.#running;
  }

  /**
   * This node's clock, unless it is far ahead of the server's: nothing there is removed by a clock
   * that may be wrong.
   */
  async #comparedClock(server: Server): Promise<number> {
    const nowMs = this.#parts.clock();
    const [seconds] = await server.time();
    if (nowMs > Number(seconds) * 1000 + MAX_AHEAD_MS)
      throw new Error("The clock is ahead of Redis': nothing is removed");
    return nowMs;
  }

  async #sweep(clockAt: ClockAt): Promise<number> {
    const buckets = Array.from({ length: BUCKETS }, (_, bucket) =>
      this.#sweepBucket(bucket, clockAt),
    );
    const results: PromiseSettledResult<unknown>[] = await Promise.allSettled(buckets);
    const isAny = results.some(({ status }) => status === "fulfilled"); // else it is this node's clock that is wrong, or Redis is away
    let removed = 0;
    for (const result of results)
      if (result.status === "fulfilled") removed += Number(result.value);
    for (const also of isAny ? this.#also : [])
      if (!this.#isStopped)
        results.push(...(await Promise.allSettled([also(() => this.#isStopped)])));
    for (const result of results) if (result.status === "rejected") throw result.reason;
    return removed;
  }

  async #sweepBucket(bucket: number, clockAt: ClockAt): Promise<number> {
    const { link } = this.#parts;
    const due = link.keys.bucket("due", bucket);
    const nowMs = await clockAt(link.primaryOf(due));
    let removed = 0;
    let channels: readonly string[];
    do {
      channels = await this.#channelsIn(due, ["-inf", `${nowMs}`]);
      const unlooked = this.#unlooked(nowMs);
      if (unlooked !== undefined) channels = channels.concat(await this.#channelsIn(due, unlooked));
      for (const key of channels) {
        if (this.#isStopped) return removed;
        removed += await this.#reclaim(key, due, nowMs);
      }
    } while (channels.length > 0);
    return removed;
  }

  /**
   * Where in `due` the channels are that the limits of now were not applied to: they were to keep
   * more when they were entered.
   */
  #unlooked(nowMs: number): Range | undefined {
    const { retentionS, maxChannelMessages } = this.#parts.limits;
    if (maxChannelMessages > 0) return [`(${nowMs + LOOK_MS}`, "+inf"];
    return retentionS > 0 ? ["+inf", "+inf"] : undefined;
  }

  async #channelsIn(due: string, [from, to]: Range): Promise<readonly string[]> {
    const { link } = this.#parts;
    const found = await link.call(
      ...(["zrangebyscore", due, from, to, "LIMIT", 0, CHANNELS] as const),
    );
    return (found as readonly Buffer[]).map(String);
  }

  async #reclaim(key: string, due: string, nowMs: number): Promise<number> {
    const { link, limits } = this.#parts;
    const names = ["head", "log", "expiry", "redDots"].map((part) => link.keys.channel(part, key));
    const { retentionS, maxChannelMessages: keeps } = limits;
    const lookMs = keeps > 0 ? nowMs + LOOK_MS : 0;
    const removed = await link.run(
      RECLAIM,
      [...names, due],
      [nowMs, retentionS * 1000, key, STEP, keeps, lookMs],
    );
    return Number(removed);
  }
}
