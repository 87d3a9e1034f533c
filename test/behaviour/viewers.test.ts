// Viewers of streams: viewers that join late, reconnect, request a stream, or press the stop
// button.

import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { CONTENT, createFixture, END, KINDS, outcomeOf } from "./stream-fixture.ts";
import { codeOf, range, startWorld, wire } from "./world.ts";

const world = await startWorld(t);

// Covers [decisions: Who joins late; feature: Late join]
for (const kind of KINDS)
  t.test(
    `a late viewer of a stream in a ${kind} channel gets the text so far and then live chunks`,
    async (t) => {
      const fixture = await createFixture(t, world, kind);
      await fixture.start("s1", { event: { data: "meta" } });
      await fixture.addText("s1", "so far");
      await fixture.post("s1", "___ToolCallStart", "search");
      const late = await fixture.join(fixture.bob.uid);
      await late.waitFor(() => late.pushesOf("stream").length > 0, "a snapshot");
      matchObject(t, late.pushesOf("stream"), [
        {
          channel: fixture.channelOf(late.uid),
          snapshot: {
            state: "active",
            text: "so far",
            nextIndex: 3,
            startData: "meta",
            notes: [{ data: "search" }],
          },
        },
      ]);
      await fixture.addText("s1", ", and on");
      await fixture.end("s1");
      const view = await fixture.viewOf(late, "s1");
      matchObject(t, view, {
        text: "so far, and on",
        state: "closed",
        nextIndex: 5,
        problems: [],
        repeated: 0,
      });
      t.same(await fixture.eventsOf(late), [`${CONTENT} , and on`, `${END} `]);
      const evening = await fixture.join(fixture.eve.uid);
      t.equal(
        (await fixture.eventsOf(evening)).length + evening.pushesOf("stream").length,
        0,
        "a user outside the channel gets neither snapshot nor events",
      );
    },
  );

// Covers [decisions: Who joins late; feature: Late join]
t.test("every viewer that joins while chunks are being sent gets the complete text", async (t) => {
  const fixture = await createFixture(t, world);
  await fixture.start("s1");
  const joining: ReturnType<typeof fixture.join>[] = [];
  let text = "";
  for (const n of range(1, 120)) {
    text += `${n} `;
    await fixture.addText("s1", `${n} `);
    if (n % 10 === 0) joining.push(fixture.join(fixture.bob.uid, 1));
  }
  const viewers = await Promise.all(joining);
  await fixture.end("s1");
  for (const late of viewers)
    matchObject(t, await fixture.viewOf(late, "s1"), {
      text,
      state: "closed",
      problems: [],
    });
});

// Covers [feature: STREAM]
t.test(
  "a member can request the state of an active or ended stream, and other users are refused",
  async (t) => {
    const fixture = await createFixture(t, world);
    const { bob, eve, channel } = fixture;
    t.equal(await codeOf(bob.stream(channel, "s1")), "stream_unknown");
    await fixture.start("s1");
    await fixture.addText("s1", "text");
    matchObject(t, await bob.stream(channel, "s1"), {
      channel,
      snapshot: { state: "active", text: "text", nextIndex: 2 },
    });
    await fixture.end("s1");
    const { snapshot } = await bob.stream(channel, "s1");
    matchObject(t, snapshot, {
      state: "closed",
      text: "text",
      nextIndex: 3,
      endData: "",
    });
    t.equal(await codeOf(eve.stream(channel, "s1")), "not_in_channel");
    matchObject(t, await fixture.viewOf(bob, "s1"), { problems: [] });
  },
);

// Covers [decisions: Who joins late]
t.test(
  "a user who becomes a member during a stream gets the stream's text so far and then live chunks",
  async (t) => {
    const fixture = await createFixture(t, world);
    const { eve, channel } = fixture;
    await fixture.start("s1");
    await fixture.addText("s1", "before ");
    await world.ok("/channel/subscriber_add", {
      ...wire(channel),
      subscribers: [eve.uid],
    });
    await fixture.addText("s1", "after");
    await eve.waitFor(() => eve.view(channel, "s1")?.text === "before after", "the text");
    matchObject(t, await fixture.viewOf(eve, "s1"), { nextIndex: 3, problems: [] });
    t.equal(eve.pushesOf("stream").length, 1);
  },
);

// Covers [decisions: Who joins late]
t.test(
  "a viewer that resumes after a lost connection gets the text so far and then live chunks",
  async (t) => {
    const fixture = await createFixture(t, world);
    const { channel } = fixture;
    const first = await fixture.join(fixture.bob.uid);
    await fixture.start("s1");
    await fixture.addText("s1", "one ");
    await fixture.viewOf(first, "s1");
    first.kill();
    await first.closed;
    await fixture.addText("s1", "two ");
    const resumed = await world.connect(t, fixture.bob.uid, {
      ...{ flag: 1, streams: first.streams },
      resume: [{ channel, lastSeq: 1 }],
    });
    await fixture.addText("s1", "three");
    await fixture.end("s1");
    matchObject(t, await fixture.viewOf(resumed, "s1"), {
      text: "one two three",
      state: "closed",
      problems: [],
      snapshots: 2,
    });
  },
);

// Covers [feature: Stop button]
for (const kind of KINDS)
  t.test(
    `a viewer can cancel a stream in a ${kind} channel, and the producer's later events are answered with the state cancelled`,
    async (t) => {
      const fixture = await createFixture(t, world, kind);
      const { alice, bob } = fixture;
      await fixture.start("s1");
      await fixture.addText("s1", "enough");
      const { state } = await bob.cancel(fixture.channelOf(bob.uid), "s1");
      t.equal(state, "cancelled");
      for (const viewer of [alice, bob])
        matchObject(t, await fixture.viewOf(viewer, "s1"), {
          state: "cancelled",
          text: "enough",
          endData: "",
          nextIndex: 3,
          problems: [],
        });
      for (const next of [
        fixture.addText("s1", "more"),
        fixture.post("s1", "___ToolCallStart", "x"),
        fixture.end("s1"),
      ])
        t.same((await next).body, {
          status: "ok",
          stream: { state: "cancelled" },
        });
      matchObject(t, (await fixture.read("s1")).body, {
        state: "cancelled",
        text: "enough",
        events: [],
      });
      t.equal(
        (await fixture.eventsOf(bob)).length,
        3,
        "events after the cancellation are not pushed",
      );
      t.same(await fixture.eventsOf(fixture.eve), []);
      t.equal(await outcomeOf(fixture.start("s2")), "200 active");
    },
  );

// Covers [feature: Stop button]
t.test(
  "a stream can be cancelled only while it is active and only by a user who may send to its channel",
  async (t) => {
    const fixture = await createFixture(t, world);
    const { bob, eve, channel } = fixture;
    t.equal(await codeOf(bob.cancel(channel, "s1")), "stream_unknown");
    await fixture.start("s1");
    t.equal(await codeOf(eve.cancel(channel, "s1")), "not_subscriber");
    await world.ok("/channel/info", { ...wire(channel), ban: 1 });
    t.equal(await codeOf(bob.cancel(channel, "s1")), "channel_banned");
    await world.ok("/channel/info", { ...wire(channel), ban: 0 });
    t.equal(await outcomeOf(fixture.end("s1")), "200 closed");
    t.equal((await bob.cancel(channel, "s1")).state, "closed", "an ended stream keeps its state");
  },
);
