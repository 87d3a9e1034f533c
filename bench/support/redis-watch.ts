// What a Redis server does for a while: its commands by name and its processor time, read from the
// server itself and from /proc. State: the samples since it began.

import { setTimeout as pause } from "node:timers/promises";
import type { Redis } from "ioredis";
import { cpuSeconds } from "./proc.ts";

const STEP_MS = 250;
/** Commands of this watch and of connections that begin. */
const OWN = /^(info|ping|hello|command|client\||config\|)/;
/** At rest: in so many steps in a row hardly more commands than when nothing had happened. */
const REST_STEPS = 6;
const REST_FACTOR = 1.5;
const REST_COMMANDS = 25;

/** What happened in the time watched. */
export interface Watched {
  readonly seconds: number;
  readonly cpuSeconds: number;
  /** The greatest share of a core in any quarter of a second. */
  readonly peakShare: number;
  /** Calls by the name of the command, those of scripts too. */
  readonly commands: ReadonlyMap<string, number>;
}

type Counts = ReadonlyMap<string, number>;

export class RedisWatch {
  readonly #client: Redis;
  readonly #pid: number;
  readonly #startedMs = performance.now();
  readonly #before: { readonly commands: Counts; readonly cpu: number };
  readonly #sampling: Promise<void>;
  #isOver = false;
  #peakShare = 0;

  private constructor(client: Redis, pid: number, commands: Counts) {
    this.#client = client;
    this.#pid = pid;
    this.#before = { commands, cpu: cpuSeconds(pid) };
    this.#sampling = this.#sample();
  }

  /** Of a server that takes its first commands now: all of them count. */
  static fromStart(client: Redis, pid: number): RedisWatch {
    return new RedisWatch(client, pid, new Map());
  }

  static async fromNow(client: Redis, pid: number): Promise<RedisWatch> {
    return new RedisWatch(client, pid, await commandsOf(client));
  }

  get seconds(): number {
    return (performance.now() - this.#startedMs) / 1000;
  }

  async end(): Promise<Watched> {
    this.#isOver = true;
    await this.#sampling;
    const commands = await this.#commands();
    return {
      seconds: this.seconds,
      cpuSeconds: cpuSeconds(this.#pid) - this.#before.cpu,
      peakShare: this.#peakShare,
      commands,
    };
  }

  /**
   * Seconds from the beginning until commands came no faster than `rate` a second, for some time.
   * Rejects after `mostSeconds`.
   */
  async untilRest(rate: number, mostSeconds: number): Promise<number> {
    let [count, atS, restedS, steps] = [0, 0, 0, 0];
    let hasBegun = false; // the nodes may not have found the server yet
    while (steps < REST_STEPS) {
      await pause(STEP_MS);
      const [now, nowS] = [total(await this.#commands()), this.seconds];
      const most = rate * (nowS - atS) * REST_FACTOR + REST_COMMANDS;
      const isBusy = now - count > most;
      hasBegun ||= isBusy;
      steps = isBusy || !hasBegun ? 0 : steps + 1;
      if (isBusy) restedS = nowS;
      [count, atS] = [now, nowS];
      if (nowS > mostSeconds) throw new Error("Redis does not come to rest");
    }
    return restedS;
  }

  async #sample(): Promise<void> {
    let [atMs, used] = [this.#startedMs, this.#before.cpu];
    while (!this.#isOver) {
      await pause(STEP_MS);
      const [nowMs, now] = [performance.now(), cpuSeconds(this.#pid)];
      const share = (now - used) / ((nowMs - atMs) / 1000);
      this.#peakShare = Math.max(this.#peakShare, share);
      [atMs, used] = [nowMs, now];
    }
  }

  async #commands(): Promise<Counts> {
    const { commands: before } = this.#before;
    const grown = [...(await commandsOf(this.#client))].map(
      ([name, count]) => [name, count - (before.get(name) ?? 0)] as const,
    );
    return new Map(grown.filter(([, count]) => count > 0));
  }
}

/** Of clients and of their scripts. */
export function total(commands: Counts): number {
  return [...commands.values()].reduce((sum, one) => sum + one, 0);
}

async function commandsOf(client: Redis): Promise<Counts> {
  const stats = await client.info("commandstats");
  const rows = [...stats.matchAll(/^cmdstat_([^:]+):calls=(\d+)/gm)];
  const counts = rows.map(([, name = "", calls]) => [name, Number(calls)] as const);
  return new Map(counts.filter(([name]) => !OWN.test(name)));
}
