// Messages on Redis: the cases that concern only this driver.

import t from "tap";
import {
  ALL,
  codeOf,
  draftOf,
  earlierResult,
  retryOf,
  seqsOf,
} from "../../contract/store-fixture.ts";
import { startRedis } from "../../support/redis.ts";
import { openStore } from "./one-store.ts";

const server = await startRedis(t, ["--appendonly", "yes"]);

t.test(
  "a retry is recognised for the length of the dedupe window, measured by the node's clock",
  async (t) => {
    const limits = { dedupeWindowS: 10 };
    const { store, time } = await openStore(t, server.url, { limits });
    const first = await store.append(retryOf("n"));
    const again = { ...first, duplicate: true };
    time.nowMs += 9_999;
    t.same(await store.append(retryOf("n")), again);
    t.same(await earlierResult(store, retryOf("n")), again);
    time.nowMs -= 60_000;
    t.same(
      await store.append(retryOf("n")),
      again,
      "a clock that goes back does not end the window",
    );
    time.nowMs += 50_001 + 10_000;
    t.equal(await earlierResult(store, retryOf("n")), undefined);
    t.match(await store.append(retryOf("n")), {
      messageSeq: 2,
      duplicate: false,
    });
    t.match(store.stats(), { appends: 2, duplicates: 3 });
  },
);

t.test("an invalid `expire` is rejected and uses no seq", async (t) => {
  const { store } = await openStore(t, server.url);
  for (const expireS of [-1, 1.5, 2 ** 32, Number.NaN])
    t.equal(await codeOf(store.append(draftOf({ expireS }))), "bad_request");
  t.equal((await store.append(draftOf({ expireS: 2 ** 32 - 1 }))).messageSeq, 1);
});

t.test("a stored personal message adds each user to the other user's peer index", async (t) => {
  const { store, link, time } = await openStore(t, server.url);
  const to = (id: string, over = {}) =>
    store.append(draftOf({ ...over, channel: { id, type: 1 } }));
  await to("bob");
  time.nowMs -= 5000;
  await to("bob");
  await to("alice");
  await to("carol", { header: { noPersist: true, redDot: false } });
  const peers = async (uid: string) =>
    String(await link.call("zrange", link.keys.user("peers", uid), 0, -1, "WITHSCORES"));
  const newest = time.nowMs + 5000;
  t.equal(await peers("alice"), `alice,${newest},bob,${newest}`); // times in message ids never decrease
  t.equal(await peers("bob"), `alice,${newest}`);
  t.equal(await peers("carol"), "");
});

t.test(
  "calls are rejected at once while Redis is down, and accepted when it is up again",
  async (t) => {
    const own = await startRedis(t, ["--appendonly", "yes", "--appendfsync", "always"]);
    const { store, link } = await openStore(t, own.url);
    await store.append(retryOf("before"));
    const changes: boolean[] = [];
    link.onChange((isUp) => changes.push(isUp));
    await own.stop("SIGKILL");
    const codes = await Promise.all(
      Array.from({ length: 50 }, () => codeOf(store.append(draftOf()))),
    );
    t.same(new Set(codes), new Set(["unavailable"]));
    t.equal(await codeOf(store.readMessages("2:g", ALL)), "unavailable");
    t.equal(await codeOf(store.ping()), "unavailable");
    t.equal(link.inFlight, 0, "no call waits");
    await own.restart();
    while (!link.isUp) await new Promise((resolve) => setTimeout(resolve, 10));
    t.same(changes, [false, true]);
    t.equal((await store.append(retryOf("before"))).duplicate, true);
    t.equal((await store.append(draftOf())).messageSeq, 2, "no rejected message was stored later");
  },
);

t.test("scripts that a server lost are loaded again", async (t) => {
  const { store, link } = await openStore(t, server.url);
  await store.append(draftOf());
  await server.client().script("FLUSH");
  t.equal(await codeOf(store.append(draftOf())), "unavailable");
  while (!link.isUp) await new Promise((resolve) => setTimeout(resolve, 5));
  t.equal((await store.append(draftOf())).messageSeq, 2);
});

t.test("a message record does not store a clientMsgNo derived from the message id", async (t) => {
  const { store, link } = await openStore(t, server.url);
  const channel = { id: "numbers", type: 2 } as const;
  const sizeOf = async (clientMsgNo: string) => {
    const draft = draftOf({ channel, clientMsgNo });
    const { messageSeq: seq } = await store.append(draft);
    const log = link.keys.channel("log", draft.key);
    const entries = await link.call("xrange", log, seq, seq);
    const [[, fields]] = entries as [[Buffer, Buffer[]]]; // the reply has one entry
    return fields.at(-1)?.length ?? 0;
  };
  t.equal(await sizeOf("1234567"), (await sizeOf("")) + 7);
});

t.test("calls above redis.maxInFlight are rejected as overloaded", async (t) => {
  const settings = { maxInFlight: 100 };
  const { store } = await openStore(t, server.url, { settings });
  const codes = await Promise.all(
    Array.from({ length: 150 }, () => codeOf(store.append(draftOf()))),
  );
  t.equal(codes.filter((code) => code === undefined).length, 100);
  t.equal(codes.filter((code) => code === "overloaded").length, 50);
  const { messages } = await store.readMessages("2:g", ALL);
  t.same(
    seqsOf(messages),
    Array.from({ length: 100 }, (_, i) => i + 1),
  );
});

t.test("a dedupe record without the hash of a payload matches every payload", async (t) => {
  const { store, link } = await openStore(t, server.url);
  const first = await store.append(retryOf("n"));
  const other = { ...retryOf("n"), payload: new TextEncoder().encode('{"type":2}') };
  t.match(await store.append(other), { refused: "client_msg_no_reused" });
  const dedupe = link.keys.channel("dedupe", "2:g", "alice\nn");
  const record = (await link.call("get", dedupe)) as Buffer;
  await link.call("set", dedupe, record.subarray(0, record.indexOf("#")));
  t.same(await store.append(other), { ...first, duplicate: true });
});

t.test("a retry is rejected if its dedupe record has a newer format", async (t) => {
  const { store, link } = await openStore(t, server.url);
  await store.append(retryOf("n"));
  const dedupe = link.keys.channel("dedupe", "2:g", "alice\nn");
  await link.call("set", dedupe, "v2 something");
  t.equal(await codeOf(store.append(retryOf("n"))), "internal");
  t.equal(await codeOf(earlierResult(store, retryOf("n"))), "internal");
  t.equal(await store.headSeq("2:g"), 1);
});
