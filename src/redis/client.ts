// Creates connections to Redis: a single server, Sentinels or a Redis Cluster, with or without TLS.
// Commands are neither queued while Redis is unreachable nor sent twice. A command with an unknown
// outcome is rejected, and its caller retries.

import { readFileSync } from "node:fs";
import type { ConnectionOptions } from "node:tls";
import { Cluster, type ClusterOptions, Command, Redis, type RedisOptions } from "ioredis";
import { parseRedisUrl, type RedisAddress } from "./address.ts";
import { isOfSentinels, isPrecise, LOADING } from "./causes.ts";
import { diagnose } from "./diagnosis.ts";
import { causeOf, isReply, RedisAway, replyError, startFailure, UnusableRedis } from "./errors.ts";
import type { Arg } from "./script.ts";

export interface RedisSettings {
  readonly url: string;
  readonly cluster: boolean;
  readonly sentinelName: string;
  readonly sentinelPassword: string;
  readonly caFile: string;
  readonly prefix: string;
  readonly minReplicas: number;
  readonly timeoutMs: number;
  readonly maxInFlight: number;
}

export type RedisClient = Redis | Cluster;

/**
 * Time added to `timeoutMs`. A connection with calls in progress is replaced if it receives nothing
 * for this time plus `timeoutMs`.
 */
const SILENCE_GRACE_MS = 500;
/** Number of unsent bytes at which a connection accepts no further commands. */
const MAX_UNREAD_BYTES = 64 * 1024 * 1024;
const RECONNECT_MS = 100;
const MAX_RECONNECT_MS = 2000;
/**
 * Time after which connecting fails if all Sentinels keep rejecting the lookup of the primary.
 * Until then, they may still be starting.
 */
const REFUSED_MS = 1000;

const NOT_READY =
  "Redis accepts connections but was not ready in time. Check its log (on a Cluster, the logs of all servers)";

const reconnectMs = (times: number): number => Math.min(times * RECONNECT_MS, MAX_RECONNECT_MS);

export function isClustered({ url, cluster, sentinelName }: RedisSettings): boolean {
  return sentinelName === "" && (cluster || url.includes(","));
}

/**
 * Creates a client. A client of a Redis Cluster must not be used to subscribe. Throws
 * `UnusableRedis` if the URL is invalid.
 */
export function createClient(settings: RedisSettings, name: string): RedisClient {
  const address = addressOf(settings);
  const { hosts, database } = address;
  const shared = connectionOptions(settings, address, name);
  if (isClustered(settings)) return new Cluster([...hosts], clusterOptions(shared));
  const common = {
    ...shared,
    lazyConnect: true,
    enableOfflineQueue: false,
    db: database,
    retryStrategy: reconnectMs,
    reconnectOnError: (error: Error) => error.message.startsWith("READONLY"),
  };
  if (settings.sentinelName === "")
    return reportLoading(onlyInItsDatabase(new Redis({ ...hosts[0], ...common })));
  const { sentinelPassword } = settings;
  const { tls } = shared;
  const client = new Redis({
    ...common,
    ...(tls === undefined ? {} : { sentinelTLS: tls, enableTLSForSentinelMode: true }),
    sentinels: [...hosts],
    name: settings.sentinelName,
    sentinelCommandTimeout: settings.timeoutMs,
    ...(sentinelPassword === "" ? {} : { sentinelPassword }),
  });
  return reportLoading(onlyInItsDatabase(client));
}

function addressOf({ url }: Pick<RedisSettings, "url">): RedisAddress {
  const address = parseRedisUrl(url);
  if (typeof address === "string") throw new UnusableRedis(address);
  return address;
}

export function databaseOf(settings: RedisSettings): number {
  return addressOf(settings).database;
}

export function passwordOf(settings: Pick<RedisSettings, "url">): {
  readonly username: string;
  readonly password: string;
} {
  return addressOf(settings);
}

export function duplicate(client: Redis, changes: RedisOptions): Redis {
  return onlyInItsDatabase(client.duplicate(changes));
}

/**
 * Makes the client close a connection on which SELECT fails. Otherwise, ioredis would continue in
 * database 0, which may contain other data.
 */
function onlyInItsDatabase(client: Redis): Redis {
  const select = client.select.bind(client);
  client.select = async (database: number) => {
    try {
      return await select(database);
    } catch (error) {
      client.stream?.destroy(); // ioredis then runs no command and reconnects
      throw isReply(error) ? unusableDatabase(database, error) : error;
    }
  };
  return client;
}

function unusableDatabase(database: number, { message }: Error): UnusableRedis {
  return new UnusableRedis(
    `it rejects database ${database} of redis.url: ${message}. Set a different database, raise "databases" in the configuration of Redis, or grant the user +select`,
  );
}

interface ConnectOptions {
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
  /** Called with the error of each failed attempt to connect. */
  readonly onFailure: (failure: Error) => void;
}

/**
 * Connects the client and resolves when it is ready. Also listens for the `ready` event, because
 * ioredis may never settle the promise of `connect()`. Rejects after `timeoutMs`, after a reply
 * that makes waiting pointless, or when `signal` is aborted. Also rejects if the client has only
 * one server and cannot reach it. Rejects with the errors that `startFailure` returns.
 */
export async function connected(
  client: RedisClient,
  { timeoutMs, signal, onFailure }: ConnectOptions,
): Promise<void> {
  // The options of a Cluster have no `sentinels`.
  const sentinels = client.options as Pick<RedisOptions, "sentinels">;
  const sentinelCount = sentinels.sentinels?.length ?? 0;
  let lastError: Error | undefined;
  let refusals: Error[] = [];
  let refusedSince: number | undefined;
  let fail: (error: Error) => void = () => {};
  const failed = new Promise<never>((_, reject) => {
    fail = reject;
  });
  const timer = setTimeout(() => fail(lastError ?? new RedisAway(NOT_READY)), timeoutMs);
  const abort = () => fail(new RedisAway("the connection to Redis was closed"));
  const recordRefusal = (error: Error): void => {
    if (isOfSentinels(causeOf(error))) refusals.push(error);
  };
  const recordError = (error: Error): void => {
    const now = performance.now();
    const haveAllRefused = sentinelCount > 0 && refusals.length >= sentinelCount;
    refusedSince = haveAllRefused ? (refusedSince ?? now) : undefined;
    lastError = refusals[0] ?? error;
    refusals = [];
    const failure = startFailure(lastError);
    onFailure(failure);
    const isRefused = now - (refusedSince ?? now) >= REFUSED_MS;
    const isUnusable = failure instanceof UnusableRedis && !isOfSentinels(causeOf(error));
    if (isRefused || isUnusable || causeOf(error) === LOADING) fail(lastError);
  };
  client.on("sentinelError", recordRefusal);
  client.on("error", recordError);
  signal.addEventListener("abort", abort);
  try {
    await Promise.race([
      client.connect(),
      new Promise<void>((resolve) => client.once("ready", resolve)),
      failed,
    ]);
  } catch (cause) {
    const error = lastError ?? cause;
    throw startFailure((await diagnosisOf(client, error)) ?? error);
  } finally {
    clearTimeout(timer);
    client.off("sentinelError", recordRefusal);
    client.off("error", recordError);
    signal.removeEventListener("abort", abort);
  }
}

/**
 * Returns a more precise error for a server that closes connections or does not reply. Returns
 * `undefined` if no better error is found, or if the client uses Sentinels or a Redis Cluster.
 */
export async function diagnosisOf(client: RedisClient, error: unknown): Promise<Error | undefined> {
  if (isPrecise(causeOf(error)) || client instanceof Cluster) return undefined;
  const { host = "", port = 0, tls, sentinels } = client.options;
  return sentinels == null ? diagnose({ host, port, tls }) : undefined;
}

/**
 * Makes the client emit an error if the server is still loading its data when the client connects.
 * By default, ioredis would only wait.
 */
function reportLoading(client: Redis): Redis {
  client.on("connect", () => {
    const report = (info: string): void => {
      const [, percent = "0"] = /^loading_loaded_perc:([\d.]+)/m.exec(info) ?? [];
      if (/^loading:1/m.test(info)) client.emit("error", replyError(`LOADING ${percent} %`));
    };
    client.info("persistence").then(report, () => {}); // ioredis reports the errors of its own INFO
  });
  return client;
}

/**
 * Returns true if `maxCommands` commands are waiting for replies or `MAX_UNREAD_BYTES` bytes are
 * unsent, so that no further command may be sent. Commands that have timed out are counted as well,
 * because a hanging server may still run them.
 */
export function isFull(client: Redis, maxCommands: number): boolean {
  // Private fields of ioredis. On a Redis Cluster, a command waits in `offlineQueue` while the
  // connection to its server is being opened.
  const queues = client as unknown as Record<
    "commandQueue" | "offlineQueue",
    { readonly length: number }
  >;
  const waiting = queues.commandQueue.length + queues.offlineQueue.length;
  const unread = client.stream?.writableLength ?? 0;
  return waiting >= maxCommands || unread >= MAX_UNREAD_BYTES;
}

export interface SendOptions {
  /** Maximum time to wait for the reply. The default is the connection's `timeoutMs`. */
  readonly timeoutMs?: number;
  /**
   * True if the command is a batch. It is then written at the end of the current callback instead
   * of at the end of the current turn of the event loop.
   */
  readonly isGathered?: boolean;
}

/**
 * Sends a command. The name must be in lower case. The reply is a `Buffer`, a number, null or an
 * array of these.
 */
export function send(
  client: Redis,
  name: string,
  args: readonly Arg[],
  options: SendOptions,
): Promise<unknown> {
  return sendCommand(client, name, args, options).promise;
}

export function sendCommand(
  client: Redis,
  name: string,
  args: readonly Arg[],
  { timeoutMs, isGathered = false }: SendOptions,
): EncodedCommand {
  gather(client, isGathered);
  const command = new EncodedCommand(name, args);
  // The timeout is set before `sendCommand`, because ioredis ignores later calls to `setTimeout`.
  if (timeoutMs !== undefined) command.setTimeout(timeoutMs);
  client.sendCommand(command);
  return command;
}

/**
 * Corks the connection so that all commands of one turn of the event loop are sent in one write.
 * ioredis' own pipelining would hold back commands while an earlier pipeline waits for its replies,
 * and would use a fifth more CPU time.
 */
function gather({ stream }: Redis, isGathered: boolean): void {
  if (!stream || stream.writableCorked > 0) return;
  stream.cork();
  const flush = () => stream.uncork();
  if (isGathered) process.nextTick(flush);
  else setImmediate(flush);
}

function connectionOptions(
  { timeoutMs, caFile }: RedisSettings,
  { username, password, tls }: RedisAddress,
  name: string,
) {
  const secured: ConnectionOptions | undefined = tls
    ? caFile === ""
      ? {}
      : { ca: readFileSync(caFile) }
    : undefined;
  return {
    ...(username === "" ? {} : { username }),
    ...(password === "" ? {} : { password }),
    ...(secured === undefined ? {} : { tls: secured }),
    connectionName: name,
    connectTimeout: timeoutMs,
    commandTimeout: timeoutMs,
    socketTimeout: timeoutMs + SILENCE_GRACE_MS,
    maxRetriesPerRequest: 0,
    autoResendUnfulfilledCommands: false,
    autoResubscribe: false,
    enableAutoPipelining: false, // `send` combines the writes of one turn itself
    protocol: 2 as const,
  } satisfies RedisOptions;
}

function clusterOptions(redisOptions: ReturnType<typeof connectionOptions>) {
  return {
    lazyConnect: true,
    enableOfflineQueue: false,
    enableAutoPipelining: false,
    enableReadyCheck: false, // the link checks the Cluster, and reports why it cannot be used
    redisOptions,
    clusterRetryStrategy: reconnectMs,
    // `Primaries` refreshes the slot map instead, because ioredis' timer keeps running if the
    // client is closed while the map is being read.
    slotsRefreshInterval: 0,
    slotsRefreshTimeout: 1000,
    retryDelayOnFailover: 0,
    retryDelayOnClusterDown: 0,
    maxRedirections: 4,
  } satisfies ClusterOptions;
}

/** A command that is encoded in one step. ioredis would take three times as long. */
export class EncodedCommand extends Command {
  readonly #bytes: Buffer;
  #isWritten = false;

  constructor(name: string, args: readonly Arg[]) {
    super(name, [], { replyEncoding: null });
    this.#bytes = encodeCommand(name, args);
  }

  get isWritten(): boolean {
    return this.#isWritten;
  }

  override toWritable(): Buffer {
    this.#isWritten = true;
    return this.#bytes;
  }
}

/** Encodes a command as an array of bulk strings [RESP2]. */
export function encodeCommand(name: string, args: readonly Arg[]): Buffer {
  const chunks: (string | Buffer)[] = [];
  let text = `*${args.length + 1}\r\n${bulk(name)}`;
  let size = 0;
  for (const arg of args)
    if (typeof arg === "object") {
      text += `$${arg.length}\r\n`;
      chunks.push(text, arg);
      size += Buffer.byteLength(text) + arg.length;
      text = "\r\n";
    } else text += bulk(String(arg));
  const bytes = Buffer.allocUnsafe(size + Buffer.byteLength(text));
  let at = 0;
  for (const chunk of chunks)
    if (typeof chunk === "string") at += bytes.write(chunk, at);
    else at += chunk.copy(bytes, at);
  bytes.write(text, at);
  return bytes;
}

function bulk(text: string): string {
  return `$${Buffer.byteLength(text)}\r\n${text}\r\n`;
}
