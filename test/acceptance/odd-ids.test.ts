// Ids that are valid but look dangerous work as uid, token, group id, device id and client message
// number.

import t from "tap";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { startBroker } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { textOf } from "../support/native-session.ts";

const ODD_IDS = [
  "__proto__",
  "constructor",
  "prototype",
  "toString",
  "hasOwnProperty",
  "../../etc/passwd",
  "a'b\"c\\d",
  "$where",
  "%00",
  " ",
  "0",
  "-1",
  "null",
  "undefined",
  "*",
  "+/=?;:,",
  "1:a",
  "2:g\u2028",
  "\ufeff",
  "e\u0301",
  "群",
  "\u{1f600}",
  "x".repeat(128),
];
const TIMEOUT_MS = 120_000;

const broker = await startBroker(t);
for (const uid of ODD_IDS) await broker.call("/user/token", { uid, token: uid, device_flag: 0 });
/** Each user with the user it sends to. */
const PAIRS = ODD_IDS.map((id, i) => [id, ODD_IDS[(i + 1) % ODD_IDS.length] ?? ""] as const);

const open = (t: { teardown(clean: () => unknown): unknown }, uid: string) =>
  connectNative(t, {
    port: broker.clientPort,
    uid,
    token: uid,
    deviceId: uid,
    timeoutMs: TIMEOUT_MS,
  });

t.test(
  "users with unusual ids can connect, send, retry and read history, and are reported online",
  async (t) => {
    for (const [id, peerId] of PAIRS) {
      const [me, peer] = await Promise.all([open(t, id), open(t, peerId)]);
      const channel = { type: 1, id: peerId } as const;
      const receipt = await me.send(channel, id, { clientMsgNo: id });
      const repeated = await me.send(channel, id, { clientMsgNo: id });
      await peer.nextMessage();
      const { messages } = await peer.history({ type: 1, id }, { reverse: true });
      const { body } = await broker.call("/user/onlinestatus", [id, id]);
      const { presence } = await peer.presence([id]);
      t.equal(repeated.messageId, receipt.messageId);
      t.same(peer.messages.map(textOf), [id]);
      t.same([messages[0]?.fromUid, messages[0]?.clientMsgNo], [id, id]);
      const record = { uid: id, online: 1, device_flag: 0 };
      t.same(body, [record, record]);
      t.same(presence, [{ uid: id, online: true, flag: 0 }]);
      const newer = await open(t, id);
      t.equal((await me.closed).code, CLOSE_REASONS.replaced.code);
      await Promise.all([newer.close(), peer.close()]);
    }
  },
);

t.test("groups with unusual ids can be created, sent to, read and left", async (t) => {
  for (const [id, peerId] of PAIRS) {
    const group = { channel_id: id, channel_type: 2 };
    const channel = { type: 2, id } as const;
    const created = await broker.call("/channel", {
      ...group,
      subscribers: [id, peerId],
    });
    t.equal(created.status, 200);
    t.equal((await broker.call("/channel", group)).status, 409);
    const [me, peer] = await Promise.all([open(t, id), open(t, peerId)]);
    const labels = { clientMsgNo: id, tagKey: id, streamNo: id };
    t.equal((await me.send(channel, id, labels)).messageSeq, 1);
    t.equal(textOf(await peer.nextMessage()), id);
    const query = new URLSearchParams({ channel_id: id, channel_type: "2" });
    const { body } = await broker.call(`/channel/messages?${query}`);
    const { from_uid, tag_key, stream_no, channel_id } = body.messages[0];
    t.same([from_uid, tag_key, stream_no, channel_id], [id, id, id, id]);
    const leaving = { ...group, subscribers: [id] };
    const removed = await broker.call("/channel/subscriber_remove", leaving);
    t.equal(removed.status, 200);
    await t.rejects(me.send(channel, "x"), { code: "not_subscriber" });
    await Promise.all([me.close(), peer.close()]);
  }
});
