// Stores of nodes on one real Redis, each with a listener on some topics, for tests of streams. A
// listener passes on every publication of a channel once and in the order of its number. It does
// not catch up: after a missing publication it passes on nothing more of the channel.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import type { ChannelKey, Topic } from "../../../src/broker/model.ts";
import type { ClusterEvent } from "../../../src/broker/ports.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import { markFrame, type Publication, sourceOf } from "../../../src/redis/wire.ts";
import type { RedisStoreLimits } from "../../../src/store/redis/ports.ts";
import { createRedisStore, type RedisStore } from "../../../src/store/redis/store.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { redisSettings } from "../../support/redis.ts";
import { connectSubscriber } from "../../support/topic-subscriber.ts";
import { decodePublished, eventsIn } from "./published.ts";

type Ordered = Extract<Publication, { kind: "ordered" }>;

/** Publications received on one channel. */
interface ChannelBuffer {
  publicationSeq: number;
  readonly early: Map<number, Ordered>;
}

/** A listener on topics with a prefix under which nothing has been published yet. */
export class TopicListener {
  readonly #topics: readonly Topic[];
  readonly #marks = new Map<string, () => void>();
  readonly #buffers = new Map<ChannelKey, ChannelBuffer>();
  /** Called with each event in order. */
  onEvent: (event: ClusterEvent) => void = () => {};
  /** Every publication, in the order of arrival. */
  readonly frames: Publication[] = [];

  constructor(topics: readonly Topic[]) {
    this.#topics = topics;
  }

  receive(frame: Buffer): void {
    for (const publication of decodePublished(frame)) this.#receive(publication);
  }

  #receive(publication: Publication): void {
    if (publication.kind === "mark") return this.#marks.get(publication.mark)?.();
    this.frames.push(publication);
    if (publication.kind !== "ordered") return;
    const { event } = publication;
    if (event.kind === "removal") return;
    const { key } = sourceOf(event);
    const buffer = this.#bufferOf(key);
    if (publication.publicationSeq > buffer.publicationSeq)
      buffer.early.set(publication.publicationSeq, publication);
    this.#passOn(buffer);
  }

  /** Resolves when everything published before has arrived. */
  async arrived(link: RedisLink): Promise<void> {
    await Promise.all(this.#topics.map((topic) => this.#mark(link, topic)));
  }

  async #mark(link: RedisLink, topic: Topic): Promise<void> {
    const mark = randomUUID();
    const arrival = new Promise<void>((resolve) => this.#marks.set(mark, resolve));
    await link.call("spublish", link.keys.topic(topic), markFrame(mark));
    await arrival;
    this.#marks.delete(mark);
  }

  #bufferOf(key: ChannelKey): ChannelBuffer {
    const buffer = this.#buffers.get(key) ?? {
      publicationSeq: 0,
      early: new Map(),
    };
    this.#buffers.set(key, buffer);
    return buffer;
  }

  #passOn(buffer: ChannelBuffer): void {
    for (;;) {
      const next = buffer.early.get(buffer.publicationSeq + 1);
      if (next === undefined) break;
      buffer.early.delete(next.publicationSeq);
      buffer.publicationSeq = next.publicationSeq;
      for (const event of eventsIn(next)) this.#notify(event);
    }
  }

  #notify(event: ClusterEvent): void {
    try {
      this.onEvent(event);
    } catch {
      return; // an error of the listener is not an error of the store
    }
  }
}

/** A prefix on a server, and topics under it. */
export interface RedisLocation {
  readonly url: string;
  readonly prefix: string;
  readonly topics: readonly Topic[];
}

/** Returns an unused key prefix. */
export const freshPrefix = (): string => `t${randomUUID().slice(0, 8)}`;

/** Listens to the topics of a location. */
export async function listenTo(
  t: Pick<Test, "teardown">,
  { url, prefix, topics }: RedisLocation,
): Promise<TopicListener> {
  const settings = redisSettings(url, { prefix });
  const listener = new TopicListener(topics);
  const client = await connectSubscriber(t, url, (_, frame) => listener.receive(frame));
  const link = new RedisLink(settings, {
    ...{ name: "names", onError: () => {} },
  });
  for (const topic of topics) await client.ssubscribe(link.keys.topic(topic));
  return listener;
}

export interface NodeOptions {
  readonly clock: () => number;
  readonly limits?: Partial<RedisStoreLimits>;
  readonly problems?: unknown[];
}

/**
 * Creates a node's store, which is not started. Closing the store also closes its link. Calls
 * return after `listener` has received their events.
 */
export function createNode(
  location: Pick<RedisLocation, "url" | "prefix">,
  listener: TopicListener,
  { clock, limits, problems = [] }: NodeOptions,
): RedisStore & { readonly link: RedisLink } {
  const { url, prefix } = location;
  const onError = (error: unknown) => problems.push(error);
  const link = new RedisLink(redisSettings(url, { prefix }), {
    ...{ name: "test", onError },
  });
  const store = createRedisStore({
    ...{ link, clock, onError },
    limits: {
      ...{ dedupeWindowS: 86_400, retentionS: 0, sweepIntervalMs: 3_600_000 },
      maxChannelMessages: 0,
      ...{ maxStreamBytes: 262_144, maxInbox: 1000, inboxTtlS: 604_800, logs: LOG_LIMITS },
      ...limits,
    },
  });
  const afterArrival =
    <A extends unknown[], R>(call: (...args: A) => Promise<R>) =>
    async (...args: A): Promise<R> => {
      const result = await call(...args);
      await listener.arrived(link);
      return result;
    };
  return {
    ...store,
    link,
    append: afterArrival(store.append),
    streamEvent: afterArrival(store.streamEvent),
    cancelStream: afterArrival(store.cancelStream),
    interruptStreams: afterArrival(store.interruptStreams),
    async close() {
      await store.close();
      await link.close();
    },
  };
}
