// Command inboxes on a real Redis, with a listener that hears the topics it is given: for tests of
// inboxes alone. One server or a Cluster.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import { userTopic } from "../../../src/broker/model.ts";
import type { ClusterEvent } from "../../../src/broker/ports.ts";
import { bucketOf } from "../../../src/redis/keys.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import { markFrame } from "../../../src/redis/wire.ts";
import type { RedisStoreLimits, RedisStorePorts } from "../../../src/store/redis/ports.ts";
import { createRedisInbox, type RedisInbox } from "../../../src/store/redis/steps/inbox.ts";
import { UnreadableRecords } from "../../../src/store/redis/unreadable.ts";
import { redisSettings } from "../../support/redis.ts";
import { connectSubscriber } from "../../support/topic-subscriber.ts";
import { decodePublished } from "./published.ts";

export const HOUR_S = 3600;

export interface InboxOptions {
  readonly url: string;
  readonly prefix?: string;
  readonly maxInFlight?: number;
  readonly limits?: Partial<RedisStoreLimits>;
  /** Users whose events it hears. */
  readonly users?: readonly string[];
  readonly waitForReplicas?: RedisStorePorts["waitForReplicas"];
}

export interface InboxBench {
  readonly inbox: RedisInbox;
  readonly link: RedisLink;
  readonly time: { nowMs: number };
  /** What the listener was given. */
  readonly events: ClusterEvent[];
  /** Resolves when it was given all that was published before. */
  readonly arrived: () => Promise<unknown>;
  readonly problems: unknown[];
  seqs(uid: string): Promise<number[]>;
}

/** All of an inbox. */
export const PAGE = { limit: 100_000, maxBytes: Number.MAX_SAFE_INTEGER };

export const freshPrefix = (): string => `t${randomUUID().slice(0, 8)}`;

export async function startInbox(
  t: Pick<Test, "teardown">,
  options: InboxOptions,
): Promise<InboxBench> {
  const { url, prefix = freshPrefix(), maxInFlight = 20_000 } = options;
  const settings = redisSettings(url, { prefix, maxInFlight });
  const problems: unknown[] = [];
  const onError = (error: unknown) => problems.push(error);
  const link = new RedisLink(settings, {
    ...{ name: "test", onError },
  });
  await link.start();
  const events: ClusterEvent[] = [];
  const hear = (event: ClusterEvent) => events.push(event);
  const arrived = await listen(t, { link, users: options.users ?? [], hear });
  t.teardown(() => link.close());
  const time = { nowMs: Date.UTC(2026, 0, 1) };
  const inbox = createRedisInbox({
    ...{ link, onError, clock: () => time.nowMs },
    unreadable: new UnreadableRecords(onError),
    limits: {
      ...{ dedupeWindowS: HOUR_S, retentionS: 0, sweepIntervalMs: 60_000 },
      maxChannelMessages: 0,
      ...{ maxStreamBytes: 1000, maxInbox: 1_000_000, inboxTtlS: HOUR_S },
      ...options.limits,
    },
    waitForReplicas: options.waitForReplicas ?? (() => undefined),
  });
  const seqs = async (uid: string) => (await inbox.readInbox(uid, 0, PAGE)).map((c) => c.inboxSeq);
  return { inbox, link, time, events, arrived, problems, seqs };
}

/** The copies that were told, in their order. */
export const copiesOf = ({ events }: InboxBench) =>
  events.flatMap((e) => (e.kind === "command" ? e.copies : []));

/**
 * For how many milliseconds the keys of the inbox of `uid` are kept; -1: for ever, -2: it has none.
 */
export async function keysOf({ link }: InboxBench, uid: string) {
  const parts = ["inboxSeq", "inbox", "inboxExpiry", "inboxIds"];
  const keys = parts.map((part) => link.keys.user(part, uid));
  const ttls = await Promise.all(keys.map((key) => link.call("pttl", key)));
  const [seq = 0, copies = 0, ends = 0, ids = 0] = ttls.map(Number);
  return { seq, copies, ends, ids };
}

/** How many commands of the bucket of `key` are noted as not with all recipients. */
export const unfinishedIn = async ({ link }: InboxBench, key: string) =>
  Number(await link.call("xlen", link.keys.bucket("commands", bucketOf(key))));

/** Gives `hear` what comes for `users`; a mark on each topic tells when all before it has come. */
async function listen(
  t: Pick<Test, "teardown">,
  parts: {
    readonly link: RedisLink;
    readonly users: readonly string[];
    readonly hear: (event: ClusterEvent) => void;
  },
): Promise<() => Promise<unknown>> {
  const { link, users, hear } = parts;
  const topics = users.map((uid) => link.keys.topic(userTopic(uid)));
  const marks = new Map<string, () => void>();
  const subscriber = await connectSubscriber(t, link.settings.url, (topic, frame) => {
    for (const publication of decodePublished(frame))
      if (publication.kind === "mark") marks.get(`${publication.mark} ${topic}`)?.();
      else hear(publication.event);
  });
  for (const topic of topics) await subscriber.ssubscribe(topic);
  const mark = async (topic: string, name: string): Promise<void> => {
    const came = new Promise<void>((resolve) => marks.set(`${name} ${topic}`, resolve));
    await link.call("spublish", topic, markFrame(name));
    await came;
    marks.delete(`${name} ${topic}`);
  };
  return () => {
    const name = randomUUID();
    return Promise.all(topics.map((topic) => mark(topic, name)));
  };
}
