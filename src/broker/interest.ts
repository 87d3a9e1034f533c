// Subscriptions to topics shared by several parts of a node: a topic is listened to while any of
// them wants it. Map: topics to their owners.

import type { Topic } from "./model.ts";
import type { Cluster } from "./ports.ts";

export type Interest = Pick<Cluster, "listen" | "subscribe" | "unlisten">;

/** Each owner listens and unlistens as if it were alone; both are idempotent for it. */
export function shareInterest(cluster: Interest): { owner(): Interest } {
  const owners = new Map<Topic, readonly Interest[]>();
  /**
   * `alone`: the list of one owner, shared by its topics, of which there are as many as users and
   * groups.
   */
  function own(topic: Topic, owner: Interest, alone: readonly Interest[]) {
    const those = owners.get(topic);
    if (those === undefined) owners.set(topic, alone);
    else if (!those.includes(owner)) owners.set(topic, those.concat(owner));
  }
  return {
    owner() {
      const self: Interest = {
        async listen(topic) {
          own(topic, self, alone);
          await cluster.listen(topic); // also while another owner's call is under way
        },
        async subscribe(topic) {
          own(topic, self, alone);
          await cluster.subscribe(topic);
        },
        unlisten(topic) {
          const those = owners.get(topic);
          if (!those?.includes(self)) return;
          const others = those.filter((one) => one !== self);
          if (others.length > 0) return void owners.set(topic, others);
          owners.delete(topic);
          cluster.unlisten(topic);
        },
      };
      const alone = [self];
      return self;
    },
  };
}
