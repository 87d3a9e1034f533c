// Stores of nodes on one real Redis, each with a listener that hears the topics it is given, for tests of streams: every publication of a channel once
// and in the order of its number, whatever comes in between; what is missing stays missing.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import type { ChannelKey, Topic } from "../../../src/broker/model.ts";
import type { ClusterEvent } from "../../../src/broker/ports.ts";
import type { Arrivals } from "../../../src/redis/arrivals.ts";
import { topicsOfChannel } from "../../../src/redis/keys.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import { decodeFrame, type Publication } from "../../../src/redis/wire.ts";
import type { RedisStoreLimits } from "../../../src/store/redis/parts.ts";
import {
  createRedisStore,
  type RedisStore,
  redisStoreScripts,
} from "../../../src/store/redis/store.ts";
import { connectEars } from "../../support/ears.ts";
import { redisSettings } from "../../support/redis.ts";

type Ordered = Extract<Publication, { kind: "ordered" }>;

/** What has come of a channel. */
interface ChannelLine {
  pub: number;
  readonly early: Map<number, Ordered>;
  readonly waiting: { readonly pub: number; readonly go: () => void }[];
}

/** Hears topics of a prefix that nothing was published under yet. */
export class Ears implements Arrivals {
  readonly #topics: ReadonlySet<Topic>;
  readonly #lines = new Map<ChannelKey, ChannelLine>();
  /** Told in order. */
  hear: (event: ClusterEvent) => void = () => {};
  /** Every frame, in the order they came. */
  readonly frames: Publication[] = [];

  constructor(topics: readonly Topic[]) {
    this.#topics = new Set(topics);
  }

  take(frame: Buffer): void {
    const publication = decodeFrame(frame);
    this.frames.push(publication);
    if (publication.kind !== "ordered") return;
    const { event } = publication;
    if (event.kind === "removal") return;
    const { key } = event.kind === "message" ? event.message : event.event;
    const line = this.#line(key);
    if (publication.pub > line.pub)
      line.early.set(publication.pub, publication);
    this.#advance(line);
  }

  level(key: ChannelKey, pub: number): Promise<void> | undefined {
    const line = this.#line(key);
    const isHeard = topicsOfChannel(key).some((t) => this.#topics.has(t));
    if (!isHeard || line.pub >= pub) return undefined;
    return new Promise((go) => line.waiting.push({ pub, go }));
  }

  listensTo = (topic: Topic): boolean => this.#topics.has(topic);
  barrier = (): undefined => undefined;

  #line(key: ChannelKey): ChannelLine {
    const line = this.#lines.get(key) ?? {
      pub: 0,
      early: new Map(),
      waiting: [],
    };
    this.#lines.set(key, line);
    return line;
  }

  #advance(line: ChannelLine): void {
    for (;;) {
      const next = line.early.get(line.pub + 1);
      if (next === undefined) break;
      line.early.delete(next.pub);
      line.pub = next.pub;
      this.#tell(next.event);
    }
    for (const { pub, go } of line.waiting) if (pub <= line.pub) go();
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
  const client = await connectEars(t, url, (_, frame) => ears.take(frame));
  const link = new RedisLink(settings, {
    ...{ scripts: [], name: "names", onProblem: () => {} },
  });
  for (const topic of topics) await client.ssubscribe(link.keys.topic(topic));
  return ears;
}

export interface NodeOptions {
  readonly clock: () => number;
  readonly limits?: Partial<RedisStoreLimits>;
  readonly problems?: unknown[];
}

/** A node's store that is not started. Its link ends with it. */
export function createNode(
  place: Pick<RedisPlace, "url" | "prefix">,
  arrivals: Arrivals,
  { clock, limits, problems = [] }: NodeOptions,
): RedisStore & { readonly link: RedisLink } {
  const { url, prefix } = place;
  const onProblem = (error: unknown) => problems.push(error);
  const link = new RedisLink(redisSettings(url, { prefix }), {
    ...{ scripts: redisStoreScripts, name: "test", onProblem },
  });
  const store = createRedisStore({
    ...{ link, arrivals, clock, onProblem },
    limits: {
      ...{ dedupeWindowS: 86_400, retentionS: 0, sweepIntervalMs: 3_600_000 },
      maxChannelMessages: 0,
      ...{ maxStreamBytes: 262_144, maxInbox: 1000, inboxTtlS: 604_800 },
      ...limits,
    },
  });
  return {
    ...store,
    link,
    async close() {
      await store.close();
      await link.close();
    },
  };
}
