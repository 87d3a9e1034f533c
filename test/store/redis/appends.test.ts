// Messages that go to Redis together: how many calls and publications they cost, that one which
// fails harms no other, and that a connection's messages keep their order whatever becomes of a
// call. Their common door is the store's `append`.

import t, { type Test } from "tap";
import type { ChannelKey } from "../../../src/broker/model.ts";
import type { MessageDraft } from "../../../src/broker/ports.ts";
import { bucketOf } from "../../../src/redis/keys.ts";
import { framesOf, isMessages } from "../../../src/redis/wire.ts";
import { ALL, codeOf, draftOf, retryOf } from "../../contract/store-fixture.ts";
import { type RedisServer, startRedis } from "../../support/redis.ts";
import { measureStalls } from "../../support/stalls.ts";
import { connectSubscriber } from "../../support/topic-subscriber.ts";
import { type OneStore, openStore } from "./one-store.ts";

const server = await startRedis(t);

const inGroup = (id: string, over: Partial<MessageDraft> = {}) =>
  draftOf({ channel: { id, type: 2 }, ...over });

const numbered = (number: number, origin: string | undefined) =>
  draftOf({ payload: new TextEncoder().encode(`${number}`), origin });

const numbersIn = async ({ store }: OneStore, key = "2:g") => {
  const { messages } = await store.readMessages(key, ALL);
  return messages.map(({ payload }) => Number(Buffer.from(payload)));
};

/** How often the server ran a command. */
async function callsOf(redis: RedisServer, command: string): Promise<number> {
  const client = redis.client();
  const stats = await client.info("commandstats");
  client.disconnect();
  const found = new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(stats);
  return Number(found?.[1] ?? 0);
}

/** Nothing of the test waits too long, however busy the machine is. */
const UNHURRIED = { timeoutMs: 60_000 };

t.test("what one turn sends is few calls, each with one publication a topic", async (t) => {
  const own = await startRedis(t);
  const one = await openStore(t, own.url);
  const topic = one.link.keys.topic("g:g");
  const frames: Buffer[] = [];
  const subscriber = await connectSubscriber(t, own.url, (_, frame) => frames.push(frame));
  await subscriber.ssubscribe(topic);
  const before = await callsOf(own, "evalsha");
  await Promise.all(
    Array.from({ length: 100 }, (_, at) => one.store.append(numbered(at, undefined))),
  );
  const calls = (await callsOf(own, "evalsha")) - before;
  t.equal(calls, 4, "32 at most in a call");
  t.equal(await callsOf(own, "spublish"), calls);
  while (frames.length < calls) await new Promise(setImmediate);
  t.ok(frames.every(isMessages));
  const held = frames.map((frame) => framesOf(frame));
  t.ok(held.every(({ isWhole }) => isWhole));
  t.same(
    held.map((all) => all.frames.length),
    [32, 32, 32, 4],
  );
  t.equal(await callsOf(own, "xadd"), 100);
  t.equal(await callsOf(own, "hmget"), calls, "the head is read once a call");
  t.same(
    await numbersIn(one),
    Array.from({ length: 100 }, (_, at) => at),
  );
});

t.test("a call into many channels takes its ids at once", async (t) => {
  const own = await startRedis(t);
  const { store } = await openStore(t, own.url);
  const groups = Array.from({ length: 32 }, (_, at) => `g${at}`);
  const ids: number[] = [];
  for (const turn of [1, 2]) {
    const before = await callsOf(own, "set");
    const sent = groups.map((id) => store.append(inGroup(id)));
    for (const { messageId } of await Promise.all(sent)) ids.push(messageId);
    // In the same millisecond, which the test's clock is, the ids that others took are skipped.
    t.equal((await callsOf(own, "set")) - before, turn);
  }
  t.equal(new Set(ids).size, 64, "no id comes twice");
  t.ok(Math.min(...ids.slice(32)) > Math.max(...ids.slice(0, 32)), "they grow");
});

t.test("a call takes a quarter of a mebibyte at most, or one", async (t) => {
  const own = await startRedis(t);
  const { store } = await openStore(t, own.url);
  const large = { payload: new Uint8Array(100_000) };
  const before = await callsOf(own, "evalsha");
  await Promise.all(
    [large, large, large, large, { payload: new Uint8Array(400_000) }].map((over) =>
      store.append(inGroup("g", over)),
    ),
  );
  t.equal((await callsOf(own, "evalsha")) - before, 3);
  t.equal(await store.headSeq("2:g"), 5);
});

t.test("one that fails harms no other of its call and takes no seq", async (t) => {
  const one = await openStore(t, server.url);
  const { store, link } = one;
  const remembered = link.keys.channel("dedupe", "2:g", "alice\npoisoned");
  await link.call("set", remembered, "v2 something");
  await link.call("set", link.keys.channel("head", "2:broken"), "no hash");
  await link.call("set", link.keys.channel("log", "2:logless"), "no log");
  const codes = await Promise.all(
    [
      inGroup("g"),
      retryOf("poisoned"),
      inGroup("broken"),
      inGroup("g"),
      inGroup("logless"),
      inGroup("h"),
    ].map((draft) => codeOf(store.append(draft))),
  );
  t.same(codes, [...[undefined, "internal", "internal"], ...[undefined, "internal", undefined]]);
  const { messages } = await store.readMessages("2:g", ALL);
  t.same(
    messages.map((m) => m.messageSeq),
    [1, 2],
  );
  t.equal(await store.headSeq("2:h"), 1);
  await link.call("del", link.keys.channel("log", "2:logless"));
  t.match(await store.append(inGroup("logless")), { messageSeq: 1 });
});

t.test("a key of a wrong type fails a message before anything of it is stored", async (t) => {
  const { store, link } = await openStore(t, server.url);
  const { keys } = link;
  const dueOf = (key: ChannelKey) => keys.bucket("due", bucketOf(key));
  const once = { clientMsgNo: "n" };
  const lasting = (id: string) => inGroup(id, once);
  const expiring = (id: string) => inGroup(id, { ...once, expireS: 60 });
  const toBob = draftOf({ ...once, channel: { id: "bob", type: 1 } });
  const cases: readonly (readonly [string, MessageDraft])[] = [
    [dueOf("2:due"), lasting("due")],
    [keys.channel("expiry", "2:exp"), expiring("exp")],
    [keys.channel("redDots", "2:dot"), expiring("dot")],
    [dueOf("2:expiring"), expiring("expiring")],
    [keys.user("peers", "alice"), toBob],
    [keys.user("peers", "bob"), toBob],
  ];
  for (const [key, draft] of cases) {
    await link.call("set", key, "of another type");
    t.equal(await codeOf(store.append(draft)), "internal", key);
    const log = keys.channel("log", draft.key);
    t.equal(await link.call("exists", log), 0, `${key}: no entry`);
    t.equal(await store.headSeq(draft.key), 0, `${key}: no seq`);
    await link.call("del", key);
    t.match(
      await store.append(draft),
      { messageSeq: 1, duplicate: false },
      `${key}: the first one is not remembered`,
    );
    await link.call("del", log, keys.channel("head", draft.key));
    await link.call("del", keys.channel("dedupe", draft.key, "alice\nn"));
  }
});

t.test("a head that lags behind its log harms no other channel", async (t) => {
  const { store, link } = await openStore(t, server.url);
  for (let i = 0; i < 3; i++) await store.append(inGroup("torn"));
  await link.call("hset", link.keys.channel("head", "2:torn"), "seq", 1);
  const codes = await Promise.all(["torn", "g"].map((id) => codeOf(store.append(inGroup(id)))));
  t.same(codes, ["internal", undefined]);
});

t.test("a message that could not be stored is no retry's first", async (t) => {
  const { store, link } = await openStore(t, server.url);
  const head = link.keys.channel("head", "2:mended");
  for (let i = 0; i < 3; i++) await store.append(inGroup("mended"));
  await link.call("hset", head, "seq", 1);
  const message = { clientMsgNo: "once" };
  t.equal(await codeOf(store.append(inGroup("mended", message))), "internal");
  await link.call("hset", head, "seq", 3);
  const [stored, retry] = [
    await store.append(inGroup("mended", message)),
    await store.append(inGroup("mended", message)),
  ];
  t.match(stored, { duplicate: false, messageSeq: 4 });
  t.match(retry, { ...stored, duplicate: true });
});

/**
 * Sends of one connection, turn by turn, while `trouble` does its worst; each knows what came
 * before it was rejected.
 */
async function sendThrough(
  { store }: OneStore,
  trouble: (turn: number, rejected: () => number) => Promise<void>,
): Promise<{
  readonly accepted: readonly number[];
  readonly rejected: ReadonlyMap<number, number>;
}> {
  const accepted: number[] = [];
  const rejected = new Map<number, number>();
  const calls: Promise<void>[] = [];
  let sent = 0;
  for (let turn = 0; turn < 60; turn++) {
    for (let i = 0; i < 7; i++) {
      const number = sent++;
      const call = store.append(numbered(number, "session"));
      calls.push(
        call.then(
          () => void accepted.push(number),
          () => void rejected.set(number, sent),
        ),
      );
    }
    await trouble(turn, () => rejected.size);
    await new Promise((resolve) => setImmediate(resolve));
  }
  await Promise.all(calls);
  return { accepted, rejected };
}

/**
 * Those of a connection that were stored though an earlier one was rejected behind their call: a
 * retry of that one would come after them.
 */
function overtakers({
  accepted,
  rejected,
}: Awaited<ReturnType<typeof sendThrough>>): readonly number[] {
  return accepted.filter((number) =>
    [...rejected].some(([one, sentUntil]) => one < number && number < sentUntil),
  );
}

async function judgeOrder(
  t: Test,
  one: OneStore,
  result: Awaited<ReturnType<typeof sendThrough>>,
): Promise<void> {
  // The first call behind the trouble may be the one that finds it.
  while ((await codeOf(numbersIn(one))) === "unavailable")
    await new Promise((resolve) => setTimeout(resolve, 2));
  const stored = await numbersIn(one);
  t.same(
    stored,
    stored.toSorted((a, b) => a - b),
    "in the order of the calls",
  );
  const kept = new Set(stored);
  t.equal(kept.size, stored.length, "each once");
  t.ok(
    result.accepted.every((number) => kept.has(number)),
    "nothing accepted is missing",
  );
  t.same(overtakers(result), [], "none overtakes an earlier one");
  t.ok(result.accepted.length > 0, "some were accepted");
  t.ok(result.rejected.size > 0, "some were rejected");
}

t.test(
  "a connection's messages keep their order while the server forgets its scripts",
  async (t) => {
    const own = await startRedis(t);
    const one = await openStore(t, own.url);
    const client = own.client();
    t.teardown(() => client.disconnect());
    const result = await sendThrough(one, async (turn) => {
      if (turn % 20 === 10) await client.script("FLUSH");
      if (turn % 20 === 0)
        while (!one.link.isUp) await new Promise((resolve) => setTimeout(resolve, 2));
    });
    await judgeOrder(t, one, result);
  },
);

t.test("a connection's messages keep their order while the server is out of memory", async (t) => {
  const own = await startRedis(t);
  const one = await openStore(t, own.url);
  const client = own.client();
  t.teardown(() => client.disconnect());
  let before = 0;
  const result = await sendThrough(one, async (turn, rejected) => {
    if (turn % 10 === 4) await client.config("SET", "maxmemory", "1mb");
    if (turn % 10 === 4) before = rejected();
    if (turn % 10 !== 6) return;
    while (rejected() === before) await new Promise(setImmediate);
    await client.config("SET", "maxmemory", "0");
  });
  await judgeOrder(t, one, result);
  await client.config("SET", "maxmemory", "1mb");
  t.equal(await codeOf(one.store.append(draftOf())), "unavailable");
  await client.config("SET", "maxmemory", "0");
  t.equal(one.link.inFlight, 0, "every place is given back");
});

t.test("a replica's refusal is one of the server's state", async (t) => {
  const own = await startRedis(t);
  const one = await openStore(t, own.url);
  await one.store.append(retryOf("n"));
  const client = own.client();
  t.teardown(() => client.disconnect());
  await client.call("REPLICAOF", "127.0.0.1", "1");
  t.equal(await codeOf(one.store.append(draftOf())), "unavailable");
  await client.call("REPLICAOF", "NO", "ONE");
  while ((await codeOf(one.store.append(draftOf()))) !== undefined)
    await new Promise((resolve) => setTimeout(resolve, 5));
  t.match(await one.store.append(retryOf("n")), { duplicate: true });
});

t.test("nobody waits for a slow server much longer than a call may take", async (t) => {
  const own = await startRedis(t, ["--enable-debug-command", "yes"]);
  const timeoutMs = 400;
  const one = await openStore(t, own.url, { settings: { timeoutMs } });
  const client = own.client();
  t.teardown(() => client.disconnect());
  let isOver = false;
  const slow = (async () => {
    while (!isOver) await client.call("DEBUG", "SLEEP", "0.2");
  })();
  await new Promise((resolve) => setTimeout(resolve, 50));
  const stalls = measureStalls(t);
  const begun = performance.now();
  const codes = await Promise.all(
    Array.from({ length: 1000 }, (_, at) => codeOf(one.store.append(numbered(at, undefined)))),
  );
  const tookMs = performance.now() - begun;
  isOver = true;
  await slow;
  t.ok(tookMs < 4 * timeoutMs + 10 * stalls.totalMs(), `${tookMs} ms`);
  const found = new Set(codes);
  found.delete(undefined);
  t.same(found, new Set(["unavailable"]));
  const stored = new Set(await numbersIn(one));
  const accepted = codes.flatMap((code, at) => (code === undefined ? [at] : []));
  t.ok(accepted.every((at) => stored.has(at)));
  const unanswered = stored.size - accepted.length;
  t.ok(
    unanswered <= 64,
    `${unanswered} refused ones are stored: two calls may be under way when their time is over`,
  );
});

t.test("two full calls are under way at most", async (t) => {
  const own = await startRedis(t);
  const one = await openStore(t, own.url, { settings: { timeoutMs: 1000 } });
  const { store } = one;
  const before = await callsOf(own, "evalsha");
  own.signal("SIGSTOP");
  const codes = await Promise.all(
    Array.from({ length: 100 }, (_, at) => codeOf(store.append(numbered(at, undefined)))),
  );
  own.signal("SIGCONT");
  t.same([...new Set(codes)], ["unavailable"]);
  await store.append(numbered(100, undefined)); // behind them
  t.equal((await callsOf(own, "evalsha")) - before, 3);
  const sent = Array.from({ length: 64 }, (_, at) => at);
  t.same(await numbersIn(one), [...sent, 100], "the others were not sent");
});

t.test("a channel that was named anew is opened once in a call", async (t) => {
  const settings = { maxInFlight: 50_000, ...UNHURRIED };
  const one = await openStore(t, server.url, { settings });
  const { store } = one;
  await store.append(numbered(0, undefined));
  const sent = [store.append(numbered(1, undefined))];
  // More names than are kept: that of the channel is made anew.
  const others = Array.from({ length: 20_001 }, (_, at) =>
    store.headSeq(`2:other-${at}`).catch(() => undefined),
  );
  sent.push(store.append(numbered(2, undefined)));
  const answers = await Promise.allSettled(sent);
  await Promise.all(others);
  t.same(
    answers.map((one) => one.status),
    ["fulfilled", "fulfilled"],
  );
  t.same(await numbersIn(one), [0, 1, 2]);
});

t.test("what waited too long takes those behind it in its order with it", async (t) => {
  const timeoutMs = 2000;
  const one = await openStore(t, server.url, { settings: { timeoutMs } });
  const { store } = one;
  const first = codeOf(store.append(numbered(1, "phone")));
  const until = performance.now() + 1.5 * timeoutMs;
  while (performance.now() < until); // the process is busy with something else
  const second = codeOf(store.append(numbered(2, "phone")));
  const other = codeOf(store.append(numbered(3, "laptop")));
  t.same(await Promise.all([first, second, other]), [...["unavailable", "unavailable", undefined]]);
  t.same(await numbersIn(one), [3]);
});

t.test("messages that wait are bounded in bytes", async (t) => {
  const { store } = await openStore(t, server.url, { settings: UNHURRIED });
  const payload = new Uint8Array(1 << 20);
  const codes = await Promise.all(
    Array.from({ length: 80 }, () => codeOf(store.append(draftOf({ payload })))),
  );
  const refused = codes.filter((code) => code !== undefined);
  t.ok(refused.length >= 80 - 65 && refused.length <= 80 - 60);
  t.same([...new Set(refused)], ["overloaded"]);
  t.equal(await codeOf(store.append(draftOf())), undefined, "later it goes");
});

t.test("members of a group without a record may not send", async (t) => {
  const { store, link } = await openStore(t, server.url);
  const flags = { ban: false, disband: false, sendBan: false };
  const info = { id: "g", type: 2, ...flags } as const;
  await store.createChannel({ ...info, allowStranger: false, large: false }, ["alice"]);
  const asked = draftOf({ permission: "check" });
  t.notOk((await store.append(asked)).refused);
  await link.call("hdel", link.keys.channel("head", "2:g"), "info");
  t.equal((await store.append(asked)).refused, "not_subscriber");
});
