// Tests of `docs/cluster.md` and its example, as far as they can be run: the two nodes at the
// beginning of the page run in a terminal, and a node runs on the Redis of the example's
// `docker-compose.yml`. `test/redis/connection.test.ts` tests the rights of the Redis user.

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

/** A service in `docker-compose.yml`. */
interface Service {
  readonly command?: readonly string[];
  readonly environment?: Readonly<Record<string, string>>;
  readonly healthcheck?: unknown;
  readonly ports?: readonly string[];
}

/**
 * Returns the services in `docker-compose.yml` with the secrets filled in, as `docker compose` does
 * it.
 */
function compose(): Readonly<Record<string, Service>> {
  const filled = COMPOSE.replaceAll(
    /\$\{(\w+):\?[^}]*\}/g,
    (_, name: string) => SECRETS[name as keyof typeof SECRETS] ?? "unknown",
  );
  return parse(filled, { merge: true }).services;
}

t.test("the two nodes of docs/cluster.md form one cluster", async (t) => {
  const folder = await tempFolder(t);
  const [start, query, stop] = blocks(section(PAGE, "## Two nodes in a minute"))
    .filter(({ language }) => language === "sh")
    .map(({ text }) => text);
  const ports = new Map<string, string>();
  for (const port of ["7000", "5001", "5002", "5200", "5201"])
    ports.set(port, `${await freePort()}`);
  const withFreePorts = (text = "") =>
    text
      .replaceAll(/\b(7000|5001|5002|5200|5201)\b/g, (port) => `${ports.get(port)}`)
      .replaceAll("dist/main.js", `${process.cwd()}/dist/main.js`);
  const terminal = openTerminal(t, folder);
  await terminal.run(withFreePorts(start));
  const lines = (await terminal.run(withFreePorts(query))).split("\n");
  const [registered, status, sent, repeated, nodes, memory] = lines;
  t.equal(registered, '{"status":"ok"}');
  t.match(JSON.parse(status ?? ""), [{ uid: "bob", online: 0 }]);
  t.match(JSON.parse(sent ?? ""), { message_seq: 1, client_msg_no: "one" });
  t.equal(repeated, sent, "the repeated send has the same response");
  t.equal(nodes, "2", "the cluster has two nodes");
  t.match(memory, /^used_memory_human:\d/);
  await terminal.run(withFreePorts(stop));
});

t.test("the settings of the nodes in the cluster example exist", async (t) => {
  const services = compose();
  const settingNames = new Set(CONFIG_KEYS.map(({ env }) => env));
  for (const name of NODES) {
    const env = services[name]?.environment ?? {};
    t.same(
      Object.keys(env).filter((setting) => !settingNames.has(setting)),
      [],
    );
    const config = loadConfig({ env });
    t.equal(
      config.redis.url,
      `redis://jindou:${PASSWORD}@redis:6379`,
      "the node would start with these settings",
    );
  }
});

t.test(
  "the cluster example contains no secret and publishes only the client and API ports",
  (t) => {
    const values = [...COMPOSE.matchAll(/^\s+\w*(PASSWORD|TOKEN|URL): (.*)$/gm)];
    t.ok(values.length >= 3);
    for (const [line] of values) t.match(line, /\$\{\w+:\?/);
    t.notMatch(COMPOSE, /\$\{\w+:?-/, "no secret has a default value");
    const publishedPorts = Object.values(compose()).flatMap(({ ports = [] }) => ports);
    t.same(publishedPorts, ["5200:5200", "127.0.0.1:5001:5001"]);
    t.end();
  },
);

t.test(
  "a node works on the Redis of the cluster example, with the user that docs/cluster.md describes",
  async (t) => {
    const { port, text } = await startComposed(t);
    const rights = /resetchannels.*/.exec(
      blocks(section(PAGE, "### A user with few rights"))[0]?.text ?? "",
    );
    const words = text.replaceAll(/["\s]+/g, " ");
    t.ok(words.includes(rights?.[0] ?? "no rights"), "the user has the rights that the page lists");
    const url = `redis://jindou:${PASSWORD}@127.0.0.1:${port}`;
    const broker = await startBroker(t, { JINDOU_REDIS_URL: url });
    const sent = await broker.call("/message/send", {
      ...{ from_uid: "alice", channel_id: "bob", channel_type: 1 },
      payload: textPayload("hello"),
    });
    t.equal(sent.status, 200);
    const anonymous = { JINDOU_REDIS_URL: `redis://127.0.0.1:${port}` };
    await t.rejects(
      startBroker(t, anonymous),
      /^Redis cannot be used: .*NOAUTH/,
      "a node without the user cannot start",
    );
  },
);

/** Runs the Redis command of `docker-compose.yml` with a port and a folder of the test. */
async function startComposed(t: Test): Promise<{ readonly port: number; readonly text: string }> {
  const text = (compose().redis?.command?.[2] ?? "").replaceAll("$$", "$");
  const port = await freePort();
  const args = `--port ${port} --bind 127.0.0.1 --daemonize no`;
  const command = text.replace("redis-server", `redis-server ${args}`);
  const child = spawn(...tieToParent("sh", ["-c", command]), {
    cwd: await tempFolder(t),
    env: { PATH: process.env.PATH, REDIS_PASSWORD: PASSWORD },
  });
  const exit = new Promise((resolve) => child.once("exit", resolve));
  t.teardown(async () => {
    child.kill("SIGKILL");
    await exit;
  });
  await new Promise<void>((resolve, reject) => {
    let output = "";
    child.stdout.on("data", (chunk) => {
      output += chunk;
      if (output.includes("Ready to accept")) resolve();
    });
    void exit.then(() => reject(new Error(`Redis exited: ${output}`)));
  });
  return { port, text };
}

t.test("the load balancer of the cluster example uses all nodes and their ports", (t) => {
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
