// The page about many nodes and its example, as far as they can be run: the two nodes of its
// beginning in a terminal, and the composition's Redis with a node on it. Its user's rights are
// tested in test/redis/connection.test.ts.

import { spawn } from "node:child_process";
import t, { type Test } from "tap";
import { parse } from "yaml";
import { loadConfig } from "../../src/config/load.ts";
import { CONFIG_KEYS } from "../../src/config/schema.ts";
import { startBroker, tempFolder, textPayload } from "../support/broker.ts";
import { tieToParent } from "../support/child.ts";
import { freePort } from "../support/redis.ts";
import { blocks, readPage, section } from "./pages.ts";
import { openTerminal } from "./terminal.ts";

const PAGE = readPage("docs/cluster.md");
const FOLDER = "docs/examples/cluster";
const COMPOSE = readPage(`${FOLDER}/docker-compose.yml`);
const PASSWORD = "0123456789abcdef0123456789abcdef";
const SECRETS = { REDIS_PASSWORD: PASSWORD, API_TOKEN: PASSWORD };
const NODES = ["node-1", "node-2", "node-3"];

interface Service {
  readonly command?: readonly string[];
  readonly environment?: Readonly<Record<string, string>>;
  readonly healthcheck?: unknown;
  readonly ports?: readonly string[];
}

/** As `docker compose` reads it. */
function compose(): Readonly<Record<string, Service>> {
  const filled = COMPOSE.replaceAll(
    /\$\{(\w+):\?[^}]*\}/g,
    (_, name: string) => SECRETS[name as keyof typeof SECRETS] ?? "unknown",
  );
  return parse(filled, { merge: true }).services;
}

t.test("the two nodes of the page are one cluster", async (t) => {
  const folder = await tempFolder(t);
  const [start, ask, stop] = blocks(section(PAGE, "## Two nodes in a minute"))
    .filter(({ language }) => language === "sh")
    .map(({ text }) => text);
  const ports = new Map<string, string>();
  for (const port of ["7000", "5001", "5002", "5200", "5201"])
    ports.set(port, `${await freePort()}`);
  const here = (text = "") =>
    text
      .replaceAll(/\b(7000|5001|5002|5200|5201)\b/g, (one) => `${ports.get(one)}`)
      .replaceAll("dist/main.js", `${process.cwd()}/dist/main.js`);
  const terminal = openTerminal(t, folder);
  await terminal.run(here(start));
  const lines = (await terminal.run(here(ask))).split("\n");
  const [registered, status, sent, repeated, nodes, memory] = lines;
  t.equal(registered, '{"status":"ok"}');
  t.match(JSON.parse(status ?? ""), [{ uid: "bob", online: 0 }]);
  t.match(JSON.parse(sent ?? ""), { message_seq: 1, client_msg_no: "one" });
  t.equal(repeated, sent);
  t.equal(nodes, "2");
  t.match(memory, /^used_memory_human:\d/);
  await terminal.run(here(stop));
});

t.test("the composition's nodes have settings that are some", async (t) => {
  const services = compose();
  const known = new Set(CONFIG_KEYS.map(({ env }) => env));
  for (const name of NODES) {
    const env = services[name]?.environment ?? {};
    t.same(
      Object.keys(env).filter((one) => !known.has(one)),
      [],
    );
    const config = loadConfig({ env });
    t.equal(config.redis.url, `redis://jindou:${PASSWORD}@redis:6379`, "it starts with these");
  }
});

t.test("it brings no secret of its own and opens no more than it says", (t) => {
  const values = [...COMPOSE.matchAll(/^\s+\w*(PASSWORD|TOKEN|URL): (.*)$/gm)];
  t.ok(values.length >= 3);
  for (const [line] of values) t.match(line, /\$\{\w+:\?/);
  t.notMatch(COMPOSE, /\$\{\w+:?-/, "no default");
  const open = Object.values(compose()).flatMap(({ ports = [] }) => ports);
  t.same(open, ["5200:5200", "127.0.0.1:5001:5001"]);
  t.end();
});

t.test("its Redis has the page's user, and a node works on it", async (t) => {
  const { port, text } = await startComposed(t);
  const rights = /resetchannels.*/.exec(
    blocks(section(PAGE, "### A user with few rights"))[0]?.text ?? "",
  );
  const words = text.replaceAll(/["\s]+/g, " ");
  t.ok(words.includes(rights?.[0] ?? "no rights"), "the same rights");
  const url = `redis://jindou:${PASSWORD}@127.0.0.1:${port}`;
  const broker = await startBroker(t, { JINDOU_REDIS_URL: url });
  const sent = await broker.call("/message/send", {
    ...{ from_uid: "alice", channel_id: "bob", channel_type: 1 },
    payload: textPayload("hello"),
  });
  t.equal(sent.status, 200);
  const nobody = { JINDOU_REDIS_URL: `redis://127.0.0.1:${port}` };
  await t.rejects(startBroker(t, nobody), /^Redis cannot be used: NOAUTH/);
});

/** Runs the command of the composition's Redis, on a port and in a folder of the test. */
async function startComposed(t: Test): Promise<{ readonly port: number; readonly text: string }> {
  const text = (compose().redis?.command?.[2] ?? "").replaceAll("$$", "$");
  const port = await freePort();
  const args = `--port ${port} --bind 127.0.0.1 --daemonize no`;
  const command = text.replace("redis-server", `redis-server ${args}`);
  const child = spawn(...tieToParent("sh", ["-c", command]), {
    cwd: await tempFolder(t),
    env: { PATH: process.env.PATH, REDIS_PASSWORD: PASSWORD },
  });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  t.teardown(async () => {
    child.kill("SIGKILL");
    await ended;
  });
  await new Promise<void>((resolve, reject) => {
    let said = "";
    child.stdout.on("data", (chunk) => {
      said += chunk;
      if (said.includes("Ready to accept")) resolve();
    });
    void ended.then(() => reject(new Error(`Redis ended: ${said}`)));
  });
  return { port, text };
}

t.test("its load balancer knows all nodes and their ports", (t) => {
  const config = readPage(`${FOLDER}/haproxy.cfg`);
  const env = compose()["node-1"]?.environment ?? {};
  for (const name of ["JINDOU_API_LISTEN", "JINDOU_CLIENT_LISTEN"]) {
    const port = env[name]?.split(":")[1] ?? "";
    const servers = [...config.matchAll(new RegExp(`server (\\S+) (\\S+):${port}$`, "gm"))].map(
      ([, label, host]) => [label, host],
    );
    t.same(
      servers,
      NODES.map((node) => [node, node]),
    );
  }
  t.end();
});
