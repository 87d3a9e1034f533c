// Store contract: appended messages and retries.

import type { Test } from "tap";
import { channelKey, clientMsgNoOf, STREAM_START } from "../../src/broker/model.ts";
import type { MessageDraft } from "../../src/broker/ports.ts";
import { conversationsOf } from "../support/conversation-list.ts";
import { ALL, draftOf, type FixtureFactory, REUSED, retryOf, seqsOf } from "./store-fixture.ts";

export async function appending(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("a message is stored, published and read with all its fields", async (t) => {
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
    const result = await fixture.store.append(draft);
    const { messages } = await fixture.store.readMessages(draft.key, ALL);
    t.equal(result.messageSeq, 1);
    t.equal(result.duplicate, false);
    t.equal(fixture.events.length, 1);
    t.match(fixture.events[0], { kind: "message", origin: "session-1" });
    for (const message of [fixture.messages[0], messages[0]]) {
      t.equal(message?.messageId, result.messageId);
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
    const reread = await fixture.store.readMessages(draft.key, ALL);
    t.same(reread.messages, messages, "the messages are the same after a restart");
  });

  t.test(
    "a message without a clientMsgNo is assigned a clientMsgNo from its id, and every read returns it",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      const channel = { id: "bob", type: 1 } as const;
      const unstored = { noPersist: true, redDot: false };
      const first = await store.append(draftOf({ channel }));
      const second = await store.append(draftOf({ channel, header: unstored }));
      const last = await store.append(draftOf({ channel }));
      await fixture.untilEvents(3);
      t.same(
        fixture.messages.map((message) => message.clientMsgNo),
        [first, second, last].map((result) => clientMsgNoOf(result.messageId)),
      );
      const readClientMsgNos = async () => {
        const range = { limit: 10, maxBytes: 10_000 };
        const [history, heads, page] = await Promise.all([
          fixture.store.readMessages("1:alice@bob", ALL),
          conversationsOf(fixture.store, "bob"),
          fixture.store.readConversations("alice", [channel], range),
        ]);
        return {
          history: history.messages.map((message) => message.clientMsgNo),
          heads: heads.map((head) => head.last.clientMsgNo),
          conversations: page.conversations.map(({ last }) => last?.clientMsgNo),
        };
      };
      const newest = clientMsgNoOf(last.messageId);
      const stored = [clientMsgNoOf(first.messageId), newest];
      const expected = { history: stored, heads: [newest], conversations: [newest] };
      t.same(await readClientMsgNos(), expected);
      await fixture.reopen();
      t.same(await readClientMsgNos(), expected, "the clientMsgNos are the same after a restart");
    },
  );

  t.test(
    "each channel has its own seqs, which start at 1 and follow the order of the calls",
    async (t) => {
      const { store } = await createFixture(t);
      const ids = ["g1", "g2", "g3"];
      const results = await Promise.all(
        Array.from({ length: 300 }, (_, i) =>
          store.append(draftOf({ channel: { id: ids[i % 3] ?? "", type: 2 } })),
        ),
      );
      t.same(
        results.map((result) => result.messageSeq),
        results.map((_, i) => Math.floor(i / 3) + 1),
      );
    },
  );

  t.test("messages of a channel are published in the order of their seqs", async (t) => {
    const fixture = await createFixture(t);
    const sends = Array.from({ length: 200 }, () => fixture.store.append(draftOf()));
    const results = await Promise.all(sends);
    await fixture.untilEvents(200);
    t.same(
      fixture.messages.map((message) => [message.messageSeq, message.messageId]),
      results.map((result) => [result.messageSeq, result.messageId]),
    );
  });

  t.test("a read returns a message only after it was published", async (t) => {
    const fixture = await createFixture(t);
    const published = new Set<number>();
    fixture.onPublish = (event) =>
      event.kind === "message" && published.add(event.message.messageSeq);
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
    t.equal(early, 0, "no message is read before it is published");
    t.equal(published.size, 200);
  });

  t.test(
    "message ids are unique and increase within a channel, even after a restart or if the clock goes back",
    async (t) => {
      const fixture = await createFixture(t);
      const idsByGroup: Record<string, number[]> = { g: [], h: [] };
      const send = async (id: "g" | "h", over?: Partial<MessageDraft>) => {
        const draft = draftOf({ ...over, channel: { id, type: 2 } });
        idsByGroup[id]?.push((await fixture.store.append(draft)).messageId);
      };
      const unstored = { header: { noPersist: true, redDot: false } };
      await send("g");
      await send("h");
      fixture.nowMs -= 3_600_000;
      await send("g");
      await send("g", unstored);
      await send("h", unstored);
      await fixture.reopen();
      fixture.nowMs -= 3_600_000;
      await send("g", unstored);
      for (const id of ["h", "g"] as const) await send(id);
      await send("h", unstored);
      await fixture.reopen();
      for (const id of ["g", "h"] as const) await send(id);
      const all = Object.values(idsByGroup).flat();
      t.equal(all.length, 11);
      t.equal(new Set(all).size, 11);
      t.ok(all.every((id) => Number.isSafeInteger(id)));
      for (const ids of Object.values(idsByGroup))
        t.same(
          ids,
          ids.toSorted((a, b) => a - b),
        );
    },
  );

  t.test("the seqs of a channel continue after a restart", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.append(draftOf());
    await fixture.store.append(draftOf());
    await fixture.reopen();
    t.equal(await fixture.store.headSeq("2:g"), 2);
    t.equal((await fixture.store.append(draftOf())).messageSeq, 3);
  });

  t.test(
    "stored and unstored messages are published in the order of the calls, and the history contains only the stored messages",
    async (t) => {
      const fixture = await createFixture(t);
      const header = { noPersist: true, redDot: false };
      const results = await Promise.all([
        fixture.store.append(draftOf()),
        fixture.store.append(draftOf({ header, recipients: ["bob"] })),
        fixture.store.append(draftOf()),
      ]);
      t.same(
        results.map((result) => result.messageSeq),
        [1, 0, 2],
      );
      await fixture.untilEvents(3);
      t.same(seqsOf(fixture.messages), [1, 0, 2]);
      t.match(fixture.events[1], { recipients: ["bob"] });
      const { messages } = await fixture.store.readMessages("2:g", ALL);
      t.same(seqsOf(messages), [1, 2]);
      t.equal(await fixture.store.headSeq("2:g"), 2);
    },
  );

  t.test(
    "even if the publisher throws an exception for each message, all messages are stored and passed to it",
    async (t) => {
      const fixture = await createFixture(t);
      fixture.onPublish = () => {
        throw new Error("the publisher failed");
      };
      t.equal((await fixture.store.append(draftOf())).messageSeq, 1);
      t.equal((await fixture.store.append(draftOf())).messageSeq, 2);
      await fixture.untilEvents(2);
      t.equal(fixture.events.length, 2);
    },
  );
}

export async function retries(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test(
    "a retry returns the result of the first message and is neither stored nor published",
    async (t) => {
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
    },
  );

  t.test("concurrent retries of a message result in one message", async (t) => {
    const fixture = await createFixture(t);
    const results = await Promise.all(
      Array.from({ length: 40 }, (_, i) => fixture.store.append(retryOf(`n${i % 4}`))),
    );
    t.equal(results.filter((result) => !result.duplicate).length, 4);
    t.equal(new Set(results.map((result) => result.messageId)).size, 4);
    await fixture.untilEvents(4);
    t.same(seqsOf(fixture.messages), [1, 2, 3, 4]);
  });

  t.test(
    "a message with the same clientMsgNo but a different sender or channel is not a retry",
    async (t) => {
      const { store } = await createFixture(t);
      await store.append(retryOf("n"));
      const others = await Promise.all([
        store.append({ ...retryOf("n"), ...draftKey("h", "alice") }),
        store.append({ ...retryOf("n"), ...draftKey("g", "bob") }),
      ]);
      t.same(
        others.map((result) => result.duplicate),
        [false, false],
      );
    },
  );

  t.test("a message that reuses a clientMsgNo assigned by the store is not a retry", async (t) => {
    const { store } = await createFixture(t);
    const first = await store.append(draftOf());
    t.equal((await store.append(draftOf())).duplicate, false);
    const draft = retryOf(clientMsgNoOf(first.messageId));
    t.equal((await store.append(draft)).duplicate, false);
    t.equal(
      (await store.append(draft)).duplicate,
      true,
      "a second append of the clientMsgNo is a retry",
    );
  });

  t.test("a retry of an unstored message is recognised", async (t) => {
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

  for (const noPersist of [false, true])
    t.test(
      `a ${noPersist ? "noPersist " : ""}message that reuses a clientMsgNo with a different payload is refused and changes nothing`,
      async (t) => {
        const fixture = await createFixture(t);
        const draft = { ...retryOf("n"), header: { noPersist, redDot: true } };
        const first = await fixture.store.append(draft);
        await fixture.untilEvents(1);
        const assertRemembered = async () => {
          const { store } = fixture;
          for (const payload of OTHER_PAYLOADS) {
            t.same(await store.append({ ...draft, payload }), REUSED);
            t.same(await store.append({ ...draft, payload, permission: "send_banned" }), REUSED);
          }
          t.same(await store.append(draft), { ...first, duplicate: true });
        };
        await assertRemembered();
        await fixture.store.sweep();
        await fixture.reopen();
        await assertRemembered();
        t.equal(fixture.events.length, 1);
        t.equal(await fixture.store.headSeq("2:g"), noPersist ? 0 : 1);
      },
    );

  t.test(
    "only one of several concurrent messages with one clientMsgNo and different payloads is stored",
    async (t) => {
      const fixture = await createFixture(t);
      const results = await Promise.all(
        Array.from({ length: 12 }, (_, i) => {
          const payload = OTHER_PAYLOADS[i % 3] ?? NO_BYTES;
          return fixture.store.append({ ...retryOf("n"), payload });
        }),
      );
      t.equal(
        results.filter(({ messageSeq, duplicate }) => messageSeq === 1 && !duplicate).length,
        1,
      );
      t.equal(results.filter(({ duplicate }) => duplicate).length, 3, "retries of one message");
      t.equal(results.filter(({ refused }) => refused === "client_msg_no_reused").length, 8);
      await fixture.untilEvents(1);
      t.same(seqsOf(fixture.messages), [1]);
    },
  );

  t.test(
    "if allowsReuse is set, a message with a reused clientMsgNo and a different payload is stored, and later retries are compared with that message",
    async (t) => {
      const fixture = await createFixture(t);
      const send = (payload: Uint8Array, allowsReuse = true, noPersist = false) => {
        const header = { noPersist, redDot: true };
        return fixture.store.append({ ...retryOf("n"), payload, header, allowsReuse });
      };
      const [text1 = NO_BYTES, text2 = NO_BYTES, text3 = NO_BYTES] = OTHER_PAYLOADS;
      const first = await send(text1);
      t.same(await send(text1), { ...first, duplicate: true });
      const [second, third] = await Promise.all([send(text2), send(text3)]);
      t.same(
        [first, second, third].map(({ messageSeq }) => messageSeq),
        [1, 2, 3],
      );
      t.same(await send(text3), { ...third, duplicate: true });
      t.same(await send(text2, false), REUSED);
      await fixture.reopen();
      t.same(await send(text3), { ...third, duplicate: true });
      t.same(await send(text1, false), REUSED);
      const unstored = await send(text1, true, true);
      t.match(unstored, { messageSeq: 0, duplicate: false });
      await fixture.reopen();
      t.same(await send(text1), { ...unstored, duplicate: true });
      await fixture.untilEvents(4);
      t.equal(fixture.events.length, 4);
    },
  );

  t.test("a message with the clientMsgNo of its sender's stream is refused", async (t) => {
    const fixture = await createFixture(t);
    const { draft } = retryStream();
    t.match(await fixture.store.streamEvent(draft), { verdict: "done" });
    const { payload } = draftOf();
    const assertRefused = async () => {
      for (const bytes of [payload, STREAM_TEXT, NO_BYTES])
        t.same(await fixture.store.append({ ...retryOf("n"), payload: bytes }), REUSED);
    };
    await assertRefused();
    await fixture.reopen();
    await assertRefused();
    t.match(await fixture.store.append({ ...retryOf("n"), allowsReuse: true }), { messageSeq: 2 });
    t.match(await fixture.store.streamEvent(draft), { verdict: "done", state: "active" });
  });
}

const bytesOf = (text: string) => new TextEncoder().encode(text);
const NO_BYTES = new Uint8Array();
const STREAM_TEXT = bytesOf('{"type":1,"content":""}');
/** Payloads that differ from each other and from that of `draftOf`, some in a single byte. */
const OTHER_PAYLOADS = [
  bytesOf('{"type":2}'),
  bytesOf('{"type":1} '),
  bytesOf(`{"type":1,"content":"${"x".repeat(1000)}"}`),
  NO_BYTES,
];

/** Returns the start of alice's stream `n` in the group g. */
function retryStream() {
  const { key, channel, fromUid, clientMsgNo } = retryOf("n");
  const event = { type: STREAM_START, data: "", eventId: undefined, timestampMs: undefined };
  return { draft: { key, channel, fromUid, clientMsgNo, ...event, force: false } };
}

function draftKey(id: string, fromUid: string) {
  const channel = { id, type: 2 } as const;
  return { key: channelKey(channel, fromUid), channel, fromUid };
}
