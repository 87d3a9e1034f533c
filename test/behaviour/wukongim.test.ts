// What a backend written for WuKongIM meets in its dialect: calls that change the channel that is
// there, and replies it can read.

import { t } from "../support/suite.ts";
import { group, receives, startWorld, wire } from "./world.ts";

const world = await startWorld(t, { JINDOU_API_DIALECT: "wukongim" });
const DONE = { status: 200 };

t.test(
  "POST /channel creates a channel, then changes it, and reset replaces its members",
  async (t) => {
    const [ann, bob] = [world.name("ann"), world.name("bob")];
    const channel = group(world.name("group"));
    const member = await world.join(t, bob);
    const put = (more: object) => world.call("/channel", { ...wire(channel), ...more });
    t.same((await put({ ban: 1, subscribers: [ann] })).body, DONE);
    const banned = await world.send(ann, channel, "no");
    t.match(banned, {
      status: 400,
      body: { msg: "Nobody may speak in the channel", status: 400 },
    });
    t.same((await put({ subscribers: [bob] })).body, DONE);
    const sent = await world.send(ann, channel, "hello");
    t.match(sent.body, {
      status: 200,
      data: { message_id: Number, message_seq: 1, client_msg_no: String },
    });
    t.same(await receives(member, 1), ["hello"]);
    t.same((await put({ reset: 1, subscribers: [bob] })).body, DONE);
    t.equal((await world.send(ann, channel, "gone")).status, 400);
    t.equal((await world.send(bob, channel, "here")).status, 200);
    t.same((await put({ disband: 1 })).body, DONE);
    t.match(await put({ disband: 0 }), {
      status: 400,
      body: { msg: "The channel is disbanded" },
    });
  },
);

t.test(
  "members come to a channel that was never created, and strangers are removed without an error",
  async (t) => {
    const [ann, bob] = [world.name("ann"), world.name("bob")];
    const channel = group(world.name("group"));
    const remove = (uids: string[]) =>
      world.call("/channel/subscriber_remove", {
        ...wire(channel),
        subscribers: uids,
      });
    t.same((await remove([ann])).body, DONE);
    const { channel_id } = wire(channel);
    const added = await world.call("/channel/subscriber_add", {
      ...{ channel_id, channel_type: 0, subscribers: [ann, bob] },
    });
    t.same(added.body, DONE);
    t.same((await remove(["nobody", ann, "no one"])).body, DONE);
    t.equal((await world.send(ann, channel, "gone")).status, 400);
    t.equal((await world.send(bob, channel, "here")).status, 200);
  },
);

t.test("online status has a record for each live session", async (t) => {
  const [ann, bob] = [world.name("ann"), world.name("bob")];
  await world.join(t, ann, { flag: 1, deviceId: "one" });
  await world.connect(t, ann, { flag: 1, deviceId: "two" });
  const { body } = await world.call("/user/onlinestatus", [bob, ann]);
  const record = { uid: ann, device_flag: 1, online: 1 };
  t.same(body, [record, record]);
});
