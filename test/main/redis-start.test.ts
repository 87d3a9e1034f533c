// What a node on Redis says when it cannot start there: one sentence on standard error, exit code
// 1, and nothing changed in Redis.

import t, { type Test } from "tap";
import { freePort, startRedis } from "../support/redis.ts";
import { type Ended, spawnJindou } from "./jindou.ts";

const FORMAT_KEY = "jd:{all}:format";

function startOn(t: Test, url: string): Promise<Ended> {
  const env = {
    JINDOU_API_LISTEN: "127.0.0.1:0",
    JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
    JINDOU_ADMIN_PASSWORD: "right",
    JINDOU_REDIS_TIMEOUT_MS: "2000",
    JINDOU_REDIS_URL: url,
  };
  return spawnJindou(t, [], { env }).ended;
}

function isOneSentence(t: Test, { code, stderr }: Ended, words: RegExp): void {
  t.equal(code, 1);
  t.match(stderr, /^jindou: [^\n]+[.!?]\n$/);
  t.match(stderr, words);
  t.notMatch(stderr, /hunter2/);
}

t.test("Redis that is not there is said", async (t) => {
  const url = `redis://:hunter2@127.0.0.1:${await freePort()}`;
  isOneSentence(t, await startOn(t, url), /ECONNREFUSED.*redis/);
});

t.test("a password that Redis refuses is said, without it", async (t) => {
  const { port } = await startRedis(t);
  const url = `redis://nobody:hunter2@127.0.0.1:${port}`;
  isOneSentence(t, await startOn(t, url), /WRONGPASS/);
});

t.test("data of a newer build is left alone", async (t) => {
  const redis = await startRedis(t);
  const client = redis.client();
  await client.set(FORMAT_KEY, "jindou 99");
  isOneSentence(t, await startOn(t, redis.url), /format 99/);
  t.same(await client.keys("*"), [FORMAT_KEY]);
  t.equal(await client.get(FORMAT_KEY), "jindou 99");
});

t.test("data of an older build is left alone", async (t) => {
  const redis = await startRedis(t);
  const client = redis.client();
  await client.set(FORMAT_KEY, "jindou 1");
  const ended = await startOn(t, redis.url);
  isOneSentence(t, ended, /format 1,.*[Ss]top all nodes.*redis\.prefix/);
  t.same(await client.keys("*"), [FORMAT_KEY]);
  t.equal(await client.get(FORMAT_KEY), "jindou 1");
});

t.test("data of another program is left alone", async (t) => {
  const redis = await startRedis(t);
  const client = redis.client();
  await client.set(FORMAT_KEY, "theirs");
  isOneSentence(t, await startOn(t, redis.url), /redis\.prefix/);
  t.same(await client.keys("*"), [FORMAT_KEY]);
  await client.del(FORMAT_KEY);
  await client.rpush(FORMAT_KEY, "a list");
  isOneSentence(t, await startOn(t, redis.url), /redis\.prefix/);
});
