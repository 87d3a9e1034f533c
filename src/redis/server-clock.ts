// Estimates the clock of each Redis server. Requests the TIME of every primary at a fixed interval,
// unless a reply to another call has already contained it. Between two replies, the monotonic clock
// is used. The system clock of this machine is not used, because it may differ from Redis' clock
// and may jump.

import type { Redis } from "ioredis";
import { LATEST_TIME_MS } from "../broker/model.ts";
import { waitAtMost } from "../lib/wait-at-most.ts";
import { send } from "./client.ts";
import { UnusableRedis } from "./errors.ts";

interface Sample {
  readonly serverMs: number;
  readonly arrivedMs: number;
}

/**
 * Number of samples that are kept for each server. The sample with the least delay is used, because
 * the time in a delayed reply is too early.
 */
const SAMPLES = 3;
/**
 * Number of TIME requests to a server within `maxAgeMs`, unless `MIN_INTERVAL_MS` or
 * `MAX_INTERVAL_MS` limits the interval between them.
 */
const SAMPLES_PER_AGE = 4;
/**
 * Minimum change in the difference between Redis' clock and the monotonic clock that counts as a
 * step.
 */
const MIN_STEP_MS = 1000;
const MIN_INTERVAL_MS = 20;
const MAX_INTERVAL_MS = 1000;

const REPLY_MS = 200;

interface ServerClocksPorts {
  readonly servers: () => readonly Redis[];
  readonly maxAgeMs: number;
  /** Returns the text that identifies a server in an error message. The default is "". */
  readonly placeOf?: (server: Redis) => string;
  /** Called when a server's clock first shows a time after 2080. */
  readonly onInvalid?: (error: UnusableRedis) => void;
  /** Called when Redis' time has jumped. `stepMs` is negative if it jumped back. */
  readonly onStep?: (stepMs: number) => void;
}

export class ServerClocks {
  readonly #ports: ServerClocksPorts;
  readonly #samples = new WeakMap<Redis, readonly Sample[]>();
  /** Errors for servers whose clocks show a time after 2080. */
  readonly #refusals = new WeakMap<Redis, UnusableRedis>();
  readonly #asking = new WeakMap<Redis, Promise<void>>();
  /** Redis' time minus `performance.now()`, or `undefined` until a server has replied. */
  #offsetMs: number | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(ports: ServerClocksPorts) {
    this.#ports = ports;
  }

  watch(): void {
    const intervalMs = Math.min(
      Math.max(this.#ports.maxAgeMs / SAMPLES_PER_AGE, MIN_INTERVAL_MS),
      MAX_INTERVAL_MS,
    );
    this.#timer ??= setInterval(() => {
      const freshMs = performance.now() - intervalMs;
      for (const server of this.#ports.servers())
        if (this.#newestMs(server) < freshMs) void this.#askOnce(server);
    }, intervalMs).unref();
  }

  close(): void {
    clearInterval(this.#timer);
  }

  #askOnce(server: Redis): Promise<void> {
    let asking = this.#asking.get(server);
    if (asking === undefined) {
      asking = this.ask(server)
        .catch(() => undefined) // until the clock is known and valid, writes are rejected
        .finally(() => this.#asking.delete(server));
      this.#asking.set(server, asking);
    }
    return asking;
  }

  /** Requests a server's time. Rejects with an ioredis error or an `UnusableRedis`. */
  async ask(server: Redis): Promise<void> {
    const reply = (await send(server, "time", [], {})) as readonly [Buffer, Buffer];
    const serverMs = Number(reply[0]) * 1000 + Number(reply[1]) / 1000;
    this.record(server, serverMs);
    const refusal = this.refusalOf(server);
    if (refusal !== undefined) throw refusal;
  }

  /**
   * Returns the error about the server if its clock shows a time after 2080, otherwise `undefined`.
   */
  refusalOf(server: Redis): UnusableRedis | undefined {
    return this.#refusals.get(server);
  }

  /** True while the clock of a connected server shows a time after 2080. */
  get isInvalid(): boolean {
    return this.#ports.servers().some((server) => this.#refusals.has(server));
  }

  record(server: Redis, serverMs: number): void {
    let samples = this.#samples.get(server);
    if (samples === undefined) {
      // The server's samples and error are removed when the connection is closed, because the next
      // connection may lead to a different server.
      server.on("close", () => this.#forget(server));
      samples = [];
    }
    if (serverMs > LATEST_TIME_MS) return this.#refuse(server, serverMs);
    this.#refusals.delete(server);
    const sample = { serverMs, arrivedMs: performance.now() };
    this.#samples.set(server, [sample, ...samples.slice(0, SAMPLES - 1)]);
    const before = this.#offsetMs;
    this.#offsetMs = this.#medianOffset() ?? offsetOf([sample]);
    const stepMs = before === undefined ? 0 : this.#offsetMs - before;
    if (Math.abs(stepMs) > MIN_STEP_MS) this.#ports.onStep?.(stepMs);
  }

  #refuse(server: Redis, serverMs: number): void {
    const isNew = !this.#refusals.has(server);
    const place = this.#ports.placeOf?.(server) ?? "";
    const refusal = new UnusableRedis(
      `${place}its clock shows ${new Date(serverMs).toISOString()}. A time after 2080 is not used for message ids. Set the clock of its machine`,
    );
    this.#samples.set(server, []); // a deadline computed from an older sample has already passed
    this.#refusals.set(server, refusal);
    if (isNew) this.#ports.onInvalid?.(refusal);
  }

  #forget(server: Redis): void {
    this.#samples.set(server, []);
    this.#refusals.delete(server);
  }

  /**
   * Returns Redis' time in whole Unix milliseconds. With several servers, this is the median of
   * their times. Before the first reply, returns this machine's time.
   */
  redisNow(): number {
    if (this.#offsetMs === undefined) return Date.now();
    return Math.floor(performance.now() + this.#offsetMs);
  }

  #medianOffset(): number | undefined {
    const offsets: number[] = [];
    for (const server of this.#ports.servers()) {
      const samples = this.#samples.get(server) ?? [];
      if (samples.length > 0) offsets.push(offsetOf(samples));
    }
    return offsets.sort((a, b) => a - b)[(offsets.length - 1) >> 1];
  }

  /**
   * Returns the server's time in Unix milliseconds. Returns `undefined` if the last reply is older
   * than `maxAgeMs` or contained a time after 2080. The result is measured from the arrival of a
   * reply, which is later than the time at which the server read its clock. The result is therefore
   * never ahead of that clock, unless the clock is set back.
   */
  now(server: Redis): number | undefined {
    const samples = this.#samples.get(server);
    const nowMs = performance.now();
    if (samples === undefined || nowMs - this.#newestMs(server) > this.#ports.maxAgeMs)
      return undefined;
    return nowMs + offsetOf(samples);
  }

  #newestMs(server: Redis): number {
    return this.#samples.get(server)?.[0]?.arrivedMs ?? Number.NEGATIVE_INFINITY;
  }

  /**
   * Requests the server's time and waits at most `REPLY_MS` for the reply. A write can then succeed
   * even if the last known time was too old, for example because this process was busy.
   */
  async ensure(server: Redis): Promise<void> {
    await waitAtMost(this.#askUntilKnown(server), REPLY_MS);
  }

  /**
   * Requests the time, and requests it again if it is still unknown, because the first call may
   * join a request that times out after the process was frozen.
   */
  async #askUntilKnown(server: Redis): Promise<void> {
    await this.#askOnce(server);
    if (this.now(server) === undefined) await this.#askOnce(server);
  }
}

/** Returns the server's time minus `performance.now()`, from the sample with the least delay. */
function offsetOf(samples: readonly Sample[]): number {
  let offsetMs = Number.NEGATIVE_INFINITY;
  for (const { serverMs, arrivedMs } of samples)
    offsetMs = Math.max(offsetMs, serverMs - arrivedMs);
  return offsetMs;
}
