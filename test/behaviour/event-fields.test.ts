// POST /event: each field, each refusal with its status and text, and which users may post.

import { SYSTEM_UID } from "../../src/broker/model.ts";
import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { CONTENT, createFixture, END, outcome, START } from "./stream-fixture.ts";
import { person, startWorld, wire } from "./world.ts";

const world = await startWorld(t);

// Covers [spec: Event event.type; spec: Event type cannot be empty]
// Covers [decisions: Status of the four /event errors]
t.test(
  'a missing or empty event type is refused before other fields are checked, with "Event type cannot be empty"',
  async (t) => {
    const fixture = await createFixture(t, world);
    const refusal = {
      error: "Event type cannot be empty",
      code: "event_type_empty",
      status: 400,
    };
    for (const event of [{ type: "" }, { type: undefined }, { type: "", data: 5 }]) {
      const response = await fixture.post("s1", START, "", { event });
      matchObject(t, [response.status, response.body], [400, refusal]);
    }
    const bare = await world.call("/event", { event: { type: "" } });
    matchObject(
      t,
      [bare.status, bare.body],
      [400, refusal],
      "the event type is checked before the other fields",
    );
    t.same(await fixture.eventsOf(fixture.bob), []);
  },
);

t.test(
  "an empty optional string or list counts as absent, in events, in messages and in queries",
  async (t) => {
    const fixture = await createFixture(t, world);
    const empty = { event: { id: "" } };
    await fixture.start("s1", { ...empty, query: "?force=" });
    for (let n = 1; n <= 2; n++)
      t.equal((await fixture.addText("s1", "ha", { ...empty, query: "?force=true" })).status, 200);
    t.equal((await fixture.end("s1", empty)).status, 200);
    const { text } = (await fixture.read("s1")).body;
    t.equal(text, "haha", "equal chunks with empty ids are not retries");

    const { uid } = fixture.alice;
    const fields = { client_msg_no: "", stream_no: "", tag_key: "", subscribers: [] };
    for (const messageSeq of [2, 3]) {
      const { body } = await world.send(uid, fixture.channel, "hello", fields);
      t.equal(body.message_seq, messageSeq, "messages with an empty client_msg_no are different");
      t.match(body.client_msg_no, /./);
    }
    const command = { ...fields, header: { sync_once: 1 } };
    t.equal((await world.send(uid, fixture.channel, "command", command)).status, 200);
    const commands = await world.ok("/message/sync", { uid: fixture.bob.uid });
    t.equal(commands.length, 1, "an empty list does not restrict the recipients of a command");

    const { id, type } = fixture.channel;
    const history = `/channel/messages?channel_id=${id}&channel_type=${type}&uid=`;
    for (const path of [history, `/stream/${type}/${id}/s1?uid=`])
      t.equal((await world.call(path)).status, 200, path);
  },
);

// Covers [spec: Stream already running in channel; decisions: Status of the four /event errors]
t.test(
  'a second stream in a channel is refused with "Stream already running in channel"',
  async (t) => {
    const fixture = await createFixture(t, world);
    await fixture.start("s1");
    const response = await fixture.start("s2");
    t.equal(response.status, 400);
    matchObject(t, response.body, {
      error: "Stream already running in channel",
      code: "stream_running",
      status: 400,
    });
  },
);

// Covers [spec: Stream does not exist; decisions: Status of the four /event errors]
t.test('content or an end without a start is refused with "Stream does not exist"', async (t) => {
  const fixture = await createFixture(t, world);
  for (const type of [CONTENT, END]) {
    const response = await fixture.post("s1", type, "x");
    t.equal(response.status, 400);
    matchObject(t, response.body, {
      error: "Stream does not exist",
      code: "stream_not_found",
      status: 400,
    });
  }
});

// Covers [spec: Stream is already closed; decisions: Status of the four /event errors]
t.test('content for a closed stream is refused with "Stream is already closed"', async (t) => {
  const fixture = await createFixture(t, world);
  await fixture.start("s1");
  await fixture.end("s1");
  const response = await fixture.addText("s1", "late");
  t.equal(response.status, 400);
  matchObject(t, response.body, {
    error: "Stream is already closed",
    code: "stream_closed",
    status: 400,
  });
});

// Covers [spec: POST /event 400; spec: Event client_msg_no; spec: Event channel_id]
// Covers [spec: Event channel_type; spec: Event event.type]
t.test(
  "POST /event responds with 400 to a missing or invalid field and pushes nothing",
  async (t) => {
    const fixture = await createFixture(t, world);
    const long = "x".repeat(129);
    for (const body of [
      { client_msg_no: undefined },
      { client_msg_no: "" },
      { client_msg_no: long },
      { client_msg_no: 5 },
      { channel_id: undefined },
      { channel_type: undefined },
      { channel_type: 3 },
      { channel_type: "2" },
      { event: "text" },
      { event: [START] },
      { from_uid: 5 },
    ])
      t.equal(
        outcome(await fixture.post("s1", START, "", { body })),
        "400 bad_request",
        `${JSON.stringify(body).slice(0, 60)} is refused`,
      );
    for (const body of [{ channel_id: "" }, { channel_id: "a@b" }, { from_uid: "a#b" }])
      t.equal(
        outcome(await fixture.post("s1", START, "", { body })),
        "400 bad_id",
        `${JSON.stringify(body)} is refused`,
      );
    matchObject(t, await world.call("/event", [1]), { status: 400 });
    t.same(await fixture.eventsOf(fixture.bob), []);
  },
);

// Covers [spec: Event client_msg_no]
t.test("streams of different channels may have the same client_msg_no", async (t) => {
  const [first, second] = [await createFixture(t, world), await createFixture(t, world)];
  for (const fixture of [first, second]) {
    await fixture.start("same");
    await fixture.addText("same", fixture.channel.id);
  }
  for (const fixture of [first, second])
    t.equal((await fixture.viewOf(fixture.bob, "same")).text, fixture.channel.id);
});

// Covers [spec: Event from_uid; decisions: System uid]
t.test(
  "an event's sender is from_uid, or the system uid if from_uid is empty or absent",
  async (t) => {
    const fixture = await createFixture(t, world);
    const { alice, bob } = fixture;
    await fixture.post("s1", "own", "");
    for (const from_uid of ["", undefined])
      t.equal(outcome(await fixture.post("s1", "system", "", { body: { from_uid } })), "200 -");
    await bob.ping();
    t.same(
      bob.events.map(({ fromUid }) => fromUid),
      [alice.uid, SYSTEM_UID, SYSTEM_UID],
    );
    const body = { from_uid: "", ...wire(person(bob.uid)) };
    await fixture.post("s2", START, "", { body });
    await fixture.post("s2", CONTENT, "from the system", { body });
    await bob.ping();
    t.equal(bob.view(person(SYSTEM_UID), "s2")?.text, "from the system");
  },
);

// Covers [spec: Event event.data; decisions: Limits]
t.test(
  "event.data may be absent, null or a string up to the size limit, and other values are refused with 400",
  async (t) => {
    const fixture = await createFixture(t, world);
    for (const data of [undefined, null])
      await fixture.post("s1", "status", "", { event: { data } });
    await fixture.post("s1", "status", "x".repeat(65_536));
    for (const data of [5, { a: 1 }, ["x"]])
      t.equal(
        outcome(await fixture.post("s1", "status", "", { event: { data } })),
        "400 bad_request",
      );
    t.equal(outcome(await fixture.post("s1", "status", "x".repeat(65_537))), "400 too_large");
    t.equal(
      outcome(await fixture.post("s1", "status", "é".repeat(32_769))),
      "400 too_large",
      "the limit counts bytes",
    );
    await fixture.bob.ping();
    t.same(
      fixture.bob.events.map(({ data }) => data.length),
      [0, 0, 65_536],
    );
  },
);

// Covers [spec: Event event.timestamp]
t.test(
  "an event's timestamp is event.timestamp in Unix milliseconds, or else the time of acceptance",
  async (t) => {
    const fixture = await createFixture(t, world);
    await fixture.start("s1", { event: { timestamp: 1_700_000_000_123 } });
    await fixture.addText("s1", "x");
    await fixture.post("s1", "status", "", { event: { timestamp: 0 } });
    await fixture.bob.ping();
    const [start, content, custom] = fixture.bob.events.map(({ timestampMs }) => timestampMs);
    t.equal(start, 1_700_000_000_123);
    t.equal(custom, 0);
    t.ok(Math.abs((content ?? 0) - Date.now()) < 60_000);
    for (const timestamp of ["now", 1.5, -1, "1700000000123"])
      t.equal(
        outcome(await fixture.addText("s1", "y", { event: { timestamp } })),
        "400 bad_request",
      );
  },
);

// Covers [spec: Event event id; decisions: Event id]
t.test(
  "an event's id is the id in the request, or else a unique id that the server generates",
  async (t) => {
    const fixture = await createFixture(t, world);
    await fixture.start("s1");
    await fixture.addText("s1", "x", { event: { id: "given" } });
    await fixture.addText("s1", "y");
    await fixture.post("s1", "___ToolCallStart", "z", {
      event: { id: "call-1" },
    });
    await fixture.post("s1", "status");
    await fixture.post("s1", "status", "", { event: { id: "own" } });
    await fixture.bob.ping();
    const ids = fixture.bob.events.map(({ eventId }) => eventId);
    t.equal(ids.length, 6);
    t.same([ids[1], ids[3], ids[5]], ["given", "call-1", "own"]);
    t.equal(new Set(ids).size, 6);
    t.notOk(ids.includes(""));
    for (const id of ["x".repeat(129), 5])
      t.equal(outcome(await fixture.addText("s1", "z", { event: { id } })), "400 bad_request");
  },
);

// Covers [decisions: Unknown body fields]
t.test("unknown fields of the body and of the event are ignored", async (t) => {
  const fixture = await createFixture(t, world);
  const fields = { body: { other: 1 }, event: { other: [2], type: START } };
  const body = { ...fields.body, event: fields.event };
  t.equal(outcome(await fixture.post("s1", START, "", { body })), "200 active");
});

// Covers [decisions: Permission for events]
t.test(
  "an event of any type by a user who may not send is refused with 403 and not pushed",
  async (t) => {
    const fixture = await createFixture(t, world);
    const { channel, eve } = fixture;
    const types = [START, "___ToolCallStart", "status"];
    const assertAll = async (expected: string, body: object = {}) => {
      for (const type of types)
        t.equal(
          outcome(await fixture.post("s1", type, "", { body })),
          expected,
          `an event of type ${type} is answered with ${expected}`,
        );
    };
    await assertAll("403 not_subscriber", { from_uid: eve.uid });
    await assertAll("403 channel_not_found", { channel_id: world.name("none") });
    await world.ok("/channel/info", { ...wire(channel), send_ban: 1 });
    await assertAll("403 send_banned");
    await world.ok("/channel/info", { ...wire(channel), ban: 1 });
    await assertAll("403 channel_banned");
    t.same(await fixture.eventsOf(fixture.bob), []);
    t.equal(
      outcome(await fixture.post("s1", START, "", { body: { from_uid: "" } })),
      "200 active",
      "an event of the system uid is accepted",
    );
    await world.ok("/channel/info", { ...wire(channel), disband: 1 });
    await assertAll("403 channel_disbanded");
  },
);

// Covers [decisions: Permission for events]
t.test("an event from a stranger to a user who has contacts is refused with 403", async (t) => {
  const fixture = await createFixture(t, world, "personal");
  await world.ok("/channel", {
    ...wire(fixture.channel),
    subscribers: [fixture.eve.uid],
  });
  t.equal(outcome(await fixture.start("s1")), "403 stranger_refused");
  t.equal(outcome(await fixture.post("s1", "status")), "403 stranger_refused");
  t.same(await fixture.eventsOf(fixture.bob), []);
});

t.test(
  "the error for an unknown event type that begins with ___ suggests a known type of similar spelling, if there is one",
  async (t) => {
    const channel = await world.newGroup(["alice"]);
    const event = { client_msg_no: "s", from_uid: "alice", ...wire(channel) };
    for (const [type, suggestion] of [
      ["___TextMessageContnt", "did you mean ___TextMessageContent?"],
      ["___textmessagestart", "did you mean ___TextMessageStart?"],
      ["___ToolCallResults", "did you mean ___ToolCallResult?"],
      ["___Typing", "a custom type must not begin with ___"],
      [`___${"x".repeat(5000)}`, "a custom type must not begin with ___"],
    ] as const) {
      const { status, body } = await world.call("/event", { ...event, event: { type } });
      t.equal(`${status} ${body.code}`, "400 bad_request");
      t.ok(body.error.startsWith("event.type is not a known type"), body.error);
      t.ok(body.error.includes(suggestion), body.error);
    }
  },
);
