// Personal channels on a Redis Cluster, where the users are in other slots than their channel: what
// a node that died in between left is done by the sender's retry.

import t, { type Test } from "tap";
import { userTopic } from "../../../src/broker/model.ts";
import type { MessageDraft } from "../../../src/broker/ports.ts";
import type { Publication } from "../../../src/redis/wire.ts";
import { Appends } from "../../../src/store/redis/steps/append.ts";
import { ChannelNamesOf } from "../../../src/store/redis/steps/channel-names.ts";
import { draftOf } from "../../contract/store-fixture.ts";
import { startRedisCluster } from "../../support/redis.ts";
import { connectSubscriber } from "../../support/topic-subscriber.ts";
import { type OneStore, openStore } from "./one-store.ts";
import { decodePublished } from "./published.ts";

const { url } = await startRedisCluster(t);

/** What comes under the users' topics, by user. */
async function hear(t: Test, { link }: OneStore, uids: readonly string[]) {
  const heard: [string, Publication][] = [];
  const topics = new Map(uids.map((uid) => [link.keys.topic(userTopic(uid)), uid]));
  const subscriber = await connectSubscriber(t, url, (topic, frame) => {
    for (const one of decodePublished(frame)) heard.push([topics.get(topic) ?? "", one]);
  });
  for (const topic of topics.keys()) await subscriber.ssubscribe(topic);
  const until = async (count: number) => {
    while (heard.length < count) await new Promise((resolve) => setTimeout(resolve, 2));
    return heard
      .splice(0)
      .map(([uid, publication]) => ({ uid, publication }))
      .sort((a, b) => (a.uid < b.uid ? -1 : 1));
  };
  return until;
}

const toBob = (over: Partial<MessageDraft> = {}) =>
  draftOf({
    ...{ channel: { id: "bob", type: 1 }, clientMsgNo: "n" },
    ...over,
  });

async function peersOf({ link }: OneStore, uid: string): Promise<string> {
  const key = link.keys.user("peers", uid);
  return String(await link.call("zrange", key, 0, -1, "WITHSCORES"));
}

/** Stores a message as a node does that dies before its users are told. */
async function storeOnly({ link, time }: OneStore, draft: MessageDraft) {
  const limits = {
    ...{ dedupeWindowS: 3600, retentionS: 0, sweepIntervalMs: 1000 },
    maxChannelMessages: 0,
    ...{ maxStreamBytes: 1000, maxInbox: 10, inboxTtlS: 10 },
  };
  const names = new ChannelNamesOf(link).get(draft.key);
  const clock = () => time.nowMs;
  const appends = new Appends({
    ...{ link, clock, limits, waitForReplicas: () => undefined },
  });
  const placed = await appends.append(names, draft);
  if (placed.refused !== undefined) throw new Error(placed.refused);
  const { messageId, messageSeq } = placed;
  return { messageId, messageSeq };
}

t.test("both users are told before the sender is answered, once", async (t) => {
  const one = await openStore(t, url);
  const until = await hear(t, one, ["alice", "bob"]);
  const { messageId } = await one.store.append(toBob({ origin: "s" }));
  const heard = await until(2);
  t.same(
    heard.map(({ uid }) => uid),
    ["alice", "bob"],
  );
  for (const { publication } of heard)
    t.match(publication, {
      ...{ kind: "ordered", publicationSeq: 1 },
      event: {
        origin: "s",
        message: { messageId, messageSeq: 1, clientMsgNo: "n" },
      },
    });
  t.equal(await peersOf(one, "alice"), `bob,${one.time.nowMs}`);
  t.equal(await peersOf(one, "bob"), `alice,${one.time.nowMs}`);
});

t.test("a retry tells what its first call stored and did not tell", async (t) => {
  for (const permission of ["granted", "send_banned"] as const) {
    const one = await openStore(t, url);
    const until = await hear(t, one, ["alice", "bob"]);
    const payload = new TextEncoder().encode('{"type":1,"content":"first"}');
    const stored = await storeOnly(one, toBob({ payload }));
    const acceptedMs = one.time.nowMs;
    one.time.nowMs += 1000;
    t.equal(await peersOf(one, "bob"), "");
    const again = toBob({ permission });
    t.same(await one.store.append(again), { ...stored, duplicate: true });
    const heard = await until(2);
    t.same(
      heard.map(({ uid }) => uid),
      ["alice", "bob"],
    );
    for (const { publication } of heard) {
      t.match(publication, {
        kind: "ordered",
        publicationSeq: 1,
        event: { message: stored },
      });
      if (publication.kind === "ordered" && publication.event.kind === "message")
        t.same([...publication.event.message.payload], [...payload]);
    }
    t.equal(await peersOf(one, "bob"), `alice,${acceptedMs}`);
    t.equal(await peersOf(one, "alice"), `bob,${acceptedMs}`);
  }
});

t.test("a retry tells what is not kept as well", async (t) => {
  const one = await openStore(t, url);
  const until = await hear(t, one, ["alice", "bob"]);
  const payload = new TextEncoder().encode('{"type":1,"content":"now"}');
  const header = { noPersist: true, redDot: false };
  const draft = toBob({ payload, header });
  const stored = await storeOnly(one, draft);
  t.same(await one.store.append(draft), { ...stored, duplicate: true });
  for (const { publication } of await until(2))
    t.match(publication, {
      ...{ kind: "ordered", publicationSeq: 1 },
      event: { message: { ...stored, payload: Buffer.from(payload) } },
    });
  t.equal(await peersOf(one, "bob"), "");
});

t.test("messages to oneself and unstored ones are told once to each", async (t) => {
  const one = await openStore(t, url);
  const until = await hear(t, one, ["alice", "bob"]);
  await one.store.append(toBob({ channel: { id: "alice", type: 1 }, key: "1:alice@alice" }));
  t.same(
    (await until(1)).map(({ uid }) => uid),
    ["alice"],
  );
  await one.store.append(toBob({ header: { noPersist: true, redDot: false } }));
  t.same(
    (await until(2)).map(({ uid }) => uid),
    ["alice", "bob"],
  );
  t.equal(await peersOf(one, "bob"), "", "nothing is kept");
  t.equal(await peersOf(one, "alice"), `alice,${one.time.nowMs}`);
});
