// Reads from the store for a session whose permission to read may have ended. A node that missed
// events may still treat an ended permission as valid.

import {
  type ChannelKey,
  type ChannelRef,
  GROUP_CHANNEL,
  groupTopic,
  type Topic,
  userTopic,
} from "../broker/model.ts";
import type { Cluster } from "../broker/ports.ts";

type TopicFilter = (topic: Topic) => boolean;

/**
 * Returns a filter for the topics whose events can end a user's permission to read `channel`. If
 * `channel` is absent, the filter matches only the user's own topic.
 */
export function concernOf(uid: string, channel?: ChannelRef): TopicFilter {
  const user = userTopic(uid);
  const group = channel?.type === GROUP_CHANNEL ? groupTopic(channel.id) : undefined;
  return (topic) => topic === user || topic === group;
}

export function concernOfAll(key: ChannelKey): TopicFilter {
  if (key.startsWith("2:")) {
    const group = groupTopic(key.slice(2));
    return (topic) => topic === group || topic.startsWith("u:");
  }
  const users = key.slice(2).split("@").map(userTopic);
  return (topic) => users.includes(topic);
}

/**
 * Repeats `read` until the node has received all events of the topics that `concerns` selects. A
 * permission that ended before the returned data was stored has then ended on this node too.
 * Rejects with `unavailable` after a time-out.
 */
export async function readJudged<T>(
  cluster: Pick<Cluster, "recovery" | "delivered">,
  concerns: TopicFilter,
  read: () => Promise<T> | T,
): Promise<T> {
  for (;;) {
    const result = await read();
    await cluster.delivered();
    const recovery = cluster.recovery(concerns);
    if (recovery === undefined) return result;
    await recovery;
  }
}
