// Copies of messages for the sender's own devices, and unstored commands, as WuKongIM's clients see
// them [decisions: As WuKongIM's clients see it].

import { type JsonRpcClient, openJsonRpc } from "../support/jsonrpc-client.ts";
import { t } from "../support/suite.ts";
import {
  connectWkproto,
  WKPROTO_LISTENER,
  type WkprotoClient,
  wkprotoPortOf,
} from "../support/wkproto-client.ts";
import { person, startWorld, type World, wire } from "./world.ts";

const RED_DOT = 2;
const SYNC_ONCE = 4;
const CATCH_UPS = 50;
const SENDS = 50;

/** Connects one user with both of WuKongIM's protocols. */
async function connectTwice(test: typeof t, world: World, uid: string) {
  await world.register(uid, { flag: 1 });
  const port = world.clientPort;
  const json = await openJsonRpc(test, { port });
  const token = `token-${uid}`;
  await json.request("connect", { uid, token, deviceFlag: 1, deviceId: "json" });
  const binary = await connectWkproto(test, {
    port: wkprotoPortOf(world),
    uid,
    token,
    deviceFlag: 1,
  });
  return { uid, json, binary };
}

/**
 * Returns whether the message with this `clientMsgNo` has the flags `redDot` and `syncOnce`, each
 * for JSON-RPC and WKProto.
 */
async function flagsOf(
  { json, binary }: { json: JsonRpcClient; binary: WkprotoClient },
  clientMsgNo: string,
) {
  const isIt = (message: { clientMsgNo?: unknown }) => message.clientMsgNo === clientMsgNo;
  await json.waitFor(() => json.all("recv").some(isIt), clientMsgNo);
  await binary.next("RECV", isIt);
  const { header } = json.all("recv").find(isIt);
  const { flags = 0 } = binary.received.find(({ fields }) => isIt(fields)) ?? {};
  return {
    redDot: [header.redDot === true, (flags & RED_DOT) !== 0],
    syncOnce: [header.syncOnce === true, (flags & SYNC_ONCE) !== 0],
  };
}

for (const encryption of ["true", "false"])
  t.test(
    `the copy of a message for the sender's own devices has no red dot, and an unstored command has syncOnce (encryption: ${encryption})`,
    async (t) => {
      const world = await startWorld(t, {
        ...WKPROTO_LISTENER,
        JINDOU_PROTOCOL_WKPROTO_ENCRYPTION: encryption,
      });
      const ann = await connectTwice(t, world, "ann");
      const ben = await connectTwice(t, world, "ben");
      const channels = [await world.newGroup(["ann", "ben"]), person("ben")];
      await world.untilSubscribed();
      for (const [at, channel] of channels.entries()) {
        const send = (no: string, header: object) =>
          world.ok("/message/send", {
            ...{ from_uid: "ann", client_msg_no: no, header, ...wire(channel) },
            payload: "eyJ0eXBlIjoxfQ==",
          });
        await send(`m${at}`, { red_dot: 1 });
        t.same((await flagsOf(ann, `m${at}`)).redDot, [false, false], "the sender's copy");
        t.same((await flagsOf(ben, `m${at}`)).redDot, [true, true], "the other user's copy");
        await send(`c${at}`, { sync_once: 1, no_persist: 1 });
        for (const user of [ann, ben])
          t.same((await flagsOf(user, `c${at}`)).syncOnce, [true, true], "an unstored command");
        const params = { channelId: channel.id, channelType: channel.type, clientMsgNo: `s${at}` };
        await ann.json.request("send", {
          ...params,
          header: { redDot: true },
          payload: { type: 1 },
        });
        t.same((await flagsOf(ben, `s${at}`)).redDot, [true, true]);
        await ann.binary.next("RECV", (recv) => recv.clientMsgNo === `s${at}`);
        const own = ann.binary.received.find(({ fields }) => fields.clientMsgNo === `s${at}`);
        t.equal((own?.flags ?? 0) & RED_DOT, 0, "the copy for another device");
        t.notOk(ann.json.all("recv").some((recv) => recv.clientMsgNo === `s${at}`));
      }
    },
  );

for (const driver of ["uws", "portable"])
  t.test(
    `the messages of a group arrive in the order of their seqs, and the message of a stream arrives before its events, even if only some senders are online (transport: ${driver})`,
    async (t) => {
      const world = await startWorld(t, {
        ...WKPROTO_LISTENER,
        JINDOU_PROTOCOL_WKPROTO_ENCRYPTION: "false",
        JINDOU_TRANSPORT_DRIVER: driver,
      });
      await connectTwice(t, world, "ann");
      const cat = await connectTwice(t, world, "cat");
      const channel = await world.newGroup(["ann", "ben", "cat"]);
      await world.untilSubscribed();
      const senders = ["ann", "ben", "ann", "ben"];
      for (let at = 0; at < SENDS; at++)
        await Promise.all(senders.map((sender) => world.send(sender, channel, "hi")));
      const count = senders.length * SENDS;
      await cat.json.waitFor(() => cat.json.all("recv").length === count);
      await cat.binary.nth(count, ({ packet }) => packet === "RECV");
      const expected = Array.from({ length: count }, (_, at) => at + 1);
      const overJson = cat.json.all("recv").map(({ messageSeq }) => messageSeq);
      t.same(overJson, expected, "over JSON-RPC");
      const recvs = cat.binary.received.filter(({ packet }) => packet === "RECV");
      const overBinary = recvs.map(({ fields }) => fields.messageSeq);
      t.same(overBinary, expected, "over WKProto");
      for (const no of ["stream-1", "stream-2"]) {
        const stream = { client_msg_no: no, from_uid: "ann", ...wire(channel) };
        await world.ok("/event", { ...stream, event: { type: "___TextMessageStart" } });
        await world.ok("/event", { ...stream, event: { type: "___TextMessageEnd" } });
        await cat.json.next("event");
        await cat.json.next("event");
        const methods = cat.json.notifications.slice(-3).map(({ method }) => method);
        t.same(methods, ["recv", "event", "event"], "the message of a stream arrives first");
      }
    },
  );

t.test(
  "a sender's own messages have no red dot, even in a group that the sender has just joined",
  async (t) => {
    const world = await startWorld(t, WKPROTO_LISTENER);
    const ann = await connectTwice(t, world, "ann");
    const ben = await connectTwice(t, world, "ben");
    // On Redis, sessions catch up with messages that are sent before they follow the group. On the
    // embedded store, sessions follow a group at once, so only the run on three nodes can fail.
    for (let at = 0; at < CATCH_UPS; at++) {
      const channel = await world.newGroup(["ben"]);
      const add = { ...wire(channel), subscribers: ["ann"] };
      await world.ok("/channel/subscriber_add", add);
      for (const uid of ["ann", "ben"])
        await world.ok("/message/send", {
          ...{ from_uid: uid, client_msg_no: `${uid}${at}`, header: { red_dot: 1 } },
          ...wire(channel),
          payload: "eyJ0eXBlIjoxfQ==",
        });
      t.same((await flagsOf(ann, `ann${at}`)).redDot, [false, false], "the sender's copy");
      t.same((await flagsOf(ann, `ben${at}`)).redDot, [true, true], "a copy of another user");
      t.same((await flagsOf(ben, `ben${at}`)).redDot, [false, false]);
    }
  },
);
