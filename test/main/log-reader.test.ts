// Tests of a node whose output is a pipe, socket or terminal with a reader that hangs.

import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { tempFolder } from "../support/broker.ts";
import { startRedis } from "../support/redis.ts";
import { type JindouProcess, spawnJindou } from "./jindou.ts";

/**
 * Program that connects standard output and standard error to a pipe, a socket or a terminal whose
 * buffer is full and that nobody reads, and then runs a command in the same process.
 */
const WITH_FULL_OUTPUT = `
import os, pty, socket, sys
open_ends = {
    "pipe": os.pipe,
    "socket": lambda: [end.detach() for end in socket.socketpair()],
    "terminal": pty.openpty,
}
reader, writer = open_ends[sys.argv[1]]()
os.set_inheritable(reader, True)
os.set_blocking(writer, False)
for size in (4096, 1):
    try:
        while True:
            os.write(writer, b"x" * size)
    except BlockingIOError:
        pass
os.set_blocking(writer, True)
os.dup2(writer, 1)
os.dup2(writer, 2)
os.execvp(sys.argv[2], sys.argv[2:])
`;

const DRAIN_MS = 500;
const GRACE_MS = 5000;
/** Additional time that a busy machine may need. */
const MARGIN_MS = 3000;

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Returns settings with a known API port, which need not be read from the log, and its URL. */
async function settings(t: Test) {
  const api = `127.0.0.1:${await freePort()}`;
  const env = {
    JINDOU_API_LISTEN: api,
    JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
    JINDOU_STORE_PATH: join(await tempFolder(t), "data"),
    JINDOU_DRAIN_TIMEOUT_MS: String(DRAIN_MS),
  };
  return { env, url: `http://${api}` };
}

async function untilReady({ child }: JindouProcess, url: string): Promise<void> {
  while (child.exitCode === null && child.signalCode === null) {
    const response = await fetch(`${url}/readyz`).catch(() => undefined);
    if (response?.status === 200) return;
    await pause(20);
  }
  throw new Error("the node has exited");
}

/**
 * Sends SIGTERM and returns the exit code, or "still running" if the process does not end within
 * its drain and grace periods.
 */
async function codeAfterSigterm({ child, exit }: JindouProcess) {
  child.kill("SIGTERM");
  const code = exit.then((result) => result.code);
  return Promise.race([
    code,
    pause(DRAIN_MS + GRACE_MS + MARGIN_MS, "still running", { ref: false }),
  ]);
}

for (const kind of ["pipe", "socket", "terminal"])
  t.test(
    `a node whose output goes to a full ${kind} serves calls and ends after SIGTERM`,
    async (t) => {
      const { env, url } = await settings(t);
      const prefix = ["python3", "-c", WITH_FULL_OUTPUT, kind];
      const node = spawnJindou(t, [], { env, prefix });
      await untilReady(node, url);
      t.equal(await codeAfterSigterm(node), 0);
    },
  );

const FLOOD_CALLS = 3000;
const FAILURE = "Could not handle a request";

t.test("log lines beyond 1 MiB of unread output are dropped, counted and reported", async (t) => {
  const redis = await startRedis(t);
  const { env, url } = await settings(t);
  const node = spawnJindou(t, [], { env: { ...env, JINDOU_REDIS_URL: redis.url } });
  await untilReady(node, url);
  node.child.stdout?.pause();
  const body = JSON.stringify({ channel_id: "g", channel_type: 2 });
  const headers = { "content-type": "application/json" };
  await fetch(`${url}/channel`, { method: "POST", headers, body });
  const client = redis.client();
  for (const key of await client.keys("*:2:g")) {
    await client.del(key);
    await client.set(key, "a value of another type, so that calls about the channel fail");
  }
  const call = async () => (await fetch(`${url}/channel/state?channel_id=g&channel_type=2`)).status;
  for (let calls = 0; calls < FLOOD_CALLS; calls += 50) {
    const statuses = await Promise.all(Array.from({ length: 50 }, call));
    if (calls === 0) t.same([...new Set(statuses)], [500], "each call logs an error");
  }
  const metrics = await (await fetch(`${url}/metrics`)).text();
  const dropped = Number(/^jindou_log_lines_dropped_total (\d+)$/m.exec(metrics)?.[1]);
  if (!t.ok(dropped > 0, `${dropped} lines were dropped`)) return;

  node.child.stdout?.resume();
  const report = await node.logged("Log lines were dropped because nobody read standard output");
  t.equal(report.dropped, dropped);
  t.equal(await codeAfterSigterm(node), 0);
  const { stdout } = await node.exit;
  const messages = stdout
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line).msg);
  const failures = messages.filter((message) => message === FAILURE).length;
  t.equal(failures + dropped, FLOOD_CALLS, "every line was either written or counted");
  t.equal(messages.at(-1), "The node has stopped");
});
