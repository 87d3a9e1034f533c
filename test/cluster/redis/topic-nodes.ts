// Nodes for the topic tests: the topics and the store of one node on the test's own Redis, and the
// events that its listener has received.

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
import { LOG_LIMITS } from "../../support/log-limits.ts";

const LIMITS = {
  ...{ dedupeWindowS: 86_400, retentionS: 0, sweepIntervalMs: 1_000_000 },
  maxChannelMessages: 0,
  ...{ maxStreamBytes: 1_048_576, maxInbox: 1000, inboxTtlS: 604_800, logs: LOG_LIMITS },
};

export interface TopicNode {
  readonly link: RedisLink;
  readonly store: RedisStore;
  readonly topics: ClusterTopics;
  readonly events: ClusterEvent[];
  readonly errors: string[];
  /** Returns the messages of a channel that the listener has received, in order. */
  messagesOf(key: ChannelKey): readonly Message[];
  /** Returns the seqs of these messages. */
  seqs(key: ChannelKey): readonly number[];
  send(
    channel: ChannelRef,
    fromUid: string,
    overrides?: Partial<MessageDraft>,
  ): Promise<AppendResult>;
  close(): Promise<void>;
}

export type NodeOptions = Partial<
  Pick<TopicsPorts, "unsubscribeDelayMs" | "limits" | "metrics" | "clock">
> & {
  /** Checks users after missed events. Default: every user keeps access. */
  readonly resync?: TopicsResync;
  /** Called before the node reads the list of a user's personal channels. */
  readonly onListChannels?: () => Promise<void>;
  /** Called before the node reads missed messages. */
  readonly onRead?: () => Promise<void>;
};

export const NO_METRICS: NonNullable<TopicsPorts["metrics"]> = {
  repaired() {},
  rejected() {},
  resubscribed() {},
};

/** Starts a node, which is closed at the end of the test. */
export async function startTopicNode(
  t: Pick<Test, "teardown">,
  settings: RedisSettings,
  options: NodeOptions = {},
): Promise<TopicNode> {
  const events: ClusterEvent[] = [];
  const errors: string[] = [];
  const onError = (error: unknown, description: string) => {
    errors.push(`${description}: ${String(error)}`);
  };
  const nodeId = `n${randomUUID().slice(0, 8)}`;
  const linkOptions = { name: nodeId, onError };
  const link = new RedisLink(settings, linkOptions);
  const { clock = Date.now } = options;
  const store = createRedisStore({
    ...{ link, clock, onError, limits: LIMITS },
  });
  const topics = createRedisTopics({
    ...{ link, nodeId, clock, onError, unsubscribeDelayMs: 10_000, ...options },
    feed: {
      ...store,
      async personalChannelsSince(...args) {
        await options.onListChannels?.();
        return store.personalChannelsSince(...args);
      },
      async messages(...args) {
        await options.onRead?.();
        return store.messages(...args);
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
  const messagesOf = (key: ChannelKey) =>
    events.flatMap((event) =>
      event.kind === "message" && event.message.key === key ? [event.message] : [],
    );
  return {
    ...{ link, store, topics, events, errors: errors, messagesOf: messagesOf, close },
    seqs: (key) => messagesOf(key).map(({ messageSeq }) => messageSeq),
    send: (channel, fromUid, overrides) => store.append(draft(channel, fromUid, overrides)),
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
  overrides: Partial<MessageDraft> = {},
): MessageDraft {
  return {
    ...{ key: channelKey(channel, fromUid), channel, fromUid },
    ...{ clientMsgNo: randomUUID(), expireS: 0 },
    header: { noPersist: false, redDot: true },
    ...{ streamNo: undefined, tagKey: undefined, origin: undefined },
    ...{ payload: Buffer.from('{"type":1}'), recipients: undefined },
    permission: "granted",
    ...overrides,
  };
}

/** Repeats a send until it succeeds. A failed attempt may have stored the message. */
export async function sendUntilDone(
  { send }: TopicNode,
  channel: ChannelRef,
  fromUid: string,
): Promise<void> {
  const clientMsgNo = randomUUID();
  const answered = () => succeeds(send(channel, fromUid, { clientMsgNo }));
  await until(answered, "the message is sent", 15_000);
}

export const succeeds = (call: Promise<unknown>): Promise<boolean> =>
  call.then(
    () => true,
    () => false,
  );

/** Waits until the condition is true. Rejects after the timeout. */
export async function until(
  condition: () => boolean | Promise<boolean>,
  description: string,
  timeoutMs = 120_000,
): Promise<void> {
  const deadline = Date.now() + timeoutMs;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`timed out waiting until ${description}`);
    await new Promise((go) => setTimeout(go, 5));
  }
}

export const range = (from: number, to: number): readonly number[] =>
  Array.from({ length: to - from + 1 }, (_, at) => from + at);
