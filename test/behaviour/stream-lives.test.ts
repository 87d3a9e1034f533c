// Names of streams and messages, streams across a restart, and streams whose producer is silent.

import { matchObject } from "../support/match-object.ts";
import { measureStalls } from "../support/stalls.ts";
import { t } from "../support/suite.ts";
import { CONTENT, createFixture, END, outcomeOf } from "./stream-fixture.ts";
import { eventually, startWorld, wire } from "./world.ts";

const world = await startWorld(t);
// Covers [decisions: Same client_msg_no, another payload]
t.test(
  "a stream cannot use the client_msg_no of a message, and a message cannot use that of a stream",
  async (t) => {
    const fixture = await createFixture(t, world);
    const { alice, channel } = fixture;
    await world.send(alice.uid, channel, "text", { client_msg_no: "taken" });
    t.equal(await outcomeOf(fixture.start("taken")), "409 client_msg_no_reused");
    await fixture.start("s1");
    for (const text of ["x", ""]) {
      const { status, body } = await world.send(alice.uid, channel, text, { client_msg_no: "s1" });
      t.equal(`${status} ${body.code}`, "409 client_msg_no_reused");
    }
    t.same((await alice.history(channel)).headSeq, 2);
  },
);

// Covers [decisions: stream_no]
t.test(
  "a message whose stream_no is the client_msg_no of a stream is delivered with that stream_no",
  async (t) => {
    const fixture = await createFixture(t, world);
    await fixture.start("s1");
    await world.send(fixture.alice.uid, fixture.channel, "remark", {
      stream_no: "s1",
    });
    matchObject(
      t,
      await fixture.bob.nextPush(
        (push) => push.kind === "message" && push.message.streamNo === "s1",
      ),
      { message: { messageSeq: 2, stream: undefined } },
    );
  },
);

// Covers [feature: Streams survive]
t.test(
  "a stream continues after a restart of the node, and viewers that reconnect have its complete text",
  async (t) => {
    const before = await startWorld(t);
    const fixture = await createFixture(t, before);
    const { alice, bob, channel } = fixture;
    await fixture.start("s1", { event: { id: "e0" } });
    await fixture.addText("s1", "before ", { event: { id: "e1" } });
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
    t.equal(await post(CONTENT, "before ", "e1"), "200 active", "a retry is acknowledged");
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

// Covers [decisions: Producer dies]
t.test(
  "a stream whose producer is silent is interrupted and keeps its text, and a new stream can start",
  async (t) => {
    const quick = await startWorld(t, {
      JINDOU_STREAMS_IDLE_TIMEOUT_MS: "300",
    });
    const fixture = await createFixture(t, quick);
    const { bob, channel } = fixture;
    await fixture.start("s1");
    const stalls = measureStalls(t);
    const silentMs = performance.now(); // taken before the response, because the idle time begins when the event is stored
    await fixture.addText("s1", "so far");
    await bob.waitFor(() => bob.view(channel, "s1")?.ended === true, "the end");
    const tookMs = performance.now() - silentMs;
    t.ok(tookMs >= 290, `the stream is not interrupted early: ${tookMs} ms`);
    t.ok(tookMs < 1300 + 10 * stalls.totalMs(), `viewers are notified after ${tookMs} ms`);
    matchObject(t, await fixture.viewOf(bob, "s1"), {
      state: "interrupted",
      text: "so far",
      problems: [],
    });
    matchObject(t, (await fixture.read("s1")).body, {
      state: "interrupted",
      text: "so far",
    });
    t.equal(await outcomeOf(fixture.addText("s1", "late")), "400 stream_closed");
    t.equal(await outcomeOf(fixture.start("s2")), "200 active");
    await eventually(async () => (await fixture.read("s2")).body.state === "interrupted");
  },
);
