// The names of everything in Redis. A channel's keys share the hash tag of its bucket, a user's
// keys the user's, so that what one step touches is in one slot. There are 64 buckets: on a Redis
// Cluster each has its own counter of message ids (`store/redis/steps/channel-names.ts`), which
// makes ids unique and growing without any clock or lease. State: the hash tags of the channels
// named lately: each message needs them several times.

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

/** Part of the data format: on a Redis Cluster 6 bits of every message id. */
export const BUCKETS = 64;

/** The bucket of a channel: `0` to `BUCKETS - 1`. */
export function bucketOf(key: ChannelKey): number {
  return crc32(Buffer.from(key)) % BUCKETS;
}

const MAX_TAGGED = 20_000;

export class Keys {
  readonly prefix: string;
  readonly #tagged = new BoundedMap<ChannelKey, string>(MAX_TAGGED);

  constructor(prefix: string) {
    this.prefix = prefix;
  }

  /** `part` of a channel; `tail` where the part has several keys. */
  channel(part: string, key: ChannelKey, tail = ""): string {
    return `${this.#tag(key)}${part}:${key}${tail === "" ? "" : `\n${tail}`}`;
  }

  /**
   * What the names of all keys of a channel and its bucket begin with, for steps that make them by
   * themselves.
   */
  ofChannel(key: ChannelKey): string {
    return this.#tag(key);
  }

  /** The same of a user. */
  ofUser(uid: string): string {
    return this.user("", uid);
  }

  /** What all channels of a bucket share. */
  bucket(part: string, bucket: number): string {
    return `${this.prefix}:{c${bucket}}:${part}`;
  }

  user(part: string, uid: string): string {
    return `${this.prefix}:{u:${uid}}:${part}`;
  }

  /** What the whole cluster shares, in one slot. */
  shared(part: string): string {
    return `${this.prefix}:{all}:${part}`;
  }

  /** The publish/subscribe channel of a topic: in the slot of the channel or user it belongs to. */
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

  /** The topics of a channel: the group's, or both users' of a personal channel. */
  topicsOf(key: ChannelKey): readonly string[] {
    return topicsOfChannel(key).map((topic) => this.topic(topic));
  }

  #tag(key: ChannelKey): string {
    const known = this.#tagged.get(key);
    if (known !== undefined) return known;
    const tag = `${this.prefix}:{c${bucketOf(key)}}:`;
    this.#tagged.set(key, tag);
    return tag;
  }
}

/** Where a channel's publications come: the group's topic, or both users'. */
function topicsOfChannel(key: ChannelKey): readonly Topic[] {
  if (key.startsWith("2:")) return [`g:${key.slice(2)}`];
  return usersOf(key).map(userTopic);
}

/** Where an event is published. */
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
      return []; // local only
  }
}

/** The users of a personal channel, once each; of a group nobody. */
export function usersOf(key: ChannelKey): readonly string[] {
  if (!key.startsWith("1:")) return [];
  const [one = "", other = ""] = key.slice(2).split("@");
  return one === other ? [one] : [one, other];
}
