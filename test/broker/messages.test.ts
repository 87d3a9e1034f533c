// Sending messages and reading history with the real store: results, refusals, and the events that
// are published.

import { createMessages, type SendInput } from "../../src/broker/messages.ts";
import { type Message, SYSTEM_UID } from "../../src/broker/model.ts";
import type { ClusterEvent, HistoryRange } from "../../src/broker/ports.ts";
import { t } from "../support/suite.ts";
import { COMMAND, HEADER, textMessage as input, json, TEXT } from "./inputs.ts";
import {
  group,
  HISTORY_LIMIT,
  MAX_PAYLOAD_BYTES,
  person,
  rules,
  startNode,
  type TestNode,
} from "./node.ts";

type MessageEvent = Extract<ClusterEvent, { readonly kind: "message" }>;

const published = ({ events }: TestNode): readonly MessageEvent[] =>
  events.flatMap((event) => (event.kind === "message" ? [event] : []));

const RANGE = {
  fromSeq: 1,
  toSeq: Number.MAX_SAFE_INTEGER,
  limit: 100,
  reverse: false,
  maxBytes: 1_000_000,
};

const seqs = (messages: readonly Message[]): readonly number[] =>
  messages.map(({ messageSeq }) => messageSeq);

t.test("a sent message is stored and published with all its fields", async (t) => {
  const node = await startNode(t);
  const sent = await node.messages.send(
    input({
      clientMsgNo: "n1",
      expireS: 60,
      streamNo: "stream",
      tagKey: "tag",
      origin: "s1",
    }),
  );
  t.match(sent, { messageSeq: 1, clientMsgNo: "n1" });
  t.ok(Number.isSafeInteger(sent.messageId));
  const [event, ...more] = published(node);
  t.same(more, []);
  t.match(event, {
    origin: "s1",
    recipients: undefined,
    message: {
      messageId: sent.messageId,
      messageSeq: sent.messageSeq,
      clientMsgNo: "n1",
      key: "1:alice@bob",
      channel: person("bob"),
      fromUid: "alice",
      timestampMs: node.clock.nowMs,
      header: { noPersist: false, redDot: true },
      expireS: 60,
      streamNo: "stream",
      tagKey: "tag",
    },
  });
  for (const [uid, channel] of [
    ["alice", person("bob")],
    ["bob", person("alice")],
  ] as const) {
    const page = await node.messages.history({ uid, channel }, RANGE);
    t.equal(page.headSeq, 1);
    t.same(seqs(page.messages), [1]);
    t.same(Buffer.from(page.messages[0]?.payload ?? []), Buffer.from(TEXT));
  }
});

t.test("the messages of both users of a conversation share one sequence", async (t) => {
  const { messages } = await startNode(t);
  const to = (fromUid: string, uid: string) =>
    messages.send(input({ fromUid, channel: person(uid) }));
  t.equal((await to("alice", "bob")).messageSeq, 1);
  t.equal((await to("bob", "alice")).messageSeq, 2);
  t.equal((await to("alice", "carol")).messageSeq, 1);
  t.equal((await to("alice", "alice")).messageSeq, 1);
});

t.test(
  "a message without a clientMsgNo gets a generated clientMsgNo, and is stored as a new message when it is sent again",
  async (t) => {
    const { messages } = await startNode(t);
    const first = await messages.send(input());
    const second = await messages.send(input());
    t.not(first.clientMsgNo, second.clientMsgNo);
    t.ok(first.clientMsgNo.length > 0);
    t.same([first.messageSeq, second.messageSeq], [1, 2]);
    t.ok(second.messageId > first.messageId);
  },
);

t.test(
  "a retry of a message returns the result of the first send and is not published",
  async (t) => {
    const node = await startNode(t);
    const send = (changes: Partial<SendInput> = {}) =>
      node.messages.send(input({ clientMsgNo: "n1", ...changes }));
    const sent = await Promise.all([send(), send(), send({ origin: "s1" })]);
    t.equal(sent[0].repeated, false);
    t.strictSame(sent[1], { ...sent[0], repeated: true });
    t.strictSame(sent[2], { ...sent[0], repeated: true });
    const reuse = send({ payload: new TextEncoder().encode('{"type":1,"content":"other"}') });
    await t.rejects(reuse, { code: "client_msg_no_reused" });
    t.equal(published(node).length, 1);
    const other = await send({ fromUid: "bob", channel: person("alice") });
    t.equal(
      other.messageSeq,
      2,
      "a message of another sender with the same clientMsgNo is a new message",
    );
    node.clock.nowMs += 3_600_001;
    t.equal(
      (await send()).messageSeq,
      3,
      "a message with the same clientMsgNo is a new message after the dedupe window",
    );
  },
);

t.test("a message with no_persist is published and not stored", async (t) => {
  const node = await startNode(t);
  const header = { ...HEADER, noPersist: true };
  const sent = await node.messages.send(input({ header, clientMsgNo: "n1" }));
  t.equal(sent.messageSeq, 0);
  const retry = await node.messages.send(input({ header, clientMsgNo: "n1" }));
  t.strictSame(retry, { ...sent, repeated: true });
  t.equal(published(node).length, 1);
  const view = { uid: "alice", channel: person("bob") };
  t.match(await node.messages.history(view, RANGE), {
    headSeq: 0,
    messages: [],
  });
});

t.test("subscribers are allowed only for commands and must be valid ids", async (t) => {
  const { messages } = await startNode(t);
  await t.rejects(messages.send(input({ subscribers: ["bob"] })), {
    code: "bad_request",
  });
  await t.rejects(messages.send(input({ payload: COMMAND, subscribers: ["a@b"] })), {
    code: "bad_id",
  });
});

t.test(
  "a send that a rule of the channel forbids is refused with the error code of that rule",
  async (t) => {
    const node = await startNode(t);
    const { channels, messages } = node;
    const refused = (changes: Partial<SendInput>, code: string) =>
      t.rejects(messages.send(input(changes)), { code });
    await refused({ channel: group("none") }, "not_subscriber");
    await channels.create(rules(group("g")), ["alice"]);
    await t.resolves(messages.send(input({ channel: group("g") })));
    await refused({ channel: group("g"), fromUid: "bob" }, "not_subscriber");
    await channels.update(group("g"), { sendBan: true });
    await refused({ channel: group("g") }, "send_banned");
    await channels.update(group("g"), { ban: true });
    await refused({ channel: group("g") }, "channel_banned");
    const system = { channel: group("g"), fromUid: SYSTEM_UID };
    await t.resolves(messages.send(input(system)));
    await channels.update(group("g"), { disband: true });
    await refused({ channel: group("g") }, "channel_disbanded");
    await refused(system, "channel_disbanded");
    await channels.create(rules(person("bob")), ["carol"]);
    await refused({}, "stranger_refused");
    await channels.update(person("bob"), { allowStranger: true });
    await t.resolves(messages.send(input()));
    await channels.update(person("bob"), { ban: true });
    await refused({}, "channel_banned");
    await channels.create(rules(person("alice"), { sendBan: true }), []);
    await refused({ channel: person("dave") }, "send_banned");
    t.equal(published(node).length, 3, "refused messages are not published");
  },
);

t.test("invalid messages are refused, and the largest valid payload is accepted", async (t) => {
  const node = await startNode(t);
  const label = "x".repeat(129);
  const cases: readonly (readonly [Partial<SendInput>, string])[] = [
    [{ fromUid: "" }, "bad_id"],
    [{ fromUid: "a#b" }, "bad_id"],
    [{ channel: person("") }, "bad_id"],
    [{ channel: group("g&h") }, "bad_id"],
    [{ clientMsgNo: "" }, "bad_request"],
    [{ clientMsgNo: label }, "bad_request"],
    [{ streamNo: label }, "bad_request"],
    [{ tagKey: label }, "bad_request"],
    [{ payload: new Uint8Array() }, "bad_payload"],
    [{ payload: json([1]) }, "bad_payload"],
    [{ payload: new Uint8Array(MAX_PAYLOAD_BYTES + 1) }, "too_large"],
  ];
  for (const [changes, code] of cases)
    await t.rejects(node.messages.send(input(changes)), { code });
  t.same(node.events, []);
  const empty = { type: 1, content: "" };
  const room = MAX_PAYLOAD_BYTES - json(empty).length;
  const payload = json({ ...empty, content: "x".repeat(room) });
  t.equal(payload.length, MAX_PAYLOAD_BYTES);
  await t.resolves(node.messages.send(input({ payload })));
});

t.test("payloads are checked with the configured validation", async (t) => {
  const { store } = await startNode(t);
  const bytes = Uint8Array.of(0, 255);
  const incomplete = json({ type: 2, url: "u" });
  const send = (payload: Uint8Array, contentValidation: "strict" | "opaque") =>
    createMessages(store, {
      maxPayloadBytes: 100,
      historyLimit: 10,
      friendsOnly: false,
      isSystem: () => false,
      contentValidation,
    }).send(input({ payload }));
  await t.rejects(send(incomplete, "strict"), { code: "bad_payload" });
  await t.resolves(send(TEXT, "strict"));
  await t.resolves(send(bytes, "opaque"));
});

t.test(
  "messages and commands from one session to one channel keep their order, even if the permission checks of the commands finish in a different order",
  async (t) => {
    const { store, channels, cluster } = await startNode(t);
    await channels.create(rules(group("g")), ["alice"]);
    await channels.create(rules(group("h")), ["alice"]);
    const gates: (() => void)[] = [];
    const messages = createMessages(
      {
        ...store,
        async groupFacts(channelId, uid) {
          const facts = await store.groupFacts(channelId, uid);
          await new Promise<void>((open) => gates.push(open));
          return facts;
        },
      },
      {
        ...{ maxPayloadBytes: 100, historyLimit: 10 },
        ...{
          friendsOnly: false,
          isSystem: () => false,
          contentValidation: "json",
        },
      },
    );
    const order: string[] = [];
    cluster.onEvent((event) => {
      if (event.kind === "message") order.push(event.message.clientMsgNo);
    });
    const send = (clientMsgNo: string, id = "g", origin = "s1") =>
      messages.send(
        input({
          channel: group(id),
          clientMsgNo,
          origin,
          ...commandFields(clientMsgNo),
        }),
      );
    const delayed = ["a", "command b", "c", "command d", "e"].map((no) => send(no));
    await Promise.all([send("other channel", "h"), send("other", "g", "s2")]);
    t.same(
      order,
      ["a", "other channel", "other"],
      "sends to other channels or from other origins do not wait",
    );
    let isDone = false;
    const results = Promise.all(delayed).then((sent) => {
      isDone = true;
      return sent;
    });
    while (!isDone) {
      gates.pop()?.(); // the last check finishes first
      await new Promise((turn) => setImmediate(turn));
    }
    t.same(order.slice(3), ["command b", "c", "command d", "e"]);
    t.same(
      (await results).map(({ messageSeq }) => messageSeq),
      [1, 0, 3, 0, 4],
    );
  },
);

/**
 * Returns the fields of a command without stored copies if the `clientMsgNo` begins with
 * `command`. Such a command is ordered with the messages.
 */
const commandFields = (clientMsgNo: string): Partial<SendInput> =>
  clientMsgNo.startsWith("command")
    ? { header: { noPersist: true, redDot: false, syncOnce: true } }
    : {};

t.test("a refused send does not prevent a later send of the same session", async (t) => {
  const { messages, channels } = await startNode(t);
  await channels.create(rules(group("g")), ["bob"]);
  const origin = "s1";
  const sends = [
    input({ channel: group("g"), origin }),
    input({ channel: group("g"), origin, fromUid: "bob" }),
  ].map((message) => messages.send(message));
  const [refused, sent] = await Promise.allSettled(sends);
  t.match(refused, { reason: { code: "not_subscriber" } });
  t.match(sent, { status: "fulfilled", value: { messageSeq: 1 } });
});

t.test("history returns at most the configured number of messages per page", async (t) => {
  const { messages } = await startNode(t);
  for (let count = 0; count < HISTORY_LIMIT + 5; count++) await messages.send(input());
  const view = { uid: "alice", channel: person("bob") };
  const first = await messages.history(view, RANGE);
  t.equal(first.headSeq, HISTORY_LIMIT + 5);
  t.equal(
    first.messages.length,
    HISTORY_LIMIT,
    "the requested limit is reduced to the configured one",
  );
  t.ok(first.more);
  const second = await messages.history(view, {
    ...RANGE,
    fromSeq: HISTORY_LIMIT + 1,
  });
  t.same(seqs(second.messages), [21, 22, 23, 24, 25]);
  t.notOk(second.more);
  const newest = await messages.history(view, {
    ...RANGE,
    limit: 2,
    reverse: true,
  });
  t.same(seqs(newest.messages), [25, 24]);
});

t.test("the history of a personal channel requires the uid of its reader", async (t) => {
  const { messages } = await startNode(t);
  const bad = { code: "bad_id" };
  const uid = undefined;
  await t.rejects(messages.history({ uid, channel: person("bob") }, RANGE), bad);
  await t.rejects(messages.history({ uid, channel: group("") }, RANGE), bad);
  t.match(await messages.history({ uid, channel: group("g") }, RANGE), {
    headSeq: 0,
    messages: [],
    more: false,
  });
});

t.test("the headSeq of a page is at least the seq of its newest message", async (t) => {
  const { store, messages } = await startNode(t);
  const limits = {
    maxPayloadBytes: 100,
    historyLimit: 10,
    friendsOnly: false,
    isSystem: () => false,
    contentValidation: "json",
  } as const;
  const racing = createMessages(
    {
      ...store,
      async readMessages(key, range) {
        await messages.send(input()); // between the reads of the head and the messages
        return store.readMessages(key, range);
      },
    },
    limits,
  );
  const view = { uid: "alice", channel: person("bob") };
  const forward = await racing.history(view, RANGE);
  t.same([forward.headSeq, seqs(forward.messages)], [1, [1]]);
  const back = await racing.history(view, { ...RANGE, reverse: true });
  t.same([back.headSeq, seqs(back.messages)], [2, [2, 1]]);
});

t.test(
  "retries of accepted messages return the first result after the rules have changed, but new messages are refused",
  async (t) => {
    const { messages, store } = await startNode(t);
    const group = { id: "changing", type: 2 } as const;
    const flags = { ban: false, disband: false, sendBan: false, clientEvents: true };
    const info = { ...group, ...flags, allowStranger: false, large: false };
    await store.createChannel(info, ["alice"]);
    const accepted = input({ channel: group, clientMsgNo: "kept" });
    const first = await messages.send(accepted);
    await store.updateChannel(group, { ban: true });
    const retried = { ...first, repeated: true };
    t.same(await messages.send(accepted), retried);
    t.same(await messages.send({ ...accepted, origin: "s1" }), retried);
    await t.rejects(messages.send({ ...accepted, clientMsgNo: "new" }), {
      code: "channel_banned",
    });
  },
);

t.test(
  "a lookup of single messages stays within its size limit, and `more` is true if it leaves out messages",
  async (t) => {
    const { messages } = await startNode(t);
    for (const clientMsgNo of ["n1", "n2", "n3"]) await messages.send(input({ clientMsgNo }));
    const view = { uid: "alice", channel: person("bob") };
    const find = async (clientMsgNos: readonly string[], wantedSeqs: number[]) => {
      const query = { seqs: wantedSeqs, ids: [], clientMsgNos, maxBytes: 2 * TEXT.length };
      const page = await messages.find(view, query);
      return [seqs(page.messages), page.more];
    };
    t.same(
      await find(["n1"], [1, 2]),
      [[1, 2], false],
      "a message that is named twice counts once",
    );
    t.same(await find(["n3"], [2, 1]), [[1, 2], true]);
    t.same(await find(["n3"], []), [[3], false]);
    t.same(await find(["n1", "n2", "n3"], []), [[2, 3], true]);
  },
);

t.test("a search by clientMsgNo reads at most 64 MiB", async (t) => {
  const { messages, store } = await startNode(t);
  await messages.send(input({ clientMsgNo: "n1" }));
  const payload = Buffer.alloc(8 * 1024 * 1024);
  let reads = 0;
  const long = {
    ...store,
    async readMessages(key: string, range: HistoryRange) {
      reads += 1;
      const page = await store.readMessages(key, { ...range, toSeq: 1 });
      const large = page.messages.map((message) => ({ ...message, payload }));
      return { messages: large, more: true };
    },
  };
  const terms = { friendsOnly: false, isSystem: () => false };
  const { find } = createMessages(long, {
    ...{ ...terms, maxPayloadBytes: 1, historyLimit: 1 },
    contentValidation: "json",
  });
  const query = { seqs: [], ids: [], clientMsgNos: ["n0"], maxBytes: 1 };
  const view = { uid: "alice", channel: person("bob") };
  t.same(await find(view, query), { messages: [], more: false });
  t.equal(reads, 8);
});
