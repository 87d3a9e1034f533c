// Personal channels on a Redis Cluster, where the users and their channel are in different slots:
// the sender's retry completes a send that a node did not finish before it died.

import t, { type Test } from "tap";
import { userTopic } from "../../../src/broker/model.ts";
import type { MessageDraft } from "../../../src/broker/ports.ts";
import type { Publication } from "../../../src/redis/wire.ts";
import { Appends } from "../../../src/store/redis/steps/append.ts";
import { ChannelNamesOf } from "../../../src/store/redis/steps/channel-names.ts";
import { draftOf } from "../../contract/store-fixture.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { startRedisCluster } from "../../support/redis.ts";
import { connectSubscriber } from "../../support/topic-subscriber.ts";
import { openStore, type StoreNode } from "./one-store.ts";
import { decodePublished } from "./published.ts";

const { url } = await startRedisCluster(t);

/**
 * Subscribes to the users' topics. Returns a function that waits for a number of publications and
 * returns them by user.
 */
async function subscribe(t: Test, { link }: StoreNode, uids: readonly string[]) {
  const received: [string, Publication][] = [];
  const topics = new Map(uids.map((uid) => [link.keys.topic(userTopic(uid)), uid]));
  const subscriber = await connectSubscriber(t, url, (topic, frame) => {
    for (const publication of decodePublished(frame))
      received.push([topics.get(topic) ?? "", publication]);
  });
  for (const topic of topics.keys()) await subscriber.ssubscribe(topic);
  const receive = async (count: number) => {
    while (received.length < count) await new Promise((resolve) => setTimeout(resolve, 2));
    return received
      .splice(0)
      .map(([uid, publication]) => ({ uid, publication }))
      .sort((a, b) => (a.uid < b.uid ? -1 : 1));
  };
  return receive;
}

const toBob = (over: Partial<MessageDraft> = {}) =>
  draftOf({
    ...{ channel: { id: "bob", type: 1 }, clientMsgNo: "n" },
    ...over,
  });

async function peersOf({ link }: StoreNode, uid: string): Promise<string> {
  const key = link.keys.user("peers", uid);
  return String(await link.call("zrange", key, 0, -1, "WITHSCORES"));
}

/**
 * Stores a message without publishing it to its users, like a node that dies between these two
 * steps.
 */
async function storeOnly({ link, time }: StoreNode, draft: MessageDraft) {
  const limits = {
    ...{ dedupeWindowS: 3600, retentionS: 0, sweepIntervalMs: 1000 },
    maxChannelMessages: 0,
    ...{ maxStreamBytes: 1000, maxInbox: 10, inboxTtlS: 10, logs: LOG_LIMITS },
  };
  const names = new ChannelNamesOf(link).get(draft.key);
  const clock = () => time.nowMs;
  const appends = new Appends({
    ...{ link, clock, limits, waitForReplicas: () => undefined },
  });
  const placement = await appends.append(names, draft);
  if (placement.refused !== undefined) throw new Error(placement.refused);
  const { messageId, messageSeq } = placement;
  return { messageId, messageSeq };
}

t.test("both users of a personal channel receive a message once", async (t) => {
  const node = await openStore(t, url);
  const receive = await subscribe(t, node, ["alice", "bob"]);
  const { messageId } = await node.store.append(toBob({ origin: "s" }));
  const received = await receive(2);
  t.same(
    received.map(({ uid }) => uid),
    ["alice", "bob"],
  );
  for (const { publication } of received)
    t.match(publication, {
      ...{ kind: "ordered", publicationSeq: 1 },
      event: {
        origin: "s",
        message: { messageId, messageSeq: 1, clientMsgNo: "n" },
      },
    });
  t.equal(await peersOf(node, "alice"), `bob,${node.time.nowMs}`);
  t.equal(await peersOf(node, "bob"), `alice,${node.time.nowMs}`);
});

t.test("a retry publishes a stored message that was not published", async (t) => {
  for (const permission of ["granted", "send_banned"] as const) {
    const node = await openStore(t, url);
    const receive = await subscribe(t, node, ["alice", "bob"]);
    const payload = new TextEncoder().encode('{"type":1,"content":"first"}');
    const stored = await storeOnly(node, toBob({ payload }));
    const acceptedMs = node.time.nowMs;
    node.time.nowMs += 1000;
    t.equal(await peersOf(node, "bob"), "");
    const again = toBob({ permission, payload });
    t.same(await node.store.append(again), { ...stored, duplicate: true });
    const received = await receive(2);
    t.same(
      received.map(({ uid }) => uid),
      ["alice", "bob"],
    );
    for (const { publication } of received) {
      t.match(publication, {
        kind: "ordered",
        publicationSeq: 1,
        event: { message: stored },
      });
      if (publication.kind === "ordered" && publication.event.kind === "message")
        t.same([...publication.event.message.payload], [...payload]);
    }
    t.equal(await peersOf(node, "bob"), `alice,${acceptedMs}`);
    t.equal(await peersOf(node, "alice"), `bob,${acceptedMs}`);
  }
});

t.test("a retry publishes an unstored message that was not published", async (t) => {
  const node = await openStore(t, url);
  const receive = await subscribe(t, node, ["alice", "bob"]);
  const payload = new TextEncoder().encode('{"type":1,"content":"now"}');
  const header = { noPersist: true, redDot: false };
  const draft = toBob({ payload, header });
  const stored = await storeOnly(node, draft);
  t.same(await node.store.append(draft), { ...stored, duplicate: true });
  for (const { publication } of await receive(2))
    t.match(publication, {
      ...{ kind: "ordered", publicationSeq: 1 },
      event: { message: { ...stored, payload: Buffer.from(payload) } },
    });
  t.equal(await peersOf(node, "bob"), "");
});

t.test("messages to oneself and unstored messages are published once to each user", async (t) => {
  const node = await openStore(t, url);
  const receive = await subscribe(t, node, ["alice", "bob"]);
  await node.store.append(toBob({ channel: { id: "alice", type: 1 }, key: "1:alice@alice" }));
  t.same(
    (await receive(1)).map(({ uid }) => uid),
    ["alice"],
  );
  await node.store.append(toBob({ header: { noPersist: true, redDot: false } }));
  t.same(
    (await receive(2)).map(({ uid }) => uid),
    ["alice", "bob"],
  );
  t.equal(await peersOf(node, "bob"), "", "peers contains no user without stored messages");
  t.equal(await peersOf(node, "alice"), `alice,${node.time.nowMs}`);
});
