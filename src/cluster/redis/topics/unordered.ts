// Unordered (ephemeral) events between nodes: their topics and recipients, and deduplication of events that
// arrive on several topics. A recipient's copy does not list the other recipients. State: recent ids.

import {
  groupTopic,
  presenceTopic,
  type Topic,
  userTopic,
} from "../../../broker/model.ts";
import type { ClusterEvent } from "../../../broker/ports.ts";
import { topicsOfChannel } from "../../../redis/keys.ts";

/** The event, or one for each of several recipients. */
export function partsOf(event: ClusterEvent): readonly ClusterEvent[] {
  if (event.kind === "command")
    return event.copies.map((copy) => ({ ...event, copies: [copy] }));
  if (event.kind === "message" && event.recipients !== undefined)
    return event.recipients.map((uid) => ({ ...event, recipients: [uid] }));
  return [event];
}

export function topicsOf(event: ClusterEvent): readonly Topic[] {
  switch (event.kind) {
    case "message":
      return (
        event.recipients?.map(userTopic) ?? topicsOfChannel(event.message.key)
      );
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

/** Recent ids: at least the last `max`, at most twice as many. */
export class RecentIds {
  readonly #max: number;
  #young = new Set<string>();
  #old = new Set<string>();

  constructor(max: number) {
    this.#max = max;
  }

  /** Remembers the id; false if it is known already. */
  isNew(id: string): boolean {
    if (this.#young.has(id) || this.#old.has(id)) return false;
    this.#young.add(id);
    if (this.#young.size < this.#max) return true;
    this.#old = this.#young;
    this.#young = new Set();
    return true;
  }
}
