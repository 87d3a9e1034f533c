// What a mover may do that was frozen while another one moved everything, and what it may ask of Redis at once.

import t, { type Test } from "tap";
import { Semaphore } from "../../src/lib/semaphore.ts";
import { Lease } from "../../src/migrate/lease.ts";
import {
  enterRecord,
  readRecord,
  saveRecord,
} from "../../src/migrate/record.ts";
import { RedisLink } from "../../src/redis/link.ts";
import { writeRows } from "../../src/store/redis/import/import.ts";
import { codeOf, draftOf, group } from "../contract/store-bench.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { redisSettings, startRedis } from "../support/redis.ts";
import { mover, redisStore } from "./mover.ts";

async function start(t: Pick<Test, "teardown">) {
  const server = await startRedis(t);
  const link = new RedisLink(redisSettings(server.url), {
    ...{ name: "fence", onProblem() {} },
  });
  await link.start();
  t.teardown(() => link.close());
  return { server, link, client: server.client() };
}

t.test(
  "a right to move that was lost is not had again, and writes nothing",
  async (t) => {
    const { link, client } = await start(t);
    const [frozen, other] = [new Lease(link), new Lease(link)];
    t.equal(await frozen.take(), true);
    await enterRecord({ link, lease: frozen }, "folder", 1);
    const keyMs = frozen.untilOf("jd:{c1}:head:2:g");
    const [seconds] = await client.time();
    t.ok(Math.abs(keyMs - Number(seconds) * 1000) < 10_000);
    await client.del(frozen.key); // as if it had lapsed
    t.equal(await other.take(), true);
    await saveRecord({ link, lease: other }, { isDone: true });
    await other.release();
    const end = () => codeOf(Promise.resolve().then(() => frozen.assertHeld()));
    while ((await end()) === undefined) await client.ping();
    t.equal(await client.exists(frozen.key), 0);
    t.equal(await end(), "unavailable");
    const stale = saveRecord({ link, lease: frozen }, { step: "message" });
    t.equal(await codeOf(stale), "unavailable");
    t.match(await readRecord(link), { isDone: true, step: "" });
    await frozen.release();
  },
);

t.test("rows that come too late change nothing in Redis", async (t) => {
  const { link, client } = await start(t);
  const context = {
    ...{ keys: link.keys, nowMs: 1, beganAtMs: 1 },
    ...{ dedupeWindowMs: 1000, retentionMs: 0 },
  };
  const own = { kind: "own", key: "2:g", uid: "alice", seq: 7 } as const;
  const write = async (leftMs: number) => {
    const [seconds] = await client.time();
    const until = () => Number(seconds) * 1000 + leftMs;
    const target = { link, line: new Semaphore(4), until };
    return codeOf(writeRows(target, context, [own]));
  };
  t.equal(await write(0), "unavailable");
  t.same(await client.keys("jd:{c*"), []);
  t.equal(await write(60_000), undefined);
  t.equal((await client.keys("jd:{c*")).length, 1);
});

t.test("a move needs few places in flight, whatever is moved", async (t) => {
  const from = testFolder(t);
  const store = await openStore(t, from);
  const uids = Array.from({ length: 300 }, (_, at) => `user ${at}`);
  await store.createChannel(group("g"), uids);
  for (const uid of uids)
    await store.putDevice({
      ...{ uid, flag: 0, level: 0, tokenHash: new Uint8Array(32) },
    });
  await store.append(draftOf());
  await store.close();
  const { url } = await startRedis(t);
  const redis = redisSettings(url, { maxInFlight: 100 });
  const move = mover({ from, redis });
  t.equal(await codeOf(move.once()), undefined);
  const there = await redisStore(t, redis, Date.now);
  t.equal(await there.headSeq("2:g"), 1);
});
