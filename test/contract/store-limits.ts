// The Store contract: channels that keep only their newest messages.

import type { Test } from "tap";
import { send, withGroup, withUser } from "./conversation-bench.ts";
import { ALL, type Bench, earlier, type Given, retryOf, seqsOf } from "./store-bench.ts";
import { KEY, producer } from "./store-stream-bench.ts";

const KEEPS = 10;

/** A bench whose channels keep ten messages, with the group g. */
async function withLimit(given: Given, t: Test): Promise<Bench> {
  const bench = await withGroup(given, t);
  bench.keeps = KEEPS;
  await bench.reopen();
  return bench;
}

async function seqs({ store }: Bench, over = {}, key = KEY): Promise<number[]> {
  const { messages } = await store.readMessages(key, { ...ALL, ...over });
  return seqsOf(messages);
}

const range = (from: number, to: number) =>
  Array.from({ length: to - from + 1 }, (_, i) => from + i);

export async function limits(t: Test, given: Given): Promise<void> {
  t.test("each channel keeps its newest messages, and its seqs go on", async (t) => {
    const bench = await withLimit(given, t);
    await send(bench, 250, { channel: withUser("bob") });
    await send(bench, 35);
    await send(bench, 10, { channel: { id: "h", type: 2 } });
    await bench.store.sweep();
    const check = async () => {
      t.same(await seqs(bench), range(26, 35));
      t.same(await seqs(bench, { reverse: true, limit: 2 }), [35, 34]);
      t.same(await seqs(bench, { toSeq: 26, reverse: true }), [26]);
      t.same(await seqs(bench, {}, "1:alice@bob"), range(241, 250));
      t.same(await seqs(bench, {}, "2:h"), range(1, 10), "no more than that");
      t.equal(await bench.store.headSeq(KEY), 35);
    };
    await check();
    await bench.reopen();
    await check();
    await bench.store.sweep();
    await check();
    await send(bench, 3);
    await bench.store.sweep();
    t.same(await seqs(bench), range(29, 38));
  });

  t.test("a limit that is set later holds for quiet channels", async (t) => {
    const bench = await withGroup(given, t);
    await send(bench, 13);
    await bench.store.sweep();
    t.same(await seqs(bench), range(1, 13));
    bench.keeps = KEEPS;
    await bench.reopen();
    await bench.store.sweep();
    t.same(await seqs(bench), range(4, 13));
    bench.keeps = 0;
    await bench.reopen();
    await send(bench, 1);
    await bench.store.sweep();
    t.same(await seqs(bench), range(4, 14));
  });

  t.test("the retry of a message that is gone is answered with the first one", async (t) => {
    const bench = await withLimit(given, t);
    const first = await bench.store.append(retryOf("n"));
    await send(bench, 20);
    await bench.store.sweep();
    t.notOk((await seqs(bench)).includes(1));
    const again = { ...first, duplicate: true };
    t.same(await bench.store.append(retryOf("n")), again);
    t.same(await earlier(bench.store, retryOf("n")), again);
    await bench.reopen();
    t.same(await bench.store.append(retryOf("n")), again);
    t.equal(await bench.store.headSeq(KEY), 21);
  });
}

export async function limitsOfStreams(t: Test, given: Given): Promise<void> {
  t.test("a stream goes with its message, but not before it is over", async (t) => {
    const bench = await withLimit(given, t);
    const { start, content, end } = producer(bench);
    const past = { clientMsgNo: "past" };
    await start("", past);
    await content("gone", past);
    await end("", past);
    await start();
    await content("still ");
    await send(bench, 20);
    await bench.store.sweep();
    t.equal(await bench.store.stream(KEY, "past"), undefined);
    t.same(await seqs(bench), range(2, 22));
    await content("there");
    await bench.reopen();
    await bench.store.sweep();
    t.match(await bench.store.stream(KEY, "s"), { text: "still there" });
    await end();
    bench.nowMs += 60_000; // until it is looked at again
    await bench.store.sweep();
    t.same(await seqs(bench), range(13, 22));
    t.equal(await bench.store.stream(KEY, "s"), undefined);
    t.match(await start(), { verdict: "taken" });
  });
}
