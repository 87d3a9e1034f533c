// `jindou migrate` as a shell sees it.

import type { ChildProcess } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import t from "tap";
import { AccessTokens } from "../../src/broker/access-tokens.ts";
import { knownAccounts } from "../../src/broker/manager-accounts.ts";
import { codeOf, draftOf } from "../contract/store-bench.ts";
import { mover, redisStore } from "../migrate/mover.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { redisSettings, startRedis } from "../support/redis.ts";
import { jindou, spawnJindou } from "./jindou.ts";

t.test("a folder is moved, with lines of progress and a sentence", async (t) => {
  const from = testFolder(t);
  const store = await openStore(t, from);
  await store.append(draftOf());
  const server = await startRedis(t);
  const { url } = server;
  const argv = ["migrate", `--from=${from}`, "--to", url];

  const refused = await jindou(t, argv);
  t.match(refused, { code: 1, stdout: "", stderr: /in use by process \d+/ });

  await store.close();
  const moved = await jindou(t, argv);
  t.match(moved, {
    code: 0,
    stdout: "",
    stderr: /^message \d+\/\d+ \(100 %\)$/m,
  });
  t.match(moved.stderr, /was compared: 1 messages, /);
  const there = await redisStore(t, redisSettings(url), Date.now);
  t.equal(await there.headSeq("2:g"), 1);

  const again = await jindou(t, argv);
  t.match(again, { code: 0, stderr: /nothing is left to do/ });

  const client = server.client();
  const record = "jd:{all}:migration"; // as another process would leave it
  await client.hdel(record, "done");
  await client.hset(record, { step: "message", rows: 3, total: 10 });
  await client.set("jd:{all}:migrating", "another");
  const waiting = spawnJindou(t, argv);
  await told(waiting.child, /^message 3\/10 \(30 %\)/m);
  await client.hset(record, "done", "1");
  t.match(await waiting.ended, {
    ...{ code: 0, stderr: /^Another process moves the data/ },
  });
});

/** Resolves when the process has written it on standard error. */
async function told(child: ChildProcess, words: RegExp): Promise<void> {
  let text = "";
  child.stderr?.on("data", (piece: string) => {
    text += piece;
  });
  while (!words.test(text)) {
    if (child.exitCode !== null) throw new Error(`it said ${text}`);
    await once(child, "output");
  }
}

t.test("what is missing is said", async (t) => {
  const noFrom = await jindou(t, ["migrate", "--to=redis://127.0.0.1:1"]);
  t.match(noFrom, { code: 2, stderr: /--from/ });
  const noTo = await jindou(t, ["migrate", "--from=/nowhere"]);
  t.match(noTo, { code: 2, stderr: /redis\.url/ });
  const elsewhere = await jindou(t, ["check-config", "--from=/nowhere"]);
  t.match(elsewhere, { code: 2, stderr: /--from is not a known flag/ });
});

async function adminWith(password: string) {
  const accounts = await knownAccounts([{ username: "admin", role: "admin", password }]);
  const admin = accounts.get("admin");
  if (admin === undefined) throw new Error("admin is an account");
  return admin;
}

t.test("a node that waits for its data says why to managers, and ends on a signal", async (t) => {
  const { url } = await startRedis(t);
  const from = testFolder(t);
  const store = await openStore(t, from); // and so in use
  const admin = await adminWith("long enough");
  const accountOf = () => admin;
  const tokens = new AccessTokens({ store, accountOf, clock: Date.now });
  const token = await tokens.give(admin, Date.now() + 600_000);
  const before = await adminWith("another one");
  const old = await tokens.give(before, Date.now() + 600_000);
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
  const { apiPort } = await node.logged("The node waits until its data has been moved");
  const ask = (path: string, headers: Readonly<Record<string, string>>) =>
    fetch(`http://127.0.0.1:${apiPort}${path}`, { headers });
  const call = (path: string, bearer: string) => ask(path, { authorization: `Bearer ${bearer}` });
  t.equal((await ask("/migrate/result", { token: "static" })).status, 200);
  t.equal((await ask("/migrate/result", {})).status, 401);
  const reply = await call("/migrate/result", token);
  t.match(await reply.json(), {
    ...{ status: "failed", step: "", last_err: /in use/, try_count: 1 },
  });
  t.equal((await call("/metrics", token)).status, 200);
  const wrong = randomBytes(32).toString("base64url");
  t.equal((await call("/migrate/result", wrong)).status, 401);
  t.equal((await call("/migrate/result", old)).status, 401);
  const refused = await call("/openapi.json", token);
  t.equal(refused.status, 503);
  t.ok(Number(refused.headers.get("retry-after")) > 0);
  node.child.kill("SIGTERM");
  t.equal((await node.ended).code, 0);
});

t.test("a node that was frozen while a move began beside it ends", async (t) => {
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
  t.match(move.state, { step: "message", lastErr: /was ended/ });
  node.child.kill("SIGCONT");
  await node.logged("The node exits because it must no longer serve");
  t.equal((await node.ended).code, 1);
});
