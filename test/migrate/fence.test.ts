// A process that lost the lease of a migration must not write any more. Also tests how many calls a
// migration has in flight.

import t, { type Test } from "tap";
import { fact, MoveTarget } from "../../src/migrate/facts.ts";
import { Lease } from "../../src/migrate/lease.ts";
import { type RecordChange, readMove, saveRecord } from "../../src/migrate/record.ts";
import { RedisLink } from "../../src/redis/link.ts";
import { codeOf, draftOf, group } from "../contract/store-fixture.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { redisSettings, startRedis } from "../support/redis.ts";
import { mover, redisStore } from "./mover.ts";

const RECORD = "jd:{all}:migration";
const LEASE = "jd:{all}:migrating";

async function start(t: Pick<Test, "teardown">) {
  const server = await startRedis(t);
  const link = new RedisLink(redisSettings(server.url), {
    ...{ name: "fence", onError() {} },
  });
  await link.start();
  t.teardown(() => link.close());
  return { server, link, client: server.client() };
}

t.test(
  "a process that lost the migration lease can neither renew it nor write the migration record",
  async (t) => {
    const { link, client } = await start(t);
    const [frozen, other] = [new Lease(link), new Lease(link)];
    const save = (lease: Lease, change: RecordChange) => saveRecord(link, lease, change);
    t.equal(await frozen.acquire(), true);
    await client.hset(RECORD, { v: 1, began: 1, source: "folder" });
    const keyMs = frozen.fenceOf("jd:{c1}:head:2:g");
    const [seconds] = await client.time();
    t.ok(Math.abs(keyMs - Number(seconds) * 1000) < 10_000);
    await client.del(LEASE); // as if the lease had expired
    t.equal(await other.acquire(), true);
    await save(other, { isDone: true });
    await other.release();
    const heldCode = () => codeOf(Promise.resolve().then(() => frozen.assertHeld()));
    while ((await heldCode()) === undefined) await client.ping();
    t.equal(await client.exists(LEASE), 0);
    t.equal(await heldCode(), "unavailable");
    const stale = save(frozen, { step: "message" });
    t.equal(await codeOf(stale), "unavailable");
    const { record } = await readMove(link);
    t.match(record, { isDone: true, step: "" });
    await frozen.release();
  },
);

t.test("a migration record that Redis has lost is not created again", async (t) => {
  const { link, client } = await start(t);
  const lease = new Lease(link);
  t.equal(await lease.acquire(), true);
  const save = saveRecord(link, lease, { isDone: true });
  t.equal(await codeOf(save), "unavailable", "the copied data is lost too");
  t.equal(await client.exists(RECORD), 0);
  await lease.release();
  t.throws(() => lease.fenceOf("jd:{c1}:head:2:g"), { code: "unavailable" });
});

t.test(
  "the last of several values that a migration writes to one key stays in Redis",
  async (t) => {
    const { link, client } = await start(t);
    const target = new MoveTarget(link, () => Number.MAX_SAFE_INTEGER);
    const facts = [fact("SET", "jd:one", ["1"]), fact("SET", "jd:one", ["2"], 60_000)];
    await target.write(facts);
    t.equal(await client.get("jd:one"), "2");
    t.ok((await client.pttl("jd:one")) > 0);
    t.same(await target.differing(facts), []);
  },
);

t.test("a migration write that reaches Redis after its deadline changes nothing", async (t) => {
  const { link, client } = await start(t);
  const headFact = fact("HSET", link.keys.channel("head", "2:g"), ["@alice", "7"]);
  const write = async (leftMs: number) => {
    const [seconds] = await client.time();
    const until = () => Number(seconds) * 1000 + leftMs;
    return codeOf(new MoveTarget(link, until).write([headFact]));
  };
  t.equal(await write(0), "unavailable");
  t.same(await client.keys("jd:{c*"), []);
  t.equal(await write(60_000), undefined);
  t.equal((await client.keys("jd:{c*")).length, 1);
});

t.test(
  "the migration lease is left to expire, and not deleted, after a migration write without a reply",
  async (t) => {
    const [unreachable, { link, client }] = [await start(t), await start(t)];
    await unreachable.server.stop();
    const target = new MoveTarget(unreachable.link, () => Number.MAX_SAFE_INTEGER);
    t.equal(target.isAnswered, true);
    const write = target.write([fact("SET", "jd:one", ["1"])]);
    t.equal(await codeOf(write), "unavailable");
    t.equal(target.isAnswered, false);
    const lease = new Lease(link);
    t.equal(await lease.acquire(), true);
    await client.config("RESETSTAT");
    lease.noteUnanswered();
    await lease.release();
    t.throws(() => lease.assertHeld(), { code: "unavailable" });
    const stats = await client.info("commandstats");
    t.notMatch(stats, /cmdstat_del:/, "the lease is left to expire");
  },
);

t.test("a migration of 300 users succeeds with a redis.maxInFlight of 100", async (t) => {
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
  const migration = mover({ from, redis });
  t.equal(await codeOf(migration.once()), undefined);
  const migrated = await redisStore(t, redis, Date.now);
  t.equal(await migrated.headSeq("2:g"), 1);
});
