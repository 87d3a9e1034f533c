// The Redis commands that a node uses, and the check that the node may use them. COMMAND INFO
// ignores the user's rights, and ACL DRYRUN is only for administrators. Each command is therefore
// run once. Commands that need a key are run on one that nothing else uses. Keeps no state.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import type { Redis } from "ioredis";
import { duplicate, send } from "./client.ts";
import { isReply, NO_COMMAND, NO_KEY, NO_TOPIC, UnusableRedis } from "./errors.ts";

/**
 * One call of each command that scripts or the node itself run. `@` stands for the probe's key,
 * which is the only key that a call may change.
 */
const SCRATCH_CALLS = [
  "COPY @ @",
  "DEL @",
  "EXISTS @",
  "GET @",
  "GETRANGE @ 0 0",
  "HDEL @ f",
  "HEXISTS @ f",
  "HGET @ f",
  "HGETALL @",
  "HINCRBY @ f 1",
  "HKEYS @",
  "HLEN @",
  "HMGET @ f",
  "HSET @ f v",
  "HSETNX @ f v",
  "HVALS @",
  "INCR @",
  "LLEN @",
  "LPUSH @ v",
  "LRANGE @ 0 0",
  "LTRIM @ 0 0",
  "PERSIST @",
  "PEXPIRE @ 1",
  "PING",
  "PTTL @",
  "RENAME @ @",
  "RPUSH @ v",
  "SADD @ m",
  "SCAN 0",
  "SCARD @",
  "SET @ v",
  "SETRANGE @ 0 x",
  "SINTERCARD 1 @",
  "SISMEMBER @ m",
  "SMEMBERS @",
  "SMISMEMBER @ m",
  "SPOP @",
  "SPUBLISH @ x",
  "SRANDMEMBER @",
  "SREM @ m",
  "SSCAN @ 0",
  "SUNION @",
  "SUNIONSTORE @ @",
  "TIME",
  "TYPE @",
  "UNLINK @",
  "XADD @ NOMKSTREAM * f v",
  "XDEL @ 0-1",
  "XLEN @",
  "XRANGE @ - +",
  "XREVRANGE @ + -",
  "XTRIM @ MAXLEN 0",
  "ZADD @ XX 1 m",
  "ZCARD @",
  "ZCOUNT @ 0 0",
  "ZRANGE @ 0 0",
  "ZRANGEBYSCORE @ 0 0",
  "ZINCRBY @ 1 m",
  "ZLEXCOUNT @ - +",
  "ZREM @ m",
  "ZREMRANGEBYRANK @ 0 0",
  "ZREMRANGEBYSCORE @ 0 0",
  "ZREVRANGEBYSCORE @ 0 0",
  "ZSCORE @ m",
];

export const SCRIPT_COMMANDS: readonly string[] = SCRATCH_CALLS.map(
  (call) => call.split(" ")[0] ?? "",
);

const PROBE = readFileSync(new URL("./lua/probe.lua", import.meta.url), "utf8");
const PROBE_SHA = createHash("sha1").update(PROBE).digest("hex");

/** Calls of the function commands. They fail and change nothing. */
const FUNCTION_CALLS: readonly (readonly [string, readonly string[], string])[] = [
  ["fcall", ["jindou_none", "0"], "fcall"],
  ["function", ["LOAD", ""], "function|load"],
];

const UNKNOWN_COMMAND = /unknown (redis )?(sub)?command/i;

interface ProbeOptions {
  /** Key for the probe, in one of the server's slots. Nothing else uses this key. */
  readonly key: string;
  readonly prefix: string;
  /** User of the connection, or "" for the default user. */
  readonly username: string;
  /** Text that identifies the server in an error message, or "" if there is only one server. */
  readonly place: string;
  readonly isCluster: boolean;
  readonly waits: boolean;
  readonly subscribes: boolean;
}

/**
 * Throws an `UnusableRedis` that lists the commands, keys or topics that this node may not use, and
 * explains how to allow them. Other error replies to the commands in the probe script and to
 * `FUNCTION_CALLS` are ignored. Any other error is thrown unchanged.
 */
export async function assertCommands(server: Redis, options: ProbeOptions): Promise<void> {
  const refusals = new Refusals();
  const { key } = options;
  await refusals.note("info", () => send(server, "info", ["server"], {}));
  if (options.isCluster)
    for (const part of ["info", "slots"])
      await refusals.note(`cluster|${part}`, () => send(server, "cluster", [part], {}));
  if (options.waits) await refusals.note("wait", () => send(server, "wait", [0, 1], {}));
  if (options.subscribes) await refusals.note("ssubscribe", () => subscribe(server, key));
  const isLoaded = await refusals.note("script|load", () =>
    send(server, "script", ["LOAD", PROBE], {}),
  );
  if (isLoaded) await refusals.note("evalsha", () => probe(server, key, refusals));
  for (const [command, subcommand, name] of FUNCTION_CALLS)
    await refusals.note(name, () => failing(send(server, command, subcommand, {})));
  const sentences = refusals.sentences(options);
  if (sentences.length > 0) throw new UnusableRedis(sentences.join(". "));
}

async function probe(server: Redis, key: string, refusals: Refusals): Promise<void> {
  const calls = SCRATCH_CALLS.map((call) =>
    call.split(" ").map((word) => (word === "@" ? key : word)),
  );
  const words = calls.flatMap((call) => [call.length, ...call]);
  const reply = await send(server, "evalsha", [PROBE_SHA, 1, key, ...words], {});
  const failures = reply as readonly (number | Buffer)[]; // see the header of `probe.lua`
  for (let at = 0; at + 1 < failures.length; at += 2)
    refusals.add(SCRIPT_COMMANDS[Number(failures[at])] ?? "", String(failures[at + 1]));
}

/** Subscribes on a separate connection, because a subscriber cannot run other commands. */
async function subscribe(server: Redis, topic: string): Promise<void> {
  const connection = duplicate(server, {
    ...{ lazyConnect: true, enableOfflineQueue: false, autoResubscribe: false },
    retryStrategy: null,
  });
  connection.on("error", () => {}); // an error also rejects one of the promises below
  try {
    await connection.connect();
    await connection.ssubscribe(topic);
    await connection.sunsubscribe(topic);
  } finally {
    connection.disconnect();
  }
}

/** Resolves if the call failed because of its arguments. Rejects if the server refused the call. */
async function failing(call: Promise<unknown>): Promise<void> {
  await call.catch((error: unknown) => {
    const isRefusal =
      error instanceof Error &&
      [UNKNOWN_COMMAND, NO_COMMAND, NO_KEY].some((part) => part.test(error.message));
    if (isRefusal || !isReply(error)) throw error;
  });
}

class Refusals {
  readonly #unknown = new Set<string>();
  readonly #denied = new Set<string>();
  #isKeyDenied = false;
  #isTopicDenied = false;

  /**
   * Calls `run`. If the server refuses the command, records the refusal and returns false. Rejects
   * with any other error.
   */
  async note(command: string, run: () => Promise<unknown>): Promise<boolean> {
    try {
      await run();
      return true;
    } catch (error) {
      if (!(error instanceof Error && this.add(command, error.message))) throw error;
      return false;
    }
  }

  add(command: string, reply: string): boolean {
    if (UNKNOWN_COMMAND.test(reply)) this.#unknown.add(command);
    else if (NO_KEY.test(reply)) this.#isKeyDenied = true;
    else if (NO_TOPIC.test(reply)) this.#isTopicDenied = true;
    else if (NO_COMMAND.test(reply)) this.#denied.add(command);
    else return false;
    return true;
  }

  sentences({ username, prefix, place }: ProbeOptions): readonly string[] {
    const user = username === "" ? "default" : username;
    const sentences: string[] = [];
    const lacksFunctions = ["fcall", "function|load"].filter((name) => this.#unknown.delete(name));
    if (lacksFunctions.length > 0)
      sentences.push(
        `${place}it has no functions (${listed(new Set(lacksFunctions))}), which the node needs. Use Redis 7 or newer, or a compatible server that supports functions. If rename-command in its configuration names these commands, remove the line`,
      );
    if (this.#unknown.size > 0)
      sentences.push(
        `${place}it has no command ${listed(this.#unknown)}. Remove the rename-command line from its configuration`,
      );
    const rights = [...this.#denied].flatMap(rightsFor);
    if (this.#isKeyDenied) rights.unshift(`~${prefix}:*`);
    if (this.#isTopicDenied) rights.unshift(`&${prefix}:*`);
    const denied = [
      ...(this.#denied.size > 0 ? [`the commands ${listed(this.#denied)}`] : []),
      ...(this.#isKeyDenied ? [`keys that begin with ${prefix}:`] : []),
      ...(this.#isTopicDenied ? [`topics that begin with ${prefix}:`] : []),
    ];
    if (denied.length > 0)
      sentences.push(
        `${place}its user ${user} may not use ${denied.join(" and ")}. Grant the rights with: ACL SETUSER ${user} ${rights.join(" ")}`,
      );
    return sentences;
  }
}

/**
 * Returns the rights that a command needs. If scripts could not be loaded or run, the commands that
 * they call have not been checked, so rights for all of them are included.
 */
function rightsFor(command: string): readonly string[] {
  const right = `+${command.toLowerCase()}`;
  if (command === "ssubscribe") return [right, "+sunsubscribe"];
  if (command !== "script|load" && command !== "evalsha") return [right];
  return ["+script|load", "+evalsha", ...SCRIPT_COMMANDS.map((name) => `+${name.toLowerCase()}`)];
}

function listed(commands: ReadonlySet<string>): string {
  return [...commands].map((command) => command.toUpperCase().replace("|", " ")).join(", ");
}
