// The dialect of WuKongIM for backends: calls that change an existing channel, and replies in
// WuKongIM's form.

import { t } from "../support/suite.ts";
import { group, startWorld, untilReceived, wire } from "./world.ts";

const world = await startWorld(t, { JINDOU_API_DIALECT: "wukongim" });
const DONE = { status: 200 };

t.test(
  "POST /channel creates or changes a channel in the wukongim dialect, and `reset` replaces its members",
  async (t) => {
    const [ann, bob] = [world.name("ann"), world.name("bob")];
    const channel = group(world.name("group"));
    const member = await world.join(t, bob);
    const put = (fields: object) => world.call("/channel", { ...wire(channel), ...fields });
    t.same((await put({ ban: 1, subscribers: [ann] })).body, DONE);
    const banned = await world.send(ann, channel, "no");
    t.match(banned, {
      status: 400,
      body: { msg: "Nobody may send to the channel", status: 400 },
    });
    t.same((await put({ subscribers: [bob] })).body, DONE);
    const response = await world.send(ann, channel, "hello");
    t.match(response.body, {
      status: 200,
      data: { message_id: Number, message_seq: 1, client_msg_no: String },
    });
    t.same(await untilReceived(member, 1), ["hello"]);
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
  "in the wukongim dialect, members can be added to a channel that was never created, and removing a user who is not a member succeeds",
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
    t.same((await remove(["nobody", ann, "stranger"])).body, DONE);
    t.equal((await world.send(ann, channel, "gone")).status, 400);
    t.equal((await world.send(bob, channel, "here")).status, 200);
  },
);

t.test(
  "POST /user/onlinestatus returns a record for each live session in the wukongim dialect",
  async (t) => {
    const [ann, bob] = [world.name("ann"), world.name("bob")];
    await world.join(t, ann, { flag: 1, deviceId: "first" });
    await world.connect(t, ann, { flag: 1, deviceId: "second" });
    const { body } = await world.call("/user/onlinestatus", [bob, ann]);
    const record = { uid: ann, device_flag: 1, online: 1 };
    t.same(body, [record, record]);
  },
);

t.test(
  "a body with deeply nested objects is not answered with 500 in the wukongim dialect",
  async (t) => {
    const nested = (unit: string, depth: number) =>
      `${unit.repeat(depth)}1${(unit.startsWith("[") ? "]" : "}").repeat(depth)}`;
    const values = [nested('{"header":', 20_000), nested('{"ban":', 20_000), nested("[", 20_000)];
    const to = `"channel_id":"${world.name("bob")}","channel_type":1`;
    for (const path of ["/message/send", "/channel", "/event", "/message/sendbatch"])
      for (const field of ["header", "payload", "subscribers", "x"])
        for (const value of values) {
          const response = await fetch(`http://127.0.0.1:${world.apiPort}${path}`, {
            method: "POST",
            headers: { "content-type": "application/json" },
            body: `{"from_uid":"ann",${to},"client_msg_no":"n","${field}":${value}}`,
          });
          const { status } = response;
          const text = await response.text();
          t.ok(
            status < 500,
            `${path} with ${value.slice(0, 10)} in ${field}: ${status} ${text.slice(0, 80)}`,
          );
        }
  },
);
