// How a connection to Redis is made: one server, Sentinels or a Cluster, with or without TLS. The
// only place that knows ioredis' options. Nothing is queued while Redis is away and nothing is sent
// twice: a call whose fate is unknown is refused, and its caller retries.

import { readFileSync } from "node:fs";
import type { ConnectionOptions } from "node:tls";
import { Cluster, type ClusterOptions, Command, Redis, type RedisOptions } from "ioredis";
import type { Arg } from "./script.ts";

/** Plain values of the configuration (see `options.ts`). */
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
 * A connection on which something is awaited and nothing came for so long beyond a call's time is
 * dead, and left for a new one.
 */
const SILENCE_GRACE_MS = 500;
/** Bytes a server may leave unread before it is given no more. */
const MAX_UNREAD_BYTES = 64 * 1024 * 1024;
const RECONNECT_MS = 100;
const MAX_RECONNECT_MS = 2000;
/**
 * At start all Sentinels may refuse for so long: they may be given their primaries a little later.
 */
const REFUSED_MS = 1000;

const reconnectMs = (times: number): number => Math.min(times * RECONNECT_MS, MAX_RECONNECT_MS);

/** Whether the settings name a Redis Cluster. */
export function isClustered({ url, cluster, sentinelName }: RedisSettings): boolean {
  return sentinelName === "" && (cluster || url.includes(","));
}

/**
 * A client that is not connected yet (`connect()`). `name` shows in CLIENT LIST. That of a Cluster
 * takes commands only, no subscriptions. Throws an Error with a message for the operator when the
 * address cannot be read.
 */
export function createClient(settings: RedisSettings, name: string): RedisClient {
  const urls = settings.url.split(",").map((text) => parse(text.trim()));
  const [first] = urls;
  if (first === undefined) throw new Error("redis.url is empty");
  const hosts = urls.map(({ host, port }) => ({ host, port }));
  const shared = connectionOptions(settings, first, name);
  if (isClustered(settings)) return new Cluster(hosts, clusterOptions(shared));
  const one = {
    ...shared,
    lazyConnect: true,
    enableOfflineQueue: false,
    db: first.db,
    retryStrategy: reconnectMs,
    reconnectOnError: (error: Error) => error.message.startsWith("READONLY"),
  };
  if (settings.sentinelName === "")
    return new Redis({ host: first.host, port: first.port, ...one });
  const { sentinelPassword } = settings;
  const { tls } = shared;
  return new Redis({
    ...one,
    ...(tls === undefined ? {} : { sentinelTLS: tls, enableTLSForSentinelMode: true }),
    sentinels: hosts,
    name: settings.sentinelName,
    sentinelCommandTimeout: settings.timeoutMs,
    ...(sentinelPassword === "" ? {} : { sentinelPassword }),
  });
}

/**
 * Resolves when the client is ready to be used. Its own promise is never settled when the first
 * look at a Cluster fails, or while Sentinels know of no primary: it then tries again by itself.
 * Throws when it is not ready in time, or when all Sentinels refuse, with the reason as far as it
 * is known.
 */
export async function connected(client: RedisClient, timeoutMs: number): Promise<void> {
  const sentinels = client.options as Pick<RedisOptions, "sentinels">; // absent from a Cluster's
  const sentinelCount = sentinels.sentinels?.length ?? 0;
  let reason = "";
  let refusals: string[] = [];
  let refusedSince: number | undefined;
  let fail: (error: Error) => void = () => {};
  const failure = new Promise<never>((_, reject) => {
    fail = reject;
  });
  const timer = setTimeout(() => fail(new Error("it is not ready in time")), timeoutMs);
  const noteSentinel = ({ message }: Error): void => {
    refusals.push(...refusalsIn(message));
  };
  /** Also after each round of the Sentinels in which none named a primary. */
  const note = ({ message }: Error): void => {
    const now = performance.now();
    const refuseAll = sentinelCount > 0 && refusals.length >= sentinelCount;
    refusedSince = refuseAll ? (refusedSince ?? now) : undefined;
    reason = refusals[0] ?? message;
    refusals = [];
    if (now - (refusedSince ?? now) >= REFUSED_MS) fail(new Error(reason));
  };
  client.on("sentinelError", noteSentinel);
  client.on("error", note);
  try {
    await Promise.race([
      client.connect(),
      new Promise<void>((resolve) => client.once("ready", resolve)),
      failure,
    ]);
  } catch (cause) {
    if (reason === "") throw cause;
    throw new Error(reason, { cause });
  } finally {
    clearTimeout(timer);
    client.off("sentinelError", noteSentinel);
    client.off("error", note);
  }
}

/** The refusal in what ioredis says of a Sentinel; none: it may be away. */
function refusalsIn(said: string): readonly string[] {
  if (/No such (master|primary)|invalid reply: null$/.test(said))
    return ["a Sentinel knows no primary of the name in redis.sentinelName"];
  const reply = /\b(NOAUTH|WRONGPASS|NOPERM) .*$/.exec(said)?.[0];
  return reply ? [`a Sentinel refuses redis.sentinelPassword: ${reply}`] : [];
}

/**
 * Whether as much as may be waits for the server's answers: also what its callers have given up,
 * which a server that hangs would still run, and which takes memory until the connection is left.
 */
export function isFull(client: Redis, maxCommands: number): boolean {
  const queues = client as unknown as Record<
    "commandQueue" | "offlineQueue",
    { readonly length: number }
  >; // private to the library; the latter is where a Cluster's server is being connected to
  const waiting = queues.commandQueue.length + queues.offlineQueue.length;
  const unread = client.stream?.writableLength ?? 0;
  return waiting >= maxCommands || unread >= MAX_UNREAD_BYTES;
}

/** How a command goes out. */
export interface Sending {
  /**
   * How long its answer is waited for, where that is less than for all commands of the connection.
   */
  readonly timeoutMs?: number;
  /**
   * It gathers what came in a turn of the event loop: it leaves with what this callback sends, and
   * waits for no further turn.
   */
  readonly isGathered?: boolean;
}

/**
 * Sends a command, named in lower case. Replies are Buffers, numbers, null or arrays of these;
 * rejects with the library's errors.
 */
export function send(
  client: Redis,
  name: string,
  args: readonly Arg[],
  { timeoutMs, isGathered = false }: Sending,
): Promise<unknown> {
  gather(client, isGathered);
  const command = new EncodedCommand(name, args);
  if (timeoutMs !== undefined) command.setTimeout(timeoutMs); // the first that is set counts
  client.sendCommand(command);
  return command.promise;
}

/**
 * What is sent in one turn of the event loop leaves in one write. ioredis' automatic pipelining
 * would do that too, but it holds everything back while an earlier pipeline waits for its answers,
 * and takes a fifth more processor time.
 */
function gather({ stream }: Redis, isGathered: boolean): void {
  if (!stream || stream.writableCorked > 0) return;
  stream.cork();
  const flush = () => stream.uncork();
  if (isGathered) process.nextTick(flush);
  else setImmediate(flush);
}

interface Address {
  readonly host: string;
  readonly port: number;
  readonly db: number;
  readonly username: string;
  readonly password: string;
  readonly tls: boolean;
}

function parse(text: string): Address {
  let url: URL;
  try {
    url = new URL(text.includes("://") ? text : `redis://${text}`);
  } catch (cause) {
    throw new Error("redis.url is no address like redis://host:6379", {
      cause,
    });
  }
  if (url.protocol !== "redis:" && url.protocol !== "rediss:")
    throw new Error(`redis.url begins with ${url.protocol}, not redis:`);
  return {
    host: url.hostname.replace(/^\[|\]$/g, "") || "127.0.0.1",
    port: Number(url.port || 6379),
    db: Number(url.pathname.slice(1) || 0),
    username: decodeURIComponent(url.username),
    password: decodeURIComponent(url.password),
    tls: url.protocol === "rediss:",
  };
}

function connectionOptions(
  { timeoutMs, caFile }: RedisSettings,
  { username, password, tls }: Address,
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
    enableAutoPipelining: false, // `send` gathers what goes out together
    protocol: 2 as const,
  } satisfies RedisOptions;
}

function clusterOptions(redisOptions: ReturnType<typeof connectionOptions>) {
  return {
    lazyConnect: true,
    enableOfflineQueue: false,
    enableAutoPipelining: false,
    redisOptions,
    clusterRetryStrategy: reconnectMs,
    slotsRefreshInterval: 0, // `Primaries` does it: ioredis' own timer outlives a client that is closed while the map is read
    slotsRefreshTimeout: 1000,
    retryDelayOnFailover: 0,
    retryDelayOnClusterDown: 0,
    maxRedirections: 4,
  } satisfies ClusterOptions;
}

/**
 * A command as bytes, made in one go: ioredis would measure and copy every argument on its own, at
 * three times the cost, for each message. Named in lower case; it is answered with Buffers,
 * numbers, null or arrays of these.
 */
export class EncodedCommand extends Command {
  readonly #bytes: Buffer;

  constructor(name: string, args: readonly Arg[]) {
    super(name, [], { replyEncoding: null });
    this.#bytes = encodeCommand(name, args);
  }

  override toWritable(): Buffer {
    return this.#bytes;
  }
}

/** An array of bulk strings, as Redis reads commands. */
export function encodeCommand(name: string, args: readonly Arg[]): Buffer {
  const parts: (string | Buffer)[] = [];
  let text = `*${args.length + 1}\r\n${bulk(name)}`;
  let size = 0;
  for (const arg of args)
    if (typeof arg === "object") {
      text += `$${arg.length}\r\n`;
      parts.push(text, arg);
      size += Buffer.byteLength(text) + arg.length;
      text = "\r\n";
    } else text += bulk(String(arg));
  const bytes = Buffer.allocUnsafe(size + Buffer.byteLength(text));
  let at = 0;
  for (const part of parts)
    if (typeof part === "string") at += bytes.write(part, at);
    else at += part.copy(bytes, at);
  bytes.write(text, at);
  return bytes;
}

function bulk(text: string): string {
  return `$${Buffer.byteLength(text)}\r\n${text}\r\n`;
}
