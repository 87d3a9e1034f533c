// A topic that the node listens to, or lingers on. A type only.

import type { ChannelKey, Topic } from "../../../broker/model.ts";
import type { Sequencer } from "./sequencer.ts";

export interface Subscription {
  readonly topic: Topic;
  /** What it is called in Redis. */
  readonly name: string;
  /** Of a group's topic. */
  readonly line: Sequencer | undefined;
  /** When everything published began to reach the node, Unix milliseconds; undefined: not yet. */
  sinceMs: number | undefined;
  /** What is published reaches the node now. */
  isUp: boolean;
  /** Until it is forgotten. */
  isOpen: boolean;
  /** From when on something may have been missed that was not made good. */
  lostAtMs: number | undefined;
  /** Grows with each loss. */
  losses: number;
}

/** The group of a topic; undefined: it is a user's or a presence topic. */
export function groupKeyOf(topic: Topic): ChannelKey | undefined {
  return topic.startsWith("g:") ? `2:${topic.slice(2)}` : undefined;
}

/** The id of the group of a channel's key; undefined: it is a personal channel. */
export function groupOf(key: ChannelKey): string | undefined {
  return key.startsWith("2:") ? key.slice(2) : undefined;
}

/** The user of a user's topic. */
export function uidOf(topic: Topic): string | undefined {
  return topic.startsWith("u:") ? topic.slice(2) : undefined;
}
