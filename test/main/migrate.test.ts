// `jindou migrate` as a shell sees it.

import t from "tap";
import { draftOf } from "../contract/store-bench.ts";
import { redisStore } from "../migrate/mover.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { redisSettings, startRedis } from "../support/redis.ts";
import { jindou, spawnJindou } from "./jindou.ts";

t.test(
  "a folder is moved, with lines of progress and a sentence",
  async (t) => {
    const from = testFolder(t);
    const store = await openStore(t, from);
    await store.append(draftOf());
    const { url } = await startRedis(t);
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
    const there = await redisStore(t, redisSettings(url), Date.now);
    t.equal(await there.headSeq("2:g"), 1);

    const again = await jindou(t, argv);
    t.match(again, { code: 0, stderr: /nothing is left to do/ });
  },
);

t.test("what is missing is said", async (t) => {
  const noFrom = await jindou(t, ["migrate", "--to=redis://127.0.0.1:1"]);
  t.match(noFrom, { code: 2, stderr: /--from/ });
  const noTo = await jindou(t, ["migrate", "--from=/nowhere"]);
  t.match(noTo, { code: 2, stderr: /redis\.url/ });
  const elsewhere = await jindou(t, ["check-config", "--from=/nowhere"]);
  t.match(elsewhere, { code: 2, stderr: /--from is no known flag/ });
});

t.test(
  "a node that waits for its data says why, and ends on a signal",
  async (t) => {
    const { url } = await startRedis(t);
    const env = {
      ...{ JINDOU_REDIS_URL: url, JINDOU_MIGRATE_FROM: "/nowhere" },
      ...{
        JINDOU_API_LISTEN: "127.0.0.1:0",
        JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
      },
      ...{ JINDOU_DRAIN_TIMEOUT_MS: "100", JINDOU_API_TOKEN: "static" },
    };
    const node = spawnJindou(t, [], { env });
    await node.logged("migration failed");
    const { apiPort } = await node.logged(
      "waiting for the data that is being moved",
    );
    const result = (headers: Readonly<Record<string, string>>) =>
      fetch(`http://127.0.0.1:${apiPort}/migrate/result`, { headers });
    const unjudged = await result({ authorization: "Bearer a manager's" });
    t.equal(unjudged.status, 503); // not 401: nobody can tell yet
    t.ok(Number(unjudged.headers.get("retry-after")) > 0);
    const reply = await result({ token: "static" });
    t.match(await reply.json(), {
      ...{ status: "failed", step: "", last_err: /no data/, try_count: 1 },
    });
    node.child.kill("SIGTERM");
    t.equal((await node.ended).code, 0);
  },
);
