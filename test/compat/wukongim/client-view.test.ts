// Events as WuKongIM's clients receive them in both protocols. Tested on the private file, because
// a socket shows these cases only after a cancelled stream and with a lagging client.

import type { ChannelEvent, StreamSnapshot } from "../../../src/broker/model.ts";
import { eventsFrom } from "../../../src/broker/stream-pieces.ts";
import {
  clientEvent,
  nodeNumber,
  snapshotEvents,
} from "../../../src/compat/wukongim/client-view.ts";
import { MESSAGE_START_ID, writeEventId } from "../../../src/compat/wukongim/event-ids.ts";
import { t } from "../../support/suite.ts";

const SNAPSHOT: StreamSnapshot = {
  ...{ key: "2:g", channel: { id: "g", type: 2 }, fromUid: "bot" },
  ...{ clientMsgNo: "s-1", messageId: 2 ** 48, messageSeq: 1, text: "so far" },
  ...{ state: "active", nextIndex: 2, startData: "{}", endData: undefined },
  notes: [],
};

t.test(
  "the id of a content event, or of a start or end event without an id from the producer, is the stream's clientMsgNo",
  async (t) => {
    const event: ChannelEvent = {
      ...{ key: "2:g", channel: { id: "g", type: 2 }, fromUid: "bot" },
      ...{ clientMsgNo: "s-1", eventId: "e-1", data: "", timestampMs: 1 },
      type: "___TextMessageContent",
      stream: undefined,
    };
    t.equal(clientEvent(event)?.id, "s-1");
    for (const type of ["___TextMessageStart", "___TextMessageEnd"]) {
      t.equal(clientEvent({ ...event, type })?.id, "s-1");
      t.equal(clientEvent({ ...event, type, hasGivenId: true })?.id, "e-1");
    }
    t.equal(clientEvent({ ...event, type: "___ToolCallArgs" })?.id, "e-1");
    t.equal(clientEvent({ ...event, type: "order.paid" })?.id, "e-1");
  },
);

t.test("the events of an ended stream include its end, whatever its final state", async (t) => {
  const typesOf = (state: StreamSnapshot["state"]) =>
    snapshotEvents({ ...SNAPSHOT, state }).map(({ id, type, data }) => [...[id, type, data]]);
  const startAndText = [
    ["s-1", "___TextMessageStart", "{}"],
    ["s-1", "___TextMessageContent", "so far"],
  ];
  t.same(typesOf("active"), startAndText);
  for (const state of ["closed", "cancelled", "interrupted"] as const)
    t.same(typesOf(state), [...startAndText, ["s-1", "___TextMessageEnd", ""]]);
  const ended = { ...SNAPSHOT, state: "closed", startId: "a", endId: "b" } as const;
  t.same(
    snapshotEvents(ended).map(({ id }) => id),
    ["a", "s-1", "b"],
  );
});

t.test(
  "a stream started by a message with is_stream is delivered in the format of /message/event, even if its text is merged and its end has no id",
  async (t) => {
    const begun = { ...SNAPSHOT, startId: MESSAGE_START_ID };
    const shown = (snapshot: StreamSnapshot, from: number) =>
      eventsFrom(snapshot, { index: from, textOffset: 0 })
        .map(clientEvent)
        .map((event) => {
          const { message_id, stream_status, payload } = JSON.parse(event?.data ?? "{}");
          return [event?.type, message_id, stream_status, payload];
        });
    const delta = { kind: "text", delta: "so far" };
    const text = ["stream.delta", 2 ** 48, "open", delta];
    t.same(shown(begun, 1), [text]);
    t.same(shown(begun, 0), [[undefined, undefined, undefined, undefined], text]);
    const ended = { ...begun, endData: "", nextIndex: 3 };
    for (const [state, type, status, payload] of [
      ["closed", "stream.close", "closed", undefined],
      ["cancelled", "stream.cancel", "cancelled", undefined],
      ["interrupted", "stream.error", "error", { error: "interrupted" }],
    ] as const) {
      t.same(shown({ ...ended, state }, 1), [text, [type, 2 ** 48, status, payload]]);
      t.same(
        snapshotEvents({ ...ended, state }).map((event) => event.type),
        ["stream.snapshot", type],
      );
    }
    const failed = { type: "stream.error", visibility: "", messageId: 0 } as const;
    const endId = writeEventId({ ...failed, occurredAtMs: 5000, id: "e/1" });
    const [, end] = snapshotEvents({ ...ended, state: "closed", endId, endData: '{"error":"x"}' });
    t.match(end, { id: "e/1", type: "stream.error", timestampMs: 5000 });
    t.match(JSON.parse(end?.data ?? ""), { stream_status: "error", payload: { error: "x" } });
  },
);

t.test(
  "in WuKongIM's protocols, a node id of 1 to 9 digits stays unchanged, and any other node id becomes a fixed number below 2^31",
  async (t) => {
    t.equal(nodeNumber("1001"), 1001);
    t.equal(nodeNumber("fe0adeb1"), nodeNumber("fe0adeb1"));
    t.ok(nodeNumber("fe0adeb1") < 2 ** 31);
  },
);
