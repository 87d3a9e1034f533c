// Helpers for the suites of the delivery contract: nodes of one cluster with their store, a network
// between the nodes and Redis that tests can break, and the events that each node's listener
// received.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import {
  type ChannelKey,
  type ChannelRef,
  channelKey,
  GROUP_CHANNEL,
  groupTopic,
  PERSON_CHANNEL,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type Topic,
  userTopic,
} from "../../src/broker/model.ts";
import type {
  AppendResult,
  Cluster,
  ClusterEvent,
  GroupJudge,
  MessageDraft,
  Store,
} from "../../src/broker/ports.ts";
import type { FaultyNetwork } from "../support/faulty-network.ts";
import { draftOf } from "./store-fixture.ts";
import { eventOf } from "./store-stream-fixture.ts";

/** A node of the cluster. Its listener records the events. */
export interface DeliveryNode {
  readonly cluster: Pick<
    Cluster,
    "nodeId" | "listen" | "unlisten" | "barrier" | "recovery" | "publish" | "announce"
  >;
  readonly store: Store;
  /** Events that the node's listener has received. The array grows. */
  readonly events: readonly ClusterEvent[];
}

/** Opens nodes whose connections to Redis all go through `network`. */
export interface DeliveryDriver {
  readonly name: string;
  readonly network: FaultyNetwork;
  /**
   * True if a publication in a personal channel reaches each user's topic in a step of its own,
   * after the step that stores the message.
   */
  readonly publishesPerUser: boolean;
  /**
   * Starts a node of the driver's cluster, or of the cluster whose keys begin with `prefix`. The
   * node is closed when the test ends. `judge` checks the groups that missed messages; by default
   * it removes nobody. The node's clock is `aheadMs` ahead, by default 0.
   */
  open(
    t: Test,
    options?: {
      readonly judge?: GroupJudge;
      readonly prefix?: string;
      readonly aheadMs?: number;
    },
  ): Promise<DeliveryNode>;
  /** Removes expired messages and returns their number. */
  sweep(node: DeliveryNode): Promise<number>;
  /**
   * Changes Redis as a fail-over does if the replica lacked the channel's last `publications`
   * publications. If `kept` is true, all of these publications were stored messages, otherwise none
   * was. The id counter is set back to the id of the newest message that remains.
   */
  failOver(
    node: DeliveryNode,
    key: ChannelKey,
    lost: { readonly publications: number; readonly kept: boolean },
  ): Promise<void>;
}

/**
 * A group or a personal channel as its sender names it, and the topic to which a node subscribes
 * for its messages.
 */
export interface Chat {
  readonly kind: "group" | "personal";
  readonly channel: ChannelRef;
  readonly key: ChannelKey;
  readonly topic: Topic;
  readonly sender: string;
}

/** Returns a group or a personal channel that no other test uses. */
export function newChat(kind: Chat["kind"]): Chat {
  const [sender, id] = [`s-${randomUUID()}`, `r-${randomUUID()}`];
  const type = kind === "group" ? GROUP_CHANNEL : PERSON_CHANNEL;
  const channel: ChannelRef = { id, type };
  const topic = kind === "group" ? groupTopic(id) : userTopic(id);
  return { kind, channel, key: channelKey(channel, sender), topic, sender };
}

/** Kinds of chats that each delivery test runs with. */
export const CHAT_KINDS = ["group", "personal"] as const;

/** Sends a message with this text. */
export function sendText(
  { store }: DeliveryNode,
  { channel, sender: fromUid }: Chat,
  text: string,
  over: Partial<MessageDraft> = {},
): Promise<AppendResult> {
  const payload = Buffer.from(JSON.stringify({ type: 1, content: text }));
  return store.append(draftOf({ channel, fromUid, payload, ...over }));
}

/** Fields of a draft that is published and not stored. */
export const UNSTORED = {
  header: { noPersist: true, redDot: false },
} as const satisfies Partial<MessageDraft>;

/** Returns the calls of a stream's producer. They throw if the store does not accept the event. */
export function producer(
  { store }: DeliveryNode,
  { channel, sender: fromUid }: Chat,
  clientMsgNo = "s",
) {
  const post = async (type: string, data: string) => {
    const over = { channel, fromUid, clientMsgNo };
    const { verdict } = await store.streamEvent(eventOf(type, data, over));
    if (verdict !== "done") throw new Error(`the event ${type} was refused: ${verdict}`);
  };
  return {
    start: () => post(STREAM_START, "{}"),
    content: (data: string) => post(STREAM_CONTENT, data),
    end: () => post(STREAM_END, ""),
  };
}

/**
 * Returns the texts of the channel's messages that the node received, in order. The text of a
 * stream's message is "".
 */
export function deliveredTexts({ events }: DeliveryNode, { key }: Chat): readonly string[] {
  return events.flatMap((event) => {
    if (event.kind !== "message" || event.message.key !== key) return [];
    const payload = Buffer.from(event.message.payload).toString();
    return [JSON.parse(payload).content ?? ""];
  });
}

/**
 * Returns the stream as a viewer builds it from the events that the node received. `wrong` counts
 * the events whose index is not the `nextIndex` of the previous event of the stream.
 */
export function viewOf(
  { events }: DeliveryNode,
  { key }: Chat,
  clientMsgNo = "s",
): { readonly text: string; readonly state: string; readonly wrong: number } {
  let [text, state, next, wrong] = ["", "none", 0, 0];
  for (const event of events) {
    if (event.kind !== "event" || event.event.key !== key) continue;
    const { stream, data, type } = event.event;
    if (stream === undefined || event.event.clientMsgNo !== clientMsgNo) continue;
    if (stream.index !== next) wrong += 1;
    next = stream.nextIndex;
    state = stream.state;
    if (type === STREAM_CONTENT) text += data;
  }
  return { text, state, wrong };
}

/**
 * Returns descriptions of the order errors in the node's events: message ids of a channel that do
 * not increase, and streams with a gap or a repetition.
 */
export function orderErrors(node: DeliveryNode): readonly string[] {
  const lastIds = new Map<ChannelKey, number>();
  const next = new Map<string, number>();
  const wrong: string[] = [];
  for (const event of node.events) {
    if (event.kind === "message") {
      const { key, messageId } = event.message;
      if (messageId <= (lastIds.get(key) ?? 0))
        wrong.push(`${key}: ${messageId} after ${lastIds.get(key)}`);
      lastIds.set(key, messageId);
    }
    if (event.kind !== "event" || event.event.stream === undefined) continue;
    const { key, clientMsgNo, stream } = event.event;
    const name = `${key} ${clientMsgNo}`;
    if (stream.index !== (next.get(name) ?? 0))
      wrong.push(`${name}: ${stream.index} instead of ${next.get(name)}`);
    next.set(name, stream.nextIndex);
  }
  return wrong;
}

/** A `GroupJudge` that records, at each call, the last text the node received from the chat. */
export interface JudgeRecorder {
  readonly lastTexts: readonly string[];
  readonly judge: GroupJudge;
  /** Node whose deliveries are recorded. The test sets it after the node was opened. */
  node: DeliveryNode | undefined;
}

export function recordingJudge({ channel, ...chat }: Chat): JudgeRecorder {
  const lastTexts: string[] = [];
  const recorder: JudgeRecorder = {
    ...{ lastTexts, node: undefined },
    async judge(id) {
      if (id !== channel.id || recorder.node === undefined) return;
      const texts = deliveredTexts(recorder.node, { channel, ...chat });
      lastTexts.push(texts.at(-1) ?? "nothing");
    },
  };
  return recorder;
}

/** Waits until the condition is true. Throws after two minutes. */
export async function until(
  condition: () => boolean | Promise<boolean>,
  message: string,
): Promise<void> {
  const deadline = Date.now() + 120_000;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`timed out waiting until ${message}`);
    await new Promise((go) => setTimeout(go, 5));
  }
}

/** Returns the integers from `from` to `to`, both included. */
export const range = (from: number, to: number): readonly number[] =>
  Array.from({ length: Math.max(0, to - from + 1) }, (_, at) => from + at);

/**
 * Makes `count` round trips from the node to its store. Afterwards, work of the node that waits
 * only for the store has completed.
 */
export async function roundTrips({ store }: DeliveryNode, count = 20): Promise<void> {
  for (const at of range(1, count)) await store.headSeq(`2:nobody-${at}`);
}
