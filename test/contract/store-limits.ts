// The Store contract: channels that keep only their newest messages.

import type { Test } from "tap";
import { personalChannel, send, withGroup } from "./conversation-fixture.ts";
import {
  ALL,
  earlierResult,
  type FixtureFactory,
  retryOf,
  type StoreFixture,
  seqsOf,
} from "./store-fixture.ts";
import { KEY, producer } from "./store-stream-fixture.ts";

const KEEPS = 10;

/** A bench whose channels keep ten messages, with the group g. */
async function withLimit(createFixture: FixtureFactory, t: Test): Promise<StoreFixture> {
  const fixture = await withGroup(createFixture, t);
  fixture.maxChannelMessages = KEEPS;
  await fixture.reopen();
  return fixture;
}

async function seqs({ store }: StoreFixture, over = {}, key = KEY): Promise<number[]> {
  const { messages } = await store.readMessages(key, { ...ALL, ...over });
  return seqsOf(messages);
}

const range = (from: number, to: number) =>
  Array.from({ length: to - from + 1 }, (_, i) => from + i);

export async function limits(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("each channel keeps its newest messages, and its seqs go on", async (t) => {
    const fixture = await withLimit(createFixture, t);
    await send(fixture, 250, { channel: personalChannel("bob") });
    await send(fixture, 35);
    await send(fixture, 10, { channel: { id: "h", type: 2 } });
    await fixture.store.sweep();
    const check = async () => {
      t.same(await seqs(fixture), range(26, 35));
      t.same(await seqs(fixture, { reverse: true, limit: 2 }), [35, 34]);
      t.same(await seqs(fixture, { toSeq: 26, reverse: true }), [26]);
      t.same(await seqs(fixture, {}, "1:alice@bob"), range(241, 250));
      t.same(await seqs(fixture, {}, "2:h"), range(1, 10), "no more than that");
      t.equal(await fixture.store.headSeq(KEY), 35);
    };
    await check();
    await fixture.reopen();
    await check();
    await fixture.store.sweep();
    await check();
    await send(fixture, 3);
    await fixture.store.sweep();
    t.same(await seqs(fixture), range(29, 38));
  });

  t.test("a limit that is set later holds for quiet channels", async (t) => {
    const fixture = await withGroup(createFixture, t);
    await send(fixture, 13);
    await fixture.store.sweep();
    t.same(await seqs(fixture), range(1, 13));
    fixture.maxChannelMessages = KEEPS;
    await fixture.reopen();
    await fixture.store.sweep();
    t.same(await seqs(fixture), range(4, 13));
    fixture.maxChannelMessages = 0;
    await fixture.reopen();
    await send(fixture, 1);
    await fixture.store.sweep();
    t.same(await seqs(fixture), range(4, 14));
  });

  t.test("the retry of a message that is gone is answered with the first one", async (t) => {
    const fixture = await withLimit(createFixture, t);
    const first = await fixture.store.append(retryOf("n"));
    await send(fixture, 20);
    await fixture.store.sweep();
    t.notOk((await seqs(fixture)).includes(1));
    const again = { ...first, duplicate: true };
    t.same(await fixture.store.append(retryOf("n")), again);
    t.same(await earlierResult(fixture.store, retryOf("n")), again);
    await fixture.reopen();
    t.same(await fixture.store.append(retryOf("n")), again);
    t.equal(await fixture.store.headSeq(KEY), 21);
  });
}

export async function limitsOfStreams(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("a stream goes with its message, but not before it is over", async (t) => {
    const fixture = await withLimit(createFixture, t);
    const { start, content, end } = producer(fixture);
    const past = { clientMsgNo: "past" };
    await start("", past);
    await content("gone", past);
    await end("", past);
    await start();
    await content("still ");
    await send(fixture, 20);
    await fixture.store.sweep();
    t.equal(await fixture.store.stream(KEY, "past"), undefined);
    t.same(await seqs(fixture), range(2, 22));
    await content("there");
    await fixture.reopen();
    await fixture.store.sweep();
    t.match(await fixture.store.stream(KEY, "s"), { text: "still there" });
    await end();
    fixture.nowMs += 60_000; // until it is looked at again
    await fixture.store.sweep();
    t.same(await seqs(fixture), range(13, 22));
    t.equal(await fixture.store.stream(KEY, "s"), undefined);
    t.match(await start(), { verdict: "taken" });
  });
}
