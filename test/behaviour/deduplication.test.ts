// Deduplication: a repeated client_msg_no is the first message again, whichever way it comes in, in
// parallel, later, after a restart.

import { textOf } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { eventually, person, range, receives, startWorld } from "./world.ts";

const world = await startWorld(t);

t.test(
  "client_msg_no: a repetition over HTTP is answered with the first message and neither stored nor delivered again [spec: client_msg_no; decisions: Deduplication]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const client = await world.join(t, bob);
    const more = { client_msg_no: "n-1" };
    const first = await world.send(alice, person(bob), "first", more);
    const again = await world.send(alice, person(bob), "again", more);
    t.same(again.body, first.body);
    t.same(await receives(client, 1), ["first"]);
    const { messages } = await client.history(person(alice));
    t.same(messages.map(textOf), ["first"]);
  },
);

t.test(
  "client_msg_no: repeated at once, in parallel and by both ways in, it is one message [decisions: Deduplication]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const client = await world.join(t, alice);
    const reader = await world.join(t, bob);
    const no = "n-1";
    const posts = range(1, 10).map(async () => {
      const more = { client_msg_no: no };
      const { body } = await world.send(alice, person(bob), "x", more);
      return `${body.message_id} ${body.message_seq}`;
    });
    const sends = range(1, 10).map(async () => {
      const ack = await client.send(person(bob), "x", { clientMsgNo: no });
      return `${ack.messageId} ${ack.messageSeq}`;
    });
    const answers = new Set(await Promise.all([...posts, ...sends]));
    t.equal(answers.size, 1);
    t.same(await receives(reader, 1), ["x"]);
  },
);

t.test(
  "client_msg_no: another sender, channel or number is another message [decisions: Deduplication]",
  async (t) => {
    const [alice, bob, carol] = ["alice", "bob", "carol"].map(world.name) as [
      string,
      string,
      string,
    ];
    const channel = await world.newGroup([alice, bob]);
    const more = { client_msg_no: "n-1" };
    const ids = new Set<number>();
    for (const [from, to, extra] of [
      [alice, person(bob), more],
      [bob, person(alice), more],
      [alice, person(carol), more],
      [alice, channel, more],
      [bob, channel, more],
      [alice, channel, { client_msg_no: "n-2" }],
    ] as const)
      ids.add((await world.send(from, to, "x", extra)).body.message_id);
    t.equal(ids.size, 6);
  },
);

t.test(
  "client_msg_no: a retry after a restart gets the first answer [decisions: Deduplication]",
  async (t) => {
    const before = await startWorld(t);
    const more = { client_msg_no: "n-1" };
    const first = await before.send("alice", person("bob"), "x", more);
    const unstored = { ...more, header: { no_persist: 1 } };
    const gone = await before.send("carol", person("bob"), "x", unstored);
    await before.close();
    const after = await startWorld(t, {}, before.dataPath);
    const again = await after.send("alice", person("bob"), "x", more);
    t.same(again.body, first.body);
    const same = await after.send("carol", person("bob"), "x", unstored);
    t.same(same.body, gone.body, "of an unstored message too");
    const next = await after.send("alice", person("bob"), "y");
    t.equal(next.body.message_seq, 2);
  },
);

t.test(
  "client_msg_no: after the configured window it is a new message [decisions: Deduplication]",
  async (t) => {
    const short = await startWorld(t, { JINDOU_STORE_DEDUPE_WINDOW_S: "1" });
    const retry = async () => {
      const more = { client_msg_no: "n-1" };
      return (await short.send("alice", person("bob"), "x", more)).body;
    };
    const startMs = Date.now();
    const first = await retry();
    t.equal(first.message_seq, 1);
    let later = await retry();
    if (Date.now() - startMs < 1000) t.same(later, first);
    await eventually(async () => {
      if (later.message_seq === 1) later = await retry();
      return later.message_seq > 1;
    }, 1100);
    t.equal(later.message_seq, 2);
  },
);
