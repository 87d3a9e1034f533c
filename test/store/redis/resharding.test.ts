// A slot of a Redis Cluster moves to another server while its channels are used: a call that is
// impossible at that moment is rejected as a whole.

import t, { type Test } from "tap";
import { bucketOf, logBucket } from "../../../src/broker/log-frame.ts";
import { STREAM_CONTENT, STREAM_START, streamPayload } from "../../../src/broker/model.ts";
import type { MessageDraft } from "../../../src/broker/ports.ts";
import type { RedisLink } from "../../../src/redis/link.ts";
import { slotOf } from "../../../src/redis/slots.ts";
import { appendOf, appendsOf, draftOf as logDraftOf } from "../../contract/log-fixture.ts";
import { ALL, codeOf, draftOf, group as groupInfo } from "../../contract/store-fixture.ts";
import { eventOf } from "../../contract/store-stream-fixture.ts";
import { conversationsOf } from "../../support/conversation-list.ts";
import { startRedisCluster } from "../../support/redis.ts";
import { openStore } from "./one-store.ts";

const servers = await startRedisCluster(t);

/**
 * Starts moving the slot of `key` as an operator's tool does, without moving any key. `stop`
 * cancels the move. `finish` completes it with these keys, which must be all keys of the slot, and
 * returns the new server.
 */
async function beginMove(t: Test, link: RedisLink, key: string) {
  const slot = slotOf(key);
  const all = await Promise.all(
    servers.primaries.map(async (server) => {
      const client = server.client();
      t.teardown(() => client.disconnect());
      const count = await client.call("CLUSTER", "COUNTKEYSINSLOT", slot);
      const id = await idOf(client);
      return { client, count: Number(count), id, port: server.port };
    }),
  );
  const from = all.find(({ count }) => count > 0);
  const to = all.find(({ count }) => count === 0);
  if (from === undefined || to === undefined) throw new Error("The slot has no keys");
  const setSlot = (server: typeof from, ...words: string[]) =>
    server.client.call("CLUSTER", "SETSLOT", slot, ...words);
  const move = async (keys: readonly string[]) => {
    const at = ["127.0.0.1", to.port, "", 0, 5000, "KEYS"] as const;
    await from.client.call("MIGRATE", ...at, ...keys);
  };
  await setSlot(to, "IMPORTING", from.id);
  await setSlot(from, "MIGRATING", to.id);
  return {
    stop: async () => {
      for (const server of [to, from]) await setSlot(server, "STABLE");
    },
    keys: async () => (await from.client.call("CLUSTER", "GETKEYSINSLOT", slot, 1000)) as string[],
    move,
    finish: async (keys: readonly string[]) => {
      await move(keys);
      for (const server of all) await setSlot(server, "NODE", to.id);
      return to;
    },
    publicationSeq: async () => String(await link.call("hget", key, "pub")),
  };
}

const idOf = async (client: { call(...words: string[]): Promise<unknown> }) =>
  String(await client.call("CLUSTER", "MYID"));

t.test(
  "a stream event is rejected and not stored at all while the slot of its channel moves",
  async (t) => {
    const { store, link } = await openStore(t, servers.url);
    const event = (eventId: string, type: string, data: string) =>
      store.streamEvent(eventOf(type, data, { eventId, clientMsgNo: "s1" }));
    await event("e0", STREAM_START, "");
    const { key } = eventOf(STREAM_START, "");
    const head = link.keys.channel("head", key);
    const { stop, publicationSeq } = await beginMove(t, link, head);
    const before = await publicationSeq();
    for (let i = 0; i < 2; i++)
      t.equal(await codeOf(event("e1", STREAM_CONTENT, "hello ")), "unavailable");
    t.equal(await codeOf(store.cancelStream(key, "s1")), "unavailable");
    t.equal(await publicationSeq(), before, "no publication number is used");
    await stop();
    for (const [at, data] of ["hello ", "world", "!"].entries())
      await event(`e${at + 1}`, STREAM_CONTENT, data);
    const offsets = [0, 1, 2, 3, 4].map((index) => store.streamTextOffset(key, "s1", index));
    t.same(await Promise.all(offsets), [0, 0, 6, 11, 12]);
    const { messages } = await store.readMessages(key, ALL);
    const texts = messages.map(({ payload }) => String(Buffer.from(payload)));
    t.same(texts, [String(Buffer.from(streamPayload("hello world!")))]);
  },
);

t.test("an append to a log is rejected while the slot of the log moves", async (t) => {
  const { store, link } = await openStore(t, servers.url);
  const name = { kind: "free", path: "moving" } as const;
  await store.createLog(name, logDraftOf({ records: [Buffer.from("a")] }));
  const head = `${link.keys.bucket("", logBucket(name))}logHead:/moving`;
  const { stop } = await beginMove(t, link, head);
  t.equal(await codeOf(store.appendLog(name, appendOf(["b"]))), "unavailable");
  await stop();
  t.same(await appendsOf(store, name), [["a"]]);
  const next = await beginMove(t, link, head);
  await next.move([head]);
  t.equal(await codeOf(store.appendLog(name, appendOf(["b"]))), "unavailable");
  await next.finish(await next.keys());
  while ((await codeOf(store.appendLog(name, appendOf(["b"])))) !== undefined)
    await new Promise((resolve) => setTimeout(resolve, 5));
  t.same(await appendsOf(store, name), [["a"], ["b"]]);
});

t.test("messages in one call to Redis are all rejected while their slot moves", async (t) => {
  const { store, link } = await openStore(t, servers.url);
  const group = (id: string, over: Partial<MessageDraft> = {}) =>
    draftOf({ channel: { id, type: 2 }, ...over });
  const [first = "", second = ""] = sameBucket(2);
  await store.createChannel(groupInfo(first), ["alice"]);
  await store.append(group(first, { permission: "check" }));
  await store.append(group(second));
  const head = link.keys.channel("head", `2:${first}`);
  const { stop, publicationSeq } = await beginMove(t, link, head);
  const before = await publicationSeq();
  const refused = await Promise.all(
    [
      group(first, { permission: "check" }),
      group(second),
      group(second, { clientMsgNo: "n" }),
      group(first, { header: { noPersist: true, redDot: false } }),
    ].map((draft) => codeOf(store.append(draft))),
  );
  t.same(new Set(refused), new Set(["unavailable"]));
  t.equal(await publicationSeq(), before, "no publication number is used");
  await stop();
  const answers = await Promise.all(
    [group(first, { permission: "check" }), group(second), group(second, { clientMsgNo: "n" })].map(
      (draft) => store.append(draft),
    ),
  );
  t.same(
    answers.map(({ messageSeq }) => messageSeq),
    [2, 2, 3],
  );
});

t.test(
  "a sweep restores a group index entry that a fail-over lost after the slot of the entry had moved",
  async (t) => {
    const { store, link } = await openStore(t, servers.url);
    const index = link.keys.user("groups", "a");
    await store.createChannel(groupInfo("g"), ["a"]);
    const { finish } = await beginMove(t, link, index);
    const { port } = await finish([index]);
    const serving = () => link.primaryOf(index);
    // Also makes the client look up the server and connect to it.
    const isUsable = () => codeOf(link.call("exists", index));
    while ((await isUsable()) !== undefined || serving().options.port !== port)
      await new Promise((resolve) => setTimeout(resolve, 5));
    await link.call("del", index); // as if the replica did not have the entry yet
    const { stream } = serving();
    stream.destroy();
    while ((await isUsable()) !== undefined || serving().stream === stream)
      await new Promise((resolve) => setTimeout(resolve, 5));
    t.same(await store.groupsOf("a"), []);
    await store.sweep();
    t.same(await store.groupsOf("a"), ["g"]);
  },
);

t.test("a list of conversations is complete or rejected while a slot moves", async (t) => {
  const { store, link } = await openStore(t, servers.url);
  const ids = sameBucket(3);
  for (const id of [...ids, "elsewhere"]) {
    await store.createChannel(groupInfo(id), ["alice", "bob"]);
    await store.append(draftOf({ channel: { id, type: 2 } }));
  }
  const expected = [...ids, "elsewhere"].sort();
  const list = async () =>
    (await conversationsOf(store, "bob")).map(({ channel }) => channel.id).sort();
  t.same(await list(), expected);
  const [first = "", second = ""] = ids.map((id) => link.keys.channel("head", `2:${id}`));
  const { keys, move, finish } = await beginMove(t, link, first);
  const check = async () => {
    const code = await codeOf(list());
    if (code === undefined) t.same(await list(), expected);
    else t.equal(code, "unavailable");
  };
  await check();
  for (const key of [second, first, link.keys.bucket("messageIds", bucketOf(`2:${ids[0]}`))]) {
    await move([key]);
    await check();
    t.equal(await codeOf(list()), "unavailable", "a moved key does not count as missing");
  }
  await finish(await keys());
  while ((await codeOf(list())) !== undefined)
    await new Promise((resolve) => setTimeout(resolve, 5));
  t.same(await list(), expected);
});

/** Returns names of groups that share a bucket. */
function sameBucket(count: number): readonly string[] {
  const names = Array.from({ length: 1000 }, (_, at) => `moving-${at}`);
  const bucket = bucketOf(`2:${names[0]}`);
  return names.filter((id) => bucketOf(`2:${id}`) === bucket).slice(0, count);
}
