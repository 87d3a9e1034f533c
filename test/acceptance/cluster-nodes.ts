// The nodes of a cluster as processes of their own that may be killed, frozen and started again
// under those who use them, each time on the same ports. State: the processes. Who asks it for a
// node is given any, also one that is not there just now: clients do not know either.

import { setTimeout as pause } from "node:timers/promises";
import type { Test } from "tap";
import { type ChildBroker, type Settings, spawnBroker } from "../support/broker.ts";
import type { Random } from "../support/random.ts";
import { freePort } from "../support/redis.ts";
import { STATIC_TOKEN } from "./crash-names.ts";
import type { JsonAnswer } from "./keep-alive.ts";

/** A node without a sign of life for so long is dead. */
export const DEAD_AFTER_MS = 800;
/** Of a client that tries another node then. */
const PATIENCE_MS = 1500;
/** Of one who wants to know it from this node. */
const MOST_PATIENCE_MS = 120_000;
const MOST_INSISTING_MS = 120_000;
const AGAIN_MS = 20;
const MOST_STARTS = 10;
const SETTINGS: Settings = {
  JINDOU_AUTH_CLIENTS: "none",
  JINDOU_API_TOKEN: STATIC_TOKEN,
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
  JINDOU_CLIENT_MAX_STORED_BYTES_PER_SECOND: "0",
  JINDOU_COMMANDS_MAX_INBOX: "100000",
  JINDOU_REDIS_TIMEOUT_MS: "1000",
  JINDOU_CLUSTER_DEAD_AFTER_MS: String(DEAD_AFTER_MS),
};
/** For tests without faults: that the machine is busy is none. */
export const CALM: Settings = {
  JINDOU_REDIS_TIMEOUT_MS: "10000",
  JINDOU_CLUSTER_DEAD_AFTER_MS: "20000",
};

interface Seat {
  readonly settings: Settings;
  readonly apiPort: number;
  readonly clientPort: number;
  broker: ChildBroker | undefined;
}

export interface ClusterNodesOptions {
  readonly redisUrl: string;
  /** Where the way to Redis of the first node is another one. */
  readonly firstRedisUrl?: string;
  readonly random: Random;
  /** Default: 3. */
  readonly count?: number;
  readonly settings?: Settings;
}

export class ClusterNodes {
  readonly #t: Test;
  readonly #random: Random;
  readonly #seats: readonly Seat[];

  private constructor(t: Test, random: Random, seats: readonly Seat[]) {
    this.#t = t;
    this.#random = random;
    this.#seats = seats;
  }

  static async start(t: Test, options: ClusterNodesOptions): Promise<ClusterNodes> {
    const { redisUrl, random, count = 3, settings = {} } = options;
    const { firstRedisUrl = redisUrl } = options;
    const numbers = Array.from({ length: count }, (_, at) => at);
    const seats = await Promise.all(
      numbers.map(async (at) => {
        const [apiPort, clientPort] = [await freePort(), await freePort()];
        const own = {
          JINDOU_REDIS_URL: at === 0 ? firstRedisUrl : redisUrl,
          JINDOU_NODE_ID: `n${at}`,
          JINDOU_API_LISTEN: `127.0.0.1:${apiPort}`,
          JINDOU_CLIENT_LISTEN: `127.0.0.1:${clientPort}`,
        };
        const all = { ...SETTINGS, ...settings, ...own };
        return { settings: all, apiPort, clientPort, broker: undefined };
      }),
    );
    const nodes = new ClusterNodes(t, random, seats);
    await Promise.all(numbers.map((at) => nodes.start(at)));
    return nodes;
  }

  get count(): number {
    return this.#seats.length;
  }

  /** Of any node. */
  get clientPort(): number {
    return this.clientPortOf(this.any());
  }

  clientPortOf(at: number): number {
    return this.#seat(at).clientPort;
  }

  /** Which node somebody who does not care is sent to. */
  any(): number {
    return this.#random.below(this.count);
  }

  async start(at: number): Promise<void> {
    const seat = this.#seat(at);
    const { dataPath } = seat.broker ?? {};
    for (let tries = 1; ; tries++)
      try {
        seat.broker = await spawnBroker(this.#t, seat.settings, dataPath);
        return;
      } catch (error) {
        const isSlow = /Redis cannot be used: (Command timed out|Redis was not ready in time)/.test(
          `${error}`,
        );
        if (!isSlow || tries === MOST_STARTS) throw error; // else as a supervisor does: a full machine is no fault here
      }
  }

  /** kill -9, and waits until it is gone. */
  async kill(at: number): Promise<void> {
    await this.#seat(at).broker?.kill();
  }

  /** SIGTERM; resolves with the exit code once it is gone. */
  async terminate(at: number): Promise<number | null | undefined> {
    return this.#seat(at).broker?.terminate();
  }

  signal(at: number, name: "SIGSTOP" | "SIGCONT"): void {
    this.#seat(at).broker?.process.kill(name);
  }

  /** What the process of a node that runs now has written. */
  output(at: number): string {
    return this.#seat(at).broker?.output() ?? "";
  }

  /** One call. Rejects when the node is gone, or does not answer in time. */
  callOf(at: number, path: string, body?: unknown): Promise<JsonAnswer> {
    return this.#ask(at, { path, body, patienceMs: MOST_PATIENCE_MS });
  }

  /** One call of any node. Rejects when it is gone, or does not answer soon. */
  call(path: string, body?: unknown): Promise<JsonAnswer> {
    return this.#ask(this.any(), { path, body, patienceMs: PATIENCE_MS });
  }

  async #ask(
    at: number,
    {
      path,
      body,
      patienceMs,
    }: {
      readonly path: string;
      readonly body: unknown;
      readonly patienceMs: number;
    },
  ): Promise<JsonAnswer> {
    const { apiPort } = this.#seat(at);
    const response = await fetch(`http://127.0.0.1:${apiPort}${path}`, {
      method: body === undefined ? "GET" : "POST",
      headers: { "content-type": "application/json", token: STATIC_TOKEN },
      signal: AbortSignal.timeout(patienceMs),
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    const isJson = response.headers.get("content-type")?.includes("json");
    return { status: response.status, body: isJson ? JSON.parse(text) : text };
  }

  /** Calls, each time any node, until one answers with anything but "later". */
  async insist(path: string, body?: unknown): Promise<JsonAnswer> {
    const deadline = Date.now() + MOST_INSISTING_MS;
    for (;;) {
      const answer = await this.call(path, body).catch((error: Error) => error);
      if (!(answer instanceof Error) && answer.status !== 503) return answer;
      if (Date.now() > deadline) throw new Error(`${path} is never answered`, { cause: answer });
      await pause(AGAIN_MS);
    }
  }

  /** Insists on 200. */
  async ok(path: string, body?: unknown): Promise<JsonAnswer["body"]> {
    const { status, body: answer } = await this.insist(path, body);
    if (status !== 200) throw new Error(`${path}: ${status} ${JSON.stringify(answer)}`);
    return answer;
  }

  /** Insists on the group being there: a try that was not answered in time may have made it. */
  async createGroup(id: string, subscribers: readonly string[], type = 2): Promise<void> {
    const channel = { channel_id: id, channel_type: type, subscribers };
    const { status, body } = await this.insist("/channel", channel);
    if (status === 200 || body.code === "channel_exists") return;
    throw new Error(`/channel: ${status} ${JSON.stringify(body)}`);
  }

  /** For those who wait for a broker to be back: somebody is there, always. */
  async up(): Promise<void> {}

  /** Resolves once every node says so. */
  async untilReady(): Promise<void> {
    const deadline = Date.now() + MOST_INSISTING_MS;
    for (const [at] of this.#seats.entries())
      for (;;) {
        const answer = await this.callOf(at, "/readyz").catch(() => undefined);
        if (answer?.status === 200) break;
        if (Date.now() > deadline) throw new Error(`node ${at} is never ready`);
        await pause(AGAIN_MS);
      }
  }

  #seat(at: number): Seat {
    const seat = this.#seats[at];
    if (seat === undefined) throw new Error(`there is no node ${at}`);
    return seat;
  }
}
