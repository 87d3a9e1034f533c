// POST /event: each event type over HTTP. Viewers receive the events, and a stranger does not.

import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { CONTENT, createFixture, END, KINDS, outcome, outcomeOf, START } from "./stream-fixture.ts";
import { person, startWorld, textsOf, wire } from "./world.ts";

const world = await startWorld(t);

const TOOL_CALL = [
  ["___ToolCallStart", "search"],
  ["___ToolCallArgs", '{"query":"weather"}'],
  ["___ToolCallEnd", "done"],
  ["___ToolCallResult", '{"celsius":21}'],
] as const;

for (const kind of KINDS) {
  // Covers [spec: ___TextMessageStart; spec: POST /event 200]
  t.test(
    `___TextMessageStart in a ${kind} channel starts a stream, whose message is pushed, followed by the event`,
    async (t) => {
      const fixture = await createFixture(t, world, kind);
      const { alice, bob, eve } = fixture;
      const response = await fixture.post("s1", START, "metadata");
      t.equal(response.status, 200);
      t.same(response.body, { status: "ok", stream: { state: "active" } });
      for (const viewer of [alice, bob]) {
        await viewer.ping();
        const channel = fixture.channelOf(viewer.uid);
        matchObject(t, viewer.pushes, [
          {
            kind: "message",
            channel,
            message: {
              messageSeq: 1,
              clientMsgNo: "s1",
              fromUid: alice.uid,
              stream: { nextIndex: 0, text: "", state: "active" },
            },
          },
          {
            kind: "event",
            channel,
            event: {
              type: START,
              data: "metadata",
              fromUid: alice.uid,
              clientMsgNo: "s1",
              stream: {
                messageSeq: 1,
                index: 0,
                nextIndex: 1,
                textOffset: 0,
                state: "active",
              },
            },
          },
        ]);
        t.equal(viewer.pushes.length, 2);
      }
      await eve.ping();
      t.same(eve.pushes, [], "a stranger is pushed nothing");
    },
  );

  // Covers [spec: ___TextMessageContent]
  t.test(
    `___TextMessageContent in a ${kind} channel appends exactly the event's text to the stream`,
    async (t) => {
      const fixture = await createFixture(t, world, kind);
      await fixture.start("s1");
      const chunks = ["Hé", "llo \n", "", '"👋" ', "中文", "\\u0000 \t", " "];
      for (const chunk of chunks)
        t.equal(await outcomeOf(fixture.addText("s1", chunk)), "200 active");
      for (const viewer of [fixture.alice, fixture.bob]) {
        const view = await fixture.viewOf(viewer, "s1");
        t.equal(view.text, chunks.join(""));
        matchObject(t, view, {
          nextIndex: 1 + chunks.length,
          problems: [],
          repeated: 0,
          merged: 0,
        });
      }
      t.same(await fixture.eventsOf(fixture.eve), []);
      const { body } = await fixture.read("s1");
      t.equal(body.text, chunks.join(""), "the stored text is the same");
    },
  );

  // Covers [spec: ___TextMessageEnd]
  t.test(
    `___TextMessageEnd in a ${kind} channel closes a stream and stores the data of the end event`,
    async (t) => {
      const fixture = await createFixture(t, world, kind);
      for (const [no, data] of [
        ["s1", ""],
        ["s2", "final words"],
      ] as const) {
        await fixture.start(no);
        await fixture.addText(no, "text");
        t.equal(outcome(await fixture.post(no, END, data)), "200 closed");
        for (const viewer of [fixture.alice, fixture.bob])
          matchObject(t, await fixture.viewOf(viewer, no), {
            state: "closed",
            text: "text",
            endData: data,
            nextIndex: 3,
            problems: [],
          });
        matchObject(t, (await fixture.read(no)).body, {
          state: "closed",
          text: "text",
          end_data: data,
        });
      }
      t.same(await fixture.eventsOf(fixture.eve), []);
    },
  );

  // Covers [spec: ___ToolCallStart; spec: ___ToolCallArgs; spec: ___ToolCallEnd]
  // Covers [spec: ___ToolCallResult]
  // Covers [decisions: Tool-call events]
  t.test(
    `a tool call during a stream of a ${kind} channel keeps its position in the text`,
    async (t) => {
      const fixture = await createFixture(t, world, kind);
      await fixture.start("s1");
      await fixture.addText("s1", "before ");
      for (const [type, data] of TOOL_CALL)
        t.equal(outcome(await fixture.post("s1", type, data)), "200 active");
      await fixture.addText("s1", "after");
      const expected = TOOL_CALL.map(([type, data], at) => ({
        index: 2 + at,
        textOffset: 7,
        type,
        data,
      }));
      for (const viewer of [fixture.alice, fixture.bob]) {
        const view = await fixture.viewOf(viewer, "s1");
        matchObject(t, view.notes, expected);
        t.equal(viewer.events.length, 7, "each event is pushed once");
        matchObject(t, view, { text: "before after", nextIndex: 7, problems: [] });
      }
      t.same(await fixture.eventsOf(fixture.eve), []);
      const { body } = await fixture.read("s1");
      matchObject(
        t,
        body.events,
        TOOL_CALL.map(([type, data], at) => ({
          index: 2 + at,
          text_offset: 7,
          type,
          data,
        })),
        "the tool calls are stored with the stream",
      );
    },
  );

  // Covers [spec: ___ToolCallStart; spec: ___ToolCallArgs; spec: ___ToolCallEnd]
  // Covers [spec: ___ToolCallResult]
  // Covers [decisions: Tool-call events]
  t.test(
    `a tool call in a ${kind} channel is pushed but not stored if no stream is active`,
    async (t) => {
      const fixture = await createFixture(t, world, kind);
      for (const [type, data] of TOOL_CALL) {
        const response = await fixture.post("c1", type, data);
        t.same([response.status, response.body], [200, { status: "ok" }]);
      }
      for (const viewer of [fixture.alice, fixture.bob]) {
        t.same(
          await fixture.eventsOf(viewer),
          TOOL_CALL.map((event) => event.join(" ")),
        );
        t.ok(viewer.events.every(({ stream }) => stream === undefined));
      }
      t.same(await fixture.eventsOf(fixture.eve), []);
      t.equal((await fixture.read("c1")).status, 404);
    },
  );

  // Covers [spec: custom event; decisions: Custom events]
  t.test(
    `a custom event in a ${kind} channel is pushed but not stored if no stream is active`,
    async (t) => {
      const fixture = await createFixture(t, world, kind);
      const { alice, bob } = fixture;
      const events = [
        ["typing", ""],
        ["order.paid", '{"order":1,"note":"grüße"}'],
        ["__two_underscores", "x"],
      ] as const;
      for (const [type, data] of events) {
        const response = await fixture.post("c1", type, data);
        t.same([response.status, response.body], [200, { status: "ok" }]);
      }
      for (const viewer of [alice, bob]) {
        t.same(
          await fixture.eventsOf(viewer),
          events.map((event) => event.join(" ")),
        );
        for (const { clientMsgNo, fromUid, stream } of viewer.events)
          t.same([clientMsgNo, fromUid, stream], ["c1", alice.uid, undefined]);
        matchObject(t, viewer.pushes[0], { channel: fixture.channelOf(viewer.uid) });
      }
      t.same(await fixture.eventsOf(fixture.eve), []);
      const late = await fixture.join(bob.uid);
      t.same(await fixture.eventsOf(late), []);
      const { headSeq } = await bob.history(fixture.channelOf(bob.uid));
      t.equal(headSeq, 0);
    },
  );
}

// Covers [decisions: Custom events]
for (const kind of KINDS)
  t.test(
    `a custom event of an active stream in a ${kind} channel is stored at its position and sent to late viewers`,
    async (t) => {
      const fixture = await createFixture(t, world, kind);
      await fixture.start("s1");
      await fixture.addText("s1", "a");
      const once = { event: { id: "c1", timestamp: 5 } };
      for (let times = 0; times < 2; times++)
        t.equal(outcome(await fixture.post("s1", "status", "thinking", once)), "200 active");
      t.equal(outcome(await fixture.post("other", "status", "elsewhere")), "200 -");
      await fixture.addText("s1", "b");
      t.same(await fixture.eventsOf(fixture.bob), [
        ...[`${START} `, `${CONTENT} a`, "status thinking", "status elsewhere", `${CONTENT} b`],
      ]);
      const note = { index: 2, type: "status", data: "thinking" };
      const late = await fixture.join(fixture.bob.uid);
      await late.waitFor(() => late.pushesOf("stream").length > 0, "a snapshot");
      for (const viewer of [fixture.bob, late])
        matchObject(t, await fixture.viewOf(viewer, "s1"), {
          ...{ text: "ab", nextIndex: 4, problems: [] },
          notes: [{ ...note, textOffset: 1, eventId: "c1", timestampMs: 5 }],
        });
      await fixture.end("s1");
      t.equal(outcome(await fixture.post("s1", "status", "thinking", once)), "200 closed");
      t.equal(outcome(await fixture.post("s1", "status", "done")), "200 closed");
      const events = await fixture.eventsOf(fixture.bob);
      t.same(events.slice(5), [`${END} `, "status done"], "a retry is not pushed again");
      matchObject(t, (await fixture.read("s1")).body, {
        ...{ text: "ab", next_index: 5 },
        events: [{ ...note, text_offset: 1, id: "c1", timestamp: 5 }],
      });
    },
  );

// Covers [decisions: Custom events]
t.test(
  "a custom event for a cancelled stream is pushed but not stored, and the reply has the state cancelled",
  async (t) => {
    const fixture = await createFixture(t, world);
    await fixture.start("s1");
    const cancel = { client_msg_no: "s1", ...wire(fixture.channel) };
    t.equal(await outcomeOf(world.call("/stream/cancel", cancel)), "200 cancelled");
    t.equal(outcome(await fixture.post("s1", "order.paid", "1")), "200 cancelled");
    t.same((await fixture.eventsOf(fixture.bob)).slice(2), ["order.paid 1"]);
    matchObject(t, (await fixture.read("s1")).body, { next_index: 2, events: [] });
  },
);

// Covers [decisions: Limits]
t.test(
  "a custom event that would make its stream larger than the maximum size is refused with 400",
  async (t) => {
    const fixture = await createFixture(t, world);
    await fixture.start("s1");
    const data = "x".repeat(60_000);
    for (let count = 0; count < 4; count++)
      t.equal(outcome(await fixture.post("s1", "status", data)), "200 active");
    t.equal(outcome(await fixture.post("s1", "status", data)), "400 too_large");
    t.equal(outcome(await fixture.post("none", "status", data)), "200 -");
    t.equal(outcome(await fixture.end("s1")), "200 closed");
    t.equal((await fixture.read("s1")).body.events.length, 4);
  },
);

// Covers [decisions: Reserved types]
t.test("an unknown event type that begins with ___ is refused with 400", async (t) => {
  const fixture = await createFixture(t, world);
  for (const type of ["___Other", "___", "____system", "___textmessagestart"])
    t.equal(outcome(await fixture.post("s1", type, "x")), "400 bad_request", `${type} is refused`);
  t.same(await fixture.eventsOf(fixture.bob), []);
});

// Covers [spec: POST /event person channel]
t.test(
  "either user of a personal channel can add text to the active stream, but neither can start a second",
  async (t) => {
    const fixture = await createFixture(t, world, "personal");
    const { alice, bob } = fixture;
    await fixture.start("s1");
    const bobToAlice = { from_uid: bob.uid, ...wire(person(alice.uid)) };
    const second = await fixture.start("s2", { body: bobToAlice });
    t.equal(outcome(second), "400 stream_running", "the channel has one stream for both users");
    t.equal(await outcomeOf(fixture.addText("s1", "by bob", { body: bobToAlice })), "200 active");
    for (const viewer of [alice, bob]) t.equal((await fixture.viewOf(viewer, "s1")).text, "by bob");
    const texts = textsOf((await alice.history(person(bob.uid))).messages);
    t.same(texts, ["by bob"]);
  },
);

// Covers [decisions: After removal]
t.test(
  "a new member receives the events that follow the addition, and a removed member receives no further events",
  async (t) => {
    const fixture = await createFixture(t, world);
    const { bob, eve, channel } = fixture;
    await fixture.post("c1", "first");
    const change = async (call: string, uid: string) => {
      await world.ok(`/channel/${call}`, {
        ...wire(channel),
        subscribers: [uid],
      });
      await world.untilSubscribed();
    };
    await change("subscriber_add", eve.uid);
    await fixture.post("c1", "second");
    await change("subscriber_remove", bob.uid);
    await fixture.post("c1", "third");
    t.same(await fixture.eventsOf(bob), ["first ", "second "]);
    t.same(await fixture.eventsOf(eve), ["second ", "third "]);
  },
);
