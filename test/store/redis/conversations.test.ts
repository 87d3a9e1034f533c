// Conversations on Redis, in addition to the contract and the model: limits of counting, cost of a
// list, peers that are added and removed, changes that wait for replicas, and an unreachable Redis.

import t, { type Test } from "tap";
import type { ChannelRef } from "../../../src/broker/model.ts";
import type { ConversationRange, ImportedMessage } from "../../../src/broker/ports.ts";
import type { RedisLink } from "../../../src/redis/link.ts";
import {
  DELETE,
  G,
  newestFirst,
  personalChannel,
  readUpTo,
  UNBOUNDED,
} from "../../contract/conversation-fixture.ts";
import { codeOf, draftOf, group } from "../../contract/store-fixture.ts";
import { conversationsOf } from "../../support/conversation-list.ts";
import {
  callsByCommand,
  LOG_ALL,
  type RedisServer,
  resetCalls,
  startRedis,
} from "../../support/redis.ts";
import { type ConversationOptions, openConversations } from "./conversation-store.ts";
import { openStore } from "./one-store.ts";

const START_MS = Date.UTC(2040, 0, 1);

/** Opens a store whose clock the test moves. */
async function openAtTime(t: Test, url: string, over: Partial<ConversationOptions> = {}) {
  const time = { nowMs: START_MS };
  const clock = () => time.nowMs;
  return { time, ...(await openConversations(t, url, { clock, ...over })) };
}

t.test("conversations work on a single Redis server", async (t) => {
  const server = await startRedis(t, LOG_ALL);
  t.test("unread counts and newest messages skip expired messages", (t) => counting(t, server.url));
  t.test("lists of conversations are complete", (t) => lists(t, server.url));
  t.test(
    "a page of conversations costs at most two Redis commands per group that is not on the page",
    (t) => costs(t, server),
  );
  t.test(
    "a user's index of peers has an entry for each of the user's personal channels with messages",
    (t) => peers(t, server.url),
  );
  t.test("changes wait for replicas, and calls are rejected while Redis is down", (t) =>
    waiting(t, server.url),
  );
});

async function counting(t: Test, url: string): Promise<void> {
  t.test("2,100 expired messages are skipped by three script calls", async (t) => {
    const { store, time, link } = await openAtTime(t, url);
    await store.createChannel(group("g"), ["alice", "bob"]);
    const send = (count: number, expireS: number) =>
      Promise.all(Array.from({ length: count }, () => store.append(draftOf({ expireS }))));
    const scriptCalls = async (call: () => Promise<unknown>) => {
      const count = async () => {
        const stats = String(await link.call("info", "commandstats"));
        return Number(/cmdstat_evalsha:calls=(\d+)/.exec(stats)?.[1]);
      };
      const before = await count();
      await call();
      return (await count()) - before;
    };
    await send(2, 0);
    await send(2100, 30);
    t.equal(await scriptCalls(() => store.conversation("bob", G)), 1);
    time.nowMs += 30_000;
    t.match(await store.conversation("bob", G), {
      ...{ headSeq: 2102, unread: 2 },
      last: { messageSeq: 2 },
    });
    t.equal(await scriptCalls(() => store.conversation("bob", G)), 3);
    t.match(await store.changeConversation("bob", G, readUpTo(1)), {
      ...{ readSeq: 1, unread: 1 },
      last: { messageSeq: 2 },
    });
    await send(1, 0);
    t.equal(await scriptCalls(() => store.conversation("bob", G)), 1);
  });

  t.test("conversations accept ids in any writing system and a payload of 64 KiB", async (t) => {
    const { store } = await openAtTime(t, url);
    const [uid, peer] = ["群".repeat(128), "{a}:b\u{1F600}{c5}"];
    const clientMsgNo = "é".repeat(128);
    const payload = new Uint8Array(65_536).fill(255);
    await store.append(
      draftOf({ fromUid: uid, channel: personalChannel(peer), clientMsgNo, payload }),
    );
    const [head] = await conversationsOf(store, peer);
    t.match(head, { unread: 1, last: { clientMsgNo, messageSeq: 1 } });
    const conversation = await store.conversation(peer, personalChannel(uid));
    t.same([conversation?.last?.fromUid, conversation?.last?.payload.length], [uid, 65_536]);
  });
}

async function lists(t: Test, url: string): Promise<void> {
  const COUNT = 300;

  t.test("a list of 300 conversations is complete and transfers no message content", async (t) => {
    const { store, link } = await openAtTime(t, url);
    const payload = new Uint8Array(10_000);
    const ids = Array.from({ length: COUNT }, (_, at) => `peer-${at}`);
    for (const id of ids.slice(0, 20)) await store.createChannel(group(id), ["bob"]);
    const sends = ids.map((fromUid, at) => {
      const channel: ChannelRef = at < 20 ? { id: fromUid, type: 2 } : personalChannel("bob");
      return store.append(draftOf({ channel, fromUid, payload }));
    });
    await Promise.all(sends);
    const before = await sentBytes(link);
    const heads = await conversationsOf(store, "bob");
    const sent = (await sentBytes(link)) - before;
    t.same(heads.map(({ channel }) => channel.id).sort(), [...ids].sort());
    t.equal(
      heads.every(({ unread }) => unread === 1),
      true,
    );
    t.ok(sent < COUNT * 300, `the server sent ${sent} bytes for ${COUNT} conversations`);
    const channels = newestFirst(heads).map(({ channel }) => channel);
    const all = await store.readConversations("bob", channels, UNBOUNDED);
    t.same(
      all.conversations.map(({ channel }) => channel),
      channels,
    );
  });
}

/** Number of groups on the page whose cost is measured. */
const PAGE = 10;

async function costs(t: Test, server: RedisServer): Promise<void> {
  const client = server.client();

  /** Creates groups with a message that bob has read, and then the groups of the page. */
  async function openWithGroups(count: number) {
    const opened = await openAtTime(t, server.url);
    const { store, time } = opened;
    const payload = new Uint8Array(5000);
    for (let at = 0; at < count + PAGE; at++) {
      const channel: ChannelRef = { id: `g${at}`, type: 2 };
      await store.createChannel(group(channel.id), ["alice", "bob"]);
      time.nowMs += 1;
      await store.append(draftOf({ channel, payload }));
      if (at < count) await store.changeConversation("bob", channel, readUpTo(1));
    }
    return opened;
  }

  /** Returns the numbers of commands and bytes that a page of conversations costs the server. */
  async function costOf(count: number, over: Partial<ConversationRange> = {}) {
    const { store, link } = await openWithGroups(count);
    const range = { sinceMs: 0, count: PAGE, beforeId: Number.MAX_SAFE_INTEGER, ...over };
    const list = () => store.newestConversations("bob", range);
    await list(); // loads the scripts
    await resetCalls(client);
    const before = await sentBytes(link);
    const { heads } = await list();
    const bytes = (await sentBytes(link)) - before;
    const commands = [...(await callsByCommand(client)).values()].reduce((sum, n) => sum + n, 0);
    t.equal(heads.length, PAGE);
    return { commands, bytes };
  }

  const MORE = 200;
  for (const [what, over, commands] of [
    ["a page", {}, 1],
    ["a page of unread conversations", { onlyUnread: true }, 2],
  ] as const)
    t.test(
      `the number of Redis commands for ${what} grows by at most ${commands} per group that is not on the page`,
      async (t) => {
        const few = await costOf(100, over);
        const many = await costOf(100 + MORE, over);
        const added = many.commands - few.commands;
        const scripts = 2; // one more script may be needed
        t.ok(added <= MORE * commands + scripts, `${added} more commands for ${MORE} groups`);
        const bytes = (many.bytes - few.bytes) / MORE;
        t.ok(bytes < 50, `the server sent ${bytes} bytes for each further group`);
      },
    );
}

async function peers(t: Test, url: string): Promise<void> {
  t.test(
    "an empty personal channel is removed from a user's peer index until the next message",
    async (t) => {
      const { store, keys, link, time, problems } = await openAtTime(t, url);
      const index = () => link.call("zcard", keys.user("peers", "bob"));
      const send = () => store.append(draftOf({ channel: personalChannel("bob") }));
      await send();
      await store.changeConversation("bob", personalChannel("alice"), DELETE);
      t.same(await conversationsOf(store, "bob"), []);
      t.equal(await index(), 1, "a message that one user deleted stays for others");
      await link.call("xtrim", keys.channel("log", "1:alice@bob"), "maxlen", 0);
      t.same(await conversationsOf(store, "bob"), []);
      t.equal(await index(), 0);
      time.nowMs += 1;
      await send();
      const [head] = await conversationsOf(store, "bob");
      t.match(head, { headSeq: 2, readSeq: 1, unread: 1, deletedSeq: 1 });
      t.same(problems, []);
    },
  );

  t.test(
    "an import that could not add a personal channel to its users' peer indexes stores no message of that channel",
    async (t) => {
      const { store, link } = await openStore(t, url);
      const channel = personalChannel("bob");
      const message: ImportedMessage = {
        ...{ channel, fromUid: "alice", clientMsgNo: "no-1", messageSeq: 1, sourceId: "1" },
        ...{ timestampMs: START_MS, expireS: 0, passthrough: undefined },
        payload: new TextEncoder().encode('{"type":1}'),
      };
      const index = link.keys.user("peers", "bob");
      await link.write("set", index, "not a sorted set, so the write fails");
      await t.rejects(store.importMessages("1:alice@bob", [message]));
      t.equal(await store.headSeq("1:alice@bob"), 0, "the next run sends the message again");
      await link.write("del", index);
      t.same(await store.importMessages("1:alice@bob", [message]), ["stored"]);
      for (const uid of ["alice", "bob"])
        t.match(await conversationsOf(store, uid), [{ headSeq: 1 }], uid);
    },
  );

  t.test("a peer stays in a user's peer index if a message arrives during a read", async (t) => {
    let onRead = async () => {};
    const { store, keys, link, time, problems } = await openAtTime(t, url);
    const head = keys.channel("head", "1:alice@bob");
    const run = link.run.bind(link);
    link.run = async (...args) => {
      const reply = await run(...args);
      if (args[1][0] === head) await onRead();
      return reply;
    };
    const peers = () => link.call("zcard", keys.user("peers", "bob"));
    const send = () => store.append(draftOf({ channel: personalChannel("bob") }));
    await send();
    for (const laterMs of [0, 1]) {
      await link.call("xtrim", keys.channel("log", "1:alice@bob"), "maxlen", 0);
      onRead = async () => {
        onRead = async () => {}; // the script saw the empty channel
        time.nowMs += laterMs;
        await send();
      };
      t.same(await conversationsOf(store, "bob"), []);
      t.equal(await peers(), 1, `the peer is kept if the message is ${laterMs} ms later`);
      t.match(await conversationsOf(store, "bob"), [{ unread: 1 }]);
      const sent = await store.personalChannelsSince("bob", time.nowMs);
      t.same(sent, ["1:alice@bob"]);
      await store.changeConversation("bob", personalChannel("alice"), readUpTo(1000));
    }
    t.same(problems, []);
  });

  t.test(
    "`personalChannelsSince` returns the personal channels with a message at or after a time",
    async (t) => {
      const { store, time } = await openAtTime(t, url);
      for (const fromUid of ["zoe", "alice", "bob"]) {
        await store.append(draftOf({ channel: personalChannel("bob"), fromUid }));
        time.nowMs += 1000;
      }
      const since = (ms: number) => store.personalChannelsSince("bob", START_MS + ms);
      t.same([...(await since(0))].sort(), ["1:alice@bob", "1:bob@bob", "1:bob@zoe"]);
      t.same(await since(1001), ["1:bob@bob"]);
      t.same(await since(2001), []);
    },
  );
}

async function waiting(t: Test, url: string): Promise<void> {
  t.test("a change to a conversation waits for replicas", async (t) => {
    let replications = 0;
    const { store } = await openAtTime(t, url, {
      waitForReplicas: async () => {
        replications += 1;
      },
    });
    await store.createChannel(group("g"), ["alice", "bob"]);
    await store.append(draftOf());
    replications = 0;
    await store.conversation("bob", G);
    t.equal(replications, 0, "a read does not wait for replicas");
    await store.changeConversation("bob", G, readUpTo(1));
    t.equal(replications, 1);
  });

  t.test(
    "every call on conversations is rejected as unavailable while Redis is down",
    async (t) => {
      const server = await startRedis(t);
      const { store } = await openAtTime(t, server.url);
      await server.stop("SIGKILL");
      const calls = [
        store.conversation("bob", G),
        conversationsOf(store, "bob"),
        store.readConversations("bob", [G], UNBOUNDED),
        store.changeConversation("bob", G, DELETE),
        store.personalChannelsSince("bob", 0),
      ];
      for (const call of calls) t.equal(await codeOf(call), "unavailable");
    },
  );
}

/** Returns the number of bytes the server has sent to its clients. */
async function sentBytes(link: RedisLink): Promise<number> {
  const info = String(await link.call("info", "stats"));
  return Number(/total_net_output_bytes:(\d+)/.exec(info)?.[1]);
}
