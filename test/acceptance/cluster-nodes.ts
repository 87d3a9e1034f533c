// Cluster nodes as child processes that tests kill, freeze and restart on the same ports. A caller
// that asks for any node may get a node that is down, as a client would.

import { setTimeout as pause } from "node:timers/promises";
import type { Test } from "tap";
import {
  type ChildBroker,
  type LaunchOptions,
  type Settings,
  spawnBroker,
} from "../support/broker.ts";
import { callHttp, type HttpCall } from "../support/http.ts";
import type { Random } from "../support/random.ts";
import { freePort } from "../support/redis.ts";
import { SHIFTED, ShiftedClock } from "../support/shifted-clock.ts";
import { STATIC_TOKEN } from "./crash-names.ts";
import type { JsonAnswer } from "./keep-alive.ts";

/** Time without a heartbeat after which the other nodes consider a node dead. */
export const DEAD_AFTER_MS = 800;
/** Timeout of a call whose caller tries another node afterwards. */
const RETRY_TIMEOUT_MS = 1500;
/** Timeout of a call that only one node can answer. */
const CALL_TIMEOUT_MS = 120_000;
const MAX_RETRYING_MS = 120_000;
const RETRY_PAUSE_MS = 20;
const MAX_STARTS = 10;
const SETTINGS: Settings = {
  JINDOU_AUTH_CLIENTS: "none",
  JINDOU_API_TOKEN: STATIC_TOKEN,
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
  JINDOU_CLIENT_MAX_STORED_BYTES_PER_SECOND: "0",
  JINDOU_COMMANDS_MAX_INBOX: "100000",
  JINDOU_REDIS_TIMEOUT_MS: "1000",
  JINDOU_CLUSTER_DEAD_AFTER_MS: String(DEAD_AFTER_MS),
};
/** Settings for tests without faults. Their timeouts do not expire even on a busy machine. */
export const CALM: Settings = {
  JINDOU_REDIS_TIMEOUT_MS: "10000",
  JINDOU_CLUSTER_DEAD_AFTER_MS: "20000",
};

interface NodeSlot {
  readonly settings: Settings;
  readonly launch: LaunchOptions;
  /** `undefined` means the clock of the machine. */
  readonly clock: ShiftedClock | undefined;
  /** `undefined` means a new folder. */
  readonly dataPath: string | undefined;
  readonly apiPort: number;
  readonly clientPort: number;
  broker: ChildBroker | undefined;
}

export interface ClusterNodesOptions {
  /** An empty address means the embedded store, which needs `count` 1. */
  readonly redisUrl: string;
  /** Redis URL of the first node, if it differs. */
  readonly firstRedisUrl?: string;
  readonly random: Random;
  /** Number of nodes. Default: 3. */
  readonly count?: number;
  readonly settings?: Settings;
  /** How the processes of the nodes are started. */
  readonly launch?: LaunchOptions;
  /** Data folder of the nodes. Default: a new folder for each node. */
  readonly dataPath?: string;
  /** True if each node has its own clock, which `setClock` sets. Default: false. */
  readonly hasOwnClocks?: boolean;
}

export class ClusterNodes {
  readonly #t: Test;
  readonly #random: Random;
  readonly #slots: readonly NodeSlot[];

  private constructor(t: Test, random: Random, slots: readonly NodeSlot[]) {
    this.#t = t;
    this.#random = random;
    this.#slots = slots;
  }

  static async start(t: Test, options: ClusterNodesOptions): Promise<ClusterNodes> {
    const { redisUrl, random, count = 3, settings = {} } = options;
    const { firstRedisUrl = redisUrl, dataPath, hasOwnClocks = false } = options;
    const launch = { ...(hasOwnClocks ? SHIFTED : {}), ...options.launch };
    const numbers = Array.from({ length: count }, (_, at) => at);
    const slots = await Promise.all(
      numbers.map(async (at) => {
        const [apiPort, clientPort] = [await freePort(), await freePort()];
        const clock = hasOwnClocks ? await ShiftedClock.create(t) : undefined;
        const own = {
          ...clock?.settings,
          JINDOU_REDIS_URL: at === 0 ? firstRedisUrl : redisUrl,
          JINDOU_NODE_ID: `n${at}`,
          JINDOU_API_LISTEN: `127.0.0.1:${apiPort}`,
          JINDOU_CLIENT_LISTEN: `127.0.0.1:${clientPort}`,
        };
        const merged = { ...SETTINGS, ...settings, ...own };
        const ports = { apiPort, clientPort };
        return { settings: merged, launch, clock, dataPath, ...ports, broker: undefined };
      }),
    );
    const nodes = new ClusterNodes(t, random, slots);
    await Promise.all(numbers.map((at) => nodes.start(at)));
    return nodes;
  }

  get count(): number {
    return this.#slots.length;
  }

  /** Client port of a random node. */
  get clientPort(): number {
    return this.clientPortOf(this.anyNode());
  }

  clientPortOf(at: number): number {
    return this.#slot(at).clientPort;
  }

  /** Returns the index of a random node. */
  anyNode(): number {
    return this.#random.below(this.count);
  }

  /** Starts a node that is not running. `overrides` are settings for this start only. */
  async start(at: number, overrides: Settings = {}): Promise<void> {
    const slot = this.#slot(at);
    const settings = { ...slot.settings, ...overrides };
    const dataPath = slot.broker?.dataPath ?? slot.dataPath;
    for (let tries = 1; ; tries++)
      try {
        slot.broker = await spawnBroker(this.#t, settings, dataPath, slot.launch);
        return;
      } catch (error) {
        const isSlow =
          /Redis cannot be used: .*Command timed out|Redis has not answered for a while/.test(
            `${error}`,
          );
        if (!isSlow || tries === MAX_STARTS) throw error; // a busy machine is not a fault: start again, as a supervisor does
      }
  }

  /** Sends SIGKILL and waits until the process has exited. */
  async kill(at: number): Promise<void> {
    await this.#slot(at).broker?.kill();
  }

  /** Sends SIGTERM. Returns the exit code after the process has exited. */
  async terminate(at: number): Promise<number | null | undefined> {
    return this.#slot(at).broker?.terminate();
  }

  /**
   * Sets the wall clock of a node to the real time plus `shiftMs`. Resolves when the node uses it.
   * Needs `hasOwnClocks`.
   */
  async setClock(at: number, shiftMs: number): Promise<void> {
    await this.#slot(at).clock?.shiftTo(shiftMs);
  }

  signal(at: number, name: "SIGSTOP" | "SIGCONT"): void {
    this.#slot(at).broker?.process.kill(name);
  }

  /** Returns the output of the node's current process. */
  output(at: number): string {
    return this.#slot(at).broker?.output() ?? "";
  }

  /** Calls one node. Rejects if the node is down or does not respond within `CALL_TIMEOUT_MS`. */
  callOf(at: number, path: string, body?: unknown): Promise<JsonAnswer> {
    return this.#request(at, { path, body, timeoutMs: CALL_TIMEOUT_MS });
  }

  /** Calls any node. Rejects if the node is down or does not respond within `RETRY_TIMEOUT_MS`. */
  call(path: string, body?: unknown): Promise<JsonAnswer> {
    return this.#request(this.anyNode(), { path, body, timeoutMs: RETRY_TIMEOUT_MS });
  }

  #request(at: number, call: Pick<HttpCall, "path" | "body" | "timeoutMs">): Promise<JsonAnswer> {
    const { apiPort: port } = this.#slot(at);
    return callHttp({ ...call, port, headers: { token: STATIC_TOKEN } });
  }

  /** Calls any node until a node responds with a status other than 503. */
  async callUntilAnswered(path: string, body?: unknown): Promise<JsonAnswer> {
    const deadline = Date.now() + MAX_RETRYING_MS;
    for (;;) {
      const response = await this.call(path, body).catch((error: Error) => error);
      if (!(response instanceof Error) && response.status !== 503) return response;
      if (Date.now() > deadline)
        throw new Error(`no node answered ${path} in time`, { cause: response });
      await pause(RETRY_PAUSE_MS);
    }
  }

  /**
   * Calls any node, and repeats the call until a node responds with 200. Throws on any other status
   * except 503.
   */
  async ok(path: string, body?: unknown): Promise<JsonAnswer["body"]> {
    const { status, body: response } = await this.callUntilAnswered(path, body);
    if (status !== 200)
      throw new Error(`${path} responded with ${status}: ${JSON.stringify(response)}`);
    return response;
  }

  /**
   * Creates the group. An existing group counts as success, because an earlier try that timed out
   * may have created it.
   */
  async createGroup(id: string, subscribers: readonly string[], type = 2): Promise<void> {
    const channel = { channel_id: id, channel_type: type, subscribers };
    const { status, body } = await this.callUntilAnswered("/channel", channel);
    if (status === 200 || body.code === "channel_exists") return;
    throw new Error(`/channel responded with ${status}: ${JSON.stringify(body)}`);
  }

  /**
   * Resolves at once, because at least one node is always up. The same callers also run on a single
   * broker, and wait for its restart there.
   */
  async up(): Promise<void> {}

  /** Resolves when every node is ready. */
  async untilReady(): Promise<void> {
    const deadline = Date.now() + MAX_RETRYING_MS;
    for (const [at] of this.#slots.entries())
      for (;;) {
        const response = await this.callOf(at, "/readyz").catch(() => undefined);
        if (response?.status === 200) break;
        if (Date.now() > deadline) throw new Error(`node ${at} did not become ready in time`);
        await pause(RETRY_PAUSE_MS);
      }
  }

  #slot(at: number): NodeSlot {
    const slot = this.#slots[at];
    if (slot === undefined) throw new Error(`there is no node ${at}`);
    return slot;
  }
}
