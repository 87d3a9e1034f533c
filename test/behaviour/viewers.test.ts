// Viewers of streams: who comes late, who comes back, who asks, who presses the stop button.

import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { CONTENT, END, KINDS, outcomeOf, startStage } from "./stages.ts";
import { codeOf, range, startWorld, wire } from "./world.ts";

const world = await startWorld(t);

for (const kind of KINDS)
  t.test(
    `a viewer that comes in the middle gets the text so far and the next index, then live chunks, in a ${kind} channel [decisions: Who joins late; issue: Late join]`,
    async (t) => {
      const stage = await startStage(t, world, kind);
      await stage.start("s1", { event: { data: "meta" } });
      await stage.say("s1", "so far");
      await stage.post("s1", "___ToolCallStart", "search");
      const late = await stage.join(stage.bob.uid);
      await late.waitFor(() => late.pushesOf("stream").length > 0, "a snapshot");
      matchObject(t, late.pushesOf("stream"), [
        {
          channel: stage.channelOf(late.uid),
          snapshot: {
            state: "active",
            text: "so far",
            nextIndex: 3,
            startData: "meta",
            notes: [{ data: "search" }],
          },
        },
      ]);
      await stage.say("s1", ", and on");
      await stage.end("s1");
      const view = await stage.seen(late, "s1");
      matchObject(t, view, {
        text: "so far, and on",
        state: "closed",
        nextIndex: 5,
        problems: [],
        repeated: 0,
      });
      t.same(await stage.told(late), [`${CONTENT} , and on`, `${END} `]);
      const evening = await stage.join(stage.eve.uid);
      t.equal(
        (await stage.told(evening)).length + evening.pushesOf("stream").length,
        0,
        "a stranger gets neither",
      );
    },
  );

t.test(
  "viewers that come while chunks fly each have the whole text [decisions: Who joins late; issue: Late join]",
  async (t) => {
    const stage = await startStage(t, world);
    await stage.start("s1");
    const joining: ReturnType<typeof stage.join>[] = [];
    let text = "";
    for (const n of range(1, 120)) {
      text += `${n} `;
      await stage.say("s1", `${n} `);
      if (n % 10 === 0) joining.push(stage.join(stage.bob.uid, 1));
    }
    const viewers = await Promise.all(joining);
    await stage.end("s1");
    for (const late of viewers)
      matchObject(t, await stage.seen(late, "s1"), {
        text,
        state: "closed",
        problems: [],
      });
  },
);

t.test(
  "asking for a stream: how it stands, active or over; who is no member is refused [issue: STREAM]",
  async (t) => {
    const stage = await startStage(t, world);
    const { bob, eve, channel } = stage;
    t.equal(await codeOf(bob.stream(channel, "s1")), "stream_unknown");
    await stage.start("s1");
    await stage.say("s1", "text");
    matchObject(t, await bob.stream(channel, "s1"), {
      channel,
      snapshot: { state: "active", text: "text", nextIndex: 2 },
    });
    await stage.end("s1");
    const { snapshot } = await bob.stream(channel, "s1");
    matchObject(t, snapshot, {
      state: "closed",
      text: "text",
      nextIndex: 3,
      endData: "",
    });
    t.equal(await codeOf(eve.stream(channel, "s1")), "not_in_channel");
    matchObject(t, await stage.seen(bob, "s1"), { problems: [] });
  },
);

t.test(
  "who becomes a member in the middle of a stream gets its text so far, then live chunks [decisions: Who joins late]",
  async (t) => {
    const stage = await startStage(t, world);
    const { eve, channel } = stage;
    await stage.start("s1");
    await stage.say("s1", "before ");
    await world.ok("/channel/subscriber_add", {
      ...wire(channel),
      subscribers: [eve.uid],
    });
    await stage.say("s1", "after");
    await eve.waitFor(() => eve.view(channel, "s1")?.text === "before after", "the text");
    matchObject(t, await stage.seen(eve, "s1"), { nextIndex: 3, problems: [] });
    t.equal(eve.pushesOf("stream").length, 1);
  },
);

t.test(
  "a viewer that dropped and resumes has the message and goes on from the text so far [decisions: Who joins late]",
  async (t) => {
    const stage = await startStage(t, world);
    const { channel } = stage;
    const first = await stage.join(stage.bob.uid);
    await stage.start("s1");
    await stage.say("s1", "one ");
    await stage.seen(first, "s1");
    first.kill();
    await first.closed;
    await stage.say("s1", "two ");
    const again = await world.connect(t, stage.bob.uid, {
      ...{ flag: 1, streams: first.streams },
      resume: [{ channel, lastSeq: 1 }],
    });
    await stage.say("s1", "three");
    await stage.end("s1");
    matchObject(t, await stage.seen(again, "s1"), {
      text: "one two three",
      state: "closed",
      problems: [],
      snapshots: 2,
    });
  },
);

for (const kind of KINDS)
  t.test(
    `stop button: the stream ends cancelled at once, the producer learns it by its next call, in a ${kind} channel [issue: Stop button]`,
    async (t) => {
      const stage = await startStage(t, world, kind);
      const { alice, bob } = stage;
      await stage.start("s1");
      await stage.say("s1", "enough");
      const { state } = await bob.cancel(stage.channelOf(bob.uid), "s1");
      t.equal(state, "cancelled");
      for (const viewer of [alice, bob])
        matchObject(t, await stage.seen(viewer, "s1"), {
          state: "cancelled",
          text: "enough",
          endData: "",
          nextIndex: 3,
          problems: [],
        });
      for (const next of [
        stage.say("s1", "more"),
        stage.post("s1", "___ToolCallStart", "x"),
        stage.end("s1"),
      ])
        t.same((await next).body, {
          status: "ok",
          stream: { state: "cancelled" },
        });
      matchObject(t, (await stage.read("s1")).body, {
        state: "cancelled",
        text: "enough",
        events: [],
      });
      t.equal((await stage.told(bob)).length, 3, "nothing was added");
      t.same(await stage.told(stage.eve), []);
      t.equal(await outcomeOf(stage.start("s2")), "200 active");
    },
  );

t.test(
  "the stop button needs the right to send, and a stream that goes on [issue: Stop button]",
  async (t) => {
    const stage = await startStage(t, world);
    const { bob, eve, channel } = stage;
    t.equal(await codeOf(bob.cancel(channel, "s1")), "stream_unknown");
    await stage.start("s1");
    t.equal(await codeOf(eve.cancel(channel, "s1")), "not_subscriber");
    await world.ok("/channel/info", { ...wire(channel), ban: 1 });
    t.equal(await codeOf(bob.cancel(channel, "s1")), "channel_banned");
    await world.ok("/channel/info", { ...wire(channel), ban: 0 });
    t.equal(await outcomeOf(stage.end("s1")), "200 closed");
    t.equal((await bob.cancel(channel, "s1")).state, "closed", "it stays as it ended");
  },
);
