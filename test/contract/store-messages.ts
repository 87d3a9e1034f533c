// The Store contract: appending and retries.

import type { Test } from "tap";
import { channelKey, clientMsgNoOf } from "../../src/broker/model.ts";
import type { MessageDraft } from "../../src/broker/ports.ts";
import { ALL, draftOf, type FixtureFactory, retryOf, seqsOf } from "./store-fixture.ts";

export async function appending(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("a message is stored, published and given back with all it has", async (t) => {
    const fixture = await createFixture(t);
    const draft = draftOf({
      channel: { id: "bob", type: 1 },
      fromUid: "älice",
      clientMsgNo: "nö-1",
      header: { noPersist: false, redDot: false },
      expireS: 3600,
      streamNo: "stream-1",
      tagKey: "tag",
      passthrough: { setting: 0xa0, topic: "töpic" },
      payload: Uint8Array.from({ length: 300 }, (_, i) => i & 0xff),
      origin: "session-1",
    });
    const appended = await fixture.store.append(draft);
    const { messages } = await fixture.store.readMessages(draft.key, ALL);
    t.equal(appended.messageSeq, 1);
    t.equal(appended.duplicate, false);
    t.equal(fixture.events.length, 1);
    t.match(fixture.events[0], { kind: "message", origin: "session-1" });
    for (const message of [fixture.messages[0], messages[0]]) {
      t.equal(message?.messageId, appended.messageId);
      t.equal(message?.messageSeq, 1);
      t.equal(message?.key, draft.key);
      t.same(message?.channel, { id: "bob", type: 1 });
      t.equal(message?.fromUid, "älice");
      t.equal(message?.clientMsgNo, "nö-1");
      t.same(message?.header, draft.header);
      t.equal(message?.expireS, 3600);
      t.equal(message?.streamNo, "stream-1");
      t.equal(message?.tagKey, "tag");
      t.same(message?.passthrough, draft.passthrough);
      t.same([...(message?.payload ?? [])], [...draft.payload]);
    }
    await fixture.reopen();
    const again = await fixture.store.readMessages(draft.key, ALL);
    t.same(again.messages, messages, "the same after a restart");
  });

  t.test(
    "a message without a clientMsgNo has that of its id wherever it is read, also after a restart",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      const channel = { id: "bob", type: 1 } as const;
      const unstored = { noPersist: true, redDot: false };
      const first = await store.append(draftOf({ channel }));
      const told = await store.append(draftOf({ channel, header: unstored }));
      const last = await store.append(draftOf({ channel }));
      await fixture.untilEvents(3);
      t.same(
        fixture.messages.map((m) => m.clientMsgNo),
        [first, told, last].map((m) => clientMsgNoOf(m.messageId)),
      );
      const reads = async () => {
        const range = { limit: 10, maxBytes: 10_000 };
        const [history, heads, whole] = await Promise.all([
          fixture.store.readMessages("1:alice@bob", ALL),
          fixture.store.conversationsOf("bob"),
          fixture.store.readConversations("alice", [channel], range),
        ]);
        return {
          history: history.messages.map((m) => m.clientMsgNo),
          heads: heads.map((head) => head.last.clientMsgNo),
          whole: whole.conversations.map((one) => one.last?.clientMsgNo),
        };
      };
      const newest = clientMsgNoOf(last.messageId);
      const stored = [clientMsgNoOf(first.messageId), newest];
      const expected = { history: stored, heads: [newest], whole: [newest] };
      t.same(await reads(), expected);
      await fixture.reopen();
      t.same(await reads(), expected, "the same after a restart");
    },
  );

  t.test("seqs are per channel, from 1, in the order of the calls", async (t) => {
    const { store } = await createFixture(t);
    const ids = ["g1", "g2", "g3"];
    const answers = await Promise.all(
      Array.from({ length: 300 }, (_, i) =>
        store.append(draftOf({ channel: { id: ids[i % 3] ?? "", type: 2 } })),
      ),
    );
    t.same(
      answers.map((a) => a.messageSeq),
      answers.map((_, i) => Math.floor(i / 3) + 1),
    );
  });

  t.test("events of a channel come in the order of seqs", async (t) => {
    const fixture = await createFixture(t);
    const sends = Array.from({ length: 200 }, () => fixture.store.append(draftOf()));
    const answers = await Promise.all(sends);
    await fixture.untilEvents(200);
    t.same(
      fixture.messages.map((m) => [m.messageSeq, m.messageId]),
      answers.map((a) => [a.messageSeq, a.messageId]),
    );
  });

  t.test("no read shows a message that is not published", async (t) => {
    const fixture = await createFixture(t);
    const published = new Set<number>();
    fixture.onPublish = (e) => e.kind === "message" && published.add(e.message.messageSeq);
    let isDone = false;
    let early = 0;
    const reading = (async () => {
      while (!isDone) {
        const [head, slice] = await Promise.all([
          fixture.store.headSeq("2:g"),
          fixture.store.readMessages("2:g", { ...ALL, reverse: true, limit: 5 }),
        ]);
        for (const seq of [head, ...seqsOf(slice.messages)])
          if (seq > 0 && !published.has(seq)) early++;
        await new Promise(setImmediate);
      }
    })();
    for (let i = 0; i < 20; i++)
      await Promise.all(Array.from({ length: 10 }, () => fixture.store.append(draftOf())));
    isDone = true;
    await reading;
    t.equal(early, 0);
    t.equal(published.size, 200);
  });

  t.test(
    "message ids are unique and grow within a channel, also over a restart and with a clock that goes back",
    async (t) => {
      const fixture = await createFixture(t);
      const taken: Record<string, number[]> = { g: [], h: [] };
      const take = async (id: "g" | "h", over?: Partial<MessageDraft>) => {
        const draft = draftOf({ ...over, channel: { id, type: 2 } });
        taken[id]?.push((await fixture.store.append(draft)).messageId);
      };
      const unstored = { header: { noPersist: true, redDot: false } };
      await take("g");
      await take("h");
      fixture.nowMs -= 3_600_000;
      await take("g");
      await take("g", unstored);
      await take("h", unstored);
      await fixture.reopen();
      fixture.nowMs -= 3_600_000;
      await take("g", unstored);
      for (const id of ["h", "g"] as const) await take(id);
      await take("h", unstored);
      await fixture.reopen();
      for (const id of ["g", "h"] as const) await take(id);
      const all = Object.values(taken).flat();
      t.equal(all.length, 11);
      t.equal(new Set(all).size, 11);
      t.ok(all.every((id) => Number.isSafeInteger(id)));
      for (const ids of Object.values(taken))
        t.same(
          ids,
          ids.toSorted((a, b) => a - b),
        );
    },
  );

  t.test("seqs go on after a restart", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.append(draftOf());
    await fixture.store.append(draftOf());
    await fixture.reopen();
    t.equal(await fixture.store.headSeq("2:g"), 2);
    t.equal((await fixture.store.append(draftOf())).messageSeq, 3);
  });

  t.test("an unstored message is published in its turn and leaves nothing", async (t) => {
    const fixture = await createFixture(t);
    const header = { noPersist: true, redDot: false };
    const answers = await Promise.all([
      fixture.store.append(draftOf()),
      fixture.store.append(draftOf({ header, recipients: ["bob"] })),
      fixture.store.append(draftOf()),
    ]);
    t.same(
      answers.map((a) => a.messageSeq),
      [1, 0, 2],
    );
    await fixture.untilEvents(3);
    t.same(seqsOf(fixture.messages), [1, 0, 2]);
    t.match(fixture.events[1], { recipients: ["bob"] });
    const { messages } = await fixture.store.readMessages("2:g", ALL);
    t.same(seqsOf(messages), [1, 2]);
    t.equal(await fixture.store.headSeq("2:g"), 2);
  });

  t.test("what a publisher throws harms nobody", async (t) => {
    const fixture = await createFixture(t);
    fixture.onPublish = () => {
      throw new Error("a publisher's bug");
    };
    t.equal((await fixture.store.append(draftOf())).messageSeq, 1);
    t.equal((await fixture.store.append(draftOf())).messageSeq, 2);
    await fixture.untilEvents(2);
    t.equal(fixture.events.length, 2);
  });
}

export async function retries(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("a retry gets the first answer and is neither stored nor published", async (t) => {
    const fixture = await createFixture(t);
    const first = await fixture.store.append(retryOf("n1"));
    await fixture.untilEvents(1);
    const second = await fixture.store.append(retryOf("n1"));
    t.same(second, { ...first, duplicate: true });
    t.equal(fixture.events.length, 1);
    t.equal(await fixture.store.headSeq("2:g"), 1);
    await fixture.reopen();
    t.same(await fixture.store.append(retryOf("n1")), second);
    t.equal(fixture.events.length, 1);
    t.equal((await fixture.store.append(retryOf("n2"))).messageSeq, 2);
  });

  t.test("retries at once make one message", async (t) => {
    const fixture = await createFixture(t);
    const answers = await Promise.all(
      Array.from({ length: 40 }, (_, i) => fixture.store.append(retryOf(`n${i % 4}`))),
    );
    t.equal(answers.filter((a) => !a.duplicate).length, 4);
    t.equal(new Set(answers.map((a) => a.messageId)).size, 4);
    await fixture.untilEvents(4);
    t.same(seqsOf(fixture.messages), [1, 2, 3, 4]);
  });

  t.test("a retry is one only in the same channel and from the same sender", async (t) => {
    const { store } = await createFixture(t);
    await store.append(retryOf("n"));
    const others = await Promise.all([
      store.append({ ...retryOf("n"), ...draftKey("h", "alice") }),
      store.append({ ...retryOf("n"), ...draftKey("g", "bob") }),
    ]);
    t.same(
      others.map((a) => a.duplicate),
      [false, false],
    );
  });

  t.test("the clientMsgNo that a message was given is no retry", async (t) => {
    const { store } = await createFixture(t);
    const first = await store.append(draftOf());
    t.equal((await store.append(draftOf())).duplicate, false);
    const chosen = retryOf(clientMsgNoOf(first.messageId));
    t.equal((await store.append(chosen)).duplicate, false);
    t.equal((await store.append(chosen)).duplicate, true, "now it is");
  });

  t.test("the retry of an unstored message is one too", async (t) => {
    const fixture = await createFixture(t);
    const header = { noPersist: true, redDot: false };
    const draft = { ...retryOf("n"), header };
    const first = await fixture.store.append(draft);
    await fixture.untilEvents(1);
    t.same(await fixture.store.append(draft), { ...first, duplicate: true });
    await fixture.reopen();
    t.same(await fixture.store.append(draft), { ...first, duplicate: true });
    t.equal(fixture.events.length, 1);
  });
}

function draftKey(id: string, fromUid: string) {
  const channel = { id, type: 2 } as const;
  return { key: channelKey(channel, fromUid), channel, fromUid };
}
