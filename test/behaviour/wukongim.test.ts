// The dialect of WuKongIM for backends: calls that change an existing channel, and replies in
// WuKongIM's form.

import type { ChannelRef } from "../../src/broker/model.ts";
import { textPayload } from "../support/broker.ts";
import { t } from "../support/suite.ts";
import { createFixture } from "./stream-fixture.ts";
import { group, person, startWorld, untilReceived, wire } from "./world.ts";

const world = await startWorld(t, { JINDOU_API_DIALECT: "wukongim" });
const DONE = { status: 200 };

async function membersOf({ id }: ChannelRef): Promise<readonly string[]> {
  const { body } = await world.call(`/channel/members?channel_id=${id}&channel_type=2`);
  return body.uids;
}

const NO_IDS = { message_ids: [null], client_msg_nos: [null] };

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
      body: { msg: "Only system accounts may send to the channel", status: 400 },
    });
    t.same((await put({ subscribers: [bob] })).body, DONE);
    const response = await world.send(ann, channel, "hello");
    t.match(response.body, {
      status: 200,
      data: { message_id: Number, message_seq: 1, client_msg_no: String },
    });
    t.same(await untilReceived(member, 1), ["hello"]);
    t.same((await put({ reset: 1, subscribers: [bob] })).body, DONE);
    t.same(await membersOf(channel), [bob]);
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
    t.same(await membersOf(channel), [bob]);
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
  "in the wukongim dialect, a number above the maximum or below the minimum is replaced by the nearest allowed number, and a flag whose value is not 1 counts as 0",
  async (t) => {
    const [ann, bob] = [world.name("ann"), world.name("bob")];
    for (const text of ["one", "two"]) await world.send(bob, person(ann), text);
    const largest = Number("9223372036854775807");
    const lengthsOf = async (path: string, fields: object) => {
      const lists = [];
      for (const [name, values] of Object.entries(fields))
        for (const value of values) {
          const body = { uid: ann, login_uid: ann, ...wire(person(bob)), limit: 9 };
          const { status, body: reply } = await world.call(path, { ...body, [name]: value });
          lists.push([status, (reply.messages ?? reply).length]);
        }
      return [...new Set(lists.map(String))];
    };
    const outside = [-1, largest];
    t.same(await lengthsOf("/channel/messagesync", { limit: [10_001], pull_mode: [2, -1] }), [
      "200,2",
    ]);
    t.same(await lengthsOf("/channel/messagesync", { start_message_seq: outside }), ["200,2"]);
    t.same(await lengthsOf("/channel/messagesync", { end_message_seq: [-1] }), ["200,2"]);
    const listFields = { version: outside, msg_count: [-1, 201, largest], only_unread: [2, -1] };
    const pageFields = { limit: [0, ...outside], page: [-1], page_size: [501, ...outside] };
    t.same(await lengthsOf("/conversation/sync", { ...listFields, ...pageFields }), ["200,1"]);
    t.same(await lengthsOf("/message/sync", { limit: [1001, ...outside] }), ["200,0"]);
    for (const [name, value] of [
      ["limit", 1.5],
      ["version", "1"],
    ] as const)
      t.equal((await world.call("/conversation/sync", { uid: ann, [name]: value })).status, 400);
  },
);

t.test(
  "in the wukongim dialect, invalid uids and null entries of a list are skipped",
  async (t) => {
    const [ann, bob] = [world.name("ann"), world.name("bob")];
    const invalid = ["", " ", "a@b", "x".repeat(129), "\u0000", null];
    const channel = wire(group(world.name("group")));
    const list = [ann, ...invalid, bob];
    const done = async (path: string, fields: object) =>
      t.same((await world.call(path, fields)).body, DONE, path);
    const membersOf = async (name: string) => {
      const { channel_id, channel_type } = channel;
      const query = `channel_id=${channel_id}&channel_type=${channel_type}&list=${name}`;
      return (await world.call(`/channel/members?${query}`)).body.uids;
    };
    await done("/channel", { ...channel, subscribers: list });
    await done("/channel/subscriber_add", { ...channel, subscribers: list });
    t.same(await membersOf("subscribers"), [ann, bob]);
    for (const name of ["blacklist", "whitelist"]) {
      await done(`/channel/${name}_add`, { ...channel, uids: list });
      t.same(await membersOf(name), [ann, bob]);
      await done(`/channel/${name}_remove`, { ...channel, uids: [...invalid, ann] });
      await done(`/channel/${name}_set`, { ...channel, uids: list });
      t.same(await membersOf(name), [ann, bob]);
      await done(`/channel/${name}_set`, channel);
      t.same(await membersOf(name), [], "a missing list is empty");
    }
    await done("/user/systemuids_add", { uids: list });
    await done("/user/systemuids_remove", { uids: list });
    await done("/channel/subscriber_remove", { ...channel, subscribers: [...invalid, bob] });
    t.same(await membersOf("subscribers"), [ann]);

    t.same((await world.call("/user/onlinestatus", list)).body, []);
    const routes: { uids: string[] }[] = (await world.call("/route/batch", list)).body;
    t.same(routes.flatMap(({ uids }) => uids).sort(), [ann, bob].sort());
    const batch = { from_uid: ann, payload: textPayload("hello"), subscribers: [bob, "", null] };
    t.same((await world.call("/message/sendbatch", batch)).body.fail_uids, [""]);
    const reused = { ...batch, subscribers: [bob], client_msg_no: world.name("batch") };
    for (const payload of [batch.payload, textPayload("other")])
      t.same((await world.call("/message/sendbatch", { ...reused, payload })).body.fail_uids, []);
    const lookup = { login_uid: ann, ...wire(person(bob)), message_seqs: [null, 1], ...NO_IDS };
    t.equal((await world.call("/messages", lookup)).body.messages.length, 1);

    const muted = await world.call("/channel/whitelist_set", { ...channel, uids: [""] });
    t.equal(muted.status, 400, "an empty whitelist would let all members send");
    const command = { header: { sync_once: 1 }, payload: textPayload("do"), from_uid: ann };
    const forNobody = { ...command, ...channel, subscribers: ["", null] };
    t.equal((await world.call("/message/send", forNobody)).status, 400);
    const forAnn = { ...command, ...channel, subscribers: ["", null, ann] };
    t.equal((await world.call("/message/send", forAnn)).status, 200);
    const client_msg_no = world.name("command");
    const personal = { ...command, subscribers: ["", bob], client_msg_no };
    for (const _ of ["first", "retry"]) {
      const { body } = await world.call("/message/send", personal);
      t.same([body.status, body.fail_uids, body.data], [200, [""], undefined]);
    }
    const inbox = { uid: bob, message_seq: 0, limit: 10 };
    const commands: unknown[] = (await world.call("/message/sync", inbox)).body;
    t.equal(commands.length, 1, "a retry is not stored again");
  },
);

t.test("in the wukongim dialect, the base64 of a payload may contain line breaks", async (t) => {
  const [ann, bob] = [world.name("ann"), world.name("bob")];
  const payload = textPayload("x".repeat(101));
  for (const lineBreak of ["\n", "\r\n"]) {
    const lines = `${payload.slice(0, 76)}${lineBreak}${payload.slice(76)}${lineBreak}`;
    const body = { from_uid: ann, payload: lines };
    const sent = await world.call("/message/send", { ...body, ...wire(person(bob)) });
    t.equal(sent.status, 200);
    const batch = await world.call("/message/sendbatch", { ...body, subscribers: [bob] });
    t.same(batch.body, { fail_uids: [], reason: [] });
  }
  const sync = { login_uid: ann, ...wire(person(bob)) };
  const { messages } = (await world.call("/channel/messagesync", sync)).body;
  t.same([...new Set(messages.map((message: { payload: string }) => message.payload))], [payload]);
  for (const invalid of [payload.replace(/=+$/, ""), `${payload} `, "\n"])
    t.equal((await world.send(ann, person(bob), "", { payload: invalid })).status, 400);
});

t.test(
  "in the wukongim dialect, the unread count of a user's conversation with a group can be set, and the conversation deleted, even if the user is not in the group",
  async (t) => {
    const [ann, bob] = [world.name("ann"), world.name("bob")];
    const channel = await world.newGroup([ann, bob]);
    await world.send(bob, channel, "hello");
    const target = { uid: ann, ...wire(channel) };
    await world.call("/channel/subscriber_remove", { ...wire(channel), subscribers: [ann] });
    for (const call of ["clearUnread", "setUnread", "delete"]) {
      const { body } = await world.call(`/conversations/${call}`, { ...target, unread: 1 });
      t.same(body, DONE, call);
      const missing = { ...target, unread: 1, channel_id: world.name("missing") };
      t.same((await world.call(`/conversations/${call}`, missing)).body, DONE, call);
    }
    t.same((await world.call("/conversation/sync", { uid: ann })).body, []);
  },
);

t.test(
  "in the wukongim dialect, the data of an end event is returned as the stream's error, and an event's timestamp may be negative or in nanoseconds",
  async (t) => {
    const fixture = await createFixture(t, world);
    const { uid } = fixture.bob;
    for (const [no, data] of [
      ["failed", "no tokens left"],
      ["complete", ""],
    ] as const) {
      await fixture.start(no, { event: { timestamp: 1_765_000_000_000_000_000 } });
      const chunk = await fixture.addText(no, "text", { event: { timestamp: -1 } });
      t.equal(chunk.status, 200);
      await fixture.post(no, "___TextMessageEnd", data);
    }
    const body = { login_uid: uid, ...wire(fixture.channel) };
    const { messages } = (await world.call("/channel/messagesync", body)).body;
    const fields = { uid, msg_count: 2 };
    const [{ recents }] = (await world.call("/conversation/sync", fields)).body;
    t.same(recents.toReversed(), messages);
    const endOf = ({ end, end_reason, error }: Record<string, unknown>) => [end, end_reason, error];
    t.same(messages.map(endOf), [
      [1, 2, "no tokens left"],
      [1, undefined, undefined],
    ]);
    t.equal(atob(messages[0].stream_data), "text");
    const fieldNames = ["state", "text", "next_index", "start_data", "end_data", "events"];
    t.same(Object.keys(messages[0].stream), fieldNames, "the dialect has no further fields");
  },
);

t.test(
  "in the wukongim dialect, the conversation list contains ____system, large groups with an unread count of 0, and newly joined groups, but a list with `version` omits a newly joined group until its next message",
  async (t) => {
    const [ann, bob] = [world.name("ann"), world.name("bob")];
    const list = async (fields: object = {}) => {
      const { body } = await world.call("/conversation/sync", { uid: ann, ...fields });
      return body as { channel_id: string; unread: number; version: number }[];
    };
    const idsIn = async (fields?: object) =>
      (await list(fields)).map(({ channel_id }) => channel_id).toSorted();
    const RED = { header: { red_dot: 1 } };
    const large = await world.newGroup([ann, bob], { large: 1 });
    await world.send(bob, large, "hello", RED);
    await world.send("", person(ann), "hello", RED);
    t.same(await idsIn(), ["____system", large.id]);
    t.same(await idsIn({ only_unread: 1 }), ["____system"]);
    for (const call of ["delete", "setUnread"])
      await world.call(`/conversations/${call}`, { uid: ann, ...wire(large), unread: 1 });
    t.same(await idsIn(), ["____system", large.id]);
    const [{ unread } = { unread: -1 }] = await list({ exclude_channel_types: [1] });
    t.equal(unread, 0);

    const joined = await world.newGroup([bob]);
    await world.send(bob, joined, "first");
    await world.send(bob, person(ann), "later");
    const version = Math.max(...(await list()).map((conversation) => conversation.version)) + 1;
    await world.call("/channel/subscriber_add", { ...wire(joined), subscribers: [ann] });
    t.ok((await idsIn()).includes(joined.id));
    t.same(await idsIn({ version }), []);
    await world.send(bob, joined, "second");
    t.same(await idsIn({ version }), [joined.id]);
  },
);

t.test(
  "a body with deeply nested objects is not answered with 500 in the wukongim dialect",
  async (t) => {
    const nested = (unit: string, depth: number) =>
      `${unit.repeat(depth)}1${(unit.startsWith("[") ? "]" : "}").repeat(depth)}`;
    const values = [nested('{"header":', 20_000), nested('{"ban":', 20_000), nested("[", 20_000)];
    const ending = '"event_id":"e","event_type":"stream.close"';
    const to = `"channel_id":"${world.name("bob")}","channel_type":1`;
    const paths = ["/message/send", "/channel", "/event", "/message/sendbatch", "/message/event"];
    for (const path of paths)
      for (const field of ["header", "payload", "subscribers", "x"])
        for (const value of values) {
          const response = await fetch(`http://127.0.0.1:${world.apiPort}${path}`, {
            method: "POST",
            headers: { "content-type": "application/json" },
            body: `{"from_uid":"ann",${to},"client_msg_no":"n",${ending},"${field}":${value}}`,
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
