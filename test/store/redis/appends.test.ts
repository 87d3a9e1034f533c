// Messages that are sent to Redis together, and the number of calls and publications that they
// need. A failing message must not affect other messages, and the messages of a connection must
// keep their order even if calls fail. All tests use the store's `append`.

import t, { type Test } from "tap";
import { bucketOf } from "../../../src/broker/log-frame.ts";
import type { ChannelKey } from "../../../src/broker/model.ts";
import type { MessageDraft } from "../../../src/broker/ports.ts";
import { framesOf, isMessages } from "../../../src/redis/wire.ts";
import { ALL, codeOf, draftOf, retryOf } from "../../contract/store-fixture.ts";
import {
  callsByCommand,
  commandCallsIn,
  LOG_ALL,
  type RedisServer,
  resetCalls,
  startRedis,
} from "../../support/redis.ts";
import { measureStalls } from "../../support/stalls.ts";
import { connectSubscriber } from "../../support/topic-subscriber.ts";
import { openStore, type StoreNode } from "./one-store.ts";

const server = await startRedis(t);

const inGroup = (id: string, over: Partial<MessageDraft> = {}) =>
  draftOf({ channel: { id, type: 2 }, ...over });

const numbered = (number: number, origin: string | undefined) =>
  draftOf({ payload: new TextEncoder().encode(`${number}`), origin });

const numbersIn = async ({ store }: StoreNode, key = "2:g") => {
  const { messages } = await store.readMessages(key, ALL);
  return messages.map(({ payload }) => Number(Buffer.from(payload)));
};

/** Returns how often the server has run each of these commands so far. */
async function callsOf<const Names extends readonly string[]>(redis: RedisServer, ...names: Names) {
  const client = redis.client();
  const stats = await client.info("commandstats");
  client.disconnect();
  return names.map((name) => commandCallsIn(stats, name)) as { [At in keyof Names]: number };
}

/** Settings with which no call times out, even on a busy machine. */
const UNHURRIED = { timeoutMs: 60_000 };

t.test(
  "100 messages sent to a group in one event-loop turn are stored in four calls to Redis, each with one publication",
  async (t) => {
    const own = await startRedis(t);
    const node = await openStore(t, own.url);
    const topic = node.link.keys.topic("g:g");
    const frames: Buffer[] = [];
    const subscriber = await connectSubscriber(t, own.url, (_, frame) => frames.push(frame));
    await subscriber.ssubscribe(topic);
    const countCalls = () => callsOf(own, "evalsha", "spublish", "xadd", "hmget");
    const before = await countCalls();
    await Promise.all(
      Array.from({ length: 100 }, (_, at) => node.store.append(numbered(at, undefined))),
    );
    const after = await countCalls();
    const [calls = 0, publications, entries, heads] = after.map(
      (count, at) => count - (before[at] ?? 0),
    );
    t.equal(calls, 4, "one call contains at most 32 messages");
    t.equal(publications, calls, "each call publishes once");
    t.equal(entries, 100, "each message has an entry in the log");
    t.equal(heads, calls, "each call reads the head once");
    while (frames.length < calls) await new Promise(setImmediate);
    t.ok(frames.every(isMessages));
    const batches = frames.map((frame) => framesOf(frame));
    t.ok(batches.every(({ isWhole }) => isWhole));
    t.same(
      batches.map((batch) => batch.frames.length),
      [32, 32, 32, 4],
    );
    t.same(
      await numbersIn(node),
      Array.from({ length: 100 }, (_, at) => at),
    );
  },
);

t.test(
  "a call that appends messages to 32 channels reserves their ids with at most two `SET` commands",
  async (t) => {
    const own = await startRedis(t, LOG_ALL);
    const client = own.client();
    const { store } = await openStore(t, own.url);
    const groups = Array.from({ length: 32 }, (_, at) => `g${at}`);
    const ids: number[] = [];
    for (const turn of [1, 2]) {
      await resetCalls(client);
      const sent = groups.map((id) => store.append(inGroup(id)));
      for (const { messageId } of await Promise.all(sent)) ids.push(messageId);
      // The test's clock stands still, so the second call needs another SET to skip the ids of the
      // first.
      t.equal((await callsByCommand(client)).get("set"), turn);
    }
    t.equal(new Set(ids).size, 64, "every id is unique");
    t.ok(Math.min(...ids.slice(32)) > Math.max(...ids.slice(0, 32)), "ids grow");
  },
);

t.test(
  "one run of the append script receives at most 256 KiB of messages, or a single larger message",
  async (t) => {
    const own = await startRedis(t);
    const { store } = await openStore(t, own.url);
    const large = { payload: new Uint8Array(100_000) };
    const [before] = await callsOf(own, "evalsha");
    await Promise.all(
      [large, large, large, large, { payload: new Uint8Array(400_000) }].map((over) =>
        store.append(inGroup("g", over)),
      ),
    );
    const [after] = await callsOf(own, "evalsha");
    t.equal(after - before, 3);
    t.equal(await store.headSeq("2:g"), 5);
  },
);

t.test(
  "a message that cannot be stored uses no seq and does not affect the other messages in the same call to Redis",
  async (t) => {
    const node = await openStore(t, server.url);
    const { store, link } = node;
    const dedupe = link.keys.channel("dedupe", "2:g", "alice\npoisoned");
    await link.call("set", dedupe, "v2 something");
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
      messages.map(({ messageSeq }) => messageSeq),
      [1, 2],
    );
    t.equal(await store.headSeq("2:h"), 1);
    await link.call("del", link.keys.channel("log", "2:logless"));
    t.match(await store.append(inGroup("logless")), { messageSeq: 1 });
  },
);

t.test(
  "a message that needs a Redis key of the wrong type is rejected before any part of the message is stored",
  async (t) => {
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
      t.equal(await link.call("exists", log), 0, `${key}: the log has no entry`);
      t.equal(await store.headSeq(draft.key), 0, `${key}: no seq is used`);
      await link.call("del", key);
      t.match(
        await store.append(draft),
        { messageSeq: 1, duplicate: false },
        `${key}: the failed message is not a duplicate`,
      );
      await link.call("del", log, keys.channel("head", draft.key));
      await link.call("del", keys.channel("dedupe", draft.key, "alice\nn"));
    }
  },
);

t.test(
  "a channel whose head record is older than its log does not affect other channels",
  async (t) => {
    const { store, link } = await openStore(t, server.url);
    for (let i = 0; i < 3; i++) await store.append(inGroup("torn"));
    await link.call("hset", link.keys.channel("head", "2:torn"), "seq", 1);
    const codes = await Promise.all(["torn", "g"].map((id) => codeOf(store.append(inGroup(id)))));
    t.same(codes, ["internal", undefined]);
  },
);

t.test("a message that could not be stored is not a duplicate when it is sent again", async (t) => {
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
 * Sends messages of one connection, several per turn, while `trouble` causes failures. Returns the
 * accepted messages, and for each rejected message the number of messages that were sent before its
 * rejection.
 */
async function sendDuring(
  { store }: StoreNode,
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
 * Returns the accepted messages of a connection that were sent after a message that was rejected,
 * but before its rejection. A retry of the rejected message would be stored after these messages.
 */
function overtakers({
  accepted,
  rejected,
}: Awaited<ReturnType<typeof sendDuring>>): readonly number[] {
  return accepted.filter((number) =>
    [...rejected].some(([earlier, sentUntil]) => earlier < number && number < sentUntil),
  );
}

async function assertOrder(
  t: Test,
  node: StoreNode,
  result: Awaited<ReturnType<typeof sendDuring>>,
): Promise<void> {
  // The first call after the failure may be the call that detects the failure.
  while ((await codeOf(numbersIn(node))) === "unavailable")
    await new Promise((resolve) => setTimeout(resolve, 2));
  const stored = await numbersIn(node);
  t.same(
    stored,
    stored.toSorted((a, b) => a - b),
    "messages are stored in the order of the calls",
  );
  const unique = new Set(stored);
  t.equal(unique.size, stored.length, "each message is stored once");
  t.ok(
    result.accepted.every((number) => unique.has(number)),
    "every accepted message is stored",
  );
  t.same(overtakers(result), [], "no message overtakes an earlier one");
  t.ok(result.accepted.length > 0, "some messages were accepted");
  t.ok(result.rejected.size > 0, "some messages were rejected");
}

t.test("a connection's messages keep their order when the server loses its scripts", async (t) => {
  const own = await startRedis(t);
  const node = await openStore(t, own.url);
  const client = own.client();
  t.teardown(() => client.disconnect());
  const result = await sendDuring(node, async (turn) => {
    if (turn % 20 === 10) await client.script("FLUSH");
    if (turn % 20 === 0)
      while (!node.link.isUp) await new Promise((resolve) => setTimeout(resolve, 2));
  });
  await assertOrder(t, node, result);
});

t.test("a connection's messages keep their order when the server is out of memory", async (t) => {
  const own = await startRedis(t);
  const node = await openStore(t, own.url);
  const client = own.client();
  t.teardown(() => client.disconnect());
  let before = 0;
  const result = await sendDuring(node, async (turn, rejected) => {
    if (turn % 10 === 4) await client.config("SET", "maxmemory", "1mb");
    if (turn % 10 === 4) before = rejected();
    if (turn % 10 !== 6) return;
    while (rejected() === before) await new Promise(setImmediate);
    await client.config("SET", "maxmemory", "0");
  });
  await assertOrder(t, node, result);
  await client.config("SET", "maxmemory", "1mb");
  t.equal(await codeOf(node.store.append(draftOf())), "unavailable");
  await client.config("SET", "maxmemory", "0");
  t.equal(node.link.inFlight, 0, "no call is in flight any more");
});

t.test("a write to a server that has become a replica is rejected as unavailable", async (t) => {
  const own = await startRedis(t);
  const node = await openStore(t, own.url);
  await node.store.append(retryOf("n"));
  const client = own.client();
  t.teardown(() => client.disconnect());
  await client.call("REPLICAOF", "127.0.0.1", "1");
  t.equal(await codeOf(node.store.append(draftOf())), "unavailable");
  await client.call("REPLICAOF", "NO", "ONE");
  while ((await codeOf(node.store.append(draftOf()))) !== undefined)
    await new Promise((resolve) => setTimeout(resolve, 5));
  t.match(await node.store.append(retryOf("n")), { duplicate: true });
});

t.test(
  "on a slow server, every send is accepted or rejected within four times the timeout",
  async (t) => {
    const own = await startRedis(t, ["--enable-debug-command", "yes"]);
    const timeoutMs = 400;
    const node = await openStore(t, own.url, { settings: { timeoutMs } });
    const client = own.client();
    t.teardown(() => client.disconnect());
    let isOver = false;
    const slow = (async () => {
      while (!isOver) await client.call("DEBUG", "SLEEP", "0.2");
    })();
    await new Promise((resolve) => setTimeout(resolve, 50));
    const stalls = measureStalls(t);
    const startMs = performance.now();
    const codes = await Promise.all(
      Array.from({ length: 1000 }, (_, at) => codeOf(node.store.append(numbered(at, undefined)))),
    );
    const tookMs = performance.now() - startMs;
    isOver = true;
    await slow;
    t.ok(tookMs < 4 * timeoutMs + 10 * stalls.totalMs(), `the messages took ${tookMs} ms`);
    const errors = new Set(codes);
    errors.delete(undefined);
    errors.delete("too_late"); // the slow server ran the call after the call's deadline
    t.same(errors, new Set(["unavailable"]));
    const stored = new Set(await numbersIn(node));
    const accepted = codes.flatMap((code, at) => (code === undefined ? [at] : []));
    t.ok(accepted.every((at) => stored.has(at)));
    const unanswered = stored.size - accepted.length;
    t.ok(
      unanswered <= 64,
      `${unanswered} rejected messages are stored: at most those of the two calls in flight at the timeout`,
    );
  },
);

t.test("the store has at most two full append calls in flight", async (t) => {
  const own = await startRedis(t);
  const node = await openStore(t, own.url, { settings: { timeoutMs: 1000 } });
  const { store } = node;
  const [before] = await callsOf(own, "evalsha");
  own.signal("SIGSTOP");
  const codes = await Promise.all(
    Array.from({ length: 100 }, (_, at) => codeOf(store.append(numbered(at, undefined)))),
  );
  own.signal("SIGCONT");
  t.same([...new Set(codes)], ["unavailable"]);
  await store.append(numbered(100, undefined)); // sent after the 64 messages in flight
  const [after] = await callsOf(own, "evalsha");
  t.equal(after - before, 3);
  t.same(await numbersIn(node), [100], "the messages that were sent arrived too late to be stored");
});

t.test(
  "messages of a channel are stored even if its cached key names are evicted between the messages",
  async (t) => {
    const node = await openStore(t, server.url);
    const { store, link } = node;
    await store.append(numbered(0, undefined));
    const sent = [store.append(numbered(1, undefined))];
    // The cache is too small for this many names, so it evicts the names of the channel.
    for (let at = 0; at <= 20_000; at++) link.keys.channel("head", `2:other-${at}`);
    sent.push(store.append(numbered(2, undefined)));
    const answers = await Promise.allSettled(sent);
    t.same(
      answers.map(({ status }) => status),
      ["fulfilled", "fulfilled"],
    );
    t.same(await numbersIn(node), [0, 1, 2]);
  },
);

t.test(
  "later messages of a connection are rejected if an earlier message waited longer than the time-out",
  async (t) => {
    const timeoutMs = 1000; // shorter than the time for which the clock of Redis counts as known
    const node = await openStore(t, server.url, { settings: { timeoutMs } });
    const { store } = node;
    // While the process is busy, no command may be waiting for a reply, because ioredis would close
    // the connection.
    await new Promise((resolve) => setTimeout(resolve, 100));
    await store.headSeq("2:g");
    const first = codeOf(store.append(numbered(1, "phone")));
    const until = performance.now() + 1.5 * timeoutMs;
    while (performance.now() < until); // the process is busy with other work
    const second = codeOf(store.append(numbered(2, "phone")));
    const other = codeOf(store.append(numbered(3, "laptop")));
    t.same(await Promise.all([first, second, other]), [
      ...["unavailable", "unavailable", undefined],
    ]);
    t.same(await numbersIn(node), [3]);
  },
);

t.test("messages beyond the limit on waiting bytes are rejected as overloaded", async (t) => {
  const { store } = await openStore(t, server.url, { settings: UNHURRIED });
  const payload = new Uint8Array(1 << 20);
  const codes = await Promise.all(
    Array.from({ length: 80 }, () => codeOf(store.append(draftOf({ payload })))),
  );
  const rejected = codes.filter((code) => code !== undefined);
  t.ok(rejected.length >= 80 - 65 && rejected.length <= 80 - 60);
  t.same([...new Set(rejected)], ["overloaded"]);
  t.equal(await codeOf(store.append(draftOf())), undefined, "later messages are accepted");
});

t.test("members cannot send to a group that has no record", async (t) => {
  const { store, link } = await openStore(t, server.url);
  const flags = { ban: false, disband: false, sendBan: false, clientEvents: true };
  const info = { id: "g", type: 2, ...flags } as const;
  await store.createChannel({ ...info, allowStranger: false, large: false }, ["alice"]);
  const draft = draftOf({ permission: "check" });
  t.notOk((await store.append(draft)).refused);
  await link.call("hdel", link.keys.channel("head", "2:g"), "info");
  t.equal((await store.append(draft)).refused, "not_subscriber");
});

t.test(
  "after concurrent switches of the event feed, events are written only if the feed is on",
  async (t) => {
    const own = await startRedis(t);
    const { store } = await openStore(t, own.url);
    for (const order of [
      [true, false],
      [false, true],
    ]) {
      await Promise.all(order.map((isOn) => store.switchFeed(isOn)));
      const before = await store.newestEvents();
      await store.append(numbered(Number(order[0]), undefined));
      const isWritten = JSON.stringify(await store.newestEvents()) !== JSON.stringify(before);
      t.equal(isWritten, await store.feedSwitch(), `${order}`);
    }
  },
);

t.test("one script call checks all partitions of the event feed for new events", async (t) => {
  const own = await startRedis(t);
  const { store } = await openStore(t, own.url);
  await store.switchFeed(true);
  const [oldReads, oldScripts] = await callsOf(own, "hmget", "evalsha");
  for (let written = 0; written < 2; written++) {
    const changed = new Promise<void>((resolve) => {
      const end = store.onEvents(() => {
        end();
        resolve();
      });
    });
    await store.append(numbered(written, undefined));
    await changed;
  }
  const [reads, scripts] = await callsOf(own, "hmget", "evalsha");
  const polls = scripts - oldScripts - 2;
  const lookups = reads - oldReads;
  t.ok(polls >= 2, `${polls} scripts besides those of the two appends`);
  t.ok(lookups - 64 * polls <= 4, `${lookups} lookups, almost all in these scripts`);
});
