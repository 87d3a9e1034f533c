// The channels that a node follows, each with its sequencer. A group's topic carries one channel. A
// user's topic carries all personal channels of that user.

import { isTransient } from "../../../broker/errors.ts";
import type { ChannelKey, Topic } from "../../../broker/model.ts";
import type { Clock } from "../../../broker/ports.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import type { ChannelFeed } from "../../../redis/channel-feed.ts";
import { usersOf } from "../../../redis/keys.ts";
import { type EventList, type OrderedEvent, sourceOf } from "../../../redis/wire.ts";
import type { CatchUpQueue } from "./catch-up-queue.ts";
import { Sequencer, type SequencerPorts } from "./sequencer.ts";
import { groupKeyOf, type Subscription, uidOf } from "./subscription.ts";

type PersonalEvent = Exclude<OrderedEvent, { readonly kind: "removal" }> | EventList;

interface ChannelsPorts {
  readonly sequencers: SequencerPorts;
  readonly catchUpQueue: CatchUpQueue;
  readonly feed: ChannelFeed;
  readonly clock: Clock;
  /** True if publications of a personal channel may overtake each other (Redis Cluster). */
  readonly mayReorder: boolean;
  readonly maxPersonal: number;
}

/**
 * Maximum age of a group message at the time the node subscribes to the group's topic. Older
 * messages are not delivered.
 */
const MAX_MESSAGE_AGE_MS = 5000;
const MAX_CLOCK_SKEW_MS = 1000;
/** Maximum delay of a publication that was overtaken by a later publication. */
const REORDER_WINDOW_MS = 5000;
const LOSS_SLACK_MS = 2000;
/** Maximum time by which a user's channel list may date a channel's last message too early. */
const LISTING_SLACK_MS = 60_000;
const FAILOVER_LOSS_MS = 10_000;
const MAX_CONCURRENT_READS = 256;

export class Channels {
  readonly #ports: ChannelsPorts;
  readonly #users = new Map<string, Subscription>();
  /** A personal channel's sequencer is listed under the topic of at least one of the two users. */
  readonly #sequencersByTopic = new Map<Subscription, Set<Sequencer>>();
  /**
   * Sequencers by channel key. When `#newer` is full, the idle sequencers in `#older` are evicted.
   */
  #newer = new Map<ChannelKey, Sequencer>();
  #older = new Map<ChannelKey, Sequencer>();
  /**
   * Time of the last eviction, Unix milliseconds. Before this time, a channel that has no sequencer
   * now may have had one.
   */
  #evictedAtMs = Number.NEGATIVE_INFINITY;
  readonly #reads = new Semaphore(MAX_CONCURRENT_READS);

  constructor(ports: ChannelsPorts) {
    this.#ports = ports;
  }

  createSequencer(topic: Topic): Sequencer | undefined {
    const key = groupKeyOf(topic);
    if (key === undefined) return undefined;
    const { sequencers, clock } = this.#ports;
    return new Sequencer({ key, sinceMs: clock() - MAX_MESSAGE_AGE_MS }, sequencers);
  }

  addTopic(topic: Subscription): void {
    const uid = uidOf(topic.topic);
    if (uid !== undefined) this.#users.set(uid, topic);
  }

  removeTopic(topic: Subscription): void {
    topic.sequencer?.close();
    const uid = uidOf(topic.topic);
    if (uid === undefined) return;
    this.#users.delete(uid);
    const carried = this.#sequencersOf(topic);
    this.#sequencersByTopic.delete(topic);
    for (const sequencer of carried) {
      const [remainingTopic] = this.#topicsOf(sequencer.key);
      if (remainingTopic === undefined) this.#remove(sequencer);
      else this.#moveTo(remainingTopic, sequencer);
    }
  }

  async begin(sequencer: Sequencer): Promise<void> {
    await this.#ports.catchUpQueue.begin(sequencer);
  }

  accept(frame: Buffer, publicationSeq: number, event: PersonalEvent): void {
    const { key } = sourceOf(event);
    const existing = this.#find(key);
    if (existing !== undefined) return existing.accept(frame, event);
    const sequencer = this.#create(key);
    const seq = event.kind === "message" ? event.message.messageSeq : 0;
    if (seq > 0 && !sequencer.readsBack) {
      sequencer.begin(publicationSeq - 1, seq - 1);
      return sequencer.accept(frame, event);
    }
    sequencer.accept(frame);
    void this.#ports.catchUpQueue.catchUp(sequencer); // reads earlier messages from the store
  }

  suspend(topic: Subscription): void {
    for (const sequencer of this.#sequencersOf(topic)) sequencer.suspend();
  }

  /**
   * Restores topics that have been subscribed to again. Each promise resolves when the missed
   * publications are delivered, or are being read in the background. If a promise rejects, its
   * topic must be restored again.
   */
  restore(topics: readonly Subscription[]): readonly Promise<void>[] {
    const restored = new Map<Sequencer, Promise<void>>();
    return topics.map(async (topic) => {
      const lostAtMs = topic.lostAtMs ?? this.#ports.clock();
      const caughtUp = this.#sequencersOf(topic).map((sequencer) => {
        const shared = restored.get(sequencer);
        const done = shared ?? this.#restore(sequencer, topic, lostAtMs);
        restored.set(sequencer, done);
        return done;
      });
      await Promise.all([...caughtUp, this.#restoreOthers(topic, lostAtMs)]);
    });
  }

  closeGaps(): void {
    const { sequencers, catchUpQueue } = this.#ports;
    for (const sequencer of sequencers.gaps) void catchUpQueue.catchUp(sequencer);
  }

  async #restore(sequencer: Sequencer, topic: Subscription, lostAtMs: number): Promise<void> {
    const previousSeq = sequencer.publicationSeq;
    const publicationSeq = mayHaveForked(sequencer, lostAtMs)
      ? undefined
      : await this.#publicationSeqOf(sequencer);
    if (sequencer.isClosed) return;
    if (
      publicationSeq !== undefined &&
      publicationSeq >= previousSeq &&
      sequencer.hasThrough(publicationSeq)
    ) {
      this.#resume(sequencer, topic);
      // Nothing was missed. Frames that are still buffered are delivered when the suspension ends.
      if (sequencer.isSuspended || sequencer.publicationSeq >= publicationSeq) return;
    }
    const caughtUp = this.#ports.catchUpQueue.catchUp(sequencer);
    this.#resume(sequencer, topic); // buffering continues until the catch-up is done
    await caughtUp;
  }

  async #restoreOthers(topic: Subscription, lostAtMs: number): Promise<void> {
    const uid = uidOf(topic.topic);
    if (uid === undefined) return;
    const keys = await this.#changedSince(uid, lostAtMs - LISTING_SLACK_MS);
    if (!topic.isOpen) return;
    const { catchUpQueue } = this.#ports;
    await Promise.all(
      keys.map((key) => {
        const sequencer = this.#find(key);
        if (sequencer !== undefined && !catchUpQueue.isCatchingUp(sequencer)) return undefined;
        return catchUpQueue.catchUp(sequencer ?? this.#create(key));
      }),
    );
  }

  async #publicationSeqOf(sequencer: Sequencer): Promise<number | undefined> {
    const { feed, sequencers } = this.#ports;
    try {
      return await this.#reads.run(() => feed.publicationSeqOf(sequencer.key));
    } catch (error) {
      sequencers.onError(
        error,
        "Could not read a channel's position; reading the channel from the store",
      );
      return undefined;
    }
  }

  async #changedSince(uid: string, sinceMs: number): Promise<readonly ChannelKey[]> {
    const { feed, sequencers } = this.#ports;
    try {
      return await this.#reads.run(() => feed.personalChannelsSince(uid, sinceMs));
    } catch (error) {
      if (isTransient(error)) throw error;
      sequencers.onError(
        error,
        "Could not read the list of a user's personal channels; messages that were missed in channels that this node does not follow yet are not delivered",
      );
      return [];
    }
  }

  /**
   * Resumes the sequencer. If topics of the channel's users are still lost, lists the sequencer
   * under these topics instead.
   */
  #resume(sequencer: Sequencer, topic: Subscription): void {
    const lostTopics = this.#topicsOf(sequencer.key).filter(isLost);
    for (const lostTopic of lostTopics) this.#assign(lostTopic, sequencer);
    if (lostTopics.length === 0 && !isLost(topic)) sequencer.resume();
  }

  #moveTo(topic: Subscription, sequencer: Sequencer): void {
    this.#assign(topic, sequencer);
    if (isLost(topic)) sequencer.suspend();
    else if (sequencer.isSuspended) {
      void this.#ports.catchUpQueue.catchUp(sequencer);
      sequencer.resume();
    }
  }

  #sequencersOf(topic: Subscription): readonly Sequencer[] {
    if (topic.sequencer !== undefined) return [topic.sequencer];
    return [...(this.#sequencersByTopic.get(topic) ?? [])];
  }

  #assign(topic: Subscription, sequencer: Sequencer): void {
    const carried = this.#sequencersByTopic.get(topic) ?? new Set();
    this.#sequencersByTopic.set(topic, carried.add(sequencer));
  }

  #topicsOf(key: ChannelKey): readonly Subscription[] {
    return usersOf(key).flatMap((uid) => this.#users.get(uid) ?? []);
  }

  #find(key: ChannelKey): Sequencer | undefined {
    const newer = this.#newer.get(key);
    if (newer !== undefined) return newer;
    const older = this.#older.get(key);
    if (older === undefined) return undefined;
    this.#older.delete(key);
    this.#put(older);
    return older;
  }

  #create(key: ChannelKey): Sequencer {
    const { clock, mayReorder, sequencers } = this.#ports;
    const topics = this.#topicsOf(key);
    const now = clock();
    const listenedMs = Math.min(...topics.map(({ sinceMs }) => sinceMs ?? now));
    const lostMs = Math.min(...topics.map(({ lostAtMs }) => lostAtMs ?? Number.POSITIVE_INFINITY));
    const isAfterLoss = lostMs < Number.POSITIVE_INFINITY;
    let missedMs = now - REORDER_WINDOW_MS;
    if (isAfterLoss)
      missedMs =
        this.#evictedAtMs < listenedMs
          ? Number.NEGATIVE_INFINITY // nothing in this channel was delivered since the subscription
          : lostMs - LOSS_SLACK_MS;
    const sequencer = new Sequencer(
      {
        ...{ key, isAfterLoss, readsBack: mayReorder || isAfterLoss },
        sinceMs: Math.max(listenedMs - MAX_CLOCK_SKEW_MS, missedMs),
      },
      sequencers,
    );
    if (topics.some(isLost)) sequencer.suspend();
    for (const topic of topics) this.#assign(topic, sequencer);
    this.#put(sequencer);
    return sequencer;
  }

  #put(sequencer: Sequencer): void {
    this.#newer.set(sequencer.key, sequencer);
    if (this.#newer.size * 2 <= this.#ports.maxPersonal) return;
    const evicted = this.#older;
    this.#older = this.#newer;
    this.#newer = new Map();
    for (const [key, candidate] of evicted)
      if (candidate.isIdle) this.#evict(candidate);
      else this.#newer.set(key, candidate);
  }

  #evict(sequencer: Sequencer): void {
    sequencer.close();
    this.#evictedAtMs = this.#ports.clock();
    for (const topic of this.#topicsOf(sequencer.key))
      this.#sequencersByTopic.get(topic)?.delete(sequencer);
  }

  #remove(sequencer: Sequencer): void {
    sequencer.close();
    this.#newer.delete(sequencer.key);
    this.#older.delete(sequencer.key);
  }
}

function isLost({ isUp, lostAtMs }: Subscription): boolean {
  return lostAtMs !== undefined && !isUp;
}

/**
 * Returns true if the history in the store may have diverged from the delivered history. An equal
 * publication number then does not prove that nothing was missed.
 */
function mayHaveForked({ isNew, delivered, movedAtMs }: Sequencer, lostAtMs: number): boolean {
  if (isNew || delivered.streams.length > 0) return true;
  return movedAtMs >= lostAtMs - FAILOVER_LOSS_MS;
}
