// Reading for a session what it may no longer be allowed to see: a node that missed events does not
// know yet whom it must not show what the store has. State: none.

import {
  type ChannelKey,
  type ChannelRef,
  GROUP_CHANNEL,
  groupTopic,
  type Topic,
  userTopic,
} from "../broker/model.ts";
import type { Cluster } from "../broker/ports.ts";

/** Says of a topic whether the right to what is read may have ended with an event of it. */
type Concern = (topic: Topic) => boolean;

/** Of what a user reads in a channel; without one of what is the user's own. */
export function concernOf(uid: string, channel?: ChannelRef): Concern {
  const user = userTopic(uid);
  const group = channel?.type === GROUP_CHANNEL ? groupTopic(channel.id) : undefined;
  return (topic) => topic === user || topic === group;
}

/** Of what is read of a channel for any of its users. */
export function concernOfAll(key: ChannelKey): Concern {
  if (key.startsWith("2:")) {
    const group = groupTopic(key.slice(2));
    return (topic) => topic === group || topic.startsWith("u:");
  }
  const users = key.slice(2).split("@").map(userTopic);
  return (topic) => users.includes(topic);
}

/**
 * What `read` gives at a time when the node misses nothing of the topics that concern it: a right
 * that ended before what was read was stored has ended here, too. Rejects `unavailable` where the
 * node does not recover in time.
 */
export async function readJudged<T>(
  cluster: Pick<Cluster, "recovery" | "delivered">,
  concerns: Concern,
  read: () => Promise<T> | T,
): Promise<T> {
  for (;;) {
    const found = await read();
    await cluster.delivered();
    const recovery = cluster.recovery(concerns);
    if (recovery === undefined) return found;
    await recovery;
  }
}
