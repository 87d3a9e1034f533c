// The tests' stream viewer builds the text from frames, and reports every violation of the
// protocol's guarantees.

import {
  type ChannelEvent,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamPlace,
  type StreamSnapshot,
} from "../../src/broker/model.ts";
import type { Push, Reply } from "../../src/protocol/protocol.ts";
import { ALICE, CHUNK, RUNNING, STREAMED } from "../wire/native-sample-values.ts";
import { StreamViews } from "./stream-view.ts";
import { t } from "./suite.ts";

const NAME = RUNNING.clientMsgNo;

/** Returns a push of one event. The event covers one index unless `place` has a `nextIndex`. */
function event(
  type: string,
  data: string,
  place: Pick<StreamPlace, "index" | "textOffset"> & Partial<StreamPlace>,
): Push {
  const nextIndex = place.nextIndex ?? place.index + 1;
  const stream = {
    messageSeq: 8,
    state: "active",
    ...place,
    nextIndex,
  } as const;
  const pushed: ChannelEvent = { ...CHUNK, type, data, stream };
  return { kind: "event", channel: ALICE, event: pushed };
}

const start = event(STREAM_START, "{}", { index: 0, textOffset: 0 });
const chunk = (index: number, textOffset: number, data: string) =>
  event(STREAM_CONTENT, data, { index, textOffset });
const snapshot = (changes: Partial<StreamSnapshot>) => ({
  channel: ALICE,
  snapshot: { ...RUNNING, ...changes },
});
const push = (changes: Partial<StreamSnapshot>): Push => ({
  kind: "stream",
  ...snapshot(changes),
});
const reply = (changes: Partial<StreamSnapshot>): Reply => ({
  kind: "stream",
  ref: 1,
  ...snapshot(changes),
});

function viewAfter(...frames: readonly (Push | Reply)[]) {
  const views = new StreamViews();
  for (const frame of frames) views.applyFrame(frame);
  const view = views.of(ALICE, NAME);
  if (view === undefined) throw new Error("the frames created no view");
  return view;
}

t.test(
  "a viewer that receives every event from the start builds the text of the stream",
  async (t) => {
    const view = viewAfter(
      start,
      chunk(1, 0, "Hé"),
      event("___ToolCallStart", "search", { index: 2, textOffset: 2 }),
      chunk(3, 2, "😀"),
      event(STREAM_END, "done", { index: 4, textOffset: 4, state: "closed" }),
    );
    t.match(view, {
      text: RUNNING.text,
      nextIndex: 5,
      state: "closed",
      startData: "{}",
      endData: "done",
      notes: [{ index: 2, textOffset: 2, data: "search" }],
    });
    t.same(view.problems, []);
  },
);

t.test("a viewer that joins late continues from a snapshot", async (t) => {
  const view = viewAfter(push({}), chunk(4, 4, "!"));
  t.match(view, { text: `${RUNNING.text}!`, nextIndex: 5, snapshots: 1 });
  t.same(view.problems, []);
});

t.test("the message of a stream counts as a snapshot of the stream", async (t) => {
  const message: Push = { kind: "message", channel: ALICE, message: STREAMED };
  const run: Push = {
    kind: "messages",
    channel: ALICE,
    afterSeq: 7,
    throughSeq: 8,
    messages: [STREAMED],
  };
  for (const first of [message, run]) {
    const view = viewAfter(first, chunk(4, 4, "!"));
    t.match(view, { text: `${RUNNING.text}!`, problems: [] });
  }
});

t.test(
  "a stream's message that is the newest of a conversation counts as a snapshot of the stream",
  async (t) => {
    const read = { headSeq: 8, readSeq: 8, unread: 0, deletedSeq: 0 };
    const about = { ...read, changedAtMs: 0, last: STREAMED };
    const conversation = { channel: ALICE, ...about };
    const frames: readonly (Push | Reply)[] = [
      { kind: "conversation", change: "read", conversation },
      { kind: "conversation", ref: 1, conversation },
      {
        kind: "conversations",
        ref: 1,
        cursor: undefined,
        conversations: [conversation],
      },
    ];
    for (const first of frames) {
      const view = viewAfter(first, chunk(4, 4, "!"));
      t.match(view, { text: `${RUNNING.text}!`, nextIndex: 5, problems: [] });
    }
  },
);

t.test(
  "merged content that overlaps the text already received adds only its new part",
  async (t) => {
    const merged = (data: string, textOffset: number) =>
      event(STREAM_CONTENT, data, { index: 3, nextIndex: 6, textOffset });
    const newText = RUNNING.text.slice(2);
    const view = viewAfter(reply({}), merged(`${newText}!!`, 2), chunk(6, 6, "?"));
    t.match(view, { text: `${RUNNING.text}!!?`, nextIndex: 7, problems: [] });
    t.not(
      viewAfter(reply({}), merged("!", 5)).problems.length,
      0,
      "merged content after a gap is a problem",
    );
  },
);

t.test("a viewer applies and counts merged content", async (t) => {
  const merged = event(STREAM_CONTENT, "abc", {
    index: 1,
    nextIndex: 9,
    textOffset: 0,
  });
  const view = viewAfter(start, merged, chunk(9, 3, "d"));
  t.match(view, { text: "abcd", nextIndex: 10, merged: 1 });
  t.same(view.problems, []);
});

t.test("a viewer counts a repeated event and does not apply it", async (t) => {
  const view = viewAfter(start, chunk(1, 0, "a"), start, chunk(1, 0, "a"));
  t.match(view, { text: "a", nextIndex: 2, repeated: 2 });
});

t.test("a reply whose state is older than the received events is ignored", async (t) => {
  const staleState = { text: "", nextIndex: 1, notes: [] };
  const view = viewAfter(start, chunk(1, 0, "a"), reply(staleState));
  t.match(view, { text: "a", nextIndex: 2, snapshots: 0, problems: [] });
});

t.test(
  "a pushed snapshot may be older than the view, and later events continue from the snapshot",
  async (t) => {
    const view = viewAfter(
      reply({}),
      push({ nextIndex: 3, text: "Hé" }),
      chunk(3, 2, "😀"),
      chunk(4, 4, "!"),
    );
    t.match(view, { text: `${RUNNING.text}!`, nextIndex: 5, problems: [] });
  },
);

t.test(
  "a gap, a wrong text or state, and an event after the end are each reported as a problem",
  async (t) => {
    const broken = {
      "a gap": [start, chunk(2, 0, "a")],
      "the middle of an unknown stream": [chunk(7, 20, "a")],
      "a wrong text offset": [start, chunk(1, 3, "a")],
      "a snapshot with a different text": [start, chunk(1, 0, "a"), push({ text: "b" })],
      "a pushed snapshot that misses events": [
        push({}),
        push({ nextIndex: 3, text: "H" }),
        chunk(4, 4, "a"),
      ],
      "content after the end": [push({ state: "cancelled" }), chunk(4, 4, "a")],
      "an End event with the state active": [
        start,
        event(STREAM_END, "", { index: 1, textOffset: 0 }),
      ],
      "a content event with the state closed": [
        start,
        event(STREAM_CONTENT, "", { index: 1, textOffset: 0, state: "closed" }),
      ],
    };
    for (const [description, frames] of Object.entries(broken))
      t.not(viewAfter(...frames).problems.length, 0, description);
  },
);

t.test("an event that belongs to no stream creates no view", async (t) => {
  const views = new StreamViews();
  const custom = { ...CHUNK, stream: undefined };
  views.applyFrame({ kind: "event", channel: ALICE, event: custom });
  t.same(views.all(), []);
});
