// The node's connection for commands. State: whether it is up (connected, the right data), what is
// in flight, which scripts each connection has loaded. It never queues: while Redis is away every
// call is refused at once. Listeners hear when it comes up and goes down.

import { Cluster, type Redis } from "ioredis";
import { BrokerError } from "../broker/errors.ts";
import {
  connected,
  createClient,
  isClustered,
  isFull,
  type RedisClient,
  type RedisSettings,
  type Sending,
  send,
} from "./client.ts";
import { asBrokerError, isMissingScript } from "./errors.ts";
import { assertCompatible } from "./format.ts";
import { Keys } from "./keys.ts";
import { Primaries } from "./primaries.ts";
import type { Arg, Script } from "./script.ts";

/**
 * At start: how long all servers of a Cluster, or Sentinels, may take in all. One server that is
 * away fails at once.
 */
const START_MS = 10_000;
const CONNECTION_FAILED = "The connection to Redis failed";

interface LinkParts {
  /** Shows in Redis' CLIENT LIST. */
  readonly name: string;
  /** Receives failures that no caller gets. */
  readonly onError: (error: unknown, what: string) => void;
}

/**
 * How a step goes out. Of one that is `isGathered` its parts have places among the calls in flight
 * that `admit` gave.
 */
interface StepSending extends Sending {
  /**
   * However much waits for an answer: a sign of life, or a busy node would pass for a dead one, and
   * what follows a step that is done.
   */
  readonly isVital?: boolean;
}

export class RedisLink {
  readonly keys: Keys;
  readonly isCluster: boolean;
  readonly settings: RedisSettings;
  readonly #parts: LinkParts;
  readonly #client: RedisClient;
  /** Undefined: one server. */
  readonly #primaries: Primaries | undefined;
  readonly #route: (key: string | undefined) => Redis;
  readonly #listeners: ((isUp: boolean) => void)[] = [];
  #status: "new" | "up" | "down" | "closed" = "new";
  #inFlight = 0;
  readonly #loaded = new WeakMap<Redis, Set<Script>>();
  #preparing: Promise<void> | undefined;
  #starting: Promise<void> | undefined;
  #drained: (() => void) | undefined;

  constructor(settings: RedisSettings, parts: LinkParts) {
    this.settings = settings;
    this.keys = new Keys(settings.prefix);
    this.isCluster = isClustered(settings);
    this.#parts = parts;
    const client = createClient(settings, parts.name);
    this.#client = client;
    if (client instanceof Cluster) {
      const primaries = new Primaries(client);
      this.#primaries = primaries;
      this.#route = (key) => primaries.of(key);
    } else {
      this.#primaries = undefined;
      this.#route = () => client;
    }
  }

  get isUp(): boolean {
    return this.#status === "up";
  }

  get #isClosed(): boolean {
    return this.#status === "closed";
  }

  /** Commands that wait for an answer. */
  get inFlight(): number {
    return this.#inFlight;
  }

  /** Hears each change of `isUp` after `start`. */
  onChange(listener: (isUp: boolean) => void): void {
    this.#listeners.push(listener);
  }

  /**
   * Connects, and refuses a server that is too old or data of another program or a newer format:
   * then throws an Error with a message for the operator. Redis away: throws as well. Safe to call
   * twice.
   */
  start(): Promise<void> {
    this.#starting ??= this.#open();
    return this.#starting;
  }

  async #open(): Promise<void> {
    if (this.#status !== "new") throw new BrokerError("unavailable");
    this.#status = "down";
    const client = this.#client;
    client.on("error", (error) => this.#report(asBrokerError(error), CONNECTION_FAILED));
    if (client instanceof Cluster) client.on("+node", (node: Redis) => this.#joined(node));
    try {
      await connected(client, Math.max(this.settings.timeoutMs, START_MS));
      await this.#prepare();
    } catch (error) {
      this.#status = "closed";
      client.disconnect();
      throw error;
    }
    client.on("ready", () => this.#cameBack());
    for (const event of ["close", "end", "reconnecting"])
      client.on(event, () => this.#turn("down"));
    if (this.#isClosed) return; // meanwhile
    this.#primaries?.watch();
    this.#turn("up");
  }

  /** Takes no new calls, waits for those under way. Safe to call twice. */
  async close(): Promise<void> {
    const wasOpen = this.#status === "up" || this.#status === "down";
    this.#status = "closed";
    if (wasOpen && this.#inFlight > 0)
      await new Promise<void>((resolve) => {
        this.#drained = resolve; // every call ends by its time-out at the latest
      });
    this.#primaries?.close();
    this.#client.disconnect();
  }

  /** Throws `unavailable` when Redis does not answer now. */
  async ping(): Promise<void> {
    await this.call("ping");
  }

  /**
   * Runs a step. Replies are Buffers, numbers, null or arrays of these. Throws `unavailable` (it
   * may or may not have run), `overloaded`, `internal`.
   */
  run(
    script: Script,
    keys: readonly string[],
    args: readonly Arg[],
    how: StepSending = {},
  ): Promise<unknown> {
    const numbered = [script.sha, keys.length, ...keys, ...args];
    return this.#send("evalsha", numbered, how, script);
  }

  /**
   * Sends one command, named in lower case; its first key decides the slot. Replies and errors as
   * of `run`.
   */
  call(command: string, ...args: readonly Arg[]): Promise<unknown> {
    return this.#send(command, args, {});
  }

  /**
   * Takes a place among the calls in flight for something that goes out with others in one call
   * (`isGathered`); `release` gives it back. Throws `unavailable`, `overloaded`.
   */
  admit(): void {
    this.#enter({});
  }

  release(): void {
    this.#inFlight -= 1;
    if (this.#inFlight === 0) this.#drained?.();
  }

  #enter({ isVital, isGathered }: StepSending): void {
    if (this.#status !== "up") throw new BrokerError("unavailable");
    const isFree = isVital === true || isGathered === true;
    if (!isFree && this.#inFlight >= this.settings.maxInFlight) throw new BrokerError("overloaded");
    this.#inFlight += 1;
  }

  async #send(
    command: string,
    args: readonly Arg[],
    how: StepSending,
    script?: Script,
  ): Promise<unknown> {
    this.#enter(how);
    let server: Redis | undefined;
    try {
      const key = args[script === undefined ? 0 : 2];
      server = this.#route(key === undefined ? key : String(key));
      if (how.isVital !== true && isFull(server, this.settings.maxInFlight))
        throw new BrokerError("overloaded");
      const loading = script && this.#load(script, server, how);
      const reply = send(server, command, args, how);
      if (loading !== undefined) await Promise.all([loading, reply]);
      return await reply;
    } catch (error) {
      this.#primaries?.failed(error);
      if (isMissingScript(error)) this.#missesScripts(server);
      throw asBrokerError(error);
    } finally {
      this.release();
    }
  }

  /** Sends a script ahead of its first call on a connection; undefined: it was sent before. */
  #load(script: Script, server: Redis, how: Sending): Promise<unknown> | undefined {
    let loaded = this.#loaded.get(server);
    if (loaded === undefined) {
      const scripts = new Set<Script>();
      server.on("close", () => scripts.clear()); // another connection may lead to another server
      this.#loaded.set(server, scripts);
      loaded = scripts;
    }
    if (loaded.has(script)) return undefined;
    loaded.add(script);
    const loading = send(server, "script", ["LOAD", script.source], how);
    loading.catch(() => loaded.delete(script)); // sent again with its next call
    return loading;
  }

  /** It forgot them: its data may be another's. Of a Cluster the other servers go on. */
  #missesScripts(server: Redis | undefined): void {
    if (server !== undefined) this.#loaded.get(server)?.clear();
    if (!this.isCluster) this.#cameBack();
  }

  /** The servers that hold data: the primary, or every primary of a Cluster. */
  primaries(): readonly Redis[] {
    const client = this.#client;
    return client instanceof Cluster ? client.nodes("master") : [client];
  }

  /** The one that holds the key. Throws `unavailable` when it is away or nobody knows it. */
  primaryOf(key: string): Redis {
    return this.#route(key);
  }

  async #prepare(): Promise<void> {
    const servers = this.primaries();
    await Promise.allSettled(servers.map((one) => one.ping())); // those that can be reached are connected before they are needed
    const ready = servers.find(({ status }) => status === "ready");
    const warnings = await assertCompatible(this.#client, this.keys, ready);
    for (const warning of warnings)
      this.#report(new Error(warning), "Redis may remove acknowledged data");
  }

  /** The data may be another's: calls are taken again when it was looked at. */
  #cameBack(): void {
    if (this.#status === "closed") return;
    this.#turn("down");
    this.#preparing ??= this.#prepare()
      .then(() => this.#turn("up"))
      .catch((error: unknown) => {
        this.#report(error, "Redis is back and cannot be used yet");
        setTimeout(() => this.#retry(), 1000).unref();
      })
      .finally(() => {
        this.#preparing = undefined;
      });
  }

  #retry(): void {
    if (this.#status === "down" && this.#client.status === "ready") this.#cameBack();
  }

  #joined(node: Redis): void {
    // Not while the Cluster itself connects: it takes what it asks a node that is not ready yet for
    // a failure.
    if (node.status === "wait" && this.#client.status === "ready")
      node.connect().catch((error: unknown) => {
        this.#report(asBrokerError(error), CONNECTION_FAILED);
      });
  }

  /** What fails while the link ends is nobody's problem. */
  #report(error: unknown, what: string): void {
    if (this.#status !== "closed") this.#parts.onError(error, what);
  }

  #turn(status: "up" | "down"): void {
    if (this.#status === "closed" || this.#status === status) return;
    this.#status = status;
    for (const listener of this.#listeners) listener(status === "up");
  }
}
