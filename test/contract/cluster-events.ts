// Cluster contract: a published event reaches every node that listens to its topic, unchanged and
// in order.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import {
  channelKey,
  GROUP_CHANNEL,
  groupTopic,
  type Message,
  PERSON_CHANNEL,
  userTopic,
} from "../../src/broker/model.ts";
import type { ClusterEvent } from "../../src/broker/ports.ts";
import { type NodeDriver, uniqueUid } from "./cluster-fixture.ts";

function messageTo(channel: Message["channel"], fromUid: string): Message {
  return {
    messageId: 1,
    messageSeq: 1,
    key: channelKey(channel, fromUid),
    channel,
    fromUid,
    clientMsgNo: "n",
    timestampMs: 1,
    header: { noPersist: false, redDot: true },
    expireS: 0,
    streamNo: undefined,
    tagKey: undefined,
    payload: Uint8Array.from([0, 1, 255]),
    stream: undefined,
  };
}

export async function events(t: Test, driver: NodeDriver): Promise<void> {
  const { cluster, events } = await driver.open(t);
  const uid = uniqueUid();
  const groupId = `g-${randomUUID()}`;

  /** Publishes the event and returns the events that the listener received up to the barrier. */
  async function publish(event: ClusterEvent): Promise<readonly ClusterEvent[]> {
    const before = events.length;
    cluster.publish(event);
    await cluster.barrier();
    return events.slice(before);
  }

  const toUser = messageTo({ id: uid, type: PERSON_CHANNEL }, uniqueUid());
  const toGroup = messageTo({ id: groupId, type: GROUP_CHANNEL }, uid);
  const none = { origin: undefined, recipients: undefined };
  const CASES: readonly (readonly [string, ClusterEvent])[] = [
    ["a personal message", { kind: "message", message: toUser, ...none }],
    ["a group's message", { kind: "message", message: toGroup, ...none }],
    [
      "a message with origin and recipients",
      { kind: "message", message: toUser, origin: "s1", recipients: [uid] },
    ],
    [
      "the event for the end of a session",
      { kind: "end_session", uid, sessionId: "s1", reason: "kicked" },
    ],
    ["the event for a changed token", { kind: "credential", uid }],
    ["the event for an added member", { kind: "addition", uid, channelId: groupId }],
  ];

  await cluster.listen(userTopic(uid));
  await cluster.listen(groupTopic(groupId));
  await cluster.listen(userTopic(uid)); // a second call has no effect
  for (const [title, event] of CASES)
    t.test(`${title} reaches the listener exactly once and unchanged`, async (t) => {
      t.strictSame(await publish(event), [event]);
    });

  t.test("announced events reach the listener exactly once and in order", async (t) => {
    const before = events.length;
    const channelIds = Array.from({ length: 120 }, (_, at) => `g${at}`);
    const all: readonly ClusterEvent[] = channelIds.map((channelId) => ({
      ...{ kind: "addition", uid, channelId },
    }));
    await cluster.announce(all);
    await cluster.barrier();
    t.strictSame(events.slice(before), all);
    await t.resolves(cluster.announce([]), "an empty list is accepted");
  });

  t.test("events of one topic reach the listener in the order of publication", async (t) => {
    const before = events.length;
    const ids = Array.from({ length: 100 }, (_, at) => `s${at}`);
    for (const sessionId of ids)
      cluster.publish({
        kind: "end_session",
        uid,
        sessionId,
        reason: "kicked",
      });
    await cluster.barrier();
    t.same(
      events.slice(before).map((event) => event.kind === "end_session" && event.sessionId),
      ids,
    );
  });
}
