// POST /event: each event type over HTTP, with what viewers receive and a stranger does not.

import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { CONTENT, END, KINDS, outcome, outcomeOf, START, startStage } from "./stages.ts";
import { person, startWorld, textsOf, wire } from "./world.ts";

const world = await startWorld(t);

const TOOL_CALL = [
  ["___ToolCallStart", "search"],
  ["___ToolCallArgs", '{"query":"weather"}'],
  ["___ToolCallEnd", "done"],
  ["___ToolCallResult", '{"celsius":21}'],
] as const;

for (const kind of KINDS) {
  t.test(
    `___TextMessageStart starts a stream in a ${kind} channel: the answer, its message, its event [spec: ___TextMessageStart; spec: POST /event 200]`,
    async (t) => {
      const stage = await startStage(t, world, kind);
      const { alice, bob, eve } = stage;
      const answer = await stage.post("s1", START, "metadata");
      t.equal(answer.status, 200);
      t.same(answer.body, { status: "ok", stream: { state: "active" } });
      for (const viewer of [alice, bob]) {
        await viewer.ping();
        const channel = stage.channelOf(viewer.uid);
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
      t.same(eve.pushes, [], "a stranger gets nothing");
    },
  );

  t.test(
    `___TextMessageContent adds exactly its text, in a ${kind} channel [spec: ___TextMessageContent]`,
    async (t) => {
      const stage = await startStage(t, world, kind);
      await stage.start("s1");
      const chunks = ["Hé", "llo \n", "", '"👋" ', "中文", "\\u0000 \t", " "];
      for (const chunk of chunks) t.equal(await outcomeOf(stage.say("s1", chunk)), "200 active");
      for (const viewer of [stage.alice, stage.bob]) {
        const view = await stage.seen(viewer, "s1");
        t.equal(view.text, chunks.join(""));
        matchObject(t, view, {
          nextIndex: 1 + chunks.length,
          problems: [],
          repeated: 0,
          merged: 0,
        });
      }
      t.same(await stage.told(stage.eve), []);
      const { body } = await stage.read("s1");
      t.equal(body.text, chunks.join(""), "the stored one");
    },
  );

  t.test(
    `___TextMessageEnd ends a stream, with its data, in a ${kind} channel [spec: ___TextMessageEnd]`,
    async (t) => {
      const stage = await startStage(t, world, kind);
      for (const [no, data] of [
        ["s1", ""],
        ["s2", "final words"],
      ] as const) {
        await stage.start(no);
        await stage.say(no, "text");
        t.equal(outcome(await stage.post(no, END, data)), "200 closed");
        for (const viewer of [stage.alice, stage.bob])
          matchObject(t, await stage.seen(viewer, no), {
            state: "closed",
            text: "text",
            endData: data,
            nextIndex: 3,
            problems: [],
          });
        matchObject(t, (await stage.read(no)).body, {
          state: "closed",
          text: "text",
          end_data: data,
        });
      }
      t.same(await stage.told(stage.eve), []);
    },
  );

  t.test(
    `a tool call of an active stream comes in its place among the text, in a ${kind} channel [spec: ___ToolCallStart; spec: ___ToolCallArgs; spec: ___ToolCallEnd; spec: ___ToolCallResult; decisions: Tool-call events]`,
    async (t) => {
      const stage = await startStage(t, world, kind);
      await stage.start("s1");
      await stage.say("s1", "before ");
      for (const [type, data] of TOOL_CALL)
        t.equal(outcome(await stage.post("s1", type, data)), "200 active");
      await stage.say("s1", "after");
      const placed = TOOL_CALL.map(([type, data], at) => ({
        index: 2 + at,
        textOffset: 7,
        type,
        data,
      }));
      for (const viewer of [stage.alice, stage.bob]) {
        const view = await stage.seen(viewer, "s1");
        matchObject(t, view.notes, placed);
        t.equal(viewer.events.length, 7, "each once");
        matchObject(t, view, { text: "before after", nextIndex: 7, problems: [] });
      }
      t.same(await stage.told(stage.eve), []);
      const { body } = await stage.read("s1");
      matchObject(
        t,
        body.events,
        TOOL_CALL.map(([type, data], at) => ({
          index: 2 + at,
          text_offset: 7,
          type,
          data,
        })),
        "kept with the stream",
      );
    },
  );

  t.test(
    `a tool call outside a stream is pushed and not kept, in a ${kind} channel [spec: ___ToolCallStart; spec: ___ToolCallArgs; spec: ___ToolCallEnd; spec: ___ToolCallResult; decisions: Tool-call events]`,
    async (t) => {
      const stage = await startStage(t, world, kind);
      for (const [type, data] of TOOL_CALL) {
        const answer = await stage.post("c1", type, data);
        t.same([answer.status, answer.body], [200, { status: "ok" }]);
      }
      for (const viewer of [stage.alice, stage.bob]) {
        t.same(
          await stage.told(viewer),
          TOOL_CALL.map((one) => one.join(" ")),
        );
        t.ok(viewer.events.every(({ stream }) => stream === undefined));
      }
      t.same(await stage.told(stage.eve), []);
      t.equal((await stage.read("c1")).status, 404);
    },
  );

  t.test(
    `a custom event reaches who is online and is not stored, in a ${kind} channel [spec: custom event; decisions: Custom events]`,
    async (t) => {
      const stage = await startStage(t, world, kind);
      const { alice, bob } = stage;
      const told = [
        ["typing", ""],
        ["order.paid", '{"order":1,"note":"grüße"}'],
        ["__two_underscores", "x"],
      ] as const;
      for (const [type, data] of told) {
        const answer = await stage.post("c1", type, data);
        t.same([answer.status, answer.body], [200, { status: "ok" }]);
      }
      for (const viewer of [alice, bob]) {
        t.same(
          await stage.told(viewer),
          told.map((one) => one.join(" ")),
        );
        for (const { clientMsgNo, fromUid, stream } of viewer.events)
          t.same([clientMsgNo, fromUid, stream], ["c1", alice.uid, undefined]);
        matchObject(t, viewer.pushes[0], { channel: stage.channelOf(viewer.uid) });
      }
      t.same(await stage.told(stage.eve), []);
      const late = await stage.join(bob.uid);
      t.same(await stage.told(late), []);
      const { headSeq } = await bob.history(stage.channelOf(bob.uid));
      t.equal(headSeq, 0);
    },
  );
}

t.test(
  "a custom event during a stream keeps its place among the stream's events [decisions: Custom events]",
  async (t) => {
    const stage = await startStage(t, world);
    await stage.start("s1");
    await stage.say("s1", "a");
    await stage.post("s1", "status", "thinking");
    await stage.post("other", "status", "elsewhere");
    await stage.say("s1", "b");
    t.same(await stage.told(stage.bob), [
      `${START} `,
      `${CONTENT} a`,
      "status thinking",
      "status elsewhere",
      `${CONTENT} b`,
    ]);
    matchObject(t, await stage.seen(stage.bob, "s1"), {
      text: "ab",
      nextIndex: 3,
      problems: [],
    });
  },
);

t.test(
  "a type that begins with ___ and is not in the table is 400 [decisions: Reserved types]",
  async (t) => {
    const stage = await startStage(t, world);
    for (const type of ["___Other", "___", "____system", "___textmessagestart"])
      t.equal(outcome(await stage.post("s1", type, "x")), "400 bad_request", type);
    t.same(await stage.told(stage.bob), []);
  },
);

t.test(
  "for a personal channel the events of either user are in one and the same channel [spec: POST /event person channel]",
  async (t) => {
    const stage = await startStage(t, world, "personal");
    const { alice, bob } = stage;
    await stage.start("s1");
    const back = { from_uid: bob.uid, ...wire(person(alice.uid)) };
    const other = await stage.start("s2", { body: back });
    t.equal(outcome(other), "400 stream_running", "one stream in their channel");
    t.equal(await outcomeOf(stage.say("s1", "by bob", { body: back })), "200 active");
    for (const viewer of [alice, bob]) t.equal((await stage.seen(viewer, "s1")).text, "by bob");
    const texts = textsOf((await alice.history(person(bob.uid))).messages);
    t.same(texts, ["by bob"]);
  },
);

t.test(
  "a member added during the evening sees events from then on, a removed one no more [decisions: After removal]",
  async (t) => {
    const stage = await startStage(t, world);
    const { bob, eve, channel } = stage;
    await stage.post("c1", "one");
    const change = async (call: string, uid: string) => {
      await world.ok(`/channel/${call}`, {
        ...wire(channel),
        subscribers: [uid],
      });
      await world.following();
    };
    await change("subscriber_add", eve.uid);
    await stage.post("c1", "two");
    await change("subscriber_remove", bob.uid);
    await stage.post("c1", "three");
    t.same(await stage.told(bob), ["one ", "two "]);
    t.same(await stage.told(eve), ["two ", "three "]);
  },
);
