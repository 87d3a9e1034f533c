// How streams live on and end without a word: names shared with messages, restarts, producers that
// fall silent.

import { matchObject } from "../support/match-object.ts";
import { measureStalls } from "../support/stalls.ts";
import { t } from "../support/suite.ts";
import { CONTENT, END, outcomeOf, startStage } from "./stages.ts";
import { eventually, startWorld, wire } from "./world.ts";

const world = await startWorld(t);
t.test(
  "a stream's name is that of its message: a message cannot take it, nor it that of a message [decisions: Deduplication]",
  async (t) => {
    const stage = await startStage(t, world);
    const { alice, channel } = stage;
    await world.send(alice.uid, channel, "text", { client_msg_no: "taken" });
    t.equal(await outcomeOf(stage.start("taken")), "400 bad_request");
    await stage.start("s1");
    const { body } = await world.send(alice.uid, channel, "x", {
      client_msg_no: "s1",
    });
    t.equal(body.message_seq, 2);
    t.same((await alice.history(channel)).headSeq, 2);
  },
);

t.test(
  "stream_no of a message links it to the stream of that client_msg_no [decisions: stream_no]",
  async (t) => {
    const stage = await startStage(t, world);
    await stage.start("s1");
    await world.send(stage.alice.uid, stage.channel, "remark", {
      stream_no: "s1",
    });
    matchObject(
      t,
      await stage.bob.nextPush((push) => push.kind === "message" && push.message.streamNo === "s1"),
      { message: { messageSeq: 2, stream: undefined } },
    );
  },
);

t.test(
  "a stream outlives a restart: its producer goes on, viewers that come back have it all [issue: Streams survive]",
  async (t) => {
    const before = await startWorld(t);
    const stage = await startStage(t, before);
    const { alice, bob, channel } = stage;
    await stage.start("s1", { event: { id: "e0" } });
    await stage.say("s1", "before ", { event: { id: "e1" } });
    await before.close();
    const after = await startWorld(t, {}, before.dataPath);
    const late = await after.connect(t, bob.uid);
    const post = (type: string, data: string, id: string) =>
      outcomeOf(
        after.call("/event", {
          ...{ client_msg_no: "s1", from_uid: alice.uid, ...wire(channel) },
          event: { type, data, id },
        }),
      );
    t.equal(await post(CONTENT, "before ", "e1"), "200 active", "a retry");
    t.equal(await post(CONTENT, "after", "e2"), "200 active");
    t.equal(await post(END, "", "e3"), "200 closed");
    await late.waitFor(() => late.view(channel, "s1")?.ended === true, "the end");
    matchObject(t, late.view(channel, "s1"), {
      text: "before after",
      problems: [],
      nextIndex: 4,
    });
  },
);

t.test(
  "a producer that falls silent: viewers are told, the text is kept, a new stream can start [decisions: Producer dies]",
  async (t) => {
    const quick = await startWorld(t, {
      JINDOU_STREAMS_IDLE_TIMEOUT_MS: "300",
    });
    const stage = await startStage(t, quick);
    const { bob, channel } = stage;
    await stage.start("s1");
    const stalls = measureStalls(t);
    const silentMs = performance.now(); // it is silent since some time before the answer comes
    await stage.say("s1", "so far");
    await bob.waitFor(() => bob.view(channel, "s1")?.ended === true, "the end");
    const tookMs = performance.now() - silentMs;
    t.ok(tookMs >= 290, `not before its time: ${tookMs} ms`);
    t.ok(tookMs < 1300 + 10 * stalls.totalMs(), `${tookMs} ms`);
    matchObject(t, await stage.seen(bob, "s1"), {
      state: "interrupted",
      text: "so far",
      problems: [],
    });
    matchObject(t, (await stage.read("s1")).body, {
      state: "interrupted",
      text: "so far",
    });
    t.equal(await outcomeOf(stage.say("s1", "late")), "400 stream_closed");
    t.equal(await outcomeOf(stage.start("s2")), "200 active");
    await eventually(async () => (await stage.read("s2")).body.state === "interrupted");
  },
);
