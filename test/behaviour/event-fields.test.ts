// POST /event: each field, each refusal in its words and with its status, and who may post.

import { SYSTEM_UID } from "../../src/broker/model.ts";
import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { CONTENT, END, outcome, START, startStage } from "./stages.ts";
import { person, startWorld, wire } from "./world.ts";

const world = await startWorld(t);

t.test(
  "Event type cannot be empty: missing or empty, in these words, before anything else [spec: Event event.type; spec: Event type cannot be empty; decisions: Status of the four /event errors]",
  async (t) => {
    const stage = await startStage(t, world);
    const sentence = {
      error: "Event type cannot be empty",
      code: "event_type_empty",
      status: 400,
    };
    for (const event of [{ type: "" }, { type: undefined }, { type: "", data: 5 }]) {
      const answer = await stage.post("s1", START, "", { event });
      matchObject(t, [answer.status, answer.body], [400, sentence]);
    }
    const bare = await world.call("/event", { event: { type: "" } });
    matchObject(t, [bare.status, bare.body], [400, sentence], "nothing else was looked at");
    t.same(await stage.told(stage.bob), []);
  },
);

t.test(
  "Stream already running in channel, in these words [spec: Stream already running in channel; decisions: Status of the four /event errors]",
  async (t) => {
    const stage = await startStage(t, world);
    await stage.start("s1");
    const answer = await stage.start("s2");
    t.equal(answer.status, 400);
    matchObject(t, answer.body, {
      error: "Stream already running in channel",
      code: "stream_running",
      status: 400,
    });
  },
);

t.test(
  "Stream does not exist, in these words, for content and end [spec: Stream does not exist; decisions: Status of the four /event errors]",
  async (t) => {
    const stage = await startStage(t, world);
    for (const type of [CONTENT, END]) {
      const answer = await stage.post("s1", type, "x");
      t.equal(answer.status, 400);
      matchObject(t, answer.body, {
        error: "Stream does not exist",
        code: "stream_not_found",
        status: 400,
      });
    }
  },
);

t.test(
  "Stream is already closed, in these words [spec: Stream is already closed; decisions: Status of the four /event errors]",
  async (t) => {
    const stage = await startStage(t, world);
    await stage.start("s1");
    await stage.end("s1");
    const answer = await stage.say("s1", "late");
    t.equal(answer.status, 400);
    matchObject(t, answer.body, {
      error: "Stream is already closed",
      code: "stream_closed",
      status: 400,
    });
  },
);

t.test(
  "POST /event: a missing or wrong field is 400 and adds nothing [spec: POST /event 400; spec: Event client_msg_no; spec: Event channel_id; spec: Event channel_type; spec: Event event.type]",
  async (t) => {
    const stage = await startStage(t, world);
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
        outcome(await stage.post("s1", START, "", { body })),
        "400 bad_request",
        JSON.stringify(body).slice(0, 60),
      );
    for (const body of [{ channel_id: "" }, { channel_id: "a@b" }, { from_uid: "a#b" }])
      t.equal(
        outcome(await stage.post("s1", START, "", { body })),
        "400 bad_id",
        JSON.stringify(body),
      );
    matchObject(t, await world.call("/event", [1]), { status: 400 });
    t.same(await stage.told(stage.bob), []);
  },
);

t.test(
  "client_msg_no names the stream within its channel: the same one elsewhere is another stream [spec: Event client_msg_no]",
  async (t) => {
    const [one, other] = [await startStage(t, world), await startStage(t, world)];
    for (const stage of [one, other]) {
      await stage.start("same");
      await stage.say("same", stage.channel.id);
    }
    for (const stage of [one, other])
      t.equal((await stage.seen(stage.bob, "same")).text, stage.channel.id);
  },
);

t.test(
  "from_uid: who is given is the sender; empty or absent is the system [spec: Event from_uid; decisions: System uid]",
  async (t) => {
    const stage = await startStage(t, world);
    const { alice, bob } = stage;
    await stage.post("s1", "mine", "");
    for (const from_uid of ["", undefined])
      t.equal(outcome(await stage.post("s1", "system", "", { body: { from_uid } })), "200 -");
    await bob.ping();
    t.same(
      bob.events.map(({ fromUid }) => fromUid),
      [alice.uid, SYSTEM_UID, SYSTEM_UID],
    );
    const body = { from_uid: "", ...wire(person(bob.uid)) };
    await stage.post("s2", START, "", { body });
    await stage.post("s2", CONTENT, "from the system", { body });
    await bob.ping();
    t.equal(bob.view(person(SYSTEM_UID), "s2")?.text, "from the system");
  },
);

t.test(
  "event.data: any string, absent as empty; anything else is 400, more than the limit 400 too_large [spec: Event event.data; decisions: Limits]",
  async (t) => {
    const stage = await startStage(t, world);
    await stage.post("s1", "status", "", { event: { data: undefined } });
    await stage.post("s1", "status", "x".repeat(65_536));
    for (const data of [5, null, { a: 1 }, ["x"]])
      t.equal(
        outcome(await stage.post("s1", "status", "", { event: { data } })),
        "400 bad_request",
      );
    t.equal(outcome(await stage.post("s1", "status", "x".repeat(65_537))), "400 too_large");
    t.equal(
      outcome(await stage.post("s1", "status", "é".repeat(32_769))),
      "400 too_large",
      "bytes are counted",
    );
    await stage.bob.ping();
    t.same(
      stage.bob.events.map(({ data }) => data.length),
      [0, 65_536],
    );
  },
);

t.test(
  "event.timestamp: the producer's Unix milliseconds, else the time of acceptance [spec: Event event.timestamp]",
  async (t) => {
    const stage = await startStage(t, world);
    await stage.start("s1", { event: { timestamp: 1_700_000_000_123 } });
    await stage.say("s1", "x");
    await stage.post("s1", "status", "", { event: { timestamp: 0 } });
    await stage.bob.ping();
    const [start, content, custom] = stage.bob.events.map(({ timestampMs }) => timestampMs);
    t.equal(start, 1_700_000_000_123);
    t.equal(custom, 0);
    t.ok(Math.abs((content ?? 0) - Date.now()) < 60_000);
    for (const timestamp of ["now", 1.5, -1, "1700000000123"])
      t.equal(outcome(await stage.say("s1", "y", { event: { timestamp } })), "400 bad_request");
  },
);

t.test(
  "event id: the caller's own, or one of the server's, unique in the stream [spec: Event event id; decisions: Event id]",
  async (t) => {
    const stage = await startStage(t, world);
    await stage.start("s1");
    await stage.say("s1", "x", { event: { id: "mine" } });
    await stage.say("s1", "y");
    await stage.post("s1", "___ToolCallStart", "z", {
      event: { id: "call-1" },
    });
    await stage.post("s1", "status");
    await stage.post("s1", "status", "", { event: { id: "own" } });
    await stage.bob.ping();
    const ids = stage.bob.events.map(({ eventId }) => eventId);
    t.equal(ids.length, 6);
    t.same([ids[1], ids[3], ids[5]], ["mine", "call-1", "own"]);
    t.equal(new Set(ids).size, 6);
    t.notOk(ids.includes(""));
    for (const id of ["", "x".repeat(129), 5])
      t.equal(outcome(await stage.say("s1", "z", { event: { id } })), "400 bad_request");
  },
);

t.test(
  "unknown fields of the body and of the event are ignored [decisions: Unknown body fields]",
  async (t) => {
    const stage = await startStage(t, world);
    const more = { body: { other: 1 }, event: { other: [2], type: START } };
    const body = { ...more.body, event: more.event };
    t.equal(outcome(await stage.post("s1", START, "", { body })), "200 active");
  },
);

t.test(
  "events need the right to send: refused 403 with the reason, whatever the type, and nobody hears of them [decisions: Permission for events]",
  async (t) => {
    const stage = await startStage(t, world);
    const { channel, eve } = stage;
    const types = [START, "___ToolCallStart", "status"];
    const all = async (expected: string, body: object = {}) => {
      for (const type of types)
        t.equal(outcome(await stage.post("s1", type, "", { body })), expected, type);
    };
    await all("403 not_subscriber", { from_uid: eve.uid });
    await all("403 not_subscriber", { channel_id: world.name("none") });
    await world.ok("/channel/info", { ...wire(channel), send_ban: 1 });
    await all("403 send_banned");
    await world.ok("/channel/info", { ...wire(channel), ban: 1 });
    await all("403 channel_banned");
    t.same(await stage.told(stage.bob), []);
    t.equal(
      outcome(await stage.post("s1", START, "", { body: { from_uid: "" } })),
      "200 active",
      "not the system",
    );
    await world.ok("/channel/info", { ...wire(channel), disband: 1 });
    await all("403 channel_disbanded");
  },
);

t.test(
  "events to a user who accepts no strangers are refused 403 [decisions: Permission for events]",
  async (t) => {
    const stage = await startStage(t, world, "personal");
    await world.ok("/channel", {
      ...wire(stage.channel),
      subscribers: [stage.eve.uid],
    });
    t.equal(outcome(await stage.start("s1")), "403 stranger_refused");
    t.equal(outcome(await stage.post("s1", "status")), "403 stranger_refused");
    t.same(await stage.told(stage.bob), []);
  },
);
