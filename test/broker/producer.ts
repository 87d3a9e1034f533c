// Helpers of the stream tests: a node with a group, and the calls of a producer.

import type { Test } from "tap";
import {
  type ChannelEvent,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
} from "../../src/broker/model.ts";
import type { EventInput } from "../../src/broker/streams.ts";
import { streamEvent } from "./inputs.ts";
import { group, rules, startNode, type TestNode } from "./node.ts";

export const GROUP = { channel: group("g"), uid: undefined };
export const RANGE = {
  ...{ fromSeq: 1, toSeq: Number.MAX_SAFE_INTEGER, limit: 100 },
  ...{ reverse: false, maxBytes: 1_000_000 },
};

/** Returns the published events of channels. */
export const published = ({ events }: TestNode): readonly ChannelEvent[] =>
  events.flatMap((event) => (event.kind === "event" ? [event.event] : []));

/** Starts a node with a group g of alice and bob. The calls post events of alice to the group. */
export async function nodeOfProducer(t: Test, over: Parameters<typeof startNode>[1] = {}) {
  const node = await startNode(t, over);
  await node.channels.create(rules(group("g")), ["alice", "bob"]);
  const post = (type: string, data = "", changes: Partial<EventInput> = {}) =>
    node.streams.post(streamEvent({ type, data, ...changes }));
  return {
    ...node,
    post,
    start: (changes: Partial<EventInput> = {}) => post(STREAM_START, "meta", changes),
    append: (data: string, changes: Partial<EventInput> = {}) =>
      post(STREAM_CONTENT, data, changes),
    end: (changes: Partial<EventInput> = {}) => post(STREAM_END, "", changes),
    refused: (posting: Promise<unknown>, code: string) => t.rejects(posting, { code }),
  };
}

/** Resolves when the condition is true. Rejects after two minutes. */
export async function until(condition: () => boolean): Promise<void> {
  const deadline = performance.now() + 120_000;
  while (!condition()) {
    if (performance.now() > deadline) throw new Error("the condition did not become true");
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
