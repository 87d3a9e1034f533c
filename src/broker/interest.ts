// Lets several parts of a node listen to topics independently. The node listens to a topic while at
// least one part listens to it.

import type { Topic } from "./model.ts";
import type { Cluster } from "./ports.ts";

export type Interest = Pick<Cluster, "listen" | "subscribe" | "unlisten">;

export function shareInterest(cluster: Interest & Partial<Pick<Cluster, "deliversAll">>): {
  owner(): Interest;
} {
  if (cluster.deliversAll) return { owner: () => cluster };
  const owners = new Map<Topic, readonly Interest[]>();
  /** Records that `owner` listens to `topic`. `single` is `[owner]`, shared to save memory. */
  function own(topic: Topic, owner: Interest, single: readonly Interest[]) {
    const current = owners.get(topic);
    if (current === undefined) owners.set(topic, single);
    else if (!current.includes(owner)) owners.set(topic, current.concat(owner));
  }
  return {
    owner() {
      const self: Interest = {
        async listen(...topics) {
          for (const topic of topics) own(topic, self, single);
          // This call is made even if another owner already listens, because that owner's call may
          // not have finished.
          await cluster.listen(...topics);
        },
        subscribe(...topics) {
          for (const topic of topics) own(topic, self, single);
          return cluster.subscribe(...topics);
        },
        unlisten(topic) {
          const current = owners.get(topic);
          if (!current?.includes(self)) return;
          const others = current.filter((owner) => owner !== self);
          if (others.length > 0) return void owners.set(topic, others);
          owners.delete(topic);
          cluster.unlisten(topic);
        },
      };
      const single = [self];
      return self;
    },
  };
}
