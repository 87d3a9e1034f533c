// System accounts: users whom a backend exempts, on every node, from the permission rules of
// sending.

import { t } from "../support/suite.ts";
import { sendCommand, untilCommands } from "./inboxes.ts";
import { eventually, person, startWorld, untilReceived, wire } from "./world.ts";

const world = await startWorld(t);
const ADD = "/user/systemuids_add";
const REMOVE = "/user/systemuids_remove";

const isListed = async (uid: string): Promise<boolean> =>
  (await world.call("/user/systemuids")).body.includes(uid);

// Covers [feature: user/systemuids]
t.test(
  "a system account can send messages, commands and events to every group that is not disbanded",
  async (t) => {
    const [bot, bob] = [world.name("bot"), world.name("bob")];
    const channel = await world.newGroup([bob], { ban: 1 });
    const client = await world.join(t, bob);
    const send = async () => (await world.send(bot, channel, "hello")).status;
    t.equal(await send(), 403);
    t.same(await world.ok(ADD, { uids: [bot] }), { status: "ok" });
    t.ok(await isListed(bot));
    let accepted = 0;
    await eventually(async () => {
      const status = await send();
      if (status === 200) accepted += 1;
      else accepted = 0;
      return accepted >= 12; // then every node has the change
    });
    t.match(await untilReceived(client, 12), /hello/);
    t.equal((await sendCommand(world, bot, channel, "now")).status, 200);
    t.same(await untilCommands(client, 1), ["1 now"]);
    const event = { client_msg_no: "s", from_uid: bot, ...wire(channel) };
    const start = { ...event, event: { type: "___TextMessageStart" } };
    t.equal((await world.call("/event", start)).status, 200);
    await world.ok("/channel/info", { ...wire(channel), disband: 1 });
    t.match(await world.send(bot, channel, "gone"), {
      status: 403,
      body: { code: "channel_disbanded" },
    });
    await world.ok(REMOVE, { uids: [bot, world.name("other")] });
    t.notOk(await isListed(bot));
    const open = await world.newGroup([bob]);
    let refused = 0;
    await eventually(async () => {
      const { status } = await world.send(bot, open, "hello");
      refused = status === 403 ? refused + 1 : 0;
      return refused >= 12;
    });
  },
);

// Covers [feature: user/systemuids]
t.test("a user without a send ban can write to a system account that has contacts", async (t) => {
  const [help, bob, mute] = [world.name("help"), world.name("bob"), world.name("mute")];
  await world.ok("/channel", { ...wire(person(help)), subscribers: [mute] });
  await world.ok("/channel", { ...wire(person(mute)), send_ban: 1 });
  const sendAs = async (from: string) => {
    const { status, body } = await world.send(from, person(help), "help");
    return `${status} ${body.code ?? "ok"}`;
  };
  t.equal(await sendAs(bob), "403 stranger_refused");
  await world.ok(ADD, { uids: [help] });
  let accepted = 0;
  await eventually(async () => {
    accepted = (await sendAs(bob)) === "200 ok" ? accepted + 1 : 0;
    return accepted >= 12;
  });
  t.equal(await sendAs(mute), "403 send_banned");
  const client = await world.join(t, help);
  t.ok((await client.history(person(bob))).messages.length >= 12);
  await world.ok(REMOVE, { uids: [help] });
});

// Covers [feature: user/systemuids]
t.test(
  "the system uid, an invalid uid and more than 1,000 uids are refused as system accounts",
  async (t) => {
    const refusal = (uids: unknown) => world.refusal(ADD, { uids });
    t.equal(await refusal(["____system"]), "400 reserved_uid");
    t.equal(await refusal(["a@b"]), "400 bad_id");
    t.equal(await refusal("bot"), "400 bad_request");
    const many = Array.from({ length: 1000 }, (_, at) => `bot${at}`);
    await world.ok(ADD, { uids: many });
    t.equal(await refusal(["one-more"]), "400 too_large");
    await world.ok(ADD, { uids: many });
    await world.ok(REMOVE, { uids: many });
  },
);
