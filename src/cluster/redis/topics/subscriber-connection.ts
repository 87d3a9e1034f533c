// Connection to one Redis server for sharded subscriptions. It reconnects automatically. Its
// subscriptions end with each disconnect. Every second, it publishes a mark (a frame with a random
// id) to itself. If the mark does not arrive, the connection is replaced.

import { randomUUID } from "node:crypto";
import type { Redis } from "ioredis";
import { BrokerError } from "../../../broker/errors.ts";
import type { Clock } from "../../../broker/ports.ts";
import { CoalescedTask } from "../../../lib/coalesced-task.ts";
import { type Deferred, deferred } from "../../../lib/deferred.ts";
import { asBrokerError } from "../../../redis/errors.ts";
import { markFrame } from "../../../redis/wire.ts";
import { pause, within } from "./deadline.ts";

interface ConnectionPorts {
  readonly clock: Clock;
  /** Publishes a frame. Resolves with the number of receivers, or rejects with `unavailable`. */
  readonly publish: (name: string, frame: Buffer) => Promise<number>;
  readonly markName: () => string | undefined;
  readonly onFrame: (name: string, frame: Buffer) => void;
  /** Called when the connection is up. All names must then be subscribed to again. */
  readonly onUp: (self: SubscriberConnection) => void;
  /** Called when the connection is down. Publications since `receivedUntilMs` may be missing. */
  readonly onDown: (self: SubscriberConnection, receivedUntilMs: number) => void;
  readonly onError: (error: unknown, message: string) => void;
}

interface SubscribeBatch {
  readonly names: string[];
  readonly done: Promise<void>;
}

const MAX_BATCH_NAMES = 500;
const RETRY_MS = 200;
const SILENT = "no data arrived on the subscriber connection";
const CHECK_INTERVAL_MS = 1000;
const SILENCE_TIMEOUT_MS = 2000;
/**
 * Additional wait, because after the process was frozen, timers may run before the data that has
 * arrived is read.
 */
const WAKE_UP_MS = 200;

export class SubscriberConnection {
  readonly names = new Set<string>();
  readonly #client: Redis;
  readonly #ports: ConnectionPorts;
  #status: "down" | "up" | "closed" = "down";
  /** Time up to which all publications have arrived, Unix milliseconds. */
  #receivedUntilMs: number;
  #markName: string | undefined;
  readonly #marks = new Map<string, Deferred>();
  readonly #marking = new CoalescedTask(() => this.#mark());
  readonly #batches = new Map<string, SubscribeBatch>();
  #isChecking = false;
  readonly #timer: NodeJS.Timeout;
  readonly #firstUp = deferred();

  constructor(client: Redis, ports: ConnectionPorts) {
    this.#client = client;
    this.#ports = ports;
    this.#receivedUntilMs = ports.clock();
    client.on("error", (error) =>
      ports.onError(
        asBrokerError(error),
        "The subscriber connection to Redis failed; connecting again",
      ),
    );
    client.on("ready", () => void this.#open());
    client.on("close", () => this.#goDown());
    client.on("moved", () => this.#goDown()); // some slots have left the server
    client.on("smessageBuffer", (name: Buffer, frame: Buffer) => this.#receive(name, frame));
    this.#timer = setInterval(() => void this.#check(), CHECK_INTERVAL_MS).unref();
  }

  get isUp(): boolean {
    return this.#status === "up";
  }

  /** Connects. Rejects if the first attempt fails. Reconnects if the connection is lost later. */
  async connect(): Promise<void> {
    await this.#client.connect();
    await within(
      this.#firstUp.promise,
      SILENCE_TIMEOUT_MS,
      "could not subscribe in time to the topic used to check the connection",
    );
  }

  /** Subscribes to names. On a Redis Cluster, all names must be in the same slot. */
  async subscribe(names: readonly string[]): Promise<void> {
    for (let at = 0; at < names.length; at += MAX_BATCH_NAMES)
      await this.#ssubscribe(names.slice(at, at + MAX_BATCH_NAMES));
  }

  /**
   * Subscribes to a name. Calls made in one microtask with the same `group` share one SSUBSCRIBE,
   * for up to `MAX_BATCH_NAMES` names.
   */
  subscribeSoon(name: string, group: string): Promise<void> {
    let batch = this.#batches.get(group);
    if (batch === undefined) {
      const names: string[] = [];
      const done = Promise.resolve().then(() => {
        this.#batches.delete(group);
        return this.subscribe(names);
      });
      batch = { names, done };
      this.#batches.set(group, batch);
    }
    batch.names.push(name);
    return batch.done;
  }

  unsubscribe(names: readonly string[]): void {
    if (!this.isUp) return;
    this.#client
      .sunsubscribe(...names)
      .catch((error) => this.#ports.onError(error, "Could not unsubscribe from topics"));
  }

  /**
   * Resolves when all earlier publications have arrived. Otherwise rejects, and replaces the
   * connection if the mark is lost.
   */
  mark(): Promise<void> {
    return this.#marking.run();
  }

  async #mark(): Promise<void> {
    const name = this.#markName;
    if (!this.isUp || name === undefined) throw new BrokerError("unavailable");
    const atMs = this.#ports.clock();
    const mark = randomUUID();
    const received = deferred();
    this.#marks.set(mark, received);
    try {
      const receivers = await this.#ports.publish(name, markFrame(mark));
      await this.#replaceUnless(receivers > 0, received.promise);
      this.#receivedUntilMs = atMs;
    } finally {
      this.#marks.delete(mark);
    }
  }

  replace(): void {
    this.#goDown();
    if (this.#status !== "closed") this.#client.stream?.destroy();
  }

  close(): void {
    this.#status = "closed";
    clearInterval(this.#timer);
    this.#client.disconnect();
  }

  async #open(): Promise<void> {
    const { stream } = this.#client;
    const isCurrent = (): boolean => this.#status === "down" && this.#client.stream === stream;
    while (isCurrent() && this.#client.status === "ready")
      try {
        const name = this.#ports.markName();
        if (name === undefined) throw new BrokerError("unavailable");
        await this.#client.ssubscribe(name);
        if (!isCurrent()) return;
        this.#markName = name;
        this.#status = "up";
        this.#receivedUntilMs = this.#ports.clock();
        this.#firstUp.resolve();
        this.#ports.onUp(this);
      } catch (error) {
        this.#ports.onError(
          error,
          "Could not subscribe to the topic used to check the subscriber connection; trying again",
        );
        await pause(RETRY_MS);
      }
  }

  #goDown(): void {
    if (this.#status !== "up") return;
    this.#status = "down";
    this.#markName = undefined;
    // The marks were lost with the subscription.
    for (const mark of this.#marks.values()) mark.reject(new BrokerError("unavailable"));
    this.#ports.onDown(this, this.#receivedUntilMs);
    // If only slots were moved, the socket is still usable.
    if (this.#client.status === "ready") void this.#open();
  }

  async #ssubscribe(names: readonly string[]): Promise<void> {
    if (!this.isUp) throw new BrokerError("unavailable");
    try {
      await this.#client.ssubscribe(...names);
    } catch (error) {
      throw asBrokerError(error);
    }
  }

  #receive(name: Buffer, frame: Buffer): void {
    const text = name.toString();
    if (text !== this.#markName) return this.#ports.onFrame(text, frame);
    this.#marks.get(frame.toString("utf8", 2))?.resolve();
  }

  async #replaceUnless(isReached: boolean, signOfLife: Promise<unknown>) {
    const stream = this.#client.stream;
    try {
      if (!isReached) throw new BrokerError("unavailable");
      await within(signOfLife, SILENCE_TIMEOUT_MS, SILENT).catch(() =>
        within(signOfLife, WAKE_UP_MS, SILENT),
      );
    } catch (error) {
      if (!this.isUp) throw error; // the loss was reported already
      this.#ports.onError(
        error,
        "The subscriber connection to Redis does not respond; replacing it",
      );
      if (this.#client.stream === stream) this.replace();
      throw error;
    }
  }

  /**
   * Sends a mark, because a connection without traffic may be dead or connected to the wrong
   * server.
   */
  async #check(): Promise<void> {
    if (!this.isUp || this.#isChecking) return;
    this.#isChecking = true;
    try {
      await this.mark();
    } catch {
      // If only publishing the mark failed, this connection may still be usable, so it is replaced
      // only if a PING fails. If this connection failed, it is already down and the failure was
      // reported.
      if (this.isUp) await this.#replaceUnless(true, this.#client.ping()).catch(() => {});
    } finally {
      this.#isChecking = false;
    }
  }
}
