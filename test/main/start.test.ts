// Tests of a node as a child process: readiness, signals, exit codes and failed starts.

import { truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import t, { type Test } from "tap";
import { type Invocation, type JindouProcess, nodeSettings, spawnJindou } from "./jindou.ts";

const DRAIN_MS = 60_000;

/** Starts a node and waits until it is ready. */
async function startNode(t: Test, invocation: Invocation = {}) {
  const env = { ...(await nodeSettings(t, DRAIN_MS)), ...invocation.env };
  const node = spawnJindou(t, [], { ...invocation, env });
  const { apiPort, clientPort } = await node.logged("The node is ready");
  return {
    node,
    env,
    apiPort: Number(apiPort),
    clientPort: Number(clientPort),
  };
}

/** Sends a signal to the node and waits for its exit. */
async function stop({ child, exit }: JindouProcess, signal: NodeJS.Signals) {
  child.kill(signal);
  return exit;
}

t.test("a node that receives SIGTERM or SIGINT drains and exits with 0", async (t) => {
  for (const signal of ["SIGTERM", "SIGINT"] as const) {
    const { node, apiPort } = await startNode(t);
    const url = `http://127.0.0.1:${apiPort}/healthz`;
    t.equal((await fetch(url)).status, 200);
    const { code, stdout, stderr } = await stop(node, signal);
    t.equal(code, 0, signal);
    t.match(stdout, /"msg":"The node has stopped"/, "the last log line is written before the exit");
    t.equal(stderr, "", "the banner is not printed without a terminal");
  }
});

t.test("two signals at the same time, as npm sends them, count as one", async (t) => {
  const { node } = await startNode(t);
  node.child.kill("SIGINT");
  node.child.kill("SIGTERM");
  const { code, stdout } = await node.exit;
  t.equal(code, 0);
  t.match(stdout, /"msg":"The node has stopped"/);
});

t.test("a second signal during a drain ends the node at once with exit code 1", async (t) => {
  const { node } = await startNode(t, { env: { JINDOU_DRAIN_NOTICE_MS: "60000" } });
  node.child.kill("SIGTERM");
  await node.logged("The node is stopping");
  const signals = setInterval(() => node.child.kill("SIGTERM"), 50);
  t.teardown(() => clearInterval(signals));
  const { code, stdout } = await node.exit;
  t.equal(code, 1);
  t.notMatch(stdout, /"msg":"The node has stopped"/);
});

t.test("an uncaught error is logged as fatal, and the node exits with 1", async (t) => {
  for (const bug of ['throw new Error("boom")', 'Promise.reject(new Error("boom"))']) {
    const preload = `process.on("SIGUSR2", () => { ${bug}; });`;
    const { node } = await startNode(t, { preload });
    const { code, stdout, stderr } = await stop(node, "SIGUSR2");
    t.equal(code, 1, bug);
    t.match(stdout, /"level":"fatal".*boom/);
    t.equal(stderr, "");
  }
});

t.test(
  "a start with an unusable folder, address or file prints one sentence that names the setting",
  async (t) => {
    const { env, clientPort } = await startNode(t);
    const valid = await nodeSettings(t, DRAIN_MS);
    const addressInUse = `127.0.0.1:${clientPort}`;
    const cases: readonly [Record<string, string>, RegExp][] = [
      [{ ...valid, JINDOU_STORE_PATH: env.JINDOU_STORE_PATH ?? "" }, /store\.path/],
      [{ ...valid, JINDOU_CLIENT_LISTEN: addressInUse }, /JINDOU_CLIENT_LISTEN/],
      [
        {
          ...valid,
          JINDOU_API_TLS_CERT_FILE: "/no/such.pem",
          JINDOU_API_TLS_KEY_FILE: "/no/such.key",
        },
        /JINDOU_API_TLS_/,
      ],
    ];
    for (const [settings, setting] of cases) {
      const exit = await spawnJindou(t, [], { env: settings }).exit;
      t.equal(exit.code, 1);
      t.match(exit.stderr, /^jindou: [^\n]+[.!?]\n$/, "standard error contains one sentence");
      t.match(exit.stderr, setting, "the sentence names the setting");
      t.notMatch(exit.stdout, /"stack"|caused by/, "the log contains no stack trace");
    }
  },
);

t.test(
  "if clients need no authentication and other machines can reach client.listen, a node starts only if client.allowedOrigins is set, and warns",
  async (t) => {
    const open = { JINDOU_AUTH_CLIENTS: "none", JINDOU_CLIENT_LISTEN: "0.0.0.0:0" };
    const settings = { ...(await nodeSettings(t, DRAIN_MS)), ...open };
    const refused = await spawnJindou(t, [], { env: settings }).exit;
    t.equal(refused.code, 2);
    t.match(refused.stderr, /auth\.clients is none.*client\.allowedOrigins/);
    const env = { ...settings, JINDOU_CLIENT_ALLOWED_ORIGINS: "https://chat.example.com" };
    const node = spawnJindou(t, [], { env });
    const warning =
      "auth.clients is none: every client that reaches client.listen may connect as any user";
    t.match(await node.logged(warning), { level: "warn", listen: "0.0.0.0:0" });
    await node.logged("The node is ready");
  },
);

t.test(
  "a failed start prints the error of Node.js if Jindou has no message for the store's failure",
  async (t) => {
    const env = await nodeSettings(t, DRAIN_MS);
    const first = spawnJindou(t, [], { env });
    await first.logged("The node is ready");
    await stop(first, "SIGTERM");
    const file = join(env.JINDOU_STORE_PATH ?? "", "journal/00000009.log");
    await writeFile(file, "");
    await truncate(file, 2 ** 42); // too large for Node.js to read into a buffer
    const { code, stdout, stderr } = await spawnJindou(t, [], { env }).exit;
    t.equal(code, 1);
    t.match(stderr, /^jindou: [^\n]*File size[^\n]*\n$/);
    t.match(stdout, /File size.*"stack":"/, "the log contains the stack trace of the error");
  },
);

t.test(
  "a password generated on the first start is shown once, and only on standard error",
  async (t) => {
    const { JINDOU_ADMIN_PASSWORD: _, ...env } = await nodeSettings(t, DRAIN_MS);
    const { clientPort } = await startNode(t);
    const listen = { JINDOU_CLIENT_LISTEN: `127.0.0.1:${clientPort}` };
    const failed = await spawnJindou(t, [], { env: { ...env, ...listen } }).exit;
    t.notMatch(failed.stderr, /password/, "a start that fails does not show the password");
    const runs = [];
    for (let run = 0; run < 2; run++) {
      const node = spawnJindou(t, [], { env });
      await node.logged("The node is ready");
      runs.push(await stop(node, "SIGTERM"));
    }
    const password = /password (\S+)/.exec(runs[0]?.stderr ?? "")?.[1] ?? "";
    t.ok(password.length >= 16);
    t.notOk(runs[0]?.stdout.includes(password));
    t.equal(runs[1]?.stderr, "");
  },
);
