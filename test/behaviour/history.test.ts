// History over HTTP and on the socket: ranges in both directions, limits, personal channels, and
// messages that expire.

import { type ChannelRef, channelKey } from "../../src/broker/model.ts";
import { textPayload } from "../support/broker.ts";
import { textOf } from "../support/native-session.ts";
import { countStored } from "../support/stored.ts";
import { t } from "../support/suite.ts";
import {
  codeOf,
  eventually,
  group,
  person,
  range,
  receivedTexts,
  seqs,
  startWorld,
  untilReceived,
  type World,
  wire,
} from "./world.ts";

/**
 * This broker never sweeps, so that only reads hide expired messages. The test of the storage
 * starts its own broker.
 */
const world = await startWorld(t, {
  JINDOU_STORE_SWEEP_INTERVAL_MS: "3600000",
});

interface Page {
  readonly messages: readonly Record<string, unknown>[];
  readonly head_seq: number;
  readonly more: number;
}

function get(source: World, channel: ChannelRef, query: object = {}) {
  const fields = { ...wire(channel), ...query };
  const text = Object.entries(fields).map(
    ([name, value]) => `${name}=${encodeURIComponent(String(value))}`,
  );
  return source.call(`/channel/messages?${text.join("&")}`);
}

async function page(channel: ChannelRef, query: object = {}): Promise<Page> {
  const { status, body } = await get(world, channel, query);
  if (status !== 200) throw new Error(JSON.stringify(body));
  return body;
}

/** Returns the seqs of a page and its `more` field. */
async function seqsOf(channel: ChannelRef, query: object) {
  const { messages, more } = await page(channel, query);
  return [messages.map((message) => message.message_seq), more];
}

/** Creates a group of alice and bob with `count` messages "1", "2" and so on. */
async function createFilledGroup(count: number) {
  const [alice, bob] = [world.name("alice"), world.name("bob")];
  const channel = await world.newGroup([alice, bob]);
  for (const n of range(1, count)) await world.send(alice, channel, String(n));
  return { alice, bob, channel };
}

// Covers [feature: channel/messages; decisions: tag_key]
t.test(
  "GET /channel/messages returns every field of a message, `head_seq` and `more`",
  async (t) => {
    const alice = world.name("alice");
    const channel = await world.newGroup([alice]);
    const { body } = await world.send(alice, channel, "hello", {
      client_msg_no: "n-1",
      header: { red_dot: 1 },
      stream_no: "s-1",
      tag_key: "label",
      expire: 3600,
    });
    const history = await page(channel);
    t.match(history, { head_seq: 1, more: 0 });
    t.match(history.messages, [
      {
        message_id: body.message_id,
        message_seq: 1,
        client_msg_no: "n-1",
        from_uid: alice,
        ...wire(channel),
        header: { no_persist: 0, red_dot: 1, sync_once: 0 },
        stream_no: "s-1",
        tag_key: "label",
        expire: 3600,
        payload: textPayload("hello"),
      },
    ]);
    const time = Number(history.messages[0]?.timestamp_ms);
    t.ok(Math.abs(time - Date.now()) < 60_000);
  },
);

// Covers [feature: History both directions]
t.test(
  "GET /channel/messages reads inclusive ranges in both directions, with `limit` and `more`",
  async (t) => {
    const { channel } = await createFilledGroup(10);
    const read = (query: object) => seqsOf(channel, query);
    t.same(await read({}), [range(1, 10), 0]);
    t.same(await read({ from_seq: 3, to_seq: 5 }), [[3, 4, 5], 0]);
    t.same(await read({ limit: 4 }), [[1, 2, 3, 4], 1]);
    t.same(await read({ from_seq: 7, limit: 4 }), [[7, 8, 9, 10], 0]);
    t.same(await read({ order: "desc", limit: 3 }), [[10, 9, 8], 1]);
    t.same(await read({ order: "desc", to_seq: 3, limit: 3 }), [[3, 2, 1], 0]);
    t.same(await read({ from_seq: 11 }), [[], 0]);
    t.same(await read({ from_seq: 6, to_seq: 5 }), [[], 0]);
  },
);

// Covers [feature: History both directions]
t.test(
  "a client can read inclusive ranges of history in both directions, with `limit` and `more`",
  async (t) => {
    const { bob, channel } = await createFilledGroup(10);
    const client = await world.join(t, bob);
    const read = async (options: object) => {
      const reply = await client.history(channel, options);
      t.equal(reply.headSeq, 10);
      return [seqs(reply.messages), reply.more];
    };
    t.same(await read({}), [range(1, 10), false]);
    t.same(await read({ fromSeq: 3, toSeq: 5 }), [[3, 4, 5], false]);
    t.same(await read({ limit: 4 }), [[1, 2, 3, 4], true]);
    t.same(await read({ fromSeq: 7, limit: 4 }), [[7, 8, 9, 10], false]);
    t.same(await read({ reverse: true, limit: 3 }), [[10, 9, 8], true]);
    const last = { reverse: true, toSeq: 3, limit: 3 };
    t.same(await read(last), [[3, 2, 1], false]);
    t.same(await read({ fromSeq: 11 }), [[], false]);
  },
);

// Covers [feature: History limit]
t.test(
  "a history page has at most 500 messages, and reading page after page by seq returns each message once",
  async (t) => {
    const alice = world.name("alice");
    const channel = await world.newGroup([alice]);
    const client = await world.join(t, alice);
    const sends = range(1, 620).map((n) => client.send(channel, String(n)));
    await Promise.all(sends);
    t.same(await seqsOf(channel, { limit: 500 }), [range(1, 500), 1]);
    const secondPage = { from_seq: 501, limit: 500 };
    t.same(await seqsOf(channel, secondPage), [range(501, 620), 0]);
    t.equal((await get(world, channel, { limit: 501 })).status, 400);

    const readSeqs: number[] = [];
    for (let toSeq = 0, more = true; more; toSeq = (readSeqs.at(-1) ?? 1) - 1) {
      const options = { toSeq, limit: 1000, reverse: true };
      const reply = await client.history(channel, options);
      t.ok(reply.messages.length <= 500);
      readSeqs.push(...seqs(reply.messages));
      more = reply.more;
    }
    t.same(readSeqs, range(620, 1));
  },
);

// Covers [feature: channel/messages]
t.test(
  "both users of a personal channel read the same messages, each with the other user's uid as the channel id",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    await world.send(alice, person(bob), "ping");
    await world.send(bob, person(alice), "pong");
    for (const [uid, peer] of [
      [alice, bob],
      [bob, alice],
    ] as const) {
      const { messages } = await page(person(peer), { uid });
      t.match(messages, [
        { message_seq: 1, from_uid: alice, channel_id: peer },
        { message_seq: 2, from_uid: bob, channel_id: peer },
      ]);
      const client = await world.join(t, uid);
      const reply = await client.history(person(peer));
      t.same(reply.messages.map(textOf), ["ping", "pong"]);
    }
    const eve = await world.join(t, world.name("eve"));
    t.same((await eve.history(person(bob))).messages, []);
  },
);

// Covers [feature: channel/messages]
t.test(
  "GET /channel/messages responds with 400 to invalid parameters, and to a personal channel without uid",
  async (t) => {
    const channel = group("g");
    t.equal((await world.call("/channel/messages")).status, 400);
    t.equal((await get(world, person("bob"))).status, 400);
    for (const query of [
      { channel_type: 3 },
      { channel_id: "" },
      { from_seq: -1 },
      { to_seq: "x" },
      { limit: 0 },
      { order: "up" },
      { uid: "a@b" },
    ])
      t.equal((await get(world, channel, query)).status, 400);
    t.same(await page(group(world.name("none"))), {
      messages: [],
      head_seq: 0,
      more: 0,
    });
  },
);

// Covers [feature: History]
t.test("only members can read a group's history on the socket", async (t) => {
  const { channel } = await createFilledGroup(1);
  const eve = await world.join(t, world.name("eve"));
  t.equal(await codeOf(eve.history(channel)), "not_in_channel");
  const none = group(world.name("none"));
  t.equal(await codeOf(eve.history(none)), "not_in_channel");
});

// Covers [feature: Messages survive]
t.test("the history and the last seq of a channel survive a restart", async (t) => {
  const before = await startWorld(t);
  const channel = await before.newGroup(["alice"]);
  for (const n of range(1, 5)) await before.send("alice", channel, `${n}`);
  const { body } = await get(before, channel);
  await before.close();
  const after = await startWorld(t, {}, before.dataPath);
  t.same((await get(after, channel)).body, body);
  t.equal((await after.send("alice", channel, "6")).body.message_seq, 6);
});

// Covers [spec: expire; spec: Limits expire; decisions: expire]
t.test(
  "an expired message is left out of history and of a resume, and its seq is not reused",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    const online = await world.join(t, bob);
    await world.send(alice, channel, "stays");
    await world.send(alice, channel, "goes", { expire: 1 });
    await world.send(alice, channel, "stays too", { expire: 3600 });
    await world.send(alice, channel, "goes at the end", { expire: 1 });
    t.equal((await receivedTexts(online)).length, 4, "all messages are pushed live");
    await eventually(async () => (await page(channel)).messages.length === 2);
    t.same(await seqsOf(channel, {}), [[1, 3], 0]);
    t.same(await seqsOf(channel, { order: "desc" }), [[3, 1], 0]);
    const reply = await online.history(channel);
    t.same([seqs(reply.messages), reply.headSeq], [[1, 3], 4]);
    const resume = [{ channel, lastSeq: 0 }];
    const late = await world.connect(t, bob, { resume });
    t.same(await untilReceived(late, 2), ["stays", "stays too"]);
    const run = late.pushes.at(-1);
    t.match(run, { kind: "messages", afterSeq: 0, throughSeq: 4 });
    t.equal((await world.send(alice, channel, "x")).body.message_seq, 5);
  },
);

// Covers [decisions: expire]
t.test("the storage of expired messages and of their expiry entries is reclaimed", async (t) => {
  const short = await startWorld(t, {
    JINDOU_STORE_SWEEP_INTERVAL_MS: "100",
  });
  const channel = await short.newGroup(["alice"]);
  await short.send("alice", channel, "stays");
  for (const n of range(1, 5)) await short.send("alice", channel, `${n}`, { expire: 1 });
  await eventually(async () => {
    const { body } = await get(short, channel);
    return body.messages.length === 1;
  });
  const key = channelKey(channel, "alice");
  const stored = await countStored(t, short.dataPath, key);
  await eventually(async () => (await stored()).messages === 1);
  t.same(await stored(), { messages: 1, expiries: 0 });
  t.equal((await short.send("alice", channel, "x")).body.message_seq, 7);
});
