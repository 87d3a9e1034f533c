// A subscription of the node to a topic, delayed unsubscribes included. Types and the parts of a
// topic's name.

import type { ChannelKey, Topic } from "../../../broker/model.ts";
import type { Sequencer } from "./sequencer.ts";

export interface Subscription {
  readonly topic: Topic;
  /** Its channel name in Redis. */
  readonly name: string;
  /** For a group's topic. */
  readonly sequencer: Sequencer | undefined;
  /** Since when publications arrive, Unix milliseconds; undefined: not yet. */
  sinceMs: number | undefined;
  /** Publications arrive now. */
  isUp: boolean;
  /** Not dropped yet. */
  isOpen: boolean;
  /** Since when publications may be missed and not yet recovered, Unix milliseconds. */
  lostAtMs: number | undefined;
  /** How often the subscription was lost. */
  lostCount: number;
}

/** Key of a topic's group; undefined for users' and presence topics. */
export function groupKeyOf(topic: Topic): ChannelKey | undefined {
  return topic.startsWith("g:") ? `2:${topic.slice(2)}` : undefined;
}

/** Id of a channel key's group; undefined for personal channels. */
export function groupOf(key: ChannelKey): string | undefined {
  return key.startsWith("2:") ? key.slice(2) : undefined;
}

/** Uid of a user's topic. */
export function uidOf(topic: Topic): string | undefined {
  return topic.startsWith("u:") ? topic.slice(2) : undefined;
}
