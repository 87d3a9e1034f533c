// A broker process that may be killed and started again under those who use it, who wait until it
// is back. State: the process that runs now, the kept HTTP connections, how often it was killed.

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

export class Stage {
  /**
   * Kills so far: an answer that did not come is excused when this has changed since the question.
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
    how: { readonly settings: Settings; readonly launch: LaunchOptions },
    broker: ChildBroker,
  ) {
    this.#t = t;
    this.#settings = how.settings;
    this.#launch = how.launch;
    this.#broker = broker;
  }

  static async open(t: Test, given: Settings = {}, launch: LaunchOptions = {}): Promise<Stage> {
    const settings = { ...SETTINGS, ...given };
    const broker = await spawnBroker(t, settings, undefined, launch);
    const stage = new Stage(t, { settings, launch }, broker);
    t.teardown(() => stage.#http.close());
    return stage;
  }

  get apiPort(): number {
    return this.#broker.apiPort;
  }

  get clientPort(): number {
    return this.#broker.clientPort;
  }

  /** What the process that runs now has written. */
  output(): string {
    return this.#broker.output();
  }

  /** Resolves when the broker is there. */
  up(): Promise<void> {
    return this.#back;
  }

  /**
   * kill -9 and a start on the same data; then `look`, while everybody else still waits in `up`.
   */
  restart(look: () => Promise<void> = async () => undefined): Promise<void> {
    this.kills += 1;
    this.#back = (async () => {
      await this.#broker.kill();
      const { dataPath } = this.#broker;
      this.#broker = await spawnBroker(this.#t, this.#settings, dataPath, this.#launch);
      await look();
    })();
    return this.#back;
  }

  /** One call, now. Rejects when the broker is gone. */
  call(path: string, body?: unknown): Promise<JsonAnswer> {
    return this.#http.call(this.apiPort, path, body);
  }

  /**
   * Calls until it is answered with anything but "later", over kills; another broken call is no
   * excuse.
   */
  async insist(path: string, body?: unknown): Promise<JsonAnswer> {
    for (;;) {
      await this.up();
      const { kills } = this;
      try {
        const answer = await this.call(path, body);
        if (answer.status !== 503) return answer;
      } catch (error) {
        if (kills === this.kills) throw error;
      }
    }
  }

  /** Insists on 200. */
  async ok(path: string, body?: unknown): Promise<JsonAnswer["body"]> {
    const answer = await this.insist(path, body);
    if (answer.status !== 200)
      throw new Error(`${path}: ${answer.status} ${JSON.stringify(answer.body)}`);
    return answer.body;
  }

  createGroup(id: string, subscribers: readonly string[], large = 0) {
    return this.ok("/channel", {
      ...{ channel_id: id, channel_type: 2, subscribers, large },
    });
  }
}
