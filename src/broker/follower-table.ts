// Who follows streams on this node, and the topics that takes: each is listened to while anybody needs it. Maps: followers by channel, by their
// viewer, by topic. Knows nothing of what they are given.

import type { Interest } from "./interest.ts";
import type { ChannelKey, Topic } from "./model.ts";

/** What the table needs to know of one. */
export interface Entrant {
  readonly key: ChannelKey;
  readonly topics: ReadonlySet<Topic>;
  /** Whose right to read it has; undefined: nobody's in particular. */
  readonly viewer: { readonly uid: string } | undefined;
}

export class FollowerTable<F extends Entrant> {
  readonly #interest: Pick<Interest, "listen" | "unlisten">;
  readonly #all = new Set<F>();
  readonly #byKey = new Map<ChannelKey, Set<F>>();
  readonly #byViewer = new Map<string, Set<F>>();
  readonly #byTopic = new Map<Topic, Set<F>>();

  constructor(interest: Pick<Interest, "listen" | "unlisten">) {
    this.#interest = interest;
  }

  get size(): number {
    return this.#all.size;
  }

  /** All of them as they are now. */
  all(): readonly F[] {
    return [...this.#all];
  }

  /** Those in the channel; may be gone through while they leave. */
  inChannel(key: ChannelKey): Iterable<F> {
    return this.#byKey.get(key) ?? [];
  }

  /** Those who read by that user's right. */
  ofViewer(uid: string): ReadonlySet<F> {
    return this.#byViewer.get(uid) ?? new Set();
  }

  /** In at once; resolves when all of its topics are listened to. Throws `unavailable`; it is in all the same. */
  async enter(follower: F): Promise<void> {
    const { key, topics, viewer } = follower;
    this.#all.add(follower);
    add(this.#byKey, key, follower);
    if (viewer !== undefined) add(this.#byViewer, viewer.uid, follower);
    for (const topic of topics) add(this.#byTopic, topic, follower);
    await Promise.all([...topics].map((topic) => this.#interest.listen(topic)));
  }

  /** Harmless when it is not in. */
  leave(follower: F): void {
    const { key, topics, viewer } = follower;
    if (!this.#all.delete(follower)) return;
    remove(this.#byKey, key, follower);
    if (viewer !== undefined) remove(this.#byViewer, viewer.uid, follower);
    for (const topic of topics)
      if (remove(this.#byTopic, topic, follower))
        this.#interest.unlisten(topic);
  }
}

function add<F>(map: Map<string, Set<F>>, name: string, follower: F): void {
  const those = map.get(name) ?? new Set();
  map.set(name, those.add(follower));
}

/** Tells whether none is left. */
function remove<F>(
  map: Map<string, Set<F>>,
  name: string,
  follower: F,
): boolean {
  const those = map.get(name);
  those?.delete(follower);
  return those?.size === 0 && map.delete(name);
}
