// Tests of a node that reads its whole database in another process after an unclean stop. In most
// tests the read hangs, as on a disk that does not respond.

import { cpSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { spawnBroker, tempFolder } from "../support/broker.ts";
import { startRedis } from "../support/redis.ts";
import { type JindouProcess, spawnJindou } from "./jindou.ts";
import { forgetStop, stoppedFolder } from "./stopped-folder.ts";
import { checkServing, checkWaiting, startNode } from "./waiting-node.ts";

const CHECKING = "The database is being checked after an unclean stop";
const STALLED = "The database check after an unclean stop is making no progress. Check the disk";
/**
 * Returns the text of a module. The module makes the thread that reads the database wait until the
 * file exists.
 */
const hangingUntil = (file: string) => `import { existsSync } from "node:fs";
  import { isMainThread } from "node:worker_threads";
  const cell = new Int32Array(new SharedArrayBuffer(4));
  while (!isMainThread && !existsSync(${JSON.stringify(file)})) Atomics.wait(cell, 0, 0, 20);`;
const HANGING = hangingUntil("/nowhere/at/all");

t.jobs = 4; // most of the time is spent waiting

async function killedFolder(t: Test): Promise<string> {
  const path = await stoppedFolder(t);
  forgetStop(path);
  return path;
}

/**
 * Waits until the node has started the process that reads the database. Returns the id of that
 * process.
 */
async function checkerOf({ child }: JindouProcess): Promise<number> {
  const { pid } = child;
  while (child.exitCode === null) {
    const checker = Number(readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8"));
    if (checker > 0 && commandOf(checker).includes("database-walk")) return checker;
    await pause(20);
  }
  throw new Error("the process ended before it read the database");
}

function commandOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8");
  } catch {
    return ""; // the process has just ended
  }
}

const timeOf = ({ time }: Readonly<Record<string, unknown>>) => Date.parse(String(time));

async function assertEnds(t: Test, pid: number): Promise<void> {
  while (existsSync(`/proc/${pid}`)) await pause(20);
  t.pass("the process that reads the database has ended");
}

t.test(
  "SIGTERM and SIGINT end a node and the hanging check of its database, and the node exits with 0",
  async (t) => {
    for (const signal of ["SIGTERM", "SIGINT"] as const) {
      const settings = { JINDOU_STORE_PATH: await killedFolder(t) };
      const node = await startNode(t, settings, HANGING);
      const checker = await checkerOf(node);
      node.child.kill(signal);
      const { code, stdout, stderr } = await node.exit;
      t.equal(code, 0, signal);
      t.equal(stderr, "");
      t.notMatch(stdout, /"level":"(error|fatal)"/);
      await assertEnds(t, checker);
      t.ok(await (await startNode(t, settings)).logged("The node is ready"));
    }
  },
);

t.test("a node that waits for the last owner of its data folder ends on a signal", async (t) => {
  const path = await killedFolder(t);
  await (await spawnBroker(t, {}, path)).kill();
  const copy = join(await tempFolder(t), "copy"); // the node cannot look up the owner of a copy
  cpSync(path, copy, { recursive: true });
  const node = await startNode(t, { JINDOU_STORE_PATH: copy });
  const waiting = await node.logged(
    "The node is waiting for a heartbeat from the last owner of the data folder, because it cannot determine whether that process is running",
  );
  node.child.kill("SIGTERM");
  const [stopping, stopped] = [await node.logged("The node is stopping"), await node.exit];
  t.equal(stopped.code, 0);
  const waitedMs = timeOf(stopping) - timeOf(waiting);
  // After 4 s the wait may be over.
  if (waitedMs < 4000) t.notMatch(stopped.stdout, "The node is ready");
});

t.test("a node does not open a database if its check ends without a report", async (t) => {
  const settings = { JINDOU_STORE_PATH: await killedFolder(t) };
  const failing = `import { isMainThread } from "node:worker_threads";
    if (!isMainThread) throw new Error("a limit is reached");`;
  const node = await startNode(t, settings, failing);
  const { code, stdout, stderr } = await node.exit;
  t.equal(code, 1);
  t.match(
    stderr,
    /^jindou: The check of the database \S*data\.mdb after an unclean stop ended early with code 1 \(Error: a limit is reached\)\. Start the broker again\.[^\n]*\n$/,
  );
  t.notMatch(stdout, "The node is ready");
  await checkServing(t, await startNode(t, settings));
});

t.test("the check of a database ends when its node is killed", async (t) => {
  const node = await startNode(t, { JINDOU_STORE_PATH: await killedFolder(t) }, HANGING);
  await node.logged(CHECKING);
  const checker = await checkerOf(node);
  node.child.kill("SIGKILL");
  await assertEnds(t, checker);
});

t.test("closing a terminal ends neither a node nor the check of its database", async (t) => {
  const settings = { JINDOU_STORE_PATH: await killedFolder(t) };
  const release = join(await tempFolder(t), "release");
  const node = await startNode(t, settings, hangingUntil(release), ["setsid"]);
  await checkerOf(node);
  process.kill(-(node.child.pid ?? 0), "SIGHUP");
  writeFileSync(release, "");
  await checkServing(t, node);
});

t.test(
  "while its database is checked, a node serves health checks, and logs an error if the check makes no progress",
  async (t) => {
    const settings = { JINDOU_STORE_PATH: await killedFolder(t) };
    const release = join(await tempFolder(t), "release");
    const node = await startNode(t, settings, hangingUntil(release));
    t.match(await node.logged(CHECKING), { level: "info", rows: 0, file: /data\.mdb$/ });
    await node.healthy();
    await checkWaiting(t, node);
    t.match(await node.logged(STALLED), {
      level: "error",
      err: { message: /^No row of .*data\.mdb could be read for \d+ s$/ },
    });
    writeFileSync(release, "");
    await checkServing(t, node);
  },
);

t.test(
  "a node whose API cannot listen exits without waiting for the check of its database",
  async (t) => {
    const other = await startNode(t, { JINDOU_STORE_PATH: await killedFolder(t) });
    await other.healthy();
    const settings = {
      JINDOU_STORE_PATH: await killedFolder(t),
      JINDOU_API_LISTEN: `127.0.0.1:${other.apiPort}`,
    };
    const node = await startNode(t, settings, HANGING);
    const checker = await checkerOf(node);
    const { code, stderr } = await node.exit;
    t.equal(code, 1);
    t.match(stderr, /^jindou: [^\n]*JINDOU_API_LISTEN[^\n]*\n$/);
    await assertEnds(t, checker);
  },
);

t.test(
  "the database is not checked after a start that failed because a port was in use",
  async (t) => {
    const other = await startNode(t, { JINDOU_STORE_PATH: await killedFolder(t) });
    await other.healthy();
    const settings = { JINDOU_STORE_PATH: await stoppedFolder(t) };
    const inUse = { JINDOU_CLIENT_LISTEN: `127.0.0.1:${other.apiPort}` };
    const { code } = await (await startNode(t, { ...settings, ...inUse })).exit;
    t.equal(code, 1);
    const next = await startNode(t, settings);
    await next.logged("The node is ready");
    next.child.kill("SIGTERM");
    t.notMatch((await next.exit).stdout, "was checked after an unclean stop");
  },
);

t.test("a second node on a folder in use is refused before it reads the database", async (t) => {
  const path = await killedFolder(t);
  const owner = await spawnBroker(t, {}, path);
  const second = await startNode(t, { JINDOU_STORE_PATH: path }, HANGING);
  const { code, stderr } = await second.exit;
  t.equal(code, 1);
  t.match(stderr, new RegExp(`^jindou: [^\n]*in use by process ${owner.process.pid}\\.[^\n]*\n$`));
  t.equal(await owner.terminate(), 0);
});

t.test(
  "a node that checks its folder before a migration serves health checks, and SIGTERM ends the node and `jindou migrate`",
  async (t) => {
    const { url } = await startRedis(t);
    const from = await killedFolder(t);
    const settings = { JINDOU_MIGRATE_FROM: from, JINDOU_REDIS_URL: url };
    const node = await startNode(t, settings, HANGING);
    t.ok(await node.logged(CHECKING));
    await node.healthy();
    await checkWaiting(t, node);
    node.child.kill("SIGTERM");
    t.equal((await node.exit).code, 0);

    const argv = ["migrate", `--from=${from}`, "--to", url];
    const command = spawnJindou(t, argv, { preload: HANGING });
    const checker = await checkerOf(command);
    command.child.kill("SIGTERM");
    const { code, stderr } = await command.exit;
    t.equal(code, 1);
    t.match(stderr, /^jindou: The migration was stopped\. It resumes at the next start\.\n$/);
    await assertEnds(t, checker);
  },
);
