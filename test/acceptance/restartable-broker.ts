// A broker process that tests kill and restart. Its callers wait until it is back. Keeps the
// current process, the keep-alive HTTP connections and the number of kills.

import type { Test } from "tap";
import {
  type ChildBroker,
  type LaunchOptions,
  type Settings,
  spawnBroker,
} from "../support/broker.ts";
import { type JsonAnswer, KeepAlive } from "./keep-alive.ts";

const SETTINGS: Settings = {
  JINDOU_AUTH_CLIENTS: "none",
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
  JINDOU_CLIENT_MAX_STORED_BYTES_PER_SECOND: "0",
};

export class RestartableBroker {
  /**
   * Number of kills so far. A call that fails is excused if this number has changed since the call
   * began.
   */
  kills = 0;
  readonly #t: Test;
  readonly #settings: Settings;
  readonly #launch: LaunchOptions;
  readonly #http = new KeepAlive();
  #broker: ChildBroker;
  #back: Promise<void> = Promise.resolve();

  private constructor(
    t: Test,
    options: { readonly settings: Settings; readonly launch: LaunchOptions },
    broker: ChildBroker,
  ) {
    this.#t = t;
    this.#settings = options.settings;
    this.#launch = options.launch;
    this.#broker = broker;
  }

  static async open(
    t: Test,
    overrides: Settings = {},
    launch: LaunchOptions = {},
  ): Promise<RestartableBroker> {
    const settings = { ...SETTINGS, ...overrides };
    const broker = await spawnBroker(t, settings, undefined, launch);
    const restartable = new RestartableBroker(t, { settings, launch }, broker);
    t.teardown(() => restartable.#http.close());
    return restartable;
  }

  get apiPort(): number {
    return this.#broker.apiPort;
  }

  get clientPort(): number {
    return this.#broker.clientPort;
  }

  /** Returns the output of the current process. */
  output(): string {
    return this.#broker.output();
  }

  /** Resolves when the broker is running. */
  up(): Promise<void> {
    return this.#back;
  }

  /**
   * Kills the broker and starts it on the same data. Then calls `check`, while all other callers
   * still wait in `up`.
   */
  restart(check: () => Promise<void> = async () => undefined): Promise<void> {
    this.kills += 1;
    this.#back = (async () => {
      await this.#broker.kill();
      const { dataPath } = this.#broker;
      this.#broker = await spawnBroker(this.#t, this.#settings, dataPath, this.#launch);
      await check();
    })();
    return this.#back;
  }

  /** Makes one call without waiting for `up`. Rejects if the broker is down. */
  call(path: string, body?: unknown): Promise<JsonAnswer> {
    return this.#http.call(this.apiPort, path, body);
  }

  /**
   * Repeats a call until it is answered with a status other than 503, even across kills. Rejects if
   * the call fails without a kill.
   */
  async callUntilAnswered(path: string, body?: unknown): Promise<JsonAnswer> {
    for (;;) {
      await this.up();
      const { kills } = this;
      try {
        const response = await this.call(path, body);
        if (response.status !== 503) return response;
      } catch (error) {
        if (kills === this.kills) throw error;
      }
    }
  }

  /** Calls until the broker responds with 200. Throws on any other status except 503. */
  async ok(path: string, body?: unknown): Promise<JsonAnswer["body"]> {
    const { status, body: response } = await this.callUntilAnswered(path, body);
    if (status !== 200)
      throw new Error(`${path} responded with ${status}: ${JSON.stringify(response)}`);
    return response;
  }

  createGroup(id: string, subscribers: readonly string[], large = 0) {
    return this.ok("/channel", {
      ...{ channel_id: id, channel_type: 2, subscribers, large },
    });
  }
}
