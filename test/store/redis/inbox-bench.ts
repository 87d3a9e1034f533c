// Command inboxes on a real Redis server or Cluster, with a listener on the topics of some users,
// for tests of inboxes alone.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import { bucketOf } from "../../../src/broker/log-frame.ts";
import { userTopic } from "../../../src/broker/model.ts";
import type { ClusterEvent } from "../../../src/broker/ports.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import { markFrame } from "../../../src/redis/wire.ts";
import type { RedisStoreLimits, RedisStorePorts } from "../../../src/store/redis/ports.ts";
import { createRedisInbox, type RedisInbox } from "../../../src/store/redis/steps/inbox.ts";
import { UnreadableRecords } from "../../../src/store/redis/unreadable.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { redisSettings } from "../../support/redis.ts";
import { connectSubscriber } from "../../support/topic-subscriber.ts";
import { decodePublished, eventsIn } from "./published.ts";

export const HOUR_S = 3600;

/** Options of inboxes. */
export interface InboxOptions {
  readonly url: string;
  readonly prefix?: string;
  readonly maxInFlight?: number;
  readonly limits?: Partial<RedisStoreLimits>;
  /** Users whose events the listener receives. */
  readonly users?: readonly string[];
  readonly observeReplicas?: RedisStorePorts["observeReplicas"];
}

/** Inboxes of one node, their listener, and the parts of them that tests use. */
export interface InboxBench {
  readonly inbox: RedisInbox;
  readonly link: RedisLink;
  readonly time: { nowMs: number };
  /** Events that the listener received. */
  readonly events: ClusterEvent[];
  /** Resolves when the listener has received everything that was published before. */
  readonly arrived: () => Promise<unknown>;
  readonly problems: unknown[];
  /** Returns the inboxSeqs in a user's inbox. */
  seqs(uid: string): Promise<number[]>;
}

/** Range of a read that returns a whole inbox. */
export const PAGE = { limit: 100_000, maxBytes: Number.MAX_SAFE_INTEGER };

/** Returns an unused key prefix. */
export const freshPrefix = (): string => `t${randomUUID().slice(0, 8)}`;

/** Starts inboxes and their listener. */
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
  const onEvent = (event: ClusterEvent) => events.push(event);
  const arrived = await listen(t, { link, users: options.users ?? [], onEvent });
  t.teardown(() => link.close());
  const time = { nowMs: Date.UTC(2040, 0, 1) };
  const inbox = createRedisInbox({
    ...{ link, onError, clock: () => time.nowMs },
    unreadable: new UnreadableRecords(onError),
    limits: {
      ...{ dedupeWindowS: HOUR_S, retentionS: 0, sweepIntervalMs: 60_000 },
      maxChannelMessages: 0,
      ...{ maxStreamBytes: 1000, maxInbox: 1_000_000, inboxTtlS: HOUR_S, logs: LOG_LIMITS },
      ...options.limits,
    },
    waitForReplicas: () => undefined,
    observeReplicas: options.observeReplicas ?? (() => async () => {}),
  });
  const seqs = async (uid: string) =>
    (await inbox.readInbox(uid, 0, PAGE)).map(({ inboxSeq }) => inboxSeq);
  return { inbox, link, time, events, arrived, problems, seqs };
}

/** Returns the published copies in their order. */
export const copiesOf = ({ events }: InboxBench) =>
  events.flatMap((event) => (event.kind === "command" ? event.copies : []));

/**
 * Returns the time to live of the keys of a user's inbox in milliseconds: -1 if a key does not
 * expire, -2 if it does not exist.
 */
export async function ttlsOf({ link }: InboxBench, uid: string) {
  const names = ["inboxSeq", "inbox", "inboxExpiry", "inboxIds"];
  const keys = names.map((name) => link.keys.user(name, uid));
  const ttls = await Promise.all(keys.map((key) => link.call("pttl", key)));
  const [seq = 0, copies = 0, ends = 0, ids = 0] = ttls.map(Number);
  return { seq, copies, ends, ids };
}

/** Returns the number of commands with pending copies in the bucket of `key`. */
export const pendingIn = async ({ link }: InboxBench, key: string) =>
  Number(await link.call("xlen", link.keys.bucket("commands", bucketOf(key))));

/**
 * Calls `onEvent` for each event on the topics of `users`. Returns a function that waits, by
 * publishing a mark on each topic, until everything published before has arrived.
 */
async function listen(
  t: Pick<Test, "teardown">,
  ports: {
    readonly link: RedisLink;
    readonly users: readonly string[];
    readonly onEvent: (event: ClusterEvent) => void;
  },
): Promise<() => Promise<unknown>> {
  const { link, users, onEvent } = ports;
  const topics = users.map((uid) => link.keys.topic(userTopic(uid)));
  const marks = new Map<string, () => void>();
  const subscriber = await connectSubscriber(t, link.settings.url, (topic, frame) => {
    for (const publication of decodePublished(frame))
      if (publication.kind === "mark") marks.get(`${publication.mark} ${topic}`)?.();
      else for (const event of eventsIn(publication)) onEvent(event);
  });
  for (const topic of topics) await subscriber.ssubscribe(topic);
  const mark = async (topic: string, name: string): Promise<void> => {
    const arrival = new Promise<void>((resolve) => marks.set(`${name} ${topic}`, resolve));
    await link.call("spublish", topic, markFrame(name));
    await arrival;
    marks.delete(`${name} ${topic}`);
  };
  return () => {
    const name = randomUUID();
    return Promise.all(topics.map((topic) => mark(topic, name)));
  };
}
