// Tests of a node that is started at a terminal: its log is formatted for people, and a failed
// start prints its reason once.

import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import t, { type Test } from "tap";
import { freePort } from "../support/redis.ts";
import { nodeSettings, spawnJindou } from "./jindou.ts";

/** Program that runs a command at a terminal and prints what the terminal shows. */
const AT_TERMINAL =
  "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";

/** Starts a node that cannot start, and returns the lines at its terminal. */
async function failedStart(
  t: Test,
  settings: Readonly<Record<string, string>>,
): Promise<readonly string[]> {
  const env = { ...(await nodeSettings(t, 500)), NO_COLOR: "1", ...settings };
  const prefix = ["python3", "-c", AT_TERMINAL];
  const { code, stdout } = await spawnJindou(t, [], { env, prefix }).exit;
  t.equal(code, 1);
  return stdout.trimEnd().split("\r\n");
}

t.test("at a terminal, a port in use is reported with one line", async (t) => {
  const server = createServer().listen(0, "127.0.0.1");
  t.teardown(() => server.close());
  await once(server, "listening");
  const listen = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  const [line, ...more] = await failedStart(t, { JINDOU_API_LISTEN: listen });
  t.match(line, /^jindou: Cannot listen on \S+: another process .*JINDOU_API_LISTEN.*\.$/);
  t.same(more, []);
});

t.test("at a terminal, an unreachable Redis is reported in plain sentences", async (t) => {
  const lines = await failedStart(t, {
    JINDOU_REDIS_URL: `redis://127.0.0.1:${await freePort()}`,
    JINDOU_START_WAIT_FOR_STORE_S: "1",
  });
  const last = lines.at(-1);
  t.match(last, /^jindou: Redis cannot be used: .*ECONNREFUSED.*waited 1 s.*\.$/);
  const earlier = lines.slice(0, -1);
  t.ok(earlier.length > 0);
  for (const line of earlier)
    t.match(line, /^\d\d:\d\d:\d\d\.\d{3} (INFO |WARN ) \[\w+\] [A-Z].*ECONNREFUSED/);
});

t.test("with log.format json, the log is JSON even at a terminal", async (t) => {
  const lines = await failedStart(t, {
    JINDOU_LOG_FORMAT: "json",
    JINDOU_REDIS_URL: `redis://127.0.0.1:${await freePort()}`,
    JINDOU_START_WAIT_FOR_STORE_S: "0",
  });
  const [line = ""] = lines.filter((text) => text.startsWith("{"));
  t.match(JSON.parse(line), { level: "fatal", msg: "The node cannot start" });
  const [sentence] = lines.filter((text) => !text.startsWith("{"));
  t.match(sentence, /^jindou: Redis cannot be used/);
});
