// Store contract: channels that keep only their newest messages.

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

const MAX_MESSAGES = 10;

/** Returns a fixture with group g. Each channel of its store keeps the ten newest messages. */
async function withLimit(createFixture: FixtureFactory, t: Test): Promise<StoreFixture> {
  const fixture = await withGroup(createFixture, t);
  fixture.maxChannelMessages = MAX_MESSAGES;
  await fixture.reopen();
  return fixture;
}

async function readSeqs({ store }: StoreFixture, over = {}, key = KEY): Promise<number[]> {
  const { messages } = await store.readMessages(key, { ...ALL, ...over });
  return seqsOf(messages);
}

const range = (from: number, to: number) =>
  Array.from({ length: to - from + 1 }, (_, i) => from + i);

export async function limits(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test(
    "a channel with more than `maxChannelMessages` messages keeps only the newest ones, and its seqs continue",
    async (t) => {
      const fixture = await withLimit(createFixture, t);
      await send(fixture, 250, { channel: personalChannel("bob") });
      await send(fixture, 35);
      await send(fixture, 10, { channel: { id: "h", type: 2 } });
      await fixture.store.sweep();
      const check = async () => {
        t.same(await readSeqs(fixture), range(26, 35));
        t.same(await readSeqs(fixture, { reverse: true, limit: 2 }), [35, 34]);
        t.same(await readSeqs(fixture, { toSeq: 26, reverse: true }), [26]);
        t.same(await readSeqs(fixture, {}, "1:alice@bob"), range(241, 250));
        t.same(
          await readSeqs(fixture, {}, "2:h"),
          range(1, 10),
          "a channel at the limit keeps all messages",
        );
        t.equal(await fixture.store.headSeq(KEY), 35);
      };
      await check();
      await fixture.reopen();
      await check();
      await fixture.store.sweep();
      await check();
      await send(fixture, 3);
      await fixture.store.sweep();
      t.same(await readSeqs(fixture), range(29, 38));
    },
  );

  t.test(
    "a `maxChannelMessages` that is set after messages were stored also applies to channels without new messages",
    async (t) => {
      const fixture = await withGroup(createFixture, t);
      await send(fixture, 13);
      await fixture.store.sweep();
      t.same(await readSeqs(fixture), range(1, 13));
      fixture.maxChannelMessages = MAX_MESSAGES;
      await fixture.reopen();
      await fixture.store.sweep();
      t.same(await readSeqs(fixture), range(4, 13));
      fixture.maxChannelMessages = 0;
      await fixture.reopen();
      await send(fixture, 1);
      await fixture.store.sweep();
      t.same(await readSeqs(fixture), range(4, 14));
    },
  );

  t.test("a retry of a removed message returns the result of that message", async (t) => {
    const fixture = await withLimit(createFixture, t);
    const first = await fixture.store.append(retryOf("n"));
    await send(fixture, 20);
    await fixture.store.sweep();
    t.notOk((await readSeqs(fixture)).includes(1), "the message is removed");
    const retryResult = { ...first, duplicate: true };
    t.same(await fixture.store.append(retryOf("n")), retryResult);
    t.same(await earlierResult(fixture.store, retryOf("n")), retryResult);
    await fixture.reopen();
    t.same(await fixture.store.append(retryOf("n")), retryResult);
    t.equal(await fixture.store.headSeq(KEY), 21);
  });
}

export async function limitsOfStreams(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("a stream is removed with its message, but only after the stream has ended", async (t) => {
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
    t.same(await readSeqs(fixture), range(2, 22));
    await content("there");
    await fixture.reopen();
    await fixture.store.sweep();
    t.match(await fixture.store.stream(KEY, "s"), { text: "still there" });
    await end();
    fixture.nowMs += 60_000; // so that the sweep checks the channel again
    await fixture.store.sweep();
    t.same(await readSeqs(fixture), range(13, 22));
    t.equal(await fixture.store.stream(KEY, "s"), undefined);
    t.match(await start(), { verdict: "taken" });
  });
}
