// Stands in for a test file in child.test.ts: starts a Redis server, a broker and a shell with a
// job, prints their process ids, and then runs until it is killed.

import { fileURLToPath } from "node:url";
import t from "tap";
import { openTerminal } from "../docs/terminal.ts";
import { spawnBroker } from "./broker.ts";
import { startRedis } from "./redis.ts";

t.test("a test file starts child processes", async (t) => {
  const redis = await startRedis(t);
  const info = await redis.client().info("server");
  const broker = await spawnBroker(t);
  const terminal = openTerminal(t, fileURLToPath(new URL(".", import.meta.url)));
  terminal.type("sleep 1000 & echo pids $$ $!; wait");
  const [, shell, job] = await terminal.untilShown(/pids (\d+) (\d+)/);
  const server = /process_id:(\d+)/.exec(info)?.[1];
  const pids = [broker.process.pid, server, shell, job];
  process.stdout.write(`${JSON.stringify({ pids: pids.map(Number) })}\n`);
  await new Promise(() => setInterval(() => {}, 1000));
});
