// A node as a process: ready, signals, exit codes, and what it says when it cannot start.

import { once } from "node:events";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import t, { type Test } from "tap";
import { type Invocation, type Running, spawnJindou } from "./jindou.ts";

/** Settings of a node on free loopback ports with its own data folder. */
async function settings(t: Test): Promise<Record<string, string>> {
  const folder = await mkdtemp(join(tmpdir(), "jindou-main-"));
  t.teardown(() => rm(folder, { recursive: true, force: true }));
  return {
    JINDOU_API_LISTEN: "127.0.0.1:0",
    JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
    JINDOU_STORE_PATH: join(folder, "data"),
    JINDOU_ADMIN_PASSWORD: "hunter2",
    JINDOU_DRAIN_TIMEOUT_MS: "60000",
  };
}

async function started(t: Test, invocation: Invocation = {}) {
  const env = { ...(await settings(t)), ...invocation.env };
  const node = spawnJindou(t, [], { ...invocation, env });
  const { apiPort, clientPort } = await node.logged("The node is ready");
  return {
    node,
    env,
    apiPort: Number(apiPort),
    clientPort: Number(clientPort),
  };
}

async function openSocket(t: Test, port: number): Promise<void> {
  const silent = connect(port, "127.0.0.1");
  silent.on("error", () => silent.destroy()); // the node dies first
  t.teardown(() => silent.destroy());
  silent.write(
    "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
  );
  await once(silent, "data");
}

async function stopped({ child, ended }: Running, signal: NodeJS.Signals) {
  child.kill(signal);
  return ended;
}

t.test("SIGTERM and SIGINT drain and exit with 0", async (t) => {
  for (const signal of ["SIGTERM", "SIGINT"] as const) {
    const { node, apiPort } = await started(t);
    const url = `http://127.0.0.1:${apiPort}/healthz`;
    t.equal((await fetch(url)).status, 200);
    const { code, stdout, stderr } = await stopped(node, signal);
    t.equal(code, 0, signal);
    t.match(stdout, /"msg":"The node has stopped"/, "the last line reached the log");
    t.equal(stderr, "", "no banner without a terminal");
  }
});

t.test("a signal sent twice at once, as npm does, is one", async (t) => {
  const { node } = await started(t);
  node.child.kill("SIGINT");
  node.child.kill("SIGTERM");
  const { code, stdout } = await node.ended;
  t.equal(code, 0);
  t.match(stdout, /"msg":"The node has stopped"/);
});

t.test("a second signal ends a drain at once with 1", async (t) => {
  const { node, clientPort } = await started(t);
  // They are let go one after the other, 50 ms apart.
  for (let count = 0; count < 100; count++) await openSocket(t, clientPort);
  node.child.kill("SIGTERM");
  await node.logged("The node is stopping");
  const again = setInterval(() => node.child.kill("SIGTERM"), 50);
  t.teardown(() => clearInterval(again));
  const { code, stdout } = await node.ended;
  t.equal(code, 1);
  t.notMatch(stdout, /"msg":"The node has stopped"/);
});

t.test("a bug that nobody caught is logged as fatal and exits with 1", async (t) => {
  for (const bug of ['throw new Error("boom")', 'Promise.reject(new Error("boom"))']) {
    const preload = `process.on("SIGUSR2", () => { ${bug}; });`;
    const { node } = await started(t, { preload });
    const { code, stdout, stderr } = await stopped(node, "SIGUSR2");
    t.equal(code, 1, bug);
    t.match(stdout, /"level":"fatal".*boom/);
    t.equal(stderr, "");
  }
});

t.test("what is in the way of a start is one sentence and an exit code", async (t) => {
  const { env, clientPort } = await started(t);
  const other = await settings(t);
  const taken = `127.0.0.1:${clientPort}`;
  const inTheWay: readonly [Record<string, string>, RegExp][] = [
    [{ ...other, JINDOU_STORE_PATH: env.JINDOU_STORE_PATH ?? "" }, /store\.path/],
    [{ ...other, JINDOU_CLIENT_LISTEN: taken }, /JINDOU_CLIENT_LISTEN/],
    [
      {
        ...other,
        JINDOU_API_TLS_CERT_FILE: "/no/such.pem",
        JINDOU_API_TLS_KEY_FILE: "/no/such.key",
      },
      /JINDOU_API_TLS_/,
    ],
  ];
  for (const [settings, setting] of inTheWay) {
    const ended = await spawnJindou(t, [], { env: settings }).ended;
    t.equal(ended.code, 1);
    t.match(ended.stderr, /^jindou: [^\n]+[.!?]\n$/, "one sentence");
    t.match(ended.stderr, setting, "it names the setting");
    t.notMatch(ended.stdout, /"stack"|caused by/, "the log has no stack");
  }
});

t.test("a start that fails in the store says what failed", async (t) => {
  const env = await settings(t);
  const segment = join(env.JINDOU_STORE_PATH ?? "", "journal/00000001.log");
  await mkdir(segment, { recursive: true });
  const { code, stdout, stderr } = await spawnJindou(t, [], { env }).ended;
  t.equal(code, 1);
  t.match(stderr, /^jindou: [^\n]*EISDIR[^\n]*\n$/);
  t.match(stdout, /"stack".*EISDIR/, "the log has what led there");
});

t.test("a password made on first start is shown once, on standard error only", async (t) => {
  const { JINDOU_ADMIN_PASSWORD: _, ...env } = await settings(t);
  const { clientPort } = await started(t);
  const listen = { JINDOU_CLIENT_LISTEN: `127.0.0.1:${clientPort}` };
  const failed = await spawnJindou(t, [], { env: { ...env, ...listen } }).ended;
  t.notMatch(failed.stderr, /password/, "not by a start that fails");
  const runs = [];
  for (let run = 0; run < 2; run++) {
    const node = spawnJindou(t, [], { env });
    await node.logged("The node is ready");
    runs.push(await stopped(node, "SIGTERM"));
  }
  const password = /password (\S+)/.exec(runs[0]?.stderr ?? "")?.[1] ?? "";
  t.ok(password.length >= 16);
  t.notOk(runs[0]?.stdout.includes(password));
  t.equal(runs[1]?.stderr, "");
});
