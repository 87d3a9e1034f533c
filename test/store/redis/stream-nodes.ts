// Stores of nodes on one real Redis, each with a listener that hears the topics it is given, for
// tests of streams: every publication of a channel once and in the order of its number, whatever
// comes in between; what is missing stays missing.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import type { ChannelKey, Topic } from "../../../src/broker/model.ts";
import type { ClusterEvent } from "../../../src/broker/ports.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import { markFrame, type Publication } from "../../../src/redis/wire.ts";
import type { RedisStoreLimits } from "../../../src/store/redis/ports.ts";
import { createRedisStore, type RedisStore } from "../../../src/store/redis/store.ts";
import { redisSettings } from "../../support/redis.ts";
import { connectSubscriber } from "../../support/topic-subscriber.ts";
import { decodePublished } from "./published.ts";

type Ordered = Extract<Publication, { kind: "ordered" }>;

/** What has come of a channel. */
interface ChannelLine {
  publicationSeq: number;
  readonly early: Map<number, Ordered>;
}

/** Hears topics of a prefix that nothing was published under yet. */
export class Ears {
  readonly #topics: readonly Topic[];
  readonly #marks = new Map<string, () => void>();
  readonly #lines = new Map<ChannelKey, ChannelLine>();
  /** Told in order. */
  hear: (event: ClusterEvent) => void = () => {};
  /** Every frame, in the order they came. */
  readonly frames: Publication[] = [];

  constructor(topics: readonly Topic[]) {
    this.#topics = topics;
  }

  take(frame: Buffer): void {
    for (const one of decodePublished(frame)) this.#takeOne(one);
  }

  #takeOne(publication: Publication): void {
    if (publication.kind === "mark") return this.#marks.get(publication.mark)?.();
    this.frames.push(publication);
    if (publication.kind !== "ordered") return;
    const { event } = publication;
    if (event.kind === "removal") return;
    const { key } = event.kind === "message" ? event.message : event.event;
    const line = this.#line(key);
    if (publication.publicationSeq > line.publicationSeq)
      line.early.set(publication.publicationSeq, publication);
    this.#advance(line);
  }

  /** Resolves when all that was published before has come. */
  async arrived(link: RedisLink): Promise<void> {
    await Promise.all(this.#topics.map((topic) => this.#mark(link, topic)));
  }

  async #mark(link: RedisLink, topic: Topic): Promise<void> {
    const mark = randomUUID();
    const came = new Promise<void>((go) => this.#marks.set(mark, go));
    await link.call("spublish", link.keys.topic(topic), markFrame(mark));
    await came;
    this.#marks.delete(mark);
  }

  #line(key: ChannelKey): ChannelLine {
    const line = this.#lines.get(key) ?? {
      publicationSeq: 0,
      early: new Map(),
    };
    this.#lines.set(key, line);
    return line;
  }

  #advance(line: ChannelLine): void {
    for (;;) {
      const next = line.early.get(line.publicationSeq + 1);
      if (next === undefined) break;
      line.early.delete(next.publicationSeq);
      line.publicationSeq = next.publicationSeq;
      this.#tell(next.event);
    }
  }

  #tell(event: ClusterEvent): void {
    try {
      this.hear(event);
    } catch {
      return; // a listener's bug is its own
    }
  }
}

export interface RedisPlace {
  readonly url: string;
  readonly prefix: string;
  readonly topics: readonly Topic[];
}

export const freshPrefix = (): string => `t${randomUUID().slice(0, 8)}`;

/** Listens to the topics of a place. */
export async function listenTo(
  t: Pick<Test, "teardown">,
  { url, prefix, topics }: RedisPlace,
): Promise<Ears> {
  const settings = redisSettings(url, { prefix });
  const ears = new Ears(topics);
  const client = await connectSubscriber(t, url, (_, frame) => ears.take(frame));
  const link = new RedisLink(settings, {
    ...{ name: "names", onError: () => {} },
  });
  for (const topic of topics) await client.ssubscribe(link.keys.topic(topic));
  return ears;
}

export interface NodeOptions {
  readonly clock: () => number;
  readonly limits?: Partial<RedisStoreLimits>;
  readonly problems?: unknown[];
}

/**
 * A node's store that is not started. Its link ends with it. An event of a stream is answered when
 * `ears` have it.
 */
export function createNode(
  place: Pick<RedisPlace, "url" | "prefix">,
  ears: Ears,
  { clock, limits, problems = [] }: NodeOptions,
): RedisStore & { readonly link: RedisLink } {
  const { url, prefix } = place;
  const onError = (error: unknown) => problems.push(error);
  const link = new RedisLink(redisSettings(url, { prefix }), {
    ...{ name: "test", onError },
  });
  const store = createRedisStore({
    ...{ link, clock, onError },
    limits: {
      ...{ dedupeWindowS: 86_400, retentionS: 0, sweepIntervalMs: 3_600_000 },
      maxChannelMessages: 0,
      ...{ maxStreamBytes: 262_144, maxInbox: 1000, inboxTtlS: 604_800 },
      ...limits,
    },
  });
  const heard =
    <A extends unknown[], R>(call: (...asked: A) => Promise<R>) =>
    async (...asked: A): Promise<R> => {
      const answer = await call(...asked);
      await ears.arrived(link);
      return answer;
    };
  return {
    ...store,
    link,
    append: heard(store.append),
    streamEvent: heard(store.streamEvent),
    cancelStream: heard(store.cancelStream),
    interruptStreams: heard(store.interruptStreams),
    async close() {
      await store.close();
      await link.close();
    },
  };
}
