// Nodes for the tests of topics: the topics and the real store of one node on a Redis of the test's
// own, with what its listener was told.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import {
  type ChannelKey,
  type ChannelRef,
  channelKey,
  GROUP_CHANNEL,
  type Message,
  PERSON_CHANNEL,
} from "../../../src/broker/model.ts";
import type { AppendResult, ClusterEvent, MessageDraft } from "../../../src/broker/ports.ts";
import type { ClusterTopics } from "../../../src/cluster/redis/cluster.ts";
import { createRedisTopics } from "../../../src/cluster/redis/topics/topics.ts";
import {
  NO_RESYNC,
  type TopicsPorts,
  type TopicsResync,
} from "../../../src/cluster/redis/topics/topics-ports.ts";
import type { RedisSettings } from "../../../src/redis/client.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import { createRedisStore, type RedisStore } from "../../../src/store/redis/store.ts";

const LIMITS = {
  ...{ dedupeWindowS: 86_400, retentionS: 0, sweepIntervalMs: 1_000_000 },
  maxChannelMessages: 0,
  ...{ maxStreamBytes: 1_048_576, maxInbox: 1000, inboxTtlS: 604_800 },
};

export interface TopicNode {
  readonly link: RedisLink;
  readonly store: RedisStore;
  readonly topics: ClusterTopics;
  readonly events: ClusterEvent[];
  readonly problems: string[];
  /** The messages of a channel it was told of, in order. */
  told(key: ChannelKey): readonly Message[];
  seqs(key: ChannelKey): readonly number[];
  send(channel: ChannelRef, fromUid: string, over?: Partial<MessageDraft>): Promise<AppendResult>;
  close(): Promise<void>;
}

export type NodeOptions = Partial<
  Pick<TopicsPorts, "unsubscribeDelayMs" | "limits" | "metrics" | "clock">
> & {
  /** Who judges what the node missed. Default: all may see everything. */
  readonly resync?: TopicsResync;
  /** Runs before the node asks for what it missed of a user. */
  readonly onAsked?: () => Promise<void>;
  /** Runs before it reads messages that it missed. */
  readonly onRead?: () => Promise<void>;
};

export const NO_METRICS: NonNullable<TopicsPorts["metrics"]> = {
  repaired() {},
  rejected() {},
  resubscribed() {},
};

/** A started node; closes itself with the test. */
export async function startTopicNode(
  t: Pick<Test, "teardown">,
  settings: RedisSettings,
  options: NodeOptions = {},
): Promise<TopicNode> {
  const events: ClusterEvent[] = [];
  const problems: string[] = [];
  const onError = (error: unknown, what: string) => {
    problems.push(`${what}: ${String(error)}`);
  };
  const nodeId = `n${randomUUID().slice(0, 8)}`;
  const parts = { name: nodeId, onError };
  const link = new RedisLink(settings, parts);
  const { clock = Date.now } = options;
  const store = createRedisStore({
    ...{ link, clock, onError, limits: LIMITS },
  });
  const topics = createRedisTopics({
    ...{ link, nodeId, clock, onError, unsubscribeDelayMs: 10_000, ...options },
    feed: {
      ...store,
      async personalChannelsSince(...asked) {
        await options.onAsked?.();
        return store.personalChannelsSince(...asked);
      },
      async messages(...asked) {
        await options.onRead?.();
        return store.messages(...asked);
      },
    },
  });
  topics.onEvent((event) => events.push(event), options.resync ?? NO_RESYNC);
  let isClosed = false;
  const close = async () => {
    if (isClosed) return;
    isClosed = true;
    await topics.close();
    await store.close();
    await link.close();
  };
  t.teardown(close);
  await store.start();
  await topics.start();
  const told = (key: ChannelKey) =>
    events.flatMap((event) =>
      event.kind === "message" && event.message.key === key ? [event.message] : [],
    );
  return {
    ...{ link, store, topics, events, problems, told, close },
    seqs: (key) => told(key).map(({ messageSeq }) => messageSeq),
    send: (channel, fromUid, over) => store.append(draft(channel, fromUid, over)),
  };
}

export const group = (id: string): ChannelRef => ({ id, type: GROUP_CHANNEL });
export const person = (id: string): ChannelRef => ({
  id,
  type: PERSON_CHANNEL,
});

export function draft(
  channel: ChannelRef,
  fromUid: string,
  over: Partial<MessageDraft> = {},
): MessageDraft {
  return {
    ...{ key: channelKey(channel, fromUid), channel, fromUid },
    ...{ clientMsgNo: randomUUID(), expireS: 0 },
    header: { noPersist: false, redDot: true },
    ...{ streamNo: undefined, tagKey: undefined, origin: undefined },
    ...{ payload: Buffer.from('{"type":1}'), recipients: undefined },
    permission: "granted",
    ...over,
  };
}

/** Sends until it is answered; what was refused may have been stored. */
export async function insist(
  { send }: TopicNode,
  channel: ChannelRef,
  fromUid: string,
): Promise<void> {
  const clientMsgNo = randomUUID();
  const answered = () => isDone(send(channel, fromUid, { clientMsgNo }));
  await until(answered, "sent", 15_000);
}

export const isDone = (call: Promise<unknown>): Promise<boolean> =>
  call.then(
    () => true,
    () => false,
  );

/** Waits for a condition; fails the test where it does not come true in time. */
export async function until(
  holds: () => boolean | Promise<boolean>,
  what: string,
  timeoutMs = 120_000,
): Promise<void> {
  const deadline = Date.now() + timeoutMs;
  while (!(await holds())) {
    if (Date.now() > deadline) throw new Error(`not in time: ${what}`);
    await new Promise((go) => setTimeout(go, 5));
  }
}

export const range = (from: number, to: number): readonly number[] =>
  Array.from({ length: to - from + 1 }, (_, at) => from + at);
