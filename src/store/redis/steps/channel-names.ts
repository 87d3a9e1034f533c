// The names of a channel's keys and where its publications go, made once per channel: every message needs them. State: those of the channels used
// lately.

import {
  type ChannelKey,
  PERSON_CHANNEL,
  userTopic,
} from "../../../broker/model.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import { bucketOf, usersOf } from "../../../redis/keys.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { type IdCounter, idCounterOf } from "./message-ids.ts";

const MAX_CHANNELS = 20_000;

export interface ChannelNames {
  readonly bucket: number;
  readonly head: string;
  readonly log: string;
  /** The counter of its messages' ids. */
  readonly ids: IdCounter;
  /** The bucket's. */
  readonly due: string;
  /** Its users are in other slots: they are told by steps of their own (`tellUsers`), and the three lists below are empty. */
  readonly isApart: boolean;
  /** What the step that appends is given of the channel (`lua/append.lua`). */
  readonly step: readonly string[];
  /** What its own steps tell. */
  readonly topics: readonly string[];
  /** `peers` of the users of a personal channel, and whom to enter into each. */
  readonly peerKeys: readonly string[];
  readonly peers: readonly string[];
}

export class ChannelNamesOf {
  readonly #link: Pick<RedisLink, "keys" | "isCluster">;
  readonly #known = new BoundedMap<ChannelKey, ChannelNames>(MAX_CHANNELS);

  constructor(link: Pick<RedisLink, "keys" | "isCluster">) {
    this.#link = link;
  }

  get(key: ChannelKey): ChannelNames {
    const known = this.#known.get(key);
    if (known !== undefined) return known;
    const names = this.#make(key);
    this.#known.set(key, names);
    return names;
  }

  #make(key: ChannelKey): ChannelNames {
    const { keys } = this.#link;
    const bucket = bucketOf(key);
    const isApart = areUsersApart(this.#link, key);
    const users = isApart ? [] : usersOf(key);
    const topics = isApart ? [] : keys.topicsOf(key);
    return {
      bucket,
      head: keys.channel("head", key),
      log: keys.channel("log", key),
      ids: idCounterOf(this.#link, bucket),
      due: keys.bucket("due", bucket),
      isApart,
      topics,
      step: [
        ...[keys.ofChannel(key), key],
        ...[users.length > 0 ? "" : (topics[0] ?? ""), `${users.length}`],
        ...users.flatMap((uid) => [
          ...[uid, keys.ofChannel(`${PERSON_CHANNEL}:${uid}`)],
          keys.ofUser(uid),
        ]),
      ],
      peerKeys: users.map((uid) => keys.user("peers", uid)),
      peers: users.map((uid) => otherUser(users, uid)),
    };
  }
}

/** A personal channel whose users are in other slots than the channel: they are told by `tellUsers`. */
export function areUsersApart(
  { isCluster }: Pick<RedisLink, "isCluster">,
  key: ChannelKey,
): boolean {
  return isCluster && key.startsWith("1:");
}

/** With whom `uid` has a personal channel of these users: the other one, or itself. */
export function otherUser(users: readonly string[], uid: string): string {
  return users.find((one) => one !== uid) ?? uid;
}

/** The publish/subscribe channel of a user's topic. */
export function topicOfUser(
  { keys }: Pick<RedisLink, "keys">,
  uid: string,
): string {
  return keys.topic(userTopic(uid));
}
