// Tests of the built program: which modules a node loads, and that errors in its log name the lines
// of the sources, although the program is bundled.

import { existsSync, readFileSync } from "node:fs";
import { readdir, readFile, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import t, { type Test } from "tap";
import { tempFolder } from "../support/broker.ts";
import { startRedis } from "../support/redis.ts";
import { jindou, type LogLine, nodeSettings, spawnJindou } from "./jindou.ts";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const READY = "The node is ready";
const DRAIN_MS = 1000;

/** Returns the text of a line of a source file, which a log line names as `src/…:12`. */
function lineOf(path: string, line: string | undefined): string {
  return readFileSync(join(ROOT, path), "utf8").split("\n")[Number(line) - 1] ?? "";
}

async function ended(t: Test, env: Readonly<Record<string, string>>): Promise<void> {
  const node = spawnJindou(t, [], { env });
  await node.logged(READY);
  node.child.kill("SIGTERM");
  t.equal((await node.exit).code, 0);
}

t.test("a logged stack trace names the lines of the TypeScript sources", async (t) => {
  const env = await nodeSettings(t, DRAIN_MS);
  await ended(t, env);
  const file = join(env.JINDOU_STORE_PATH ?? "", "journal/00000009.log");
  await writeFile(file, "");
  await truncate(file, 2 ** 42); // too large for Node.js to read into a buffer
  const node = spawnJindou(t, [], { env });
  const { err } = await node.loggedLine(({ msg }) => msg === "The node cannot start");
  const { stack } = err as { readonly stack: string };
  const frames = [...stack.matchAll(/\((src\/[\w/-]+\.ts):(\d+):\d+\)$/gm)];
  t.ok(frames.length >= 2, stack);
  t.notMatch(stack, /dist\//);
  const lines = frames.map(([, path = "", line]) => lineOf(path, line));
  t.ok(
    lines.some((line) => /readFileSync\(/.test(line)),
    `the failed call is in ${lines}`,
  );
});

t.test("an error in a Redis script names the line of its Lua file", async (t) => {
  const redis = await startRedis(t);
  const settings = { ...(await nodeSettings(t, DRAIN_MS)), JINDOU_REDIS_URL: redis.url };
  const node = spawnJindou(t, [], { env: settings });
  const { apiPort } = await node.logged(READY);
  const post = (path: string, body: object) =>
    fetch(`http://127.0.0.1:${apiPort}${path}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
  const channel = { channel_id: "lobby", channel_type: 2 };
  await post("/channel", { ...channel, subscribers: ["alice"] });
  const payload = Buffer.from('{"type":1,"content":"hello"}').toString("base64");
  const message = { ...channel, from_uid: "alice", payload };
  t.equal((await post("/message/send", message)).status, 200);
  const client = redis.client();
  const [log = ""] = (await client.keys("*log:*")).filter((key) => key.includes("lobby"));
  await client.set(log, "not a stream");
  const history = { ...channel, login_uid: "alice", limit: 10 };
  t.equal((await post("/channel/messagesync", history)).status, 500);
  const isAboutScript = ({ err }: LogLine) => /WRONGTYPE/.test(JSON.stringify(err ?? ""));
  const { err } = await node.loggedLine(isAboutScript);
  const place = /on @?(src\/[\w/]+\.lua):(\d+)/.exec(JSON.stringify(err));
  t.match(lineOf(place?.[1] ?? "", place?.[2]), /redis\.call\('X(REV)?RANGE'/, JSON.stringify(err));
});

/** Runs a node until it is ready, and returns the sources of the modules that it has loaded. */
async function loadedSources(t: Test, settings: object): Promise<readonly string[]> {
  const folder = await tempFolder(t);
  const env = { ...(await nodeSettings(t, DRAIN_MS)), ...settings, NODE_V8_COVERAGE: folder };
  await ended(t, env);
  const [report = ""] = await readdir(folder);
  const coverage = JSON.parse(await readFile(join(folder, report), "utf8"));
  const scripts = coverage.result as readonly { readonly url: string }[];
  const bundled = scripts.flatMap(({ url }) => {
    if (!url.startsWith("file:")) return [];
    const path = fileURLToPath(url);
    if (!path.startsWith(join(ROOT, "dist/"))) return [path];
    if (!existsSync(`${path}.map`)) return []; // only the bundler's own code
    return JSON.parse(readFileSync(`${path}.map`, "utf8")).sources as readonly string[];
  });
  return [...new Set(bundled)];
}

/** Modules that a node on uWebSockets.js does not load on startup. */
const UNUSED = [
  "node_modules/prom-client/",
  "node_modules/ws/",
  "src/cli/run.ts",
  "src/client/",
  "src/migrate/copy.ts",
  "src/move.ts",
  "src/transport/portable/",
];

t.test(
  "a node on uWebSockets.js does not load the modules of the unused store, the portable driver or the client",
  async (t) => {
    const redis = await startRedis(t);
    const embedded = await loadedSources(t, {});
    const onRedis = await loadedSources(t, { JINDOU_REDIS_URL: redis.url });
    const isLoaded = (sources: readonly string[], part: string) =>
      sources.some((source) => source.includes(part));
    for (const sources of [embedded, onRedis]) {
      t.ok(isLoaded(sources, "src/server.ts"), "the report of loaded modules is complete");
      for (const part of UNUSED) t.notOk(isLoaded(sources, part), part);
    }
    for (const part of ["node_modules/ioredis/", "src/redis/link.ts", "src/migrate/migration.ts"]) {
      t.notOk(isLoaded(embedded, part), `embedded: ${part}`);
      t.ok(isLoaded(onRedis, part), `on Redis: ${part}`);
    }
    for (const part of ["node_modules/lmdb/", "src/store/embedded/store.ts"]) {
      t.ok(isLoaded(embedded, part), `embedded: ${part}`);
      t.notOk(isLoaded(onRedis, part), `on Redis: ${part}`);
    }
  },
);

t.test(
  "--version prints the version even before an invalid argument, but not after one",
  async (t) => {
    const { stdout } = await jindou(t, ["--version"]);
    for (const argv of [["-V"], ["--version", "--nonsense"], ["start", "--version"]])
      t.equal((await jindou(t, argv)).stdout, stdout, argv.join(" "));
    const { code, stderr } = await jindou(t, ["--nonsense", "--version"]);
    t.equal(code, 2);
    t.match(stderr, /--nonsense/);
  },
);
