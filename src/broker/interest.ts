// Interest in topics shared by several parts of a node: a topic is listened to while any of them wants it. Map: topics to who wants them.

import type { Topic } from "./model.ts";
import type { Cluster } from "./ports.ts";

export type Interest = Pick<Cluster, "listen" | "subscribe" | "unlisten">;

/** Each owner listens and unlistens as if it were alone; both are idempotent for it. */
export function shareInterest(cluster: Interest): { owner(): Interest } {
  const owners = new Map<Topic, Set<Interest>>();
  function own(topic: Topic, owner: Interest): void {
    const those = owners.get(topic) ?? new Set();
    owners.set(topic, those.add(owner));
  }
  return {
    owner() {
      const self: Interest = {
        async listen(topic) {
          own(topic, self);
          await cluster.listen(topic); // also when another owner's is still under way
        },
        async subscribe(topic) {
          own(topic, self);
          await cluster.subscribe(topic);
        },
        unlisten(topic) {
          const those = owners.get(topic);
          if (!those?.delete(self) || those.size > 0) return;
          owners.delete(topic);
          cluster.unlisten(topic);
        },
      };
      return self;
    },
  };
}
