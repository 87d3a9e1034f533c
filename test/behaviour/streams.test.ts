// The streaming text session: every row of its state table and every decision about it, over HTTP
// with what viewers receive.

import { matchObject } from "../support/match-object.ts";
import { textOf } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { CONTENT, END, KINDS, outcomeOf, START, startStage } from "./stages.ts";
import { range, startWorld } from "./world.ts";

const world = await startWorld(t);
const FORCE = { query: "?force=1" };

for (const kind of KINDS) {
  t.test(
    `none + start, no other stream active: active, in a ${kind} channel [spec: Stream none start]`,
    async (t) => {
      const stage = await startStage(t, world, kind);
      t.equal((await stage.read("s1")).status, 404, "none before");
      t.equal(await outcomeOf(stage.start("s1")), "200 active");
      matchObject(t, (await stage.read("s1")).body, {
        state: "active",
        text: "",
        next_index: 1,
      });
      matchObject(t, await stage.seen(stage.bob, "s1"), {
        state: "active",
        nextIndex: 1,
      });
    },
  );

  t.test(
    `none + start with another stream active: refused, the other goes on, in a ${kind} channel [spec: Stream none start refused; spec: Stream one per channel; spec: Limits one stream]`,
    async (t) => {
      const stage = await startStage(t, world, kind);
      await stage.start("s1");
      for (const query of ["", "?force=0"])
        t.equal(await outcomeOf(stage.start("s2", { query })), "400 stream_running");
      t.equal(await outcomeOf(stage.say("s2", "x")), "400 stream_not_found", "still none");
      t.equal(await outcomeOf(stage.say("s1", "goes on")), "200 active");
      t.equal((await stage.seen(stage.bob, "s1")).text, "goes on");
      t.equal(stage.bob.view(stage.channelOf(stage.bob.uid), "s2"), undefined);
      await stage.end("s1");
      t.equal(await outcomeOf(stage.start("s2")), "200 active", "free again");
    },
  );

  t.test(
    `none + start with force=1: the other ends cancelled first, viewers are told, its text is kept, in a ${kind} channel [spec: Stream none start force; spec: query force; decisions: force=1]`,
    async (t) => {
      const stage = await startStage(t, world, kind);
      await stage.start("s1");
      await stage.say("s1", "kept");
      t.equal(await outcomeOf(stage.start("s2", FORCE)), "200 active");
      await stage.say("s2", "new");
      for (const viewer of [stage.alice, stage.bob]) {
        matchObject(t, await stage.seen(viewer, "s1"), {
          state: "cancelled",
          text: "kept",
          problems: [],
        });
        matchObject(t, await stage.seen(viewer, "s2"), {
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
      t.same(await stage.told(stage.eve), []);
      matchObject(t, (await stage.read("s1")).body, {
        state: "cancelled",
        text: "kept",
      });
      t.equal(await outcomeOf(stage.say("s1", "late")), "400 stream_closed");
    },
  );

  t.test(
    `active + content: active, a chunk is added, in a ${kind} channel [spec: Stream active content]`,
    async (t) => {
      const stage = await startStage(t, world, kind);
      await stage.start("s1");
      for (const n of range(1, 20))
        t.equal(await outcomeOf(stage.say("s1", `${n} `)), "200 active");
      const text = range(1, 20)
        .map((n) => `${n} `)
        .join("");
      for (const viewer of [stage.alice, stage.bob])
        matchObject(t, await stage.seen(viewer, "s1"), {
          state: "active",
          text,
          nextIndex: 21,
          problems: [],
          merged: 0,
        });
      t.same(await stage.told(stage.eve), []);
    },
  );

  t.test(`active + end: closed, in a ${kind} channel [spec: Stream active end]`, async (t) => {
    const stage = await startStage(t, world, kind);
    await stage.start("s1");
    await stage.say("s1", "done");
    t.equal(await outcomeOf(stage.end("s1")), "200 closed");
    for (const viewer of [stage.alice, stage.bob])
      matchObject(t, await stage.seen(viewer, "s1"), {
        state: "closed",
        text: "done",
        nextIndex: 3,
        problems: [],
      });
    matchObject(t, (await stage.read("s1")).body, {
      state: "closed",
      text: "done",
    });
  });

  t.test(
    `none + content or end: none, refused, nobody hears of it, in a ${kind} channel [spec: Stream none content or end]`,
    async (t) => {
      const stage = await startStage(t, world, kind);
      t.equal(await outcomeOf(stage.say("s1", "x")), "400 stream_not_found");
      t.equal(await outcomeOf(stage.end("s1")), "400 stream_not_found");
      t.equal((await stage.read("s1")).status, 404);
      t.same(await stage.told(stage.bob), []);
    },
  );

  t.test(
    `closed + content: closed, refused, the text stays, in a ${kind} channel [spec: Stream closed content]`,
    async (t) => {
      const stage = await startStage(t, world, kind);
      await stage.start("s1");
      await stage.say("s1", "text");
      await stage.end("s1");
      t.equal(await outcomeOf(stage.say("s1", "late")), "400 stream_closed");
      matchObject(t, await stage.seen(stage.bob, "s1"), {
        state: "closed",
        text: "text",
        nextIndex: 3,
      });
      matchObject(t, (await stage.read("s1")).body, {
        state: "closed",
        text: "text",
      });
      t.equal(await outcomeOf(stage.start("s2")), "200 active", "a new stream may start");
    },
  );
}

t.test(
  "starting again: an active stream goes on, a closed one is refused [decisions: Stream start again]",
  async (t) => {
    const stage = await startStage(t, world);
    await stage.start("s1");
    await stage.say("s1", "text");
    for (const options of [{}, FORCE])
      t.equal(await outcomeOf(stage.start("s1", options)), "200 active");
    matchObject(t, await stage.seen(stage.bob, "s1"), {
      nextIndex: 2,
      text: "text",
      repeated: 0,
    });
    t.equal(stage.bob.messages.length, 1, "one place in the channel");
    await stage.end("s1");
    for (const options of [{}, FORCE])
      t.equal(await outcomeOf(stage.start("s1", options)), "400 stream_closed");
  },
);

t.test(
  "ending again is answered and nothing happens [decisions: End of a closed stream]",
  async (t) => {
    const stage = await startStage(t, world);
    await stage.start("s1");
    await stage.end("s1");
    t.equal(await outcomeOf(stage.post("s1", END, "again")), "200 closed");
    matchObject(t, await stage.seen(stage.bob, "s1"), { endData: "", nextIndex: 2 });
    t.equal((await stage.told(stage.bob)).length, 2);
  },
);

t.test(
  "start, content, tool call and end with the same event id are applied once, also when they come at once [decisions: Event id]",
  async (t) => {
    const stage = await startStage(t, world);
    const id = (id: string) => ({ event: { id } });
    const thrice = (post: () => Promise<{ status: number }>) =>
      Promise.all([post(), post(), post()]);
    const answers = [
      ...(await thrice(() => stage.start("s1", id("e0")))),
      ...(await thrice(() => stage.say("s1", "one ", id("e1")))),
      ...(await thrice(() => stage.post("s1", "___ToolCallStart", "t", id("e2")))),
      ...(await thrice(() => stage.say("s1", "two", id("e3")))),
      ...(await thrice(() => stage.end("s1", id("e4")))),
      await stage.say("s1", "two", id("e3")),
    ];
    t.ok(answers.every(({ status }) => status === 200));
    matchObject(t, await stage.seen(stage.bob, "s1"), {
      text: "one two",
      nextIndex: 5,
      problems: [],
      repeated: 0,
    });
    t.equal(stage.bob.events.length, 5);
    matchObject(t, (await stage.read("s1")).body, { text: "one two", next_index: 5 });
  },
);

t.test(
  "chunks of one producer that are under way at once are each added once, viewers agree with the store [decisions: Event id]",
  async (t) => {
    const stage = await startStage(t, world);
    await stage.start("s1");
    const words = range(1, 100).map((n) => `<${n}>`);
    await Promise.all(words.map((word) => stage.say("s1", word)));
    const { text } = (await stage.read("s1")).body;
    t.same([...text.matchAll(/<\d+>/g)].map(([word]) => word).sort(), [...words].sort());
    for (const viewer of [stage.alice, stage.bob])
      matchObject(t, await stage.seen(viewer, "s1"), {
        text,
        nextIndex: 101,
        problems: [],
      });
  },
);

t.test(
  "the stream's message stands in its place in history, its text so far, then as a finished text message [decisions: Stream and history]",
  async (t) => {
    const stage = await startStage(t, world);
    const { bob, alice, channel } = stage;
    await world.send(alice.uid, channel, "before");
    await stage.start("s1", { event: { data: "meta" } });
    await stage.say("s1", "half ");
    await world.send(alice.uid, channel, "after");
    const texts = async () => {
      const { messages } = await bob.history(channel);
      return messages.map(textOf);
    };
    t.same(await texts(), ["before", "half ", "after"]);
    await stage.say("s1", "and whole");
    await stage.post("s1", END, "bye");
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
