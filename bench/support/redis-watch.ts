// Measures the commands and the CPU time of a Redis server during a period of time, from INFO and
// from /proc. Owns the samples since the start of the period.

import { setTimeout as pause } from "node:timers/promises";
import { Redis } from "ioredis";
import { cpuSeconds } from "./proc.ts";

const STEP_MS = 250;
/** Commands that are not counted: those that this class and new connections send. */
const OWN_COMMANDS = /^(info|ping|hello|command|client\||config\|)/;
/** Number of consecutive steps with few commands after which the server counts as idle. */
const REST_STEPS = 6;
const REST_FACTOR = 1.5;
const REST_COMMANDS = 25;

/** Commands and CPU time of the server during the period. */
export interface RedisUsage {
  readonly seconds: number;
  readonly cpuSeconds: number;
  /** Highest CPU usage in any quarter of a second, as a fraction of one core. */
  readonly peakShare: number;
  /** Number of calls by command, including calls inside scripts. */
  readonly commands: ReadonlyMap<string, number>;
}

type Counts = ReadonlyMap<string, number>;

export class RedisWatch {
  readonly #client: Redis;
  readonly #pid: number;
  readonly #startedMs = performance.now();
  readonly #before: { readonly commands: Counts; readonly cpu: number };
  readonly #sampling: Promise<void>;
  #isEnding = false;
  #peakShare = 0;

  private constructor(client: Redis, pid: number, commands: Counts) {
    this.#client = client;
    this.#pid = pid;
    this.#before = { commands, cpu: cpuSeconds(pid) };
    this.#sampling = this.#sample();
  }

  /** Starts measuring a server that was just started, so that all its commands are counted. */
  static fromStart(client: Redis, pid: number): RedisWatch {
    return new RedisWatch(client, pid, new Map());
  }

  /** Starts a period for a running server. */
  static async fromNow(client: Redis, pid: number): Promise<RedisWatch> {
    return new RedisWatch(client, pid, await commandsOf(client));
  }

  /** Length of the period so far. */
  get seconds(): number {
    return (performance.now() - this.#startedMs) / 1000;
  }

  /** Ends the period and returns what was measured. */
  async end(): Promise<RedisUsage> {
    this.#isEnding = true;
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
   * Waits until the server has been busy, and then until it has received at most about `rate`
   * commands per second for `REST_STEPS` steps. Returns the seconds from the start to the last busy
   * step. Rejects after `timeoutSeconds`.
   */
  async untilRest(rate: number, timeoutSeconds: number): Promise<number> {
    let [count, atS, restedS, steps] = [0, 0, 0, 0];
    let hasBegun = false; // the nodes may not be connected yet
    while (steps < REST_STEPS) {
      await pause(STEP_MS);
      const [now, nowS] = [total(await this.#commands()), this.seconds];
      const maxCalls = rate * (nowS - atS) * REST_FACTOR + REST_COMMANDS;
      const isBusy = now - count > maxCalls;
      hasBegun ||= isBusy;
      steps = isBusy || !hasBegun ? 0 : steps + 1;
      if (isBusy) restedS = nowS;
      [count, atS] = [now, nowS];
      if (nowS > timeoutSeconds)
        throw new Error(`Redis was not at rest within ${timeoutSeconds} s`);
    }
    return restedS;
  }

  async #sample(): Promise<void> {
    let [atMs, usedSeconds] = [this.#startedMs, this.#before.cpu];
    while (!this.#isEnding) {
      await pause(STEP_MS);
      const [nowMs, now] = [performance.now(), cpuSeconds(this.#pid)];
      const share = (now - usedSeconds) / ((nowMs - atMs) / 1000);
      this.#peakShare = Math.max(this.#peakShare, share);
      [atMs, usedSeconds] = [nowMs, now];
    }
  }

  async #commands(): Promise<Counts> {
    const { commands: before } = this.#before;
    const increases = [...(await commandsOf(this.#client))].map(
      ([name, count]) => [name, count - (before.get(name) ?? 0)] as const,
    );
    return new Map(increases.filter(([, count]) => count > 0));
  }
}

/** Returns the number of all calls, including calls inside scripts. */
export function total(commands: Counts): number {
  return [...commands.values()].reduce((sum, calls) => sum + calls, 0);
}

async function commandsOf(client: Redis): Promise<Counts> {
  const stats = await client.info("commandstats");
  const rows = [...stats.matchAll(/^cmdstat_([^:]+):calls=(\d+)/gm)];
  const counts = rows.map(([, name = "", calls]) => [name, Number(calls)] as const);
  return new Map(counts.filter(([name]) => !OWN_COMMANDS.test(name)));
}

/** Commands that nodes send to Redis for sessions. Commands inside scripts are not included. */
const CALLS: readonly string[] = ["evalsha", "ssubscribe", "sunsubscribe"];

/** Returns the number of scripts, subscribes and unsubscribes that the server has run so far. */
export async function callsOf(url: string): Promise<number> {
  const client = new Redis(url);
  const commands = await commandsOf(client);
  client.disconnect();
  return CALLS.reduce((sum, name) => sum + (commands.get(name) ?? 0), 0);
}
