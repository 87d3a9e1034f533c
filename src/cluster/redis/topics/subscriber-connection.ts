// One connection to one Redis server for sharded publish/subscribe. It reconnects by itself and is
// replaced when silent; its subscriptions end with the connection. State: status, pending
// subscriptions, marks.

import { randomUUID } from "node:crypto";
import type { Redis } from "ioredis";
import { BrokerError } from "../../../broker/errors.ts";
import type { Clock } from "../../../broker/ports.ts";
import { CoalescedTask } from "../../../lib/coalesced-task.ts";
import { type Deferred, deferred } from "../../../lib/deferred.ts";
import { asBrokerError } from "../../../redis/errors.ts";
import { markFrame } from "../../../redis/wire.ts";
import { pause, within } from "./deadline.ts";

interface ConnectionParts {
  readonly clock: Clock;
  /** Publishes to the cluster; returns the number of receivers. Rejects `unavailable`. */
  readonly publish: (name: string, frame: Buffer) => Promise<number>;
  /** A topic name of this node in a slot of the server. Undefined: none now. */
  readonly markName: () => string | undefined;
  readonly onFrame: (name: string, frame: Buffer) => void;
  /** Ready for subscriptions; has none. */
  readonly onUp: (self: SubscriberConnection) => void;
  /** Its subscriptions are lost; publications since `heardMs` may be missed. */
  readonly onDown: (self: SubscriberConnection, heardMs: number) => void;
  readonly onError: (error: unknown, what: string) => void;
}

interface Batch {
  readonly names: string[];
  readonly done: Promise<void>;
}

/** Names in one command. */
const MAX_BATCH = 500;
const RETRY_MS = 200;
const SILENT = "the subscriber is silent";
const BEAT_MS = 1000;
const SILENCE_MS = 2000;
/** After a freeze of this process, received data is processed within this time. */
const WAKING_MS = 200;

export class SubscriberConnection {
  /** Wanted names that it is subscribed to; kept by its owner. */
  readonly names = new Set<string>();
  readonly #client: Redis;
  readonly #parts: ConnectionParts;
  #status: "down" | "up" | "closed" = "down";
  #heardMs: number;
  #markName: string | undefined;
  /** Callers that wait for a mark. */
  readonly #marks = new Map<string, Deferred>();
  readonly #marking = new CoalescedTask(() => this.#mark());
  readonly #batches = new Map<string, Batch>();
  #isBeating = false;
  readonly #beat: NodeJS.Timeout;
  readonly #firstUp = deferred();

  constructor(client: Redis, parts: ConnectionParts) {
    this.#client = client;
    this.#parts = parts;
    this.#heardMs = parts.clock();
    client.on("error", (error) =>
      parts.onError(error, "The subscriber connection to Redis failed"),
    );
    client.on("ready", () => void this.#greet());
    client.on("close", () => this.#lost());
    client.on("moved", () => this.#lost()); // the server lost slots
    client.on("smessageBuffer", (name: Buffer, frame: Buffer) => this.#heard(name, frame));
    this.#beat = setInterval(() => void this.#check(), BEAT_MS).unref();
  }

  get isUp(): boolean {
    return this.#status === "up";
  }

  /** Connects, then reconnects by itself; resolves when up. Rejects if the first attempt fails. */
  async connect(): Promise<void> {
    await this.#client.connect();
    await within(this.#firstUp.promise, SILENCE_MS, "no subscription was possible");
  }

  /** Subscribes; on a Cluster all names are of one slot. Rejects `unavailable`. */
  async subscribe(names: readonly string[]): Promise<void> {
    for (let at = 0; at < names.length; at += MAX_BATCH)
      await this.#ssubscribe(names.slice(at, at + MAX_BATCH));
  }

  /** Subscribes one name, in one command with all names of `group` in this microtask. */
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
      .catch((error) => this.#parts.onError(error, "Topics could not be unsubscribed from"));
  }

  /**
   * Resolves when publications before the call have arrived. Rejects `unavailable`; replaces a
   * silent connection.
   */
  mark(): Promise<void> {
    return this.#marking.run();
  }

  async #mark(): Promise<void> {
    const name = this.#markName;
    if (!this.isUp || name === undefined) throw new BrokerError("unavailable");
    const atMs = this.#parts.clock();
    const mark = randomUUID();
    const heard = deferred();
    this.#marks.set(mark, heard);
    try {
      const receivers = await this.#parts.publish(name, markFrame(mark));
      await this.#renewedUnless(receivers > 0, heard.promise);
      this.#heardMs = atMs;
    } finally {
      this.#marks.delete(mark);
    }
  }

  /** Replaces the connection. */
  renew(): void {
    this.#lost();
    if (this.#status !== "closed") this.#client.stream?.destroy();
  }

  close(): void {
    this.#status = "closed";
    clearInterval(this.#beat);
    this.#client.disconnect();
  }

  /** The mark's topic is the first subscription. */
  async #greet(): Promise<void> {
    const { stream } = this.#client;
    const isCurrent = (): boolean => this.#status === "down" && this.#client.stream === stream;
    while (isCurrent() && this.#client.status === "ready")
      try {
        const name = this.#parts.markName();
        if (name === undefined) throw new BrokerError("unavailable");
        await this.#client.ssubscribe(name);
        if (!isCurrent()) return;
        this.#markName = name;
        this.#status = "up";
        this.#heardMs = this.#parts.clock();
        this.#firstUp.resolve();
        this.#parts.onUp(this);
      } catch (error) {
        this.#parts.onError(error, "Topics could not be subscribed to");
        await pause(RETRY_MS);
      }
  }

  #lost(): void {
    if (this.#status !== "up") return;
    this.#status = "down";
    this.#markName = undefined;
    for (const mark of this.#marks.values()) mark.reject(new BrokerError("unavailable")); // it will not arrive
    this.#parts.onDown(this, this.#heardMs);
    if (this.#client.status === "ready") void this.#greet(); // slots moved; the connection works
  }

  async #ssubscribe(names: readonly string[]): Promise<void> {
    if (!this.isUp) throw new BrokerError("unavailable");
    try {
      await this.#client.ssubscribe(...names);
    } catch (error) {
      throw asBrokerError(error);
    }
  }

  #heard(name: Buffer, frame: Buffer): void {
    const text = name.toString();
    if (text !== this.#markName) return this.#parts.onFrame(text, frame);
    this.#marks.get(frame.toString("utf8", 2))?.resolve();
  }

  /** `isReached` false: publications go to another server, or the subscription is gone. */
  async #renewedUnless(isReached: boolean, sign: Promise<unknown>) {
    const stream = this.#client.stream;
    try {
      if (!isReached) throw new BrokerError("unavailable");
      await within(sign, SILENCE_MS, SILENT).catch(() => within(sign, WAKING_MS, SILENT));
    } catch (error) {
      if (!this.isUp) throw error; // the loss is known already
      this.#parts.onError(error, "The subscriber connection to Redis is replaced");
      if (this.#client.stream === stream) this.renew();
      throw error;
    }
  }

  /** A silent connection may be dead, or at a server that receives no publications any more. */
  async #check(): Promise<void> {
    if (!this.isUp || this.#isBeating) return;
    this.#isBeating = true;
    try {
      await this.mark();
    } catch {
      // A failure of the publisher does not count; a failure of this connection is reported
      // already.
      if (this.isUp) await this.#renewedUnless(true, this.#client.ping()).catch(() => {});
    } finally {
      this.#isBeating = false;
    }
  }
}
