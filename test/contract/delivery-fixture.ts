// What the delivery contract's suites work with: nodes of one cluster with their store, a network
// between them and Redis that can be broken, and what each node's listener was told.

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

export interface DeliveryNode {
  readonly cluster: Pick<
    Cluster,
    "nodeId" | "listen" | "unlisten" | "barrier" | "recovery" | "publish" | "announce"
  >;
  readonly store: Store;
  /** Grows with what its listener is told. */
  readonly events: readonly ClusterEvent[];
}

/** A node whose connections to Redis all go through `network`. */
export interface DeliveryDriver {
  readonly name: string;
  readonly network: FaultyNetwork;
  /**
   * Publications of a personal channel are made by a step for each user, behind the one that
   * stores.
   */
  readonly publishesPerUser: boolean;
  /**
   * A started node of one and the same cluster, or of another one with keys of its own (`prefix`).
   * By default all may see everything, and its clock is right. Closes itself with the test.
   */
  open(
    t: Test,
    options?: {
      readonly judge?: GroupJudge;
      readonly prefix?: string;
      readonly aheadMs?: number;
    },
  ): Promise<DeliveryNode>;
  /** Removes messages whose time is over; resolves to their number. */
  sweep(node: DeliveryNode): Promise<number>;
  /**
   * As a fail-over to a replica that had not got the last so many publications of the channel, all
   * of messages (`kept`) or of none, nor any id behind that of the newest message that is left.
   */
  failOver(
    node: DeliveryNode,
    key: ChannelKey,
    lost: { readonly publications: number; readonly kept: boolean },
  ): Promise<void>;
}

/** A channel of two users, as one of them names it, and the topic under which a node hears it. */
export interface Chat {
  readonly kind: "group" | "personal";
  readonly channel: ChannelRef;
  readonly key: ChannelKey;
  readonly topic: Topic;
  readonly sender: string;
}

/** A group of its own, or the conversation of two users of its own. */
export function newChat(kind: Chat["kind"]): Chat {
  const [sender, id] = [`s-${randomUUID()}`, `r-${randomUUID()}`];
  const type = kind === "group" ? GROUP_CHANNEL : PERSON_CHANNEL;
  const channel: ChannelRef = { id, type };
  const topic = kind === "group" ? groupTopic(id) : userTopic(id);
  return { kind, channel, key: channelKey(channel, sender), topic, sender };
}

export const CHAT_KINDS = ["group", "personal"] as const;

/** Stores a message with that text. */
export function sendText(
  { store }: DeliveryNode,
  { channel, sender: fromUid }: Chat,
  text: string,
  over: Partial<MessageDraft> = {},
): Promise<AppendResult> {
  const payload = Buffer.from(JSON.stringify({ type: 1, content: text }));
  return store.append(draftOf({ channel, fromUid, payload, ...over }));
}

/** Not kept. */
export const UNSTORED = {
  header: { noPersist: true, redDot: false },
} as const satisfies Partial<MessageDraft>;

/** The calls of a stream's producer. */
export function producer(
  { store }: DeliveryNode,
  { channel, sender: fromUid }: Chat,
  clientMsgNo = "s",
) {
  const post = async (type: string, data: string) => {
    const over = { channel, fromUid, clientMsgNo };
    const { verdict } = await store.streamEvent(eventOf(type, data, over));
    if (verdict !== "done") throw new Error(`${type}: ${verdict}`);
  };
  return {
    start: () => post(STREAM_START, "{}"),
    content: (data: string) => post(STREAM_CONTENT, data),
    end: () => post(STREAM_END, ""),
  };
}

/** The texts of the channel's messages that the node was told, in order; a stream's own is "". */
export function deliveredTexts({ events }: DeliveryNode, { key }: Chat): readonly string[] {
  return events.flatMap((event) => {
    if (event.kind !== "message" || event.message.key !== key) return [];
    const payload = Buffer.from(event.message.payload).toString();
    return [JSON.parse(payload).content ?? ""];
  });
}

/** What the node was told of a stream, as a viewer puts it together. */
export function viewOf(
  { events }: DeliveryNode,
  { key }: Chat,
  clientMsgNo = "s",
): { readonly text: string; readonly state: string; readonly wrong: number } {
  let [text, state, next, wrong] = ["", "none", 0, 0];
  for (const one of events) {
    if (one.kind !== "event" || one.event.key !== key) continue;
    const { stream, data, type } = one.event;
    if (stream === undefined || one.event.clientMsgNo !== clientMsgNo) continue;
    if (stream.index !== next) wrong += 1;
    next = stream.nextIndex;
    state = stream.state;
    if (type === STREAM_CONTENT) text += data;
  }
  return { text, state, wrong };
}

/** Per channel, message ids that do not grow, and streams with a gap or a repeat. */
export function orderErrors(node: DeliveryNode): readonly string[] {
  const lastIds = new Map<ChannelKey, number>();
  const next = new Map<string, number>();
  const wrong: string[] = [];
  for (const one of node.events) {
    if (one.kind === "message") {
      const { key, messageId } = one.message;
      if (messageId <= (lastIds.get(key) ?? 0))
        wrong.push(`${key}: ${messageId} behind ${lastIds.get(key)}`);
      lastIds.set(key, messageId);
    }
    if (one.kind !== "event" || one.event.stream === undefined) continue;
    const { key, clientMsgNo, stream } = one.event;
    const name = `${key} ${clientMsgNo}`;
    if (stream.index !== (next.get(name) ?? 0))
      wrong.push(`${name}: ${stream.index} instead of ${next.get(name)}`);
    next.set(name, stream.nextIndex);
  }
  return wrong;
}

/** What was judged, each with how many of the place's messages the node had been told by then. */
export interface JudgeRecorder {
  readonly groups: readonly string[];
  readonly judge: GroupJudge;
  /** Set once the node is there. */
  node: DeliveryNode | undefined;
}

export function recordingJudge({ channel, ...chat }: Chat): JudgeRecorder {
  const groups: string[] = [];
  const judged: JudgeRecorder = {
    ...{ groups, node: undefined },
    async judge(id) {
      if (id !== channel.id || judged.node === undefined) return;
      const told = deliveredTexts(judged.node, { channel, ...chat });
      groups.push(told.at(-1) ?? "nothing");
    },
  };
  return judged;
}

/** Waits for a condition; fails where it does not come true in minutes. */
export async function until(holds: () => boolean | Promise<boolean>, what: string): Promise<void> {
  const deadline = Date.now() + 120_000;
  while (!(await holds())) {
    if (Date.now() > deadline) throw new Error(`not in time: ${what}`);
    await new Promise((go) => setTimeout(go, 5));
  }
}

export const range = (from: number, to: number): readonly number[] =>
  Array.from({ length: Math.max(0, to - from + 1) }, (_, at) => from + at);

/**
 * So many round trips of the node to its store: whatever waits for nothing else is over by then.
 */
export async function roundTrips({ store }: DeliveryNode, count = 20): Promise<void> {
  for (const at of range(1, count)) await store.headSeq(`2:nobody-${at}`);
}
