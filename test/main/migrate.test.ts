// Tests of `jindou migrate` and of nodes that wait for a migration, as child processes.

import type { ChildProcess } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import t from "tap";
import { AccessTokens } from "../../src/broker/access-tokens.ts";
import { configuredAccounts } from "../../src/broker/manager-accounts.ts";
import { codeOf, draftOf } from "../contract/store-fixture.ts";
import { mover, redisStore } from "../migrate/mover.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { redisSettings, startRedis } from "../support/redis.ts";
import { jindou, spawnJindou } from "./jindou.ts";

t.test(
  "jindou migrate moves a folder into Redis and prints its progress and a summary",
  async (t) => {
    const from = testFolder(t);
    const store = await openStore(t, from);
    await store.append(draftOf());
    const server = await startRedis(t);
    const { url } = server;
    const argv = ["migrate", `--from=${from}`, "--to", url];

    const rejected = await jindou(t, argv);
    t.match(rejected, { code: 1, stdout: "", stderr: /in use by process \d+/ });

    await store.close();
    const result = await jindou(t, argv);
    t.match(result, {
      code: 0,
      stdout: "",
      stderr: /^message \d+\/\d+ \(100 %\)$/m,
    });
    t.match(result.stderr, /was compared: 1 messages, /);
    const target = await redisStore(t, redisSettings(url), Date.now);
    t.equal(await target.headSeq("2:g"), 1);

    const repetition = await jindou(t, argv);
    t.match(repetition, { code: 0, stderr: /already migrated/ });

    const client = server.client();
    const record = "jd:{all}:migration"; // as if another process were migrating the data
    await client.hdel(record, "done");
    await client.hset(record, { step: "message", rows: 3, total: 10 });
    await client.set("jd:{all}:migrating", "another");
    const waiting = spawnJindou(t, argv);
    await printedOnStderr(waiting.child, /^message 3\/10 \(30 %\)/m);
    await client.hset(record, "done", "1");
    t.match(await waiting.exit, { code: 0, stderr: /^Another process/ });
  },
);

/** Waits until the standard error of the process matches `pattern`. */
async function printedOnStderr(child: ChildProcess, pattern: RegExp): Promise<void> {
  let text = "";
  child.stderr?.on("data", (piece: string) => {
    text += piece;
  });
  while (!pattern.test(text)) {
    if (child.exitCode !== null) throw new Error(`the process exited after printing ${text}`);
    await once(child, "output");
  }
}

t.test(
  "jindou migrate names the missing flag or setting, and other commands reject --from",
  async (t) => {
    const noFrom = await jindou(t, ["migrate", "--to=redis://127.0.0.1:1"]);
    t.match(noFrom, { code: 2, stderr: /--from/ });
    const noTo = await jindou(t, ["migrate", "--from=/nowhere"]);
    t.match(noTo, { code: 2, stderr: /redis\.url/ });
    const wrongCommand = await jindou(t, ["check-config", "--from=/nowhere"]);
    t.match(wrongCommand, { code: 2, stderr: /--from is not a known flag/ });
  },
);

/** Returns the account `admin` with this password. */
async function adminWith(password: string) {
  const accounts = await configuredAccounts([{ username: "admin", role: "admin", password }]);
  const admin = accounts.get("admin");
  if (admin === undefined) throw new Error("the account admin was not created");
  return admin;
}

t.test(
  "a node waiting for a migration reports the migration's state to managers and exits on a signal",
  async (t) => {
    const { url } = await startRedis(t);
    const from = testFolder(t);
    const store = await openStore(t, from); // keeps the folder in use, so that the migration fails
    const admin = await adminWith("long enough");
    const accountOf = () => admin;
    const tokens = new AccessTokens({ store, accountOf, clock: Date.now });
    const token = await tokens.issue(admin, Date.now() + 600_000);
    const formerAdmin = await adminWith("another one");
    const formerToken = await tokens.issue(formerAdmin, Date.now() + 600_000);
    const env = {
      ...{ JINDOU_REDIS_URL: url, JINDOU_MIGRATE_FROM: from },
      ...{
        JINDOU_API_LISTEN: "127.0.0.1:0",
        JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
      },
      ...{ JINDOU_DRAIN_TIMEOUT_MS: "100", JINDOU_API_TOKEN: "static" },
      JINDOU_ADMIN_PASSWORD: "long enough",
    };
    const node = spawnJindou(t, [], { env });
    await node.logged("The migration failed and will be retried");
    const { apiPort } = await node.logged("The node waits until its data has been migrated");
    const get = (path: string, headers: Readonly<Record<string, string>>) =>
      fetch(`http://127.0.0.1:${apiPort}${path}`, { headers });
    const call = (path: string, bearer: string) => get(path, { authorization: `Bearer ${bearer}` });
    t.equal((await get("/migrate/result", { token: "static" })).status, 200);
    t.equal((await get("/migrate/result", {})).status, 401);
    const reply = await call("/migrate/result", token);
    t.match(await reply.json(), {
      ...{ status: "failed", step: "", last_err: /in use/, try_count: 1 },
    });
    t.equal((await call("/metrics", token)).status, 200);
    const invalidToken = randomBytes(32).toString("base64url");
    t.equal((await call("/migrate/result", invalidToken)).status, 401);
    t.equal((await call("/migrate/result", formerToken)).status, 401);
    const rejected = await call("/openapi.json", token);
    t.equal(rejected.status, 503);
    t.ok(Number(rejected.headers.get("retry-after")) > 0);
    node.child.kill("SIGTERM");
    t.equal((await node.exit).code, 0);
  },
);

t.test(
  "a node exits after SIGCONT if a migration into its Redis began while the node was suspended by SIGSTOP",
  async (t) => {
    const { url } = await startRedis(t);
    const from = testFolder(t);
    const store = await openStore(t, from);
    await store.append(draftOf());
    await store.close();
    const env = {
      ...{ JINDOU_REDIS_URL: url, JINDOU_ADMIN_PASSWORD: "long enough" },
      ...{
        JINDOU_API_LISTEN: "127.0.0.1:0",
        JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
      },
    };
    const node = spawnJindou(t, [], { env });
    await node.logged("The node is ready");
    node.child.kill("SIGSTOP");
    const move = mover({
      ...{ from, redis: redisSettings(url) },
      onProgress: ({ step }) => step === "message" && move.close(),
    });
    t.equal(await codeOf(move.once()), "unavailable");
    t.match(move.state, { step: "message", lastErr: /stopped/ });
    node.child.kill("SIGCONT");
    await node.logged("The node exits because it must stop serving clients");
    t.equal((await node.exit).code, 1);
  },
);
