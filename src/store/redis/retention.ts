// Removes from the channels' logs what expired or is past retention. Reads hide it long before; this gives Redis its memory back. Any node does it,
// each channel in steps of its own: two at once do no harm. State: the timer and the run under way.

import { BUCKETS } from "../../redis/keys.ts";
import { loadScript, type Script } from "../../redis/script.ts";
import type { RedisStoreParts } from "./parts.ts";

const lua = (name: string) => new URL(`./lua/${name}.lua`, import.meta.url);
const RECLAIM = loadScript(lua("reclaim"), lua("entry"), lua("snapshot"));

/** What the link must know. */
export const retentionScripts: readonly Script[] = [RECLAIM];

/** Messages removed in one step, and channels looked for at once: about a millisecond. */
const STEP = 200;
const CHANNELS = 50;
/** How far a node's clock may be ahead of Redis'. */
const MAX_AHEAD_MS = 60_000;

export interface SweepParts
  extends Pick<RedisStoreParts, "link" | "clock" | "limits" | "onProblem"> {
  /** What else is to be done each time. */
  readonly also: readonly (() => Promise<unknown>)[];
}

export class Sweep {
  readonly #parts: SweepParts;
  #timer: NodeJS.Timeout | undefined;
  #running: Promise<number> | undefined;
  #isStopped = false;

  constructor(parts: SweepParts) {
    this.#parts = parts;
  }

  start(): void {
    const { sweepIntervalMs } = this.#parts.limits;
    this.#timer = setInterval(() => void this.#tick(), sweepIntervalMs);
    this.#timer.unref();
  }

  /**
   * Removes everything that is due and returns how many messages that were. Joins a run under way. Throws as the link does, when all was done that
   * could be: of a Cluster some servers may be away.
   */
  run(): Promise<number> {
    this.#running ??= this.#sweep().finally(() => {
      this.#running = undefined;
    });
    return this.#running;
  }

  /** Ends the timer and, after its step, the run under way. Safe to call twice. */
  async close(): Promise<void> {
    this.#isStopped = true;
    clearInterval(this.#timer);
    await this.#running?.catch(() => 0); // its caller hears of it
  }

  async #tick(): Promise<void> {
    const { link, onProblem } = this.#parts;
    if (!link.isUp) return;
    try {
      if (await this.#isAhead())
        throw new Error("The clock is ahead of Redis': nothing is removed");
      await this.run();
    } catch (error) {
      onProblem(error, "sweep");
    }
  }

  /** A clock that is wrong would remove what is not past its time. Without an answer nothing says so. */
  async #isAhead(): Promise<boolean> {
    const { link, clock } = this.#parts;
    const time = await link.call("time").catch(() => undefined);
    if (time === undefined) return false;
    const [seconds] = time as readonly Buffer[]; // Redis' reply
    return clock() > Number(seconds) * 1000 + MAX_AHEAD_MS;
  }

  async #sweep(): Promise<number> {
    const buckets = Array.from({ length: BUCKETS }, (_, bucket) =>
      this.#sweepBucket(bucket),
    );
    const counts = await Promise.allSettled(buckets);
    const others: PromiseSettledResult<unknown>[] = [];
    for (const also of this.#parts.also)
      if (!this.#isStopped)
        others.push(...(await Promise.allSettled([also()])));
    let removed = 0;
    for (const result of counts)
      if (result.status === "fulfilled") removed += result.value;
    for (const result of [...counts, ...others])
      if (result.status === "rejected") throw result.reason;
    return removed;
  }

  async #sweepBucket(bucket: number): Promise<number> {
    const { link, clock, limits } = this.#parts;
    const due = link.keys.bucket("due", bucket);
    const nowMs = clock();
    let removed = 0;
    let channels: readonly string[];
    do {
      channels = await this.#channelsIn(due, ["-inf", `${nowMs}`]);
      if (limits.retentionS > 0)
        channels = channels.concat(await this.#channelsIn(due, NEVER));
      for (const key of channels) {
        if (this.#isStopped) return removed;
        removed += await this.#reclaim(key, due, nowMs);
      }
    } while (channels.length > 0);
    return removed;
  }

  async #channelsIn(
    due: string,
    [from, to]: readonly [string, string],
  ): Promise<readonly string[]> {
    const { link } = this.#parts;
    const found = await link.call(
      ...(["zrangebyscore", due, from, to, "LIMIT", 0, CHANNELS] as const),
    );
    return (found as readonly Buffer[]).map(String);
  }

  async #reclaim(key: string, due: string, nowMs: number): Promise<number> {
    const { link, limits } = this.#parts;
    const names = ["head", "log", "exp", "dot"].map((part) =>
      link.keys.channel(part, key),
    );
    const removed = await link.run(
      RECLAIM,
      [...names, due],
      [nowMs, limits.retentionS * 1000, key, STEP],
    );
    return Number(removed);
  }
}

/** Channels that were to keep all for ever when they were entered. */
const NEVER = ["+inf", "+inf"] as const;
