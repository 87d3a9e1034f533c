// Builds the names of all keys and topics in Redis. All keys of a channel contain the hash tag of
// its bucket, and all keys of a user contain the user's hash tag, so that all keys of one script
// are in one slot. There are 64 buckets. On a Redis Cluster each bucket has its own counter of
// message ids (`store/redis/steps/channel-names.ts`), so ids are unique and increasing without a
// synchronised clock or a lease. State: a cache of the hash tags of recently used channels, because
// each message needs its channel's tag several times.

import {
  type ChannelKey,
  groupTopic,
  presenceTopic,
  type Topic,
  userTopic,
} from "../broker/model.ts";
import type { ClusterEvent } from "../broker/ports.ts";
import { BoundedMap } from "../lib/bounded-map.ts";
import { crc32 } from "../lib/crc32.ts";

/**
 * Number of buckets. Part of the data format: on a Redis Cluster, 6 bits of every message id
 * contain the bucket.
 */
export const BUCKETS = 64;

/** Returns the bucket of a channel, from 0 to `BUCKETS - 1`. */
export function bucketOf(key: ChannelKey): number {
  return crc32(Buffer.from(key)) % BUCKETS;
}

/** Maximum number of channels whose hash tag is cached. */
const MAX_CACHED_TAGS = 20_000;

/** Builds key names under one prefix. */
export class Keys {
  readonly prefix: string;
  readonly #tags = new BoundedMap<ChannelKey, string>(MAX_CACHED_TAGS);

  constructor(prefix: string) {
    this.prefix = prefix;
  }

  /**
   * Returns the name of a channel's key `part`. If a channel has several keys for the same part,
   * `tail` distinguishes them.
   */
  channel(part: string, key: ChannelKey, tail = ""): string {
    return `${this.#tag(key)}${part}:${key}${tail === "" ? "" : `\n${tail}`}`;
  }

  /**
   * Returns the beginning of the names of all keys of a channel and its bucket, for scripts that
   * build key names themselves.
   */
  ofChannel(key: ChannelKey): string {
    return this.#tag(key);
  }

  /** Returns the beginning of the names of all keys of a user. */
  ofUser(uid: string): string {
    return this.user("", uid);
  }

  /** Returns the name of the key `part` that all channels of a bucket share. */
  bucket(part: string, bucket: number): string {
    return `${this.prefix}:{c${bucket}}:${part}`;
  }

  /** Returns the name of a user's key `part`. */
  user(part: string, uid: string): string {
    return `${this.prefix}:{u:${uid}}:${part}`;
  }

  /**
   * Returns the name of the key `part` that the whole cluster shares. All these keys are in one
   * slot.
   */
  shared(part: string): string {
    return `${this.prefix}:{all}:${part}`;
  }

  /**
   * Returns the name of the topic's publish/subscribe channel, which is in the slot of its group or
   * user.
   */
  topic(topic: Topic): string {
    const id = topic.slice(2);
    switch (topic.slice(0, 2)) {
      case "g:":
        return this.channel("topic", `2:${id}`);
      case "p:":
        return this.user("presence", id);
      default:
        return this.user("topic", id);
    }
  }

  /**
   * Returns the names of a channel's topics: the group's topic, or the topics of both users of a
   * personal channel.
   */
  topicsOf(key: ChannelKey): readonly string[] {
    return topicsOfChannel(key).map((topic) => this.topic(topic));
  }

  #tag(key: ChannelKey): string {
    const cached = this.#tags.get(key);
    if (cached !== undefined) return cached;
    const tag = `${this.prefix}:{c${bucketOf(key)}}:`;
    this.#tags.set(key, tag);
    return tag;
  }
}

/**
 * Returns the topics on which a channel's publications appear: the group's topic, or both users'
 * topics.
 */
function topicsOfChannel(key: ChannelKey): readonly Topic[] {
  if (key.startsWith("2:")) return [`g:${key.slice(2)}`];
  return usersOf(key).map(userTopic);
}

/** Returns the topics on which an event is published. */
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
    case "missed":
      return []; // never leaves the node
  }
}

/** Returns the distinct users of a personal channel, empty for a group. */
export function usersOf(key: ChannelKey): readonly string[] {
  if (!key.startsWith("1:")) return [];
  const [first = "", second = ""] = key.slice(2).split("@");
  return first === second ? [first] : [first, second];
}
