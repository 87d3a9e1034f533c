// Tests of the conversation endpoints: /conversation/sync and /conversations/clearUnread, setUnread
// and delete. The rules of unread counts are tested with the broker.

import { BrokerError } from "../../../src/broker/errors.ts";
import type { Conversation, Message } from "../../../src/broker/model.ts";
import { inject, startApi, type TestApi } from "../../api/harness.ts";
import { t } from "../../support/suite.ts";

const SYNC = "POST /conversation/sync";
const TARGET = { uid: "alice", channel_id: "lobby", channel_type: 2 };

function message(seq: number, fields: Partial<Message> = {}): Message {
  return {
    messageId: 1000 + seq,
    messageSeq: seq,
    key: "2:lobby",
    channel: { id: "lobby", type: 2 },
    fromUid: "bob",
    clientMsgNo: `m${seq}`,
    timestampMs: 1_700_000_000_000 + seq,
    header: { noPersist: false, redDot: true },
    expireS: 0,
    streamNo: undefined,
    tagKey: undefined,
    payload: Buffer.from('{"type":1}'),
    stream: undefined,
    ...fields,
  };
}

function conversation(id: string, fields: Partial<Conversation> = {}): Conversation {
  return {
    channel: { id, type: 2 },
    headSeq: 9,
    readSeq: 4,
    unread: 5,
    deletedSeq: 2,
    changedAtMs: 1_700_000_000_009,
    last: message(9),
    ...fields,
  };
}

const sync = async (api: TestApi, body: object = {}) =>
  (await inject(api, SYNC, { body: { uid: "alice", ...body } })).json;
type Listed = { readonly channel_id: string; readonly recents: readonly unknown[] };
const idsOf = (list: readonly { channel_id: string }[]) => list.map(({ channel_id }) => channel_id);
const historyCalls = (api: TestApi) =>
  api.calls.filter(({ call }) => call === "history").map(({ args }) => args);

t.test("/conversation/sync returns each conversation with the fields of WuKongIM", async (t) => {
  const api = await startApi();
  api.conversations = [conversation("lobby")];
  t.same(await sync(api), [
    {
      channel_id: "lobby",
      channel_type: 2,
      unread: 5,
      timestamp: 1_700_000_000,
      last_msg_seq: 9,
      last_client_msg_no: "m9",
      offset_msg_seq: 2,
      readed_to_msg_seq: 4,
      version: 1_700_000_000_009,
      recents: [],
    },
  ]);
  t.equal(
    (await sync(api, { msg_count: 0 })).length,
    1,
    "a conversation is also returned with msg_count 0",
  );
});

t.test("/conversation/sync leaves out conversations without messages", async (t) => {
  const api = await startApi();
  api.conversations = [conversation("a", { last: undefined }), conversation("b")];
  t.same(idsOf(await sync(api)), ["b"]);
});

t.test(
  "/conversation/sync numbers pages from 1, and filters conversations before it divides them into pages",
  async (t) => {
    const api = await startApi();
    api.conversations = Array.from({ length: 7 }, (_, at) =>
      conversation(`g${at}`, { unread: at % 2 }),
    );
    const page = async (body: object) => idsOf(await sync(api, body)).join();
    t.equal(await page({}), "g0,g1,g2,g3,g4,g5,g6");
    t.equal(await page({ page_size: 3 }), "g0,g1,g2");
    t.equal(await page({ page: 0, page_size: 3 }), "g0,g1,g2");
    t.equal(await page({ page: 2, page_size: 3 }), "g3,g4,g5");
    t.equal(await page({ page: 3, page_size: 3 }), "g6");
    t.equal(await page({ page: 4, page_size: 3 }), "");
    t.equal(await page({ only_unread: 1, page_size: 2 }), "g1,g3");
    t.equal(await page({ only_unread: 1, page: 2, page_size: 2 }), "g5");
  },
);

t.test(
  "/conversation/sync filters by channel type and by the time of the last change",
  async (t) => {
    const api = await startApi();
    api.conversations = [
      conversation("new", { changedAtMs: 30 }),
      conversation("bob", { changedAtMs: 20, channel: { id: "bob", type: 1 } }),
      conversation("old", { changedAtMs: 10 }),
    ];
    const list = async (body: object) => idsOf(await sync(api, body)).join();
    t.equal(await list({ exclude_channel_types: [1] }), "new,old");
    t.equal(await list({ exclude_channel_types: [2, 7] }), "bob");
    t.equal(await list({ version: 0 }), "new,bob,old");
    t.equal(
      await list({ version: 20 }),
      "new,bob",
      "conversations that changed in the millisecond of version are returned again",
    );
    t.equal(await list({ version: 31 }), "");
  },
);

t.test(
  "/conversation/sync returns the newest messages of a conversation, newest first, except deleted messages and messages that the caller already has",
  async (t) => {
    const api = await startApi();
    api.conversations = [conversation("lobby")];
    api.page = { messages: [message(9), message(8)], headSeq: 9, more: true };
    const [lobby] = await sync(api, { msg_count: 2 });
    t.match(lobby.recents, [
      { message_seq: 9, client_msg_no: "m9", channel_id: "lobby" },
      { message_seq: 8 },
    ]);
    const [view, range] = historyCalls(api)[0] ?? [];
    t.same(view, { channel: { id: "lobby", type: 2 }, uid: "alice" });
    t.match(range, { fromSeq: 3, limit: 2, reverse: true });
    await sync(api, { msg_count: 2, last_msg_seqs: "lobby:2:7" });
    t.match(historyCalls(api)[1]?.[1], { fromSeq: 8 });
  },
);

t.test(
  "/conversation/sync reads no messages without msg_count, or if the caller has the newest message",
  async (t) => {
    const api = await startApi();
    api.conversations = [conversation("lobby")];
    const [lobby] = await sync(api);
    t.same(lobby.recents, []);
    const last_msg_seqs = "lobby:2:9";
    const [upToDate] = await sync(api, { msg_count: 20, last_msg_seqs });
    t.same(upToDate.recents, []);
    t.same(
      api.calls.map(({ call }) => call),
      ["heads", "heads"],
    );
  },
);

t.test(
  "/conversation/sync returns the other user's uid as the id of a personal channel, and messages with the channel id that their sender used",
  async (t) => {
    const api = await startApi();
    const channel = { id: "alice", type: 1 } as const;
    const last = message(3, { channel, fromUid: "bob" });
    api.conversations = [conversation("bob", { channel: { id: "bob", type: 1 }, last })];
    api.page = { messages: [last], headSeq: 3, more: false };
    const [bob] = await sync(api, { msg_count: 1 });
    t.match(bob, { channel_id: "bob", recents: [{ channel_id: "alice" }] });
  },
);

t.test(
  "/conversation/sync ends a page before its `recents` exceed 8 MiB in total, and a page requested by number lists the remaining conversations without messages",
  async (t) => {
    const api = await startApi();
    api.conversations = ["a", "b", "c"].map((id, at) => {
      const messageId = 2000 - at;
      return conversation(id, { last: { ...message(9), messageId } });
    });
    const payload = Buffer.alloc(5 * 1024 * 1024, 32);
    const messages = [message(9, { payload })];
    api.page = { messages, headSeq: 9, more: false };
    const listed: string[] = [];
    let cursor: string | undefined = "";
    while (cursor !== undefined) {
      const body = { uid: "alice", msg_count: 2, cursor };
      const { json, headers } = await inject(api, SYNC, { body });
      listed.push(...json.map(({ channel_id: id, recents }: Listed) => `${id} ${recents.length}`));
      cursor = headers["jindou-cursor"];
    }
    t.same(listed, ["a 1", "b 1", "c 1"]);
    t.equal(
      historyCalls(api).length,
      5,
      "each page reads one conversation too many, except the last",
    );
    const pages = (await sync(api, { msg_count: 2, page: 1 })).map(
      ({ channel_id: id, recents }: Listed) => `${id} ${recents.length}`,
    );
    t.same(
      pages,
      ["a 1", "b 1", "c 0"],
      "a page with a number contains conversations without messages beyond the limit",
    );
  },
);

t.test("/conversation/sync rejects an invalid field of a body and names it", async (t) => {
  const api = await startApi();
  for (const [body, path] of [
    [{ uid: "a@b" }, "uid"],
    [{ page_size: 501 }, "page_size"],
    [{ page: -1 }, "page"],
    [{ limit: 501 }, "limit"],
    [{ page: 1, cursor: "x" }, "cursor"],
    [{ msg_count: -1 }, "msg_count"],
    [{ version: "1" }, "version"],
    [{ version: 1.5 }, "version"],
    [{ only_unread: true }, "only_unread"],
    [{ last_msg_seqs: 1 }, "last_msg_seqs"],
    [{ exclude_channel_types: 1 }, "exclude_channel_types"],
  ] as const)
    t.equal((await sync(api, body)).details?.[0]?.path, path, path);
  t.same(api.calls, []);
});

t.test(
  "/conversations/clearUnread, setUnread and delete change the conversation and return ok",
  async (t) => {
    const api = await startApi();
    const changeCall = async (call: string, body: object) => {
      const { json } = await inject(api, `POST /conversations/${call}`, { body });
      t.same(json, { status: "ok" });
      return api.calls.at(-1)?.args;
    };
    const by = { uid: "alice", origin: undefined };
    const channel = { id: "lobby", type: 2 };
    const seq = Number.MAX_SAFE_INTEGER;
    t.same(await changeCall("clearUnread", { ...TARGET, message_seq: 3 }), [
      ...[by, channel, { kind: "read", seq }],
    ]);
    t.same(await changeCall("setUnread", { ...TARGET, unread: 4 }), [
      ...[by, channel, { kind: "unread", unread: 4 }],
    ]);
    t.same(await changeCall("setUnread", { ...TARGET, unread: 0 }), [
      ...[by, channel, { kind: "unread", unread: 0 }],
    ]);
    t.same(await changeCall("delete", TARGET), [by, channel, { kind: "delete" }]);
  },
);

t.test(
  "/conversations/clearUnread, setUnread and delete return 404 for a user who is not in the group",
  async (t) => {
    const api = await startApi();
    api.failure = new BrokerError("not_in_channel");
    for (const call of ["clearUnread", "setUnread", "delete"]) {
      const body = { ...TARGET, unread: 0 };
      const { json } = await inject(api, `POST /conversations/${call}`, { body });
      t.match(json, { status: 404, code: "not_in_channel" });
    }
  },
);

t.test(
  "/conversations/setUnread rejects an `unread` that is missing, negative, fractional or a string with 400",
  async (t) => {
    const api = await startApi();
    const target = "POST /conversations/setUnread";
    for (const change of [{}, { unread: -1 }, { unread: 0.5 }, { unread: "1" }]) {
      const { status } = await inject(api, target, {
        body: { ...TARGET, ...change },
      });
      t.equal(status, 400);
    }
  },
);
