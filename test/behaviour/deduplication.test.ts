// Deduplication: a send with a repeated client_msg_no returns the first message, over HTTP and
// sockets, in parallel, later, and after a restart.

import { textOf } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { eventually, person, range, startWorld, untilReceived } from "./world.ts";

const world = await startWorld(t);

// Covers [spec: client_msg_no; decisions: Deduplication]
t.test(
  "a message repeated over HTTP with the same client_msg_no is not stored again, and the response names the first message",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const client = await world.join(t, bob);
    const options = { client_msg_no: "n-1" };
    const first = await world.send(alice, person(bob), "first", options);
    const repeated = await world.send(alice, person(bob), "first", options);
    t.same(repeated.body, { ...first.body, repeated: 1 });
    t.same(await untilReceived(client, 1), ["first"]);
    const { messages } = await client.history(person(alice));
    t.same(messages.map(textOf), ["first"]);
  },
);

// Covers [decisions: Deduplication]
t.test(
  "parallel requests over HTTP and sockets with the same client_msg_no store one message",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const client = await world.join(t, alice);
    const reader = await world.join(t, bob);
    const no = "n-1";
    const posts = range(1, 10).map(async () => {
      const options = { client_msg_no: no };
      const { body } = await world.send(alice, person(bob), "x", options);
      return `${body.message_id} ${body.message_seq}`;
    });
    const sends = range(1, 10).map(async () => {
      const ack = await client.send(person(bob), "x", { clientMsgNo: no });
      return `${ack.messageId} ${ack.messageSeq}`;
    });
    const receipts = new Set(await Promise.all([...posts, ...sends]));
    t.equal(receipts.size, 1);
    t.same(await untilReceived(reader, 1), ["x"]);
  },
);

// Covers [decisions: Deduplication]
t.test(
  "messages with a different sender, channel or client_msg_no are not duplicates",
  async (t) => {
    const [alice, bob, carol] = ["alice", "bob", "carol"].map(world.name) as [
      string,
      string,
      string,
    ];
    const channel = await world.newGroup([alice, bob]);
    const repeated = { client_msg_no: "n-1" };
    const ids = new Set<number>();
    for (const [from, target, options] of [
      [alice, person(bob), repeated],
      [bob, person(alice), repeated],
      [alice, person(carol), repeated],
      [alice, channel, repeated],
      [bob, channel, repeated],
      [alice, channel, { client_msg_no: "n-2" }],
    ] as const)
      ids.add((await world.send(from, target, "x", options)).body.message_id);
    t.equal(ids.size, 6);
  },
);

// Covers [decisions: Deduplication]
t.test("a retry after a restart returns the result of the first attempt", async (t) => {
  const before = await startWorld(t);
  const options = { client_msg_no: "n-1" };
  const first = await before.send("alice", person("bob"), "x", options);
  const unstored = { ...options, header: { no_persist: 1 } };
  const firstUnstored = await before.send("carol", person("bob"), "x", unstored);
  await before.close();
  const after = await startWorld(t, {}, before.dataPath);
  const retried = await after.send("alice", person("bob"), "x", options);
  t.same(retried.body, { ...first.body, repeated: 1 });
  const retriedUnstored = await after.send("carol", person("bob"), "x", unstored);
  t.same(
    retriedUnstored.body,
    { ...firstUnstored.body, repeated: 1 },
    "a retry of an unstored message returns the first one as well",
  );
  const next = await after.send("alice", person("bob"), "y");
  t.equal(next.body.message_seq, 2);
});

// Covers [decisions: Deduplication]
t.test(
  "a message that repeats a client_msg_no after store.dedupeWindowS is stored as a new message",
  async (t) => {
    const short = await startWorld(t, { JINDOU_STORE_DEDUPE_WINDOW_S: "1" });
    const retry = async () => {
      const options = { client_msg_no: "n-1" };
      return (await short.send("alice", person("bob"), "x", options)).body;
    };
    const startMs = Date.now();
    const first = await retry();
    t.equal(first.message_seq, 1);
    let later = await retry();
    if (Date.now() - startMs < 1000) t.same(later, { ...first, repeated: 1 });
    await eventually(async () => {
      if (later.message_seq === 1) later = await retry();
      return later.message_seq > 1;
    }, 1100);
    t.equal(later.message_seq, 2);
  },
);
