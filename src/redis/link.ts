// The node's connection for sending commands to Redis. State: whether Redis is usable (connected
// and checked), the number of calls in flight, and the scripts and libraries loaded on each
// connection. The link never queues calls. While Redis is unreachable, every call is rejected
// immediately.

import { Cluster, type Redis } from "ioredis";
import { BrokerError } from "../broker/errors.ts";
import {
  connected,
  createClient,
  databaseOf,
  diagnosisOf,
  type EncodedCommand,
  isClustered,
  isFull,
  type RedisClient,
  type RedisSettings,
  type SendOptions,
  send,
  sendCommand,
} from "./client.ts";
import { assertCommands } from "./commands.ts";
import {
  asBrokerError,
  errorOfReply,
  isDenied,
  isExistingLibrary,
  isMissingFunction,
  isMissingScript,
  isReply,
  isUnanswered,
  RedisAway,
  startFailure,
  UnusableRedis,
  unusable,
} from "./errors.ts";
import {
  assertAllSlots,
  assertClusterUp,
  assertFormat,
  assertPrimary,
  assertReplicas,
  checkPassword,
  checkServer,
  unconfirmed,
} from "./format.ts";
import { assertIdsLeft, idCounterKeys } from "./id-counters.ts";
import { Keys } from "./keys.ts";
import type { LibraryFunction } from "./library.ts";
import { Connections, cannotRun } from "./lost-connection.ts";
import { Outage, type OutageReport } from "./outage.ts";
import { Primaries } from "./primaries.ts";
import { type Arg, loadScript, type Script, type ServerCode } from "./script.ts";
import { ServerClocks } from "./server-clock.ts";

/** Minimum timeout for the first connect. A Cluster or Sentinels may need several attempts. */
const START_MS = 10_000;
/** Maximum number of hash tags that `keyOn` tries until it finds a key in the server's slots. */
const MAX_TAGS = 20_000;
const WRITE = loadScript(new URL("./lua/write.lua", import.meta.url));
const MAX_CLOCK_AGE_MS = 2000;
const WATCH_MS = 1000;
/** Approximate number of keys that one SCAN examines. */
const SCAN_COUNT = 1000;
/** Fraction of `redis.timeoutMs` within which replicas must confirm a write in `start`. */
const CONFIRM_SHARE = 0.8;

interface LinkPorts {
  readonly name: string;
  /**
   * Receives failures that are not reported to any caller, except those that belong to an outage.
   */
  readonly onError: (error: unknown, what: string) => void;
  /** Receives warnings about a Redis that can be used but whose configuration is risky. */
  readonly onWarning?: (warning: string) => void;
  /** Receives reports about outages, during which Redis cannot be used. */
  readonly onOutage?: (report: OutageReport) => void;
  /**
   * Checks whether an outage has ended. Rejects if it continues. The default is the link's `ping`.
   */
  readonly checkUsable?: () => Promise<void>;
  readonly onDataLoss?: () => void;
  /**
   * Time in milliseconds for which a server's clock counts as known after a reply. Nothing is
   * written to a server whose clock is unknown. The default is 2,000.
   */
  readonly maxClockAgeMs?: number;
  /** True if this process subscribes to topics. `start` then checks that Redis permits this. */
  readonly subscribes?: boolean;
}

/**
 * Options of a call. Set `isGathered` (see `SendOptions`) only for work that `admit` has already
 * counted as a call in flight.
 */
interface CallOptions extends SendOptions {
  /**
   * True if the call ignores the maximum number of calls in flight. Used for heartbeats, because
   * the node would otherwise count as dead, and for work that completes another call.
   */
  readonly isVital?: boolean;
  /**
   * True if the call may run after its failure was reported, because it does not undo other
   * callers' changes.
   */
  readonly mayRunLate?: boolean;
}

export class RedisLink {
  readonly keys: Keys;
  readonly isCluster: boolean;
  /** Receives the failures of all connections to this Redis. */
  readonly outage: Outage;
  #settings: RedisSettings;
  readonly #database: number;
  readonly #ports: LinkPorts;
  #client: RedisClient;
  readonly #clocks: ServerClocks;
  readonly #connections = new Connections();
  #primaries: Primaries | undefined;
  readonly #listeners: ((isUp: boolean) => void)[] = [];
  readonly #stepListeners: ((stepMs: number) => void)[] = [];
  /** A link that is `starting` or `new` reports no errors, because `start` throws them. */
  #status: "new" | "starting" | "up" | "down" | "closed" = "new";
  readonly #closing = new AbortController();
  #inFlight = 0;
  #startFailure: Error | undefined;
  readonly #loaded = new WeakMap<Redis, Set<ServerCode["loading"]>>();
  #preparing: Promise<void> | undefined;
  #starting: Promise<void> | undefined;
  #drained: (() => void) | undefined;
  /** True if the next check needs a new connection, because the current one leads to a replica. */
  #isReplica = false;
  #isWatching = false;
  #isDiagnosing = false;
  /**
   * Reason why the last check of a reachable server failed, or `undefined` if no check has failed
   * since the last successful check.
   */
  #refusal: RedisAway | undefined;
  /** Error about missing slots or replicas. While it is set, some calls are rejected. */
  #shortfall: RedisAway | undefined;
  /** Warnings from the last check of the server. The next check does not report them again. */
  #warnings: ReadonlySet<string> = new Set();
  #mark: string | undefined;
  #rightsCheckedMs = Number.NEGATIVE_INFINITY;
  #watchTimer: NodeJS.Timeout | undefined;

  constructor(settings: RedisSettings, ports: LinkPorts) {
    this.#settings = settings;
    this.#database = databaseOf(settings);
    this.keys = new Keys(settings.prefix, this.#database);
    this.isCluster = isClustered(settings);
    this.#ports = ports;
    this.outage = new Outage({
      check: async () => {
        if (this.#shortfall !== undefined) throw this.#shortfall;
        await (ports.checkUsable ?? (() => this.ping()))();
      },
      report: (report) => ports.onOutage?.(report),
    });
    this.#client = this.#createClient();
    this.#clocks = new ServerClocks({
      servers: () => this.primaries().filter(({ status }) => status === "ready"),
      maxAgeMs: ports.maxClockAgeMs ?? MAX_CLOCK_AGE_MS,
      placeOf: (server) => this.#placeOf(server),
      onInvalid: (error) => {
        this.#report(error, "The clock of Redis shows a time after 2080, so writes are rejected");
        this.#recordOutage(error);
      },
      onStep: (stepMs) => {
        for (const listener of this.#stepListeners) listener(stepMs);
      },
    });
  }

  #createClient(): RedisClient {
    const client = createClient(this.settings, this.#ports.name);
    client.on("error", (error) => this.#recordOutage(error));
    if (client instanceof Cluster) {
      client.on("node error", (error) => this.#recordOutage(error));
      client.on("+node", (node: Redis) => this.#connectNode(node));
      this.#primaries = new Primaries(client);
    } else this.#connections.watch(client);
    return client;
  }

  #route(key: string | undefined): Redis {
    return this.#primaries?.connectionFor(key) ?? (this.#client as Redis);
  }

  get settings(): RedisSettings {
    return this.#settings;
  }

  setTimeoutMs(timeoutMs: number): void {
    this.#settings = { ...this.#settings, timeoutMs };
  }

  get isUp(): boolean {
    return this.#status === "up";
  }

  /**
   * Latest reason why `start` failed, or why it has not succeeded yet. `undefined` if no reason is
   * known yet.
   */
  get startFailure(): Error | undefined {
    return this.#startFailure;
  }

  /** True while a server's clock shows a time after 2080. Writes to that server are rejected. */
  get isClockInvalid(): boolean {
    return this.#clocks.isInvalid;
  }

  get #isClosed(): boolean {
    return this.#status === "closed";
  }

  /** Estimate of Redis' time in Unix milliseconds, which all nodes use in place of their clocks. */
  readonly now = (): number => this.#clocks.redisNow();

  /** Records the server time (Unix milliseconds) from a reply. Does nothing on a Redis Cluster. */
  recordTime(serverMs: number): void {
    if (!this.isCluster) this.#clocks.record(this.#route(undefined), serverMs);
  }

  get inFlight(): number {
    return this.#inFlight;
  }

  onChange(listener: (isUp: boolean) => void): void {
    this.#listeners.push(listener);
  }

  /**
   * Calls `listener` when the estimate of Redis' time jumps by more than a second, because a clock
   * was set or a server with a different clock has taken over. `stepMs` is negative if the time
   * jumps back.
   */
  onClockStep(listener: (stepMs: number) => void): void {
    this.#stepListeners.push(listener);
  }

  /**
   * Connects to Redis and checks it. If this fails, throws `RedisAway` if a later call may succeed,
   * and `UnusableRedis` if not.
   */
  start(): Promise<void> {
    this.#starting ??= this.#open();
    return this.#starting;
  }

  async #open(): Promise<void> {
    if (this.#status !== "new") throw new BrokerError("unavailable");
    this.#status = "starting";
    const client = this.#client;
    try {
      const timeoutMs = Math.max(this.settings.timeoutMs, START_MS);
      const onFailure = (failure: Error) => {
        this.#startFailure = failure;
      };
      await connected(client, { timeoutMs, signal: this.#closing.signal, onFailure });
      await this.#prepare();
    } catch (error) {
      const failure = startFailure(error);
      this.#startFailure = failure;
      client.disconnect();
      if (failure instanceof UnusableRedis) this.#status = "closed";
      if (!this.#isClosed) {
        // An ioredis client that is disconnected while it waits to reconnect never connects again.
        this.#client = this.#createClient();
        this.#status = "new";
        this.#starting = undefined;
      }
      throw failure;
    }
    client.on("ready", () => this.#reopen());
    for (const event of ["close", "end", "reconnecting"]) client.on(event, () => this.#lose());
    if (this.#isClosed) return; // closed while connecting
    this.#primaries?.watch();
    this.#clocks.watch();
    this.#watchTimer = setInterval(() => this.#watch(), WATCH_MS).unref();
    this.#setStatus("up");
    void this.#watch();
  }

  /** Rejects new calls and waits for the calls in flight. May be called again after it resolved. */
  async close(): Promise<void> {
    const wasOpen = this.#status === "up" || this.#status === "down";
    this.#status = "closed";
    this.outage.close();
    this.#closing.abort();
    if (wasOpen && this.#inFlight > 0)
      await new Promise<void>((resolve) => {
        this.#drained = resolve; // every call settles after its timeout at the latest
      });
    clearInterval(this.#watchTimer);
    this.#primaries?.close();
    this.#clocks.close();
    this.#client.disconnect();
  }

  /**
   * Throws `unavailable` if Redis cannot be used. The error's message contains the reason if the
   * operator must act.
   */
  async ping(): Promise<void> {
    const reason = this.#publicReason();
    if (reason !== "")
      throw new BrokerError("unavailable", { message: `Redis cannot be used: ${reason}` });
    await this.call("ping");
  }

  /**
   * Returns the reason why all calls, or all writes that wait for replicas, are rejected. Returns
   * "" if neither is the case, or if the reason is unknown.
   */
  #publicReason(): string {
    if (this.#status === "up") return this.isCluster ? "" : (this.#shortfall?.publicMessage ?? "");
    if (this.#client.status === "ready") return this.#refusal?.publicMessage ?? "";
    return this.outage.publicReason;
  }

  /**
   * Runs a script. The reply is a `Buffer`, a number, null or an array of these. Throws
   * `unavailable`, `too_late` (a write arrived after its deadline), `overloaded` or `internal`.
   * After `unavailable`, the script may have run. A script that writes cannot run later than the
   * rejection, unless `mayRunLate` is set.
   */
  run(
    script: Script,
    keys: readonly string[],
    args: readonly Arg[],
    options: CallOptions = {},
  ): Promise<unknown> {
    const variant = this.#database === 0 ? script : script.inDatabase(this.#database);
    const numbered = [variant.sha, keys.length, ...keys, ...args];
    return this.#send("evalsha", numbered, options, variant);
  }

  /** Runs a function of a library. Replies and errors are as for `run`. */
  callFunction(
    libraryFunction: LibraryFunction,
    keys: readonly string[],
    args: readonly Arg[],
    options: CallOptions = {},
  ): Promise<unknown> {
    const numbered = [libraryFunction.name, keys.length, ...keys, ...args];
    return this.#send("fcall", numbered, options, libraryFunction);
  }

  /** Sends one command that writes. `key` is its only key. Replies and errors are as for `run`. */
  write(command: string, key: string, ...args: readonly Arg[]): Promise<unknown> {
    return this.run(WRITE, [key], [command, ...args]);
  }

  /**
   * Sends one command that does not write. `command` is its name in lower case. The first argument,
   * a key or topic, selects the server. Replies and errors are as for `run`.
   */
  call(command: string, ...args: readonly Arg[]): Promise<unknown> {
    return this.#send(command, [...args], {});
  }

  /**
   * Yields the keys that begin with `redis.prefix`, from all primaries. May yield a key twice, for
   * example if its slot moves to another server during the scan. Throws the same errors as `call`.
   */
  async *allKeys(): AsyncGenerator<string> {
    for (const server of this.primaries()) {
      let cursor = "0";
      do {
        const [next, page] = await this.#scan(server, cursor);
        cursor = String(next);
        yield* page.map(String);
      } while (cursor !== "0");
    }
  }

  async #scan(server: Redis, cursor: string): Promise<readonly [Buffer, readonly Buffer[]]> {
    this.#countCall({});
    const args = [cursor, "MATCH", `${this.keys.prefix}:*`, "COUNT", SCAN_COUNT];
    const { timeoutMs } = this.settings;
    try {
      const reply = await send(server, "scan", args, { timeoutMs });
      return reply as readonly [Buffer, readonly Buffer[]];
    } catch (error) {
      throw this.#reportedError(error);
    } finally {
      this.release();
    }
  }

  /** Returns the error for a failure that `code` caught in Redis and returned as text. */
  errorOf(code: ServerCode, text: string): BrokerError {
    const error = errorOfReply(code.withFileLines(text));
    if (isDenied(error)) this.#checkRights();
    return error;
  }

  /** Counts work as one call in flight until `release`. Throws `unavailable` or `overloaded`. */
  admit(): void {
    this.#countCall({});
  }

  release(): void {
    this.#inFlight -= 1;
    if (this.#inFlight === 0) this.#drained?.();
  }

  #countCall({ isVital, isGathered }: CallOptions): void {
    if (this.#status !== "up") {
      this.outage.count();
      throw new BrokerError("unavailable");
    }
    const isFree = isVital === true || isGathered === true;
    if (!isFree && this.#inFlight >= this.settings.maxInFlight) throw new BrokerError("overloaded");
    this.#inFlight += 1;
  }

  async #send(
    command: string,
    args: Arg[],
    options: CallOptions,
    code?: ServerCode,
  ): Promise<unknown> {
    this.#countCall(options);
    let server: Redis | undefined;
    let sent: EncodedCommand | undefined;
    const { timeoutMs = this.settings.timeoutMs } = options;
    const untilMs = performance.now() + timeoutMs;
    let connection: Connections["present"];
    try {
      const key = args[code === undefined ? 0 : 2];
      server = this.#route(key === undefined ? key : String(key));
      if (options.isVital !== true && isFull(server, this.settings.maxInFlight))
        throw new BrokerError("overloaded");
      if (code?.isWriting)
        args.push(this.#deadline(server, untilMs) ?? (await this.#awaitDeadline(server, untilMs)));
      for (let attempt = 1; ; attempt++) {
        let refusal: Error | undefined;
        const leftMs = attempt === 1 ? timeoutMs : Math.max(untilMs - performance.now(), 1);
        const remaining = { ...options, timeoutMs: leftMs };
        const loading = code && this.#load(code, server, remaining);
        connection = this.#connections.present;
        sent = sendCommand(server, command, args, remaining);
        try {
          if (loading !== undefined) {
            sent.promise.catch(() => {}); // if the load fails, its error is thrown instead
            refusal = await loading;
          }
          return await sent.promise;
        } catch (error) {
          const isMissing = isMissingFunction(error) || isMissingScript(error);
          if (isMissing && refusal !== undefined) throw refusal;
          if (code === undefined || !isMissingFunction(error)) throw error;
          // The server has lost the library, so it has not run anything.
          if (attempt > 1) throw error;
          this.#loaded.get(server)?.delete(code.loading);
        }
      }
    } catch (error) {
      if (code !== undefined && isReply(error)) error.message = code.withFileLines(error.message);
      this.#primaries?.reportError(error);
      if (isMissingScript(error)) this.#reloadScripts(server);
      const brokerError = this.#reportedError(error);
      // The server's clock may have been set forward. The next deadline needs its new time.
      if (brokerError.code === "too_late" && server !== undefined) void this.#clocks.ensure(server);
      const mayRun = code?.isWriting && sent?.isWritten && options.mayRunLate !== true;
      if (mayRun && isUnanswered(brokerError)) await cannotRun(connection, untilMs);
      throw brokerError;
    } finally {
      this.release();
    }
  }

  /**
   * Converts a call's error. If the error is about a missing right, starts a check of the user's
   * rights. If the error is `unavailable`, records an outage.
   */
  #reportedError(error: unknown): BrokerError {
    if (isDenied(error)) this.#checkRights();
    const brokerError = asBrokerError(error);
    if (brokerError.code === "unavailable") this.#recordOutage(brokerError);
    return brokerError;
  }

  #deadline(server: Redis, untilMs: number): number | undefined {
    const nowMs = this.#clocks.now(server);
    return nowMs === undefined ? undefined : nowMs + untilMs - performance.now();
  }

  async #awaitDeadline(server: Redis, untilMs: number): Promise<number> {
    await this.#clocks.ensure(server);
    const deadline = this.#deadline(server, untilMs);
    if (deadline !== undefined) return deadline;
    const cause = this.#clocks.refusalOf(server);
    if (cause !== undefined) throw unusable(cause);
    throw new BrokerError("unavailable", {
      message:
        "Redis has not answered for a while, and writes are rejected until it answers. Try again later",
      cause: new Error("no reply to TIME"),
    });
  }

  /**
   * Loads code that has not been loaded over this connection. Rejects if the user has no permission
   * to load it. If Redis refuses for another reason, resolves with the error so that the call is
   * still tried: a Redis whose memory is full may already have the code.
   */
  #load(
    { loading }: ServerCode,
    server: Redis,
    options: SendOptions,
  ): Promise<Error | undefined> | undefined {
    let loaded = this.#loaded.get(server);
    if (loaded === undefined) {
      const loadings = new Set<ServerCode["loading"]>();
      server.on("close", () => loadings.clear()); // a new connection may lead to a different server
      this.#loaded.set(server, loadings);
      loaded = loadings;
    }
    if (loaded.has(loading)) return undefined;
    loaded.add(loading);
    const [command, ...args] = loading;
    return send(server, command, args, options).then(
      () => undefined,
      (error: unknown) => {
        if (isExistingLibrary(error)) return undefined;
        // If the server lacks the code, the call fails with this error, and a later call loads the
        // code again.
        if (isReply(error) && !isDenied(error)) return error;
        loaded.delete(loading); // so that the next call loads it again
        throw error;
      },
    );
  }

  /**
   * Handles a server that lacks a script after a restart. A single server is checked again, because
   * its data may have changed.
   */
  #reloadScripts(server: Redis | undefined): void {
    if (server !== undefined) this.#loaded.get(server)?.clear();
    if (!this.isCluster) this.#reopen();
  }

  primaries(): readonly Redis[] {
    const client = this.#client;
    return client instanceof Cluster ? client.nodes("master") : [client];
  }

  /**
   * Returns the connection to the primary of a key. Throws `unavailable` if that server is
   * unreachable or unknown.
   */
  primaryOf(key: string): Redis {
    return this.#route(key);
  }

  /** Returns a key in one of the server's slots, or `undefined` if the server has no slot. */
  keyOn(server: Redis, purpose: string): string | undefined {
    for (let tag = 0; tag < MAX_TAGS; tag++) {
      const key = `${this.keys.prefix}:{${purpose}${tag}}:${purpose}`;
      if (this.#primaries === undefined || this.#primaries.holds(server, key)) return key;
    }
    return undefined;
  }

  async #prepare(): Promise<void> {
    const servers = this.primaries();
    // The pings connect all reachable servers before the first call needs them.
    await Promise.allSettled(servers.map((server) => server.ping()));
    const ready = servers.filter(({ status }) => status === "ready");
    if (this.isCluster) await this.#assertClusterUp(ready);
    const warnings = [
      ...(await checkServer(ready[0] ?? this.#client, this.isCluster)),
      ...(await checkPassword(ready[0], this.#settings)),
    ];
    await Promise.all(ready.map((server) => this.#assertCommands(server)));
    // After startup, missing replicas do not make this check fail. Only calls that need them fail.
    if (this.#status === "starting") await this.#assertReplicas(ready);
    await Promise.all(ready.map((server) => this.#clocks.ask(server)));
    await this.#checkData();
    await this.#assertIdsLeft(ready);
    for (const warning of warnings)
      if (!this.#warnings.has(warning)) this.#ports.onWarning?.(warning);
    this.#warnings = new Set(warnings);
  }

  /**
   * Checks that at least one server has the replicas that `redis.minReplicas` requires, and that
   * they confirm writes. Counting the replicas is not enough, because a hanging replica stays
   * connected for a minute.
   */
  async #assertReplicas(servers: readonly Redis[]): Promise<void> {
    const { minReplicas, timeoutMs } = this.#settings;
    if (minReplicas === 0) return;
    const confirmMs = Math.ceil(timeoutMs * CONFIRM_SHARE);
    this.#startFailure = unconfirmed(0, minReplicas); // the reason while WAIT is in progress
    await anyOf(servers, async (server) => {
      assertReplicas(await replicationOf(server), minReplicas);
      const count = Number(await send(server, "wait", [minReplicas, confirmMs], {}));
      if (count < minReplicas) throw unconfirmed(count, minReplicas);
    });
  }

  /** Throws an `UnusableRedis` if a message id counter on these servers has no valid id left. */
  async #assertIdsLeft(servers: readonly Redis[]): Promise<void> {
    const primaries = this.#primaries;
    const isStoredOn = (key: string) => (server: Redis) => primaries?.holds(server, key) ?? true;
    const keys = idCounterKeys(this).filter((key) => servers.some(isStoredOn(key)));
    await Promise.all(
      keys.map(async (key) => assertIdsLeft(key, Number(await this.#client.get(key)))),
    );
  }

  async #assertClusterUp(servers: readonly Redis[]): Promise<void> {
    await anyOf(servers, async (server) => {
      const info = await server.cluster("INFO").catch((error: unknown) => {
        if (isDenied(error)) return ""; // `assertCommands` reports the missing right
        throw error;
      });
      assertClusterUp(String(info));
    });
  }

  async #assertCommands(server: Redis): Promise<void> {
    const { username } = server.options;
    const key = this.keyOn(server, "probe");
    if (key === undefined) return; // the server holds no slot
    await assertCommands(server, {
      ...{ key, prefix: this.keys.prefix, username: username ?? "" },
      place: this.#placeOf(server),
      isCluster: this.isCluster,
      waits: this.settings.minReplicas > 0,
      // After startup, the connections that subscribe report a missing right themselves.
      subscribes: this.#ports.subscribes === true && this.#status === "starting",
    });
  }

  /** Returns the text that identifies the server in an error message, or "" for a single server. */
  #placeOf({ options: { host, port } }: Redis): string {
    return this.isCluster ? `at ${host}:${port} ` : "";
  }

  /** Checks the user's rights. The link is down while a right is missing. */
  #checkRights(): void {
    const now = performance.now();
    if (this.#status !== "up" || now - this.#rightsCheckedMs < WATCH_MS) return;
    this.#rightsCheckedMs = now;
    const servers = this.primaries().filter(({ status }) => status === "ready");
    Promise.all(servers.map((server) => this.#assertCommands(server))).catch((error: unknown) => {
      if (error instanceof UnusableRedis) this.#reopen(); // other errors do not concern rights
    });
  }

  /**
   * Sets the link to `down` until the server and its data have been checked, because a reconnect
   * may lead to a different server or different data.
   */
  #reopen(): void {
    if (this.#status === "closed") return;
    this.#setStatus("down");
    this.#preparing ??= this.#prepare()
      .then(() => {
        this.#refusal = undefined;
        this.#setStatus("up");
      })
      .catch((error: unknown) => {
        this.#refusal = startFailure(error);
        this.#isReplica = error instanceof RedisAway && !this.isCluster;
        this.#recordOutage(error);
        setTimeout(() => this.#retry(), 1000).unref();
      })
      .finally(() => {
        this.#preparing = undefined;
      });
  }

  #retry(): void {
    if (this.#status !== "down" || this.#client.status !== "ready") return;
    if (this.#preparing !== undefined) return; // a newer connection is being checked
    if (this.#isReplica) this.#client.disconnect(true);
    else this.#reopen();
  }

  async #checkData(): Promise<void> {
    const former = this.#mark;
    this.#mark = await assertFormat(this.#client, this.keys);
    if (former === undefined || former === this.#mark) return;
    this.#ports.onDataLoss?.();
    this.#report(
      new Error(
        "Redis was emptied while this node was running, for example by FLUSHALL or a restart without persistence. The channels, members, tokens and messages stored before are lost. Restore Redis from a backup, or register the channels and tokens again; new messages are numbered from 1. Check that Redis has appendonly yes",
      ),
      "Redis lost its data",
    );
  }

  /**
   * Checks that Redis was not emptied, and that no slots or replicas are missing. Outside a Redis
   * Cluster, also checks that the server is a primary.
   */
  async #watch(): Promise<void> {
    if (this.#status !== "up" || this.#isWatching) return;
    this.#isWatching = true;
    try {
      if (!this.isCluster) assertPrimary(await replicationOf(this.#route(undefined)));
      await this.#checkData();
      await this.#checkShortfall();
    } catch (error) {
      const isUnusable = error instanceof RedisAway || error instanceof UnusableRedis;
      if (isUnusable) this.#reopen(); // other errors are reported when a call fails with them
      if (isDenied(error)) this.#checkRights();
    } finally {
      this.#isWatching = false;
    }
  }

  /** Checks whether slots or replicas are missing. If so, the calls that need them are rejected. */
  async #checkShortfall(): Promise<void> {
    const { minReplicas } = this.#settings;
    const servers = this.primaries().filter(({ status }) => status === "ready");
    try {
      if (this.isCluster)
        assertAllSlots(String(await send(this.#route(undefined), "cluster", ["info"], {})));
      if (minReplicas > 0)
        for (const server of servers) assertReplicas(await replicationOf(server), minReplicas);
      this.#shortfall = undefined;
    } catch (error) {
      if (!(error instanceof RedisAway)) throw error;
      this.#shortfall = error;
      this.#recordOutage(error);
    }
  }

  #connectNode(node: Redis): void {
    // While the Cluster itself is connecting, its nodes must not be connected here, because ioredis
    // treats a node that is not ready yet as failed.
    if (node.status === "wait" && this.#client.status === "ready")
      node.connect().catch((error: unknown) => {
        this.#recordOutage(error);
      });
  }

  /** Handles the loss of the connection, or of the last connection to a Redis Cluster. */
  #lose(): void {
    const error = new Error("the connection is closed");
    if (this.#status === "up") this.#recordOutage(error);
    else if (this.#status === "down") void this.#diagnose(error); // ioredis may emit no error
    this.#setStatus("down");
  }

  #recordOutage(error: unknown): void {
    if (this.#status !== "up" && this.#status !== "down") return;
    this.outage.record(error);
    if (this.#status === "down") void this.#diagnose(error);
  }

  async #diagnose(error: unknown): Promise<void> {
    if (this.#isDiagnosing) return;
    this.#isDiagnosing = true;
    const precise = await diagnosisOf(this.#client, error).catch(() => undefined);
    this.#isDiagnosing = false;
    if (precise !== undefined && this.#status === "down") this.outage.record(precise);
  }

  #report(error: unknown, what: string): void {
    if (this.#status === "up" || this.#status === "down") this.#ports.onError(error, what);
  }

  #setStatus(status: "up" | "down"): void {
    if (this.#status === "closed" || this.#status === status) return;
    this.#status = status;
    for (const listener of this.#listeners) listener(status === "up");
  }
}

async function replicationOf(server: Redis): Promise<string> {
  return String(await send(server, "info", ["replication"], {}));
}

/** Resolves if the check succeeds for at least one server, or if there are no servers. */
async function anyOf(
  servers: readonly Redis[],
  check: (server: Redis) => Promise<void>,
): Promise<void> {
  await Promise.any(servers.map(check)).catch(({ errors: [first] }: AggregateError) => {
    if (first !== undefined) throw first;
  });
}
