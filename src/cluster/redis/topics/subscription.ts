// The state of one subscription, and functions that read the kind and id from a topic's name.

import type { ChannelKey, Topic } from "../../../broker/model.ts";
import type { Sequencer } from "./sequencer.ts";

export interface Subscription {
  readonly topic: Topic;
  readonly name: string;
  /** Sequencer of a group topic, or `undefined` for other topics. */
  readonly sequencer: Sequencer | undefined;
  /**
   * Time since which publications have been arriving, Unix milliseconds, or `undefined` before the
   * first subscription.
   */
  sinceMs: number | undefined;
  isUp: boolean;
  isOpen: boolean;
  /**
   * Time after which publications may be missing, Unix milliseconds, or `undefined` if none can be
   * missing.
   */
  lostAtMs: number | undefined;
  lostCount: number;
}

export function groupKeyOf(topic: Topic): ChannelKey | undefined {
  return topic.startsWith("g:") ? `2:${topic.slice(2)}` : undefined;
}

export function uidOf(topic: Topic): string | undefined {
  return topic.startsWith("u:") ? topic.slice(2) : undefined;
}
