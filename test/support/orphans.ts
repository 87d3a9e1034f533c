// A test process that is killed before any teardown, for child.test.ts: starts one of each kind of
// child and says their process ids.

import { fileURLToPath } from "node:url";
import t from "tap";
import { openTerminal } from "../docs/terminal.ts";
import { spawnBroker } from "./broker.ts";
import { startRedis } from "./redis.ts";

t.test("started", async (t) => {
  const redis = await startRedis(t);
  const info = await redis.client().info("server");
  const broker = await spawnBroker(t);
  const terminal = openTerminal(t, fileURLToPath(new URL(".", import.meta.url)));
  terminal.type("sleep 1000 & echo pids $$ $!; wait");
  const [, shell, job] = await terminal.shows(/pids (\d+) (\d+)/);
  const server = /process_id:(\d+)/.exec(info)?.[1];
  const pids = [broker.process.pid, server, shell, job];
  process.stdout.write(`${JSON.stringify({ pids: pids.map(Number) })}\n`);
  await new Promise(() => setInterval(() => {}, 1000));
});
