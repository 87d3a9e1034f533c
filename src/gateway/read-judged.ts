// Reads from the store for a session whose right to read may have ended: a node that missed events
// does not know yet what its sessions may no longer see. State: none.

import {
  type ChannelKey,
  type ChannelRef,
  GROUP_CHANNEL,
  groupTopic,
  type Topic,
  userTopic,
} from "../broker/model.ts";
import type { Cluster } from "../broker/ports.ts";

/** Returns true if an event of the topic may have ended the right to see what is read. */
type TopicFilter = (topic: Topic) => boolean;

/**
 * Returns the topics that concern a user's read in `channel`, or of the user's own data if there is
 * no channel.
 */
export function concernOf(uid: string, channel?: ChannelRef): TopicFilter {
  const user = userTopic(uid);
  const group = channel?.type === GROUP_CHANNEL ? groupTopic(channel.id) : undefined;
  return (topic) => topic === user || topic === group;
}

/** Returns the topics that concern a read in a channel on behalf of any of its users. */
export function concernOfAll(key: ChannelKey): TopicFilter {
  if (key.startsWith("2:")) {
    const group = groupTopic(key.slice(2));
    return (topic) => topic === group || topic.startsWith("u:");
  }
  const users = key.slice(2).split("@").map(userTopic);
  return (topic) => users.includes(topic);
}

/**
 * Returns the result of `read`, repeated until the node misses no events of the topics that concern
 * it. If a right ended before the data was stored, this node then knows it. Rejects with
 * `unavailable` if the node does not recover in time.
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
