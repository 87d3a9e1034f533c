// Tests which users receive a command, and which of them get a stored copy.

import { audienceOf, type CommandAddress } from "../../src/broker/commands.ts";
import { SYSTEM_UID } from "../../src/broker/model.ts";
import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { group, person, rules, startNode, type TestNode } from "./node.ts";

/** Returns a command of alice to all of the group g, with the given changes. */
const address = (changes: Partial<CommandAddress> = {}): CommandAddress => ({
  fromUid: "alice",
  channel: group("g"),
  subscribers: undefined,
  noPersist: false,
  ...changes,
});

async function nodeWithGroup(t: Parameters<typeof startNode>[0], large = false): Promise<TestNode> {
  const node = await startNode(t);
  const members = ["alice", "bob", "carol"];
  await node.channels.create(rules(group("g"), { large }), members);
  await node.channels.addSubscribers(group("g"), ["dave"], {
    membership: "temporary",
    reset: false,
  });
  return node;
}

t.test("every member of a group except the sender gets a stored copy of a command", async (t) => {
  const { store } = await nodeWithGroup(t);
  const audience = await audienceOf(address(), store);
  if (audience.kind !== "store") throw new Error(audience.kind);
  t.same([...audience.recipients].sort(), ["bob", "carol", "dave"]);
  t.same(
    audience.pushOnlyRecipients,
    ["alice"],
    "the command is pushed to the other devices of the sender",
  );
  const system = await audienceOf(address({ fromUid: SYSTEM_UID }), store);
  if (system.kind !== "store") throw new Error(system.kind);
  t.same([...system.recipients].sort(), ["alice", "bob", "carol", "dave"]);
  t.same(system.pushOnlyRecipients, [], "the system has no devices to push to");
});

t.test("the other user of a personal channel gets a stored copy of a command", async (t) => {
  const { store } = await startNode(t);
  const to = (id: string, fromUid = "alice") =>
    audienceOf(address({ channel: person(id), fromUid }), store);
  const copies = { kind: "store", recipients: ["bob"] };
  t.same(await to("bob"), { ...copies, pushOnlyRecipients: ["alice"] });
  t.same(await to("bob", SYSTEM_UID), { ...copies, pushOnlyRecipients: [] });
  t.same(
    await to("alice"),
    { kind: "store", recipients: ["alice"], pushOnlyRecipients: [] },
    "a command that a user sends to themselves is stored in their inbox",
  );
  t.same(await to(SYSTEM_UID), {
    ...{ kind: "store", recipients: [], pushOnlyRecipients: ["alice"] },
  });
});

t.test(
  "listed users who belong to the channel get a stored copy of a command, including the sender",
  async (t) => {
    const { store } = await nodeWithGroup(t);
    const listed = async (subscribers: readonly string[], more: Partial<CommandAddress> = {}) => {
      const audience = await audienceOf(address({ subscribers, ...more }), store);
      matchObject(t, audience, { kind: "store", pushOnlyRecipients: [] });
      return audience.recipients;
    };
    t.same(await listed(["dave", "erin", "bob", "dave"]), ["dave", "bob"]);
    t.same(await listed(["alice"]), ["alice"]);
    t.same(await listed(["erin"]), []);
    t.same(await listed([SYSTEM_UID, "bob"]), ["bob"]);
    const channel = person("bob");
    t.same(await listed(["carol", "alice", "bob"], { channel }), ["alice", "bob"]);
    t.same(await listed(["carol"], { channel }), []);
  },
);

t.test("a command with no_persist is only pushed to online users", async (t) => {
  const { store } = await nodeWithGroup(t);
  const noPersist = true;
  t.same(await audienceOf(address({ noPersist }), store), {
    kind: "push",
    recipients: undefined,
  });
  const subscribers = ["bob", "erin"];
  t.same(await audienceOf(address({ noPersist, subscribers }), store), {
    kind: "push",
    recipients: ["bob"],
  });
});

t.test("a command to a large group is not stored for its members", async (t) => {
  const { store } = await nodeWithGroup(t, true);
  t.same(await audienceOf(address(), store), {
    kind: "push",
    recipients: undefined,
  });
  const subscribers = ["carol", "erin"];
  t.same(await audienceOf(address({ subscribers }), store), {
    kind: "push",
    recipients: ["carol"],
  });
});

t.test("a command to a group that does not exist has no recipients", async (t) => {
  const { store } = await startNode(t);
  const audience = await audienceOf(address(), store);
  matchObject(t, audience, { kind: "store", recipients: [] });
});
