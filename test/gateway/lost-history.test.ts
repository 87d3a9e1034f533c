// Clients that return to a Redis that lost messages and reused their seqs, as after a fail-over. A
// real node is used, and the keys of its channels are set back to an earlier state.

import type { Redis } from "ioredis";
import type { ChannelRef } from "../../src/broker/model.ts";
import { type Client, connect } from "../../src/client/index.ts";
import { person, startWorld, untilReceived } from "../behaviour/world.ts";
import type { NativeClient } from "../support/native-session.ts";
import { startRedis } from "../support/redis.ts";
import { t } from "../support/suite.ts";
import { Waiters } from "../support/waiters.ts";

const redis = await startRedis(t);
const admin = redis.client();
const world = await startWorld(t, {
  JINDOU_REDIS_URL: redis.url,
  // With these limits, a busy process is not declared dead, and its calls do not time out.
  ...{ JINDOU_CLUSTER_DEAD_AFTER_MS: "20000", JINDOU_REDIS_TIMEOUT_MS: "20000" },
});

/** Size of a message text. A page of 128 KiB holds two such messages. */
const TEXT_BYTES = 60_000;

/** Saves all keys of channels. Returns a function that restores them. */
async function snapshot(admin: Redis): Promise<() => Promise<void>> {
  const kept = await Promise.all(
    (await admin.keys("jd:{c*")).map(async (key) => [key, await admin.dumpBuffer(key)] as const),
  );
  return async () => {
    const all = await admin.keys("jd:{c*");
    const restore = admin.multi().del(...all);
    for (const [key, dump] of kept) if (dump !== null) restore.restore(key, 0, dump);
    await restore.exec();
  };
}

/** Sends messages as alice, one after the other, and returns their ids. */
async function send(channel: ChannelRef, count: number) {
  const ids: number[] = [];
  for (let n = 0; n < count; n++) {
    const text = `${n}`.padEnd(TEXT_BYTES);
    const { status, body } = await world.send("alice", channel, text);
    if (status !== 200) throw new Error(`a message was refused: ${JSON.stringify(body)}`);
    ids.push(body.message_id);
  }
  return ids;
}

const idsIn = ({ pushes }: NativeClient, { id }: ChannelRef) =>
  pushes.flatMap((push) => {
    if (push.kind !== "message" && push.kind !== "messages") return [];
    if (push.channel.id !== id) return [];
    const messages = push.kind === "message" ? [push.message] : push.messages;
    return messages.map(({ messageId }) => messageId);
  });

/**
 * Number of messages sent to each group after the loss. Before the loss, each channel gets three
 * messages that it keeps, and then three that are lost.
 */
const AFTERWARDS = [0, 2, 3, 5];

for (const uid of ["alice", "bob", "carol"]) await world.register(uid);

t.test("a resuming client gets the messages that reuse the seqs of lost messages", async (t) => {
  const groups = await Promise.all(AFTERWARDS.map(() => world.newGroup(["alice", "bob"])));
  const channels = [...groups, person("alice")];
  const sent = (count: (at: number) => number) =>
    Promise.all(
      channels.map((channel, at) => send(channel.type === 1 ? person("bob") : channel, count(at))),
    );
  await sent(() => 3);
  const setBack = await snapshot(admin);
  const lost = await sent(() => 3);
  await setBack();
  const newIds = await sent((at) => AFTERWARDS[at] ?? 4);

  const points = channels.map((channel, at) => ({
    channel,
    lastSeq: 6,
    lastId: lost[at]?.at(-1) ?? 0,
  }));
  const bob = await world.connect(t, "bob", { resume: points });
  const heads = bob.connack.resume.map(({ headSeq }) => headSeq);
  t.same(heads, [3, 3, 3, 3, 3], "the CONNACK reports the last common seq");
  await untilReceived(bob, 2 + 3 + 5 + 4);
  for (const [at, channel] of channels.entries()) {
    t.same(idsIn(bob, channel), newIds[at], "each new message is pushed once");
    const [first] = bob.pushesOf("messages").filter((run) => run.channel.id === channel.id);
    if (newIds[at]?.length !== 0) t.equal(first?.afterSeq, 3);
    t.ok((first?.messages.length ?? 0) <= 2, "a page holds at most two messages");
  }
  const current = channels.map((channel, at) => ({
    ...{ channel, lastSeq: 3 + (newIds[at]?.length ?? 0) },
    lastId: newIds[at]?.at(-1) ?? lost[at]?.at(-1) ?? 0,
  }));
  const again = await world.connect(t, "bob", { resume: current });
  const numbered = points.map(({ channel, lastSeq }) => ({ channel, lastSeq }));
  const older = await world.connect(t, "bob", { resume: numbered });
  const live = await send(person("bob"), 1);
  await untilReceived(again, 1);
  t.same(idsIn(again, person("alice")), live, "no other message is pushed");
  await untilReceived(older, 3 + live.length); // the messages after seq 6
});

/**
 * Opens an SDK client of carol. `until` waits until the client has received a number of messages.
 */
function open(cursors: ReturnType<Client["cursors"]>) {
  const waiters = new Waiters(60_000);
  const seen: number[] = [];
  const client = connect({
    ...{ url: `ws://127.0.0.1:${world.clientPort}`, uid: "carol", cursors },
    ...{ token: "token-carol", deviceFlag: 0 },
  });
  t.teardown(() => client.close());
  client.on("message", ({ messageId }) => {
    seen.push(messageId);
    waiters.check();
  });
  const until = async (count: number) => {
    try {
      await waiters.until(`${count} messages`, () => seen.length >= count);
    } catch (cause) {
      const state = JSON.stringify({ received: seen.length, cursors: client.cursors() });
      throw new Error(`messages are missing: ${state}`, { cause });
    }
  };
  return { client, seen, until };
}

t.test(
  "a new SDK client with saved cursors gets the messages that reuse the seqs of lost messages",
  async (t) => {
    const channel = await world.newGroup(["alice", "carol"]);
    const first = open([{ channel, lastSeq: 0 }]);
    await first.client.ready();
    await world.untilSubscribed();
    const kept = await send(channel, 3);
    const setBack = await snapshot(admin);
    const lost = await send(channel, 3);
    await first.until(6);
    t.same(first.seen, [...kept, ...lost]);
    const cursors = first.client.cursors();
    await first.client.close();
    await setBack();
    const newIds = await send(channel, 4);
    const second = open(JSON.parse(JSON.stringify(cursors)));
    await second.until(4);
    const live = await send(channel, 2);
    await second.until(6);
    t.same(second.seen, [...newIds, ...live]);
    t.match(second.client.cursors(), [{ lastSeq: 9, lastId: live[1] }]);
  },
);

t.test(
  "an SDK client that sends before it has caught up gets the messages that reuse the seqs of lost messages",
  async (t) => {
    const channel = await world.newGroup(["alice", "carol"]);
    const first = open([{ channel, lastSeq: 0 }]);
    await first.client.ready();
    await world.untilSubscribed();
    await send(channel, 3);
    const setBack = await snapshot(admin);
    await send(channel, 3);
    await first.until(6);
    const cursors = first.client.cursors();
    await first.client.close();
    await setBack();
    const newIds = await send(channel, 4);
    const long = Array.from({ length: 100 }, () => send(person("carol"), 1));
    // Personal channels are resumed first, in pages of two messages.
    const before = (await Promise.all(long)).flat();
    const second = open([...cursors, { channel: person("alice"), lastSeq: 0 }]);
    const own = await second.client.send(channel, "queued");
    t.equal(own.messageSeq, 8);
    const live = await send(channel, 1);
    await second.until(before.length + newIds.length + live.length);
    const inGroup = second.seen.filter((id) => !before.includes(id));
    t.same(inGroup, [...newIds, ...live]);
  },
);
