// A node with a group and short words for a producer of streams: what the tests of streams play on.

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

export const published = ({ events }: TestNode): readonly ChannelEvent[] =>
  events.flatMap((one) => (one.kind === "event" ? [one.event] : []));

/** A node with the group g of alice and bob, and short words for its producer. */
export async function nodeOfProducer(t: Test, over: Parameters<typeof startNode>[1] = {}) {
  const node = await startNode(t, over);
  await node.channels.create(rules(group("g")), ["alice", "bob"]);
  const post = (type: string, data = "", given: Partial<EventInput> = {}) =>
    node.streams.post(streamEvent({ type, data, ...given }));
  return {
    ...node,
    post,
    start: (given: Partial<EventInput> = {}) => post(STREAM_START, "meta", given),
    say: (data: string, given: Partial<EventInput> = {}) => post(STREAM_CONTENT, data, given),
    end: (given: Partial<EventInput> = {}) => post(STREAM_END, "", given),
    refused: (posting: Promise<unknown>, code: string) => t.rejects(posting, { code }),
  };
}

/** Rejects when it never comes true. */
export async function until(holds: () => boolean): Promise<void> {
  const deadline = performance.now() + 120_000;
  while (!holds()) {
    if (performance.now() > deadline) throw new Error("it never came true");
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
