// Sending commands with the real store: which users get a stored copy, to which users a command is
// only pushed, and the result of a retry.

import { createMessages } from "../../src/broker/messages.ts";
import type { ClusterEvent, Store } from "../../src/broker/ports.ts";
import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { COMMAND, HEADER, textMessage as input } from "./inputs.ts";
import { group, MAX_PAYLOAD_BYTES, person, rules, startNode, type TestNode } from "./node.ts";

const RANGE = {
  ...{ fromSeq: 1, toSeq: Number.MAX_SAFE_INTEGER, limit: 100 },
  ...{ reverse: false, maxBytes: 1_000_000 },
};

const PAGE = { limit: 10, maxBytes: 1_000_000 };

type EventOf<K extends ClusterEvent["kind"]> = Extract<ClusterEvent, { readonly kind: K }>;

const messagesOf = ({ events }: TestNode): readonly EventOf<"message">[] =>
  events.flatMap((event) => (event.kind === "message" ? [event] : []));

const commandsOf = ({ events }: TestNode): readonly EventOf<"command">[] =>
  events.flatMap((event) => (event.kind === "command" ? [event] : []));

t.test("commands get no seq of the channel and are not in its history", async (t) => {
  const node = await startNode(t);
  const commands = [input({ payload: COMMAND }), input({ header: { ...HEADER, syncOnce: true } })];
  for (const command of commands) t.equal((await node.messages.send(command)).messageSeq, 0);
  t.same(messagesOf(node), []);
  t.equal(commandsOf(node).length, 2);
  t.equal((await node.messages.send(input())).messageSeq, 1);
  const view = { uid: "bob", channel: person("alice") };
  const { messages } = await node.messages.history(view, RANGE);
  t.same(
    messages.map(({ messageSeq }) => messageSeq),
    [1],
  );
});

t.test(
  "a command is stored for its recipients and pushed to the sender's other devices",
  async (t) => {
    const node = await startNode(t);
    await node.channels.create(rules(group("g")), ["alice", "bob", "carol"]);
    const channel = group("g");
    const command = input({
      payload: COMMAND,
      channel,
      origin: "s1",
      tagKey: "tag",
    });
    const sent = await node.messages.send(command);
    const [event, ...more] = commandsOf(node);
    t.same(more, []);
    matchObject(t, event, {
      origin: "s1",
      message: {
        messageId: sent.messageId,
        channel,
        fromUid: "alice",
        tagKey: "tag",
      },
    });
    const copies = event?.copies.map(({ uid, inboxSeq }) => `${uid} ${inboxSeq}`);
    t.same(copies?.sort(), ["alice 0", "bob 1", "carol 1"]);
    for (const uid of ["bob", "carol"])
      matchObject(t, await node.store.readInbox(uid, 0, PAGE), [
        { inboxSeq: 1, message: { messageId: sent.messageId, messageSeq: 1 } },
      ]);
    t.same(await node.store.readInbox("alice", 0, PAGE), []);
  },
);

t.test("a retry of a command returns the first result and stores no second copy", async (t) => {
  const node = await startNode(t);
  const command = input({ payload: COMMAND, clientMsgNo: "c1" });
  const first = await node.messages.send(command);
  const retried = { ...first, repeated: true };
  const retries = [command, command, { ...command, origin: "s2" }];
  for (const sent of await Promise.all(retries.map((retry) => node.messages.send(retry))))
    t.strictSame(sent, retried);
  t.equal(commandsOf(node).length, 1);
  t.equal((await node.store.readInbox("bob", 0, PAGE)).length, 1);
  t.equal(await node.store.acknowledgeCommands("bob", [1]), 1);
  t.strictSame(await node.messages.send(command), retried);
  t.same(
    await node.store.readInbox("bob", 0, PAGE),
    [],
    "the acknowledged copy is not stored again",
  );
});

t.test(
  "a command that its sender may not send is refused, but a retry of an accepted command is not",
  async (t) => {
    const node = await startNode(t);
    const { channels, messages } = node;
    const channel = group("g");
    const command = input({ payload: COMMAND, channel, clientMsgNo: "c1" });
    await t.rejects(messages.send(command), { code: "not_subscriber" });
    await channels.create(rules(channel), ["alice", "bob"]);
    const first = await messages.send(command);
    await channels.update(channel, { ban: true });
    t.strictSame(await messages.send(command), { ...first, repeated: true });
    const other = { ...command, clientMsgNo: "c2" };
    await t.rejects(messages.send(other), { code: "channel_banned" });
    t.equal(commandsOf(node).length, 1);
  },
);

t.test(
  "a sender is charged for the copies of a command only if the command is stored",
  async (t) => {
    const { messages } = await startNode(t);
    let charged = 0;
    const copyLimit = {
      requirePaid() {},
      admit(copies: number) {
        charged += copies;
      },
      refund() {
        charged = 1; // only the first command is stored
      },
    };
    const command = { ...input({ payload: COMMAND, clientMsgNo: "c1", origin: "s1" }), copyLimit };
    await messages.send(command);
    t.equal(charged, 1);
    await messages.send(command);
    t.equal(charged, 1, "a retry");
    const other = Buffer.from('{"type":99,"cmd":"other","param":{}}');
    await t.rejects(messages.send({ ...command, payload: other }), {
      code: "client_msg_no_reused",
    });
    t.equal(charged, 1, "another payload");
  },
);

t.test("the list of members is not read when a command is refused", async (t) => {
  const { channels, store } = await startNode(t);
  await channels.create(rules(group("g")), ["bob", "carol"]);
  let reads = 0;
  const counting: Store = {
    ...store,
    members: (channel) => {
      reads += 1;
      return store.members(channel);
    },
    membersAmong: (channel, uids) => {
      reads += 1;
      return store.membersAmong(channel, uids);
    },
  };
  const limits = { maxPayloadBytes: MAX_PAYLOAD_BYTES, historyLimit: 1 };
  const messages = createMessages(counting, {
    ...limits,
    friendsOnly: false,
    isSystem: () => false,
    contentValidation: "json",
  });
  const command = input({ payload: COMMAND, channel: group("g") });
  for (const subscribers of [undefined, ["bob"]])
    for (const origin of [undefined, "s1"])
      await t.rejects(messages.send({ ...command, subscribers, origin }), {
        code: "not_subscriber",
      });
  t.equal(reads, 0);
  await messages.send({ ...command, fromUid: "bob" });
  t.equal(reads, 1);
});

t.test(
  "a command with subscribers reaches only those subscribers who belong to the channel",
  async (t) => {
    const node = await startNode(t);
    await node.channels.create(rules(group("g")), ["alice", "bob", "carol"]);
    await node.channels.addSubscribers(group("g"), ["dave"], {
      membership: "temporary",
      reset: false,
    });
    const subscribers = ["bob", "erin", "bob", "dave", "alice"];
    const command = { payload: COMMAND, subscribers };
    const receivers = (at: number) => commandsOf(node)[at]?.copies.map(({ uid }) => uid);
    await node.messages.send(input({ ...command, channel: group("g") }));
    t.same(receivers(0), ["bob", "dave", "alice"]);
    await node.messages.send(input(command));
    t.same(
      receivers(1),
      ["bob", "alice"],
      "in a personal channel, only its two users receive the command",
    );
    await node.messages.send(input({ ...command, subscribers: ["erin"] }));
    t.same(receivers(2) ?? [], [], "a list without members of the channel reaches nobody");
    t.equal((await node.store.readInbox("carol", 0, PAGE)).length, 0);
  },
);

t.test(
  "a command with no_persist or to a large group is pushed to online users and not stored",
  async (t) => {
    const node = await startNode(t);
    const channel = group("g");
    await node.channels.create(rules(channel, { large: true }), ["alice", "bob"]);
    const header = { ...HEADER, noPersist: true };
    const subscribers = ["bob", "erin"];
    const commands = [
      input({ payload: COMMAND, header }),
      input({ payload: COMMAND, header, subscribers }),
      input({ payload: COMMAND, channel }),
      input({ payload: COMMAND, channel, subscribers }),
    ];
    for (const command of commands) t.equal((await node.messages.send(command)).messageSeq, 0);
    t.same(commandsOf(node), []);
    matchObject(
      t,
      messagesOf(node).map(({ recipients, message }) => [recipients, message.header.noPersist]),
      [
        [undefined, true],
        [["bob"], true],
        [undefined, true],
        [["bob"], true],
      ],
    );
    t.same(await node.store.readInbox("bob", 0, PAGE), []);
  },
);
