// The streaming text session: every row of its state table and every decision about it, over HTTP
// and as viewers see it.

import { matchObject } from "../support/match-object.ts";
import { textOf } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { CONTENT, createFixture, END, KINDS, outcomeOf, START } from "./stream-fixture.ts";
import { range, startWorld } from "./world.ts";

const world = await startWorld(t);
const FORCE = { query: "?force=1" };

for (const kind of KINDS) {
  // Covers [spec: Stream none start]
  t.test(
    `a start event in a ${kind} channel makes a new stream active if no other stream is active there`,
    async (t) => {
      const fixture = await createFixture(t, world, kind);
      t.equal((await fixture.read("s1")).status, 404, "the stream does not exist before its start");
      t.equal(await outcomeOf(fixture.start("s1")), "200 active");
      matchObject(t, (await fixture.read("s1")).body, {
        state: "active",
        text: "",
        next_index: 1,
      });
      matchObject(t, await fixture.viewOf(fixture.bob, "s1"), {
        state: "active",
        nextIndex: 1,
      });
    },
  );

  // Covers [spec: Stream none start refused; spec: Stream one per channel; spec: Limits one stream]
  t.test(
    `a start event is refused while another stream is active in the ${kind} channel`,
    async (t) => {
      const fixture = await createFixture(t, world, kind);
      await fixture.start("s1");
      for (const query of ["", "?force=0"])
        t.equal(await outcomeOf(fixture.start("s2", { query })), "400 stream_running");
      t.equal(
        await outcomeOf(fixture.addText("s2", "x")),
        "400 stream_not_found",
        "the refused stream does not exist",
      );
      t.equal(await outcomeOf(fixture.addText("s1", "goes on")), "200 active");
      t.equal((await fixture.viewOf(fixture.bob, "s1")).text, "goes on");
      t.equal(fixture.bob.view(fixture.channelOf(fixture.bob.uid), "s2"), undefined);
      await fixture.end("s1");
      t.equal(
        await outcomeOf(fixture.start("s2")),
        "200 active",
        "another stream can start after the end",
      );
    },
  );

  // Covers [spec: Stream none start force; spec: query force; decisions: force=1]
  t.test(
    `a start event with force=1 in a ${kind} channel cancels the active stream and keeps its text`,
    async (t) => {
      const fixture = await createFixture(t, world, kind);
      await fixture.start("s1");
      await fixture.addText("s1", "kept");
      t.equal(await outcomeOf(fixture.start("s2", FORCE)), "200 active");
      await fixture.addText("s2", "new");
      for (const viewer of [fixture.alice, fixture.bob]) {
        matchObject(t, await fixture.viewOf(viewer, "s1"), {
          state: "cancelled",
          text: "kept",
          problems: [],
        });
        matchObject(t, await fixture.viewOf(viewer, "s2"), {
          state: "active",
          text: "new",
          problems: [],
        });
        const order = viewer.events.map(({ type, clientMsgNo }) => `${clientMsgNo} ${type}`);
        t.same(order, [
          `s1 ${START}`,
          `s1 ${CONTENT}`,
          `s1 ${END}`,
          `s2 ${START}`,
          `s2 ${CONTENT}`,
        ]);
      }
      t.same(await fixture.eventsOf(fixture.eve), []);
      matchObject(t, (await fixture.read("s1")).body, {
        state: "cancelled",
        text: "kept",
      });
      t.equal(await outcomeOf(fixture.addText("s1", "late")), "400 stream_closed");
    },
  );

  // Covers [spec: Stream active content]
  t.test(`a content event appends a chunk to an active stream in a ${kind} channel`, async (t) => {
    const fixture = await createFixture(t, world, kind);
    await fixture.start("s1");
    for (const n of range(1, 20))
      t.equal(await outcomeOf(fixture.addText("s1", `${n} `)), "200 active");
    const text = range(1, 20)
      .map((n) => `${n} `)
      .join("");
    for (const viewer of [fixture.alice, fixture.bob])
      matchObject(t, await fixture.viewOf(viewer, "s1"), {
        state: "active",
        text,
        nextIndex: 21,
        problems: [],
        merged: 0,
      });
    t.same(await fixture.eventsOf(fixture.eve), []);
  });

  // Covers [spec: Stream active end]
  t.test(`an end event closes an active stream in a ${kind} channel`, async (t) => {
    const fixture = await createFixture(t, world, kind);
    await fixture.start("s1");
    await fixture.addText("s1", "done");
    t.equal(await outcomeOf(fixture.end("s1")), "200 closed");
    for (const viewer of [fixture.alice, fixture.bob])
      matchObject(t, await fixture.viewOf(viewer, "s1"), {
        state: "closed",
        text: "done",
        nextIndex: 3,
        problems: [],
      });
    matchObject(t, (await fixture.read("s1")).body, {
      state: "closed",
      text: "done",
    });
  });

  // Covers [spec: Stream none content or end]
  t.test(
    `a content or end event without a start event in a ${kind} channel is refused and not pushed`,
    async (t) => {
      const fixture = await createFixture(t, world, kind);
      t.equal(await outcomeOf(fixture.addText("s1", "x")), "400 stream_not_found");
      t.equal(await outcomeOf(fixture.end("s1")), "400 stream_not_found");
      t.equal((await fixture.read("s1")).status, 404);
      t.same(await fixture.eventsOf(fixture.bob), []);
    },
  );

  // Covers [spec: Stream closed content]
  t.test(
    `a content event for a closed stream in a ${kind} channel is refused and leaves the stream's text unchanged`,
    async (t) => {
      const fixture = await createFixture(t, world, kind);
      await fixture.start("s1");
      await fixture.addText("s1", "text");
      await fixture.end("s1");
      t.equal(await outcomeOf(fixture.addText("s1", "late")), "400 stream_closed");
      matchObject(t, await fixture.viewOf(fixture.bob, "s1"), {
        state: "closed",
        text: "text",
        nextIndex: 3,
      });
      matchObject(t, (await fixture.read("s1")).body, {
        state: "closed",
        text: "text",
      });
      t.equal(await outcomeOf(fixture.start("s2")), "200 active", "a new stream can start");
    },
  );
}

// Covers [decisions: Stream start again]
t.test(
  "a repeated start event is acknowledged for an active stream and refused for a closed stream",
  async (t) => {
    const fixture = await createFixture(t, world);
    await fixture.start("s1");
    await fixture.addText("s1", "text");
    for (const options of [{}, FORCE])
      t.equal(await outcomeOf(fixture.start("s1", options)), "200 active");
    matchObject(t, await fixture.viewOf(fixture.bob, "s1"), {
      nextIndex: 2,
      text: "text",
      repeated: 0,
    });
    t.equal(fixture.bob.messages.length, 1, "the stream has one message in the channel");
    await fixture.end("s1");
    for (const options of [{}, FORCE])
      t.equal(await outcomeOf(fixture.start("s1", options)), "400 stream_closed");
  },
);

// Covers [decisions: End of a closed stream]
t.test("a repeated end event is acknowledged and has no effect", async (t) => {
  const fixture = await createFixture(t, world);
  await fixture.start("s1");
  await fixture.end("s1");
  t.equal(await outcomeOf(fixture.post("s1", END, "again")), "200 closed");
  matchObject(t, await fixture.viewOf(fixture.bob, "s1"), { endData: "", nextIndex: 2 });
  t.equal((await fixture.eventsOf(fixture.bob)).length, 2);
});

// Covers [decisions: Event id]
t.test(
  "identical events with the same event id are applied once, even if they are sent concurrently",
  async (t) => {
    const fixture = await createFixture(t, world);
    const id = (id: string) => ({ event: { id } });
    const sendThrice = (post: () => Promise<{ status: number }>) =>
      Promise.all([post(), post(), post()]);
    const responses = [
      ...(await sendThrice(() => fixture.start("s1", id("e0")))),
      ...(await sendThrice(() => fixture.addText("s1", "one ", id("e1")))),
      ...(await sendThrice(() => fixture.post("s1", "___ToolCallStart", "t", id("e2")))),
      ...(await sendThrice(() => fixture.addText("s1", "two", id("e3")))),
      ...(await sendThrice(() => fixture.end("s1", id("e4")))),
      await fixture.addText("s1", "two", id("e3")),
    ];
    t.ok(responses.every(({ status }) => status === 200));
    matchObject(t, await fixture.viewOf(fixture.bob, "s1"), {
      text: "one two",
      nextIndex: 5,
      problems: [],
      repeated: 0,
    });
    t.equal(fixture.bob.events.length, 5);
    matchObject(t, (await fixture.read("s1")).body, { text: "one two", next_index: 5 });
  },
);

// Covers [decisions: Event id]
for (const onStart of [true, false])
  t.test(
    `events that share one event id are all added if the start of their stream ${onStart ? "has" : "does not have"} the id`,
    async (t) => {
      const fixture = await createFixture(t, world);
      const shared = { event: { id: "chatcmpl-1" } };
      const chunks = ["ha", "no", "no", "no", "ha"];
      await fixture.start("s1", onStart ? shared : {});
      for (const chunk of chunks)
        t.equal(await outcomeOf(fixture.addText("s1", chunk, shared)), "200 active");
      for (const [type, data] of [
        ["___ToolCallStart", "search"],
        ["___ToolCallArgs", "{"],
        ["___ToolCallArgs", "{"],
        ["___ToolCallEnd", ""],
        ["___ToolCallResult", "{}"],
      ] as const)
        t.equal(await outcomeOf(fixture.post("s1", type, data, shared)), "200 active");
      t.equal(await outcomeOf(fixture.end("s1", shared)), "200 closed");
      const text = chunks.join("");
      const view = await fixture.viewOf(fixture.bob, "s1");
      matchObject(t, view, { state: "closed", text, nextIndex: 12, problems: [], repeated: 0 });
      const ids = fixture.bob.events.slice(onStart ? 0 : 1).map(({ eventId }) => eventId);
      t.same(new Set(ids), new Set(["chatcmpl-1"]), "viewers get the shared id");
      t.equal((await fixture.read("s1")).body.text, text);
      t.equal(
        await outcomeOf(fixture.addText("s1", "ha", shared)),
        "400 stream_closed",
        "an event with a shared id is not a retry after the end either",
      );
    },
  );

// Covers [decisions: Event id]
t.test("equal events whose id is their stream's client_msg_no are all added", async (t) => {
  const fixture = await createFixture(t, world);
  const shared = { event: { id: "s1" } };
  await fixture.addText("s1", "early", shared);
  await fixture.start("s1");
  for (const text of ["ha", "ha", "ha"]) await fixture.addText("s1", text, shared);
  await Promise.all([1, 2, 3].map(() => fixture.post("s1", "___ToolCallArgs", "{}", shared)));
  t.equal(await outcomeOf(fixture.end("s1", shared)), "200 closed");
  matchObject(t, (await fixture.read("s1")).body, {
    ...{ state: "closed", text: "hahaha", next_index: 8 },
  });
});

// Covers [decisions: Event id]
t.test(
  "an event with the id, type and data of an earlier event is a retry unless their timestamps differ or several events already share the id",
  async (t) => {
    const fixture = await createFixture(t, world);
    await fixture.start("s1");
    const add = (text: string, id: string, timestamp?: number) =>
      fixture.addText("s1", text, { event: { id, timestamp } });
    await add("a", "a", 1000);
    await add("a", "a", 1000);
    await add("a", "a");
    await add("b", "b");
    await add("b", "b", 1000);
    await add("b", "b", 2000);
    await add("c", "c", 1000);
    await add("c", "c", 2000);
    await add("c", "c", 2000);
    t.equal((await fixture.read("s1")).body.text, "abccc");
    await fixture.end("s1");
    t.equal(await outcomeOf(add("a", "a", 1000)), "200 closed");
    t.equal(await outcomeOf(add("a", "a", 2000)), "400 stream_closed");
    t.equal(await outcomeOf(add("A", "a", 1000)), "400 stream_closed");
    t.equal(await outcomeOf(add("c", "c", 1000)), "400 stream_closed");
  },
);

// Covers [decisions: Event id]
t.test(
  "chunks that a producer sends in parallel are each added once, and viewers see the stored order",
  async (t) => {
    const fixture = await createFixture(t, world);
    await fixture.start("s1");
    const words = range(1, 100).map((n) => `<${n}>`);
    await Promise.all(words.map((word) => fixture.addText("s1", word)));
    const { text } = (await fixture.read("s1")).body;
    t.same([...text.matchAll(/<\d+>/g)].map(([word]) => word).sort(), [...words].sort());
    for (const viewer of [fixture.alice, fixture.bob])
      matchObject(t, await fixture.viewOf(viewer, "s1"), {
        text,
        nextIndex: 101,
        problems: [],
      });
  },
);

// Covers [decisions: Stream and history]
t.test(
  "history contains a stream's message with the text so far, and with the complete text after the end",
  async (t) => {
    const fixture = await createFixture(t, world);
    const { bob, alice, channel } = fixture;
    await world.send(alice.uid, channel, "before");
    await fixture.start("s1", { event: { data: "meta" } });
    await fixture.addText("s1", "half ");
    await world.send(alice.uid, channel, "after");
    const texts = async () => {
      const { messages } = await bob.history(channel);
      return messages.map(textOf);
    };
    t.same(await texts(), ["before", "half ", "after"]);
    await fixture.addText("s1", "and whole");
    await fixture.post("s1", END, "bye");
    t.same(await texts(), ["before", "half and whole", "after"]);
    const { messages } = await bob.history(channel);
    matchObject(t, messages[1], {
      ...{ messageSeq: 2, clientMsgNo: "s1", fromUid: alice.uid, expireS: 0 },
      stream: {
        state: "closed",
        text: "half and whole",
        nextIndex: 4,
        startData: "meta",
        endData: "bye",
      },
    });
    matchObject(t, [messages[0]?.stream, messages[2]?.stream], [undefined, undefined]);
    const query = `channel_id=${channel.id}&channel_type=2&limit=10`;
    const { body: page } = await world.call(`/channel/messages?${query}`);
    matchObject(t, page.messages[1], {
      stream: {
        state: "closed",
        text: "half and whole",
        next_index: 4,
        start_data: "meta",
        end_data: "bye",
        events: [],
      },
    });
    t.equal(page.messages[0].stream, undefined);
    const payload = JSON.parse(Buffer.from(page.messages[1].payload, "base64").toString());
    t.same(payload, { type: 1, content: "half and whole" });
  },
);
