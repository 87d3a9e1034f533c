// Builds the names of all keys and topics in Redis. All keys of a channel contain the hash tag of
// its bucket, and all keys of a user contain the user's hash tag, so that all keys of one script
// are in one slot. Message ids come from one counter in Redis, or on a Redis Cluster from one
// counter per bucket. Ids are therefore unique and increase within a channel without synchronised
// clocks or leases.

import { BUCKETS, bucketOf, logBucket, logNameOf, logTopic } from "../broker/log-frame.ts";
import {
  type ChannelKey,
  groupTopic,
  presenceTopic,
  type Topic,
  userTopic,
} from "../broker/model.ts";
import type { ClusterEvent } from "../broker/ports.ts";

export class Keys {
  readonly prefix: string;
  /**
   * Suffix of topic names: "" for database 0, otherwise a suffix with the database number, because
   * all databases of a server share one topic namespace.
   */
  readonly topicEnd: string;
  /** Prefixes of the channels' keys, by bucket. */
  readonly #tags: readonly string[];

  constructor(prefix: string, database = 0) {
    this.prefix = prefix;
    this.topicEnd = topicEnd(database);
    this.#tags = Array.from({ length: BUCKETS }, (_, bucket) => `${prefix}:{c${bucket}}:`);
  }

  /**
   * Returns the name of a key. `tail` distinguishes several keys of a channel with the same `part`.
   */
  channel(part: string, key: ChannelKey, tail = ""): string {
    return `${this.#tag(key)}${part}:${key}${tail === "" ? "" : `\n${tail}`}`;
  }

  /** Returns the prefix of a channel's key names, for scripts that build the names themselves. */
  ofChannel(key: ChannelKey): string {
    return this.#tag(key);
  }

  /**
   * Groups channels by bucket. The keys of the result are the prefixes of the key names in each
   * bucket.
   */
  byBucket(channels: readonly ChannelKey[]): ReadonlyMap<string, readonly ChannelKey[]> {
    const buckets = new Map<string, ChannelKey[]>();
    for (const key of channels) {
      const tag = this.#tag(key);
      const others = buckets.get(tag);
      if (others === undefined) buckets.set(tag, [key]);
      else others.push(key);
    }
    return buckets;
  }

  ofUser(uid: string): string {
    return this.user("", uid);
  }

  bucket(part: string, bucket: number): string {
    return `${this.prefix}:{c${bucket}}:${part}`;
  }

  user(part: string, uid: string): string {
    return `${this.prefix}:{u:${uid}}:${part}`;
  }

  /** Returns the name of a key in the single slot that the whole cluster shares. */
  shared(part: string): string {
    return `${this.prefix}:{all}:${part}`;
  }

  topic(topic: Topic): string {
    const id = topic.slice(2);
    switch (topic.slice(0, 2)) {
      case "g:":
        return this.channel(`topic${this.topicEnd}`, `2:${id}`);
      case "p:":
        return this.user(`presence${this.topicEnd}`, id);
      case "l:":
        return this.bucket(`logs${this.topicEnd}`, Number(id));
      default:
        return this.user(`topic${this.topicEnd}`, id);
    }
  }

  #tag(key: ChannelKey): string {
    return this.#tags[bucketOf(key)] as string;
  }
}

export function topicEnd(database: number): string {
  return database === 0 ? "" : `@${database}`;
}

/** Returns the id of a group, or `undefined` for a personal channel. */
export function groupOf(key: ChannelKey): string | undefined {
  return key.startsWith("2:") ? key.slice(2) : undefined;
}

function topicsOfChannel(key: ChannelKey): readonly Topic[] {
  const group = groupOf(key);
  if (group !== undefined) return [groupTopic(group)];
  return usersOf(key).map(userTopic);
}

export function topicsOf(event: ClusterEvent): readonly Topic[] {
  switch (event.kind) {
    case "message":
      return event.recipients?.map(userTopic) ?? topicsOfChannel(event.message.key);
    case "event":
      return topicsOfChannel(event.event.key);
    case "command":
      return event.copies.map(({ uid }) => userTopic(uid));
    case "presence":
      return [presenceTopic(event.uid)];
    case "conversation":
    case "end_session":
    case "credential":
    case "addition":
      return [userTopic(event.uid)];
    case "removal":
      return [groupTopic(event.channelId)];
    case "log":
      return [logTopic(logBucket(logNameOf(event.nameText)))];
    case "missed":
    case "head":
      return []; // these events never leave the node
  }
}

export function usersOf(key: ChannelKey): readonly string[] {
  if (!key.startsWith("1:")) return [];
  const [first = "", second = ""] = key.slice(2).split("@");
  return first === second ? [first] : [first, second];
}
