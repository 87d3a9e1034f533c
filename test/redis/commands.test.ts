// Tests of the startup check that Redis lets a node use every command, key and topic. Each test
// takes rights away from a real user of a real server.

import { readdirSync, readFileSync } from "node:fs";
import t, { type Test } from "tap";
import { SCRIPT_COMMANDS } from "../../src/redis/commands.ts";
import { startBroker } from "../support/broker.ts";
import { type RedisServer, startRedis, startRedisCluster } from "../support/redis.ts";

const USER = "jindou";
const ALL = ["~*", "&*", "+@all"];
/** Commands that the check runs outside its script, and AUTH, which every connection sends. */
const CHECKED_APART = [
  ...["AUTH", "CLUSTER", "EVALSHA", "FCALL", "FUNCTION", "INFO", "SCRIPT", "SSUBSCRIBE"],
  ...["SUNSUBSCRIBE", "WAIT"],
];
/** Commands that a node does not need (see docs/cluster.md, "A user with few rights"). */
const OPTIONAL = ["CLIENT"];
const SRC = new URL("../../src/", import.meta.url);

async function setUser(redis: RedisServer, rights: readonly string[]): Promise<void> {
  await redis.client().call("ACL", "SETUSER", USER, "reset", "on", ">hunter2", ...rights);
}

const asUser = (url: string) => url.replaceAll("redis://", `redis://${USER}:hunter2@`);

/** Returns the message of the error with which a node fails to start, or "it started". */
async function startError(t: Test, url: string, settings = {}): Promise<string> {
  const logged = { JINDOU_LOG_LEVEL: "silent", JINDOU_REDIS_URL: url };
  try {
    const broker = await startBroker(t, { ...logged, ...settings });
    await broker.close();
    return "it started";
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

function filesOf(extension: string): readonly URL[] {
  const names = readdirSync(SRC, { recursive: true, encoding: "utf8" });
  return names.filter((name) => name.endsWith(extension)).map((name) => new URL(name, SRC));
}

t.test(
  "the startup check covers every Redis command that the scripts and the code of a node use",
  async (t) => {
    const used = new Set<string>();
    const listed = (await (await startRedis(t)).client().command("LIST")) as readonly string[];
    const redisCommands = new Set(listed.map((name) => name.toUpperCase()));
    for (const file of filesOf(".lua"))
      for (const [, name = ""] of readFileSync(file, "utf8").matchAll(/\bp?call\(\s*'(\w+)'/g))
        used.add(name);
    // In other rooms, names such as `server` have nothing to do with Redis.
    for (const file of filesOf(".ts").filter(({ pathname }) => /redis|\/migrate\//.test(pathname)))
      for (const [, ...names] of readFileSync(file, "utf8").matchAll(
        /(?:\b[lL]ink|target)\s*\.(?:call|write)\(\s*"(\w+)"|\bsend(?:Command)?\(\s*[\w.#]+,\s*"(\w+)"|\b(?:[cC]lient|server|node|primary)\s*\.(\w+)\(/g,
      )) {
        const command = names.find((name) => name !== undefined)?.toUpperCase() ?? "";
        if (redisCommands.has(command)) used.add(command);
      }
    t.ok(used.size > 40);
    const checked = [...SCRIPT_COMMANDS, ...CHECKED_APART, ...OPTIONAL];
    t.same([...used].filter((name) => !checked.includes(name)).sort(), []);
  },
);

t.test(
  "a node that may not use one of its Redis commands does not start and names the missing right",
  async (t) => {
    const redis = await startRedis(t);
    const outside = [
      "EVALSHA",
      "FCALL",
      "FUNCTION|LOAD",
      "INFO",
      "SSUBSCRIBE",
      "SCRIPT|LOAD",
      "WAIT",
    ];
    const settings = { JINDOU_REDIS_MIN_REPLICAS: "1" };
    for (const command of [...SCRIPT_COMMANDS, ...outside]) {
      const right = command.toLowerCase();
      await setUser(redis, [...ALL, `-${right}`]);
      const message = await startError(t, asUser(redis.url), settings);
      const name = command.replace("|", " ");
      t.match(message, new RegExp(`^Redis cannot be used: its user ${USER} .*\\b${name}\\b`), name);
      const line = /ACL SETUSER jindou (.+)$/.exec(message)?.[1] ?? "";
      t.ok(line.split(" ").includes(`+${right}`), line);
      await redis.client().call("ACL", "SETUSER", USER, ...line.split(" "));
      t.equal(await startError(t, asUser(redis.url)), "it started", "the line grants the right");
    }
    t.same(await redis.client().keys("*probe*"), [], "the check leaves no keys behind");
  },
);

t.test(
  "one error names all Redis commands, keys and topics that a node is not allowed to use",
  async (t) => {
    const redis = await startRedis(t);
    await setUser(redis, [...ALL, "-spublish", "-xadd", "-@hash"]);
    const commands = await startError(t, asUser(redis.url));
    t.match(commands, /the commands .*HSET, .*SPUBLISH, .*XADD/);
    t.match(commands, /ACL SETUSER jindou .*\+hset .*\+spublish .*\+xadd/);
    t.notMatch(commands, /hunter2/);
    await setUser(redis, ["+@all", "~other:*", "&other:*"]);
    t.match(
      await startError(t, asUser(redis.url)),
      /may not use keys that begin with jd: and topics that begin with jd:\. .* ACL SETUSER jindou &jd:\* ~jd:\*$/,
    );
    await setUser(redis, ["+@all", "%R~*", "&*"]);
    t.match(await startError(t, asUser(redis.url)), /keys that begin with jd:\. .* ~jd:\*$/);
    await setUser(redis, ["+@all", "~*", "resetchannels"]);
    t.match(await startError(t, asUser(redis.url)), /topics that begin with jd:\. .* &jd:\*$/);
  },
);

t.test("a node does not start if Redis commands that it uses were renamed", async (t) => {
  const renamed = ["--rename-command", "SPUBLISH", "", "--rename-command", "XADD", "hidden"];
  const redis = await startRedis(t, renamed);
  t.match(
    await startError(t, redis.url),
    /^Redis cannot be used: it has no command SPUBLISH, XADD\. Remove .*rename-command/,
  );
});

t.test("a node does not start on a Redis server without functions", async (t) => {
  const renamed = ["--rename-command", "FCALL", "", "--rename-command", "FUNCTION", ""];
  const redis = await startRedis(t, renamed);
  t.match(
    await startError(t, redis.url),
    /^Redis cannot be used: it has no functions \(FCALL, FUNCTION LOAD\), .*Use Redis 7 or newer/,
  );
});

t.test(
  "a node does not start if its Redis user lacks a right on one primary of a Redis Cluster",
  async (t) => {
    const { url, primaries } = await startRedisCluster(t);
    for (const primary of primaries) await setUser(primary, ALL);
    const [, , last] = primaries;
    if (last === undefined) throw new Error("the Cluster has three primaries");
    await setUser(last, [...ALL, "-xadd"]);
    t.match(
      await startError(t, asUser(url)),
      new RegExp(`at 127\\.0\\.0\\.1:${last.port} its user jindou .*XADD.*\\+xadd$`),
    );
    await setUser(last, ALL);
    t.equal(await startError(t, asUser(url)), "it started");
  },
);

t.test(
  "a node whose Redis user may not run CLUSTER INFO or CLUSTER SLOTS reports the missing permission",
  async (t) => {
    const { url, primaries } = await startRedisCluster(t);
    for (const [right, names] of [
      [
        "cluster|info",
        /at 127\.0\.0\.1:\d+ its user jindou may not use the commands CLUSTER INFO\./,
      ],
      ["cluster|slots", /no permissions to run the 'cluster\|slots' command/],
    ] as const) {
      for (const primary of primaries) await setUser(primary, [...ALL, `-${right}`]);
      const message = await startError(t, asUser(url));
      t.match(message, names);
      const line = /ACL SETUSER \S+ (.+)$/.exec(message)?.[1] ?? "";
      t.equal(line, `+${right}`);
      for (const primary of primaries)
        await primary.client().call("ACL", "SETUSER", USER, ...line.split(" "));
      t.equal(await startError(t, asUser(url)), "it started", "the line grants the right");
    }
  },
);
