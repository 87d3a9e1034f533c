// The channels that a node follows, each with its sequencer: a group's topic carries one channel, a
// user's topic the personal channels of that user. State: users' topics; the sequencers of personal
// channels.

import { isTransient } from "../../../broker/errors.ts";
import type { ChannelKey, Topic } from "../../../broker/model.ts";
import type { Clock } from "../../../broker/ports.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import type { ChannelFeed } from "../../../redis/channel-feed.ts";
import { usersOf } from "../../../redis/keys.ts";
import type { OrderedEvent } from "../../../redis/wire.ts";
import type { CatchUpQueue } from "./catch-up-queue.ts";
import { Sequencer, type SequencerParts } from "./sequencer.ts";
import { groupKeyOf, type Subscription, uidOf } from "./subscription.ts";

/** Ordered publications of a personal channel. */
type PersonalEvent = Exclude<OrderedEvent, { readonly kind: "removal" }>;

interface ChannelsParts {
  readonly sequencers: SequencerParts;
  readonly catchUpQueue: CatchUpQueue;
  readonly feed: ChannelFeed;
  readonly clock: Clock;
  /** Publications of a personal channel may overtake each other (Redis Cluster). */
  readonly mayReorder: boolean;
  /** Limit of personal channels with a sequencer. */
  readonly maxPersonal: number;
}

/** Messages of a group this much older than the subscription are never delivered. */
const OLD_MS = 5000;
/** Clocks of nodes differ by less than this. */
const SKEW_MS = 1000;
/** An overtaken publication arrives, or fails, within this time. */
const OVERTAKEN_MS = 5000;
/**
 * Messages this much older than a loss may be missed, for a channel whose sequencer was evicted.
 */
const LOSS_SLACK_MS = 2000;
/** Personal channels with messages this much older than the loss are checked too. */
const LISTED_SLACK_MS = 60_000;
/** A fail-over loses nothing older than this. */
const LOST_BY_REDIS_MS = 10_000;
const READS_AT_ONCE = 256;

export class Channels {
  readonly #parts: ChannelsParts;
  readonly #users = new Map<string, Subscription>();
  /**
   * The sequencers of the personal channels of each user's topic; of two users on this node, of one
   * at least.
   */
  readonly #carried = new Map<Subscription, Set<Sequencer>>();
  /**
   * The same sequencers by channel, in two generations: the older one is evicted where it was not
   * used.
   */
  #young = new Map<ChannelKey, Sequencer>();
  #old = new Map<ChannelKey, Sequencer>();
  /** Time of the last eviction: later a channel without sequencer may have been delivered. */
  #evictedMs = Number.NEGATIVE_INFINITY;
  readonly #reads = new Semaphore(READS_AT_ONCE);

  constructor(parts: ChannelsParts) {
    this.#parts = parts;
  }

  /** Sequencer for a group's topic that is about to be subscribed: buffers until `begin`. */
  sequencerOf(topic: Topic): Sequencer | undefined {
    const key = groupKeyOf(topic);
    if (key === undefined) return undefined;
    const { sequencers, clock } = this.#parts;
    return new Sequencer({ key, sinceMs: clock() - OLD_MS }, sequencers);
  }

  /** The topic is wanted from now on. */
  opened(topic: Subscription): void {
    const uid = uidOf(topic.topic);
    if (uid !== undefined) this.#users.set(uid, topic);
  }

  /** Its channels go on over the topic of their other user, if that is wanted. */
  closed(topic: Subscription): void {
    topic.sequencer?.close();
    const uid = uidOf(topic.topic);
    if (uid === undefined) return;
    this.#users.delete(uid);
    const carried = this.#carriedBy(topic);
    this.#carried.delete(topic);
    for (const sequencer of carried) {
      const [other] = this.#topicsOf(sequencer.key);
      if (other === undefined) this.#drop(sequencer);
      else this.#moveTo(other, sequencer);
    }
  }

  /** Delivers what is published to the group from now on. Throws `unavailable`. */
  async begin(sequencer: Sequencer): Promise<void> {
    await this.#parts.catchUpQueue.begin(sequencer);
  }

  /**
   * Takes a publication of a personal channel, on the topic of one of its users; `event` is the
   * decoded frame.
   */
  accept(frame: Buffer, publicationSeq: number, event: PersonalEvent): void {
    const key = event.kind === "message" ? event.message.key : event.event.key;
    const found = this.#find(key);
    if (found !== undefined) return found.accept(frame, event);
    const sequencer = this.#make(key);
    const seq = event.kind === "message" ? event.message.messageSeq : 0;
    if (seq > 0 && !sequencer.readsBack) {
      sequencer.begin(publicationSeq - 1, seq - 1);
      return sequencer.accept(frame, event);
    }
    sequencer.accept(frame);
    void this.#parts.catchUpQueue.catchUp(sequencer); // the store knows what came before it
  }

  /** The subscription is lost: its channels buffer until it is restored. */
  lost(topic: Subscription): void {
    for (const sequencer of this.#carriedBy(topic)) sequencer.suspend();
  }

  /**
   * These topics are subscribed again. One promise per topic, in order: resolves when the missed
   * publications in the store are delivered. Rejects `unavailable`; must be retried.
   */
  restore(topics: readonly Subscription[]): readonly Promise<void>[] {
    const restored = new Map<Sequencer, Promise<void>>();
    return topics.map(async (topic) => {
      const lostAtMs = topic.lostAtMs ?? this.#parts.clock();
      const known = this.#carriedBy(topic).map((sequencer) => {
        const found = restored.get(sequencer);
        const done = found ?? this.#restore(sequencer, topic, lostAtMs);
        restored.set(sequencer, done);
        return done;
      });
      await Promise.all([...known, this.#restoreUnknown(topic, lostAtMs)]);
    });
  }

  /** Reads now what sequencers still wait for. */
  closeGaps(): void {
    const { sequencers, catchUpQueue } = this.#parts;
    for (const sequencer of sequencers.gaps) void catchUpQueue.catchUp(sequencer);
  }

  /**
   * Delivers the missed part of a known channel; one in which nothing was published costs one small
   * read. Never rejects.
   */
  async #restore(sequencer: Sequencer, topic: Subscription, lostAtMs: number): Promise<void> {
    const before = sequencer.publicationSeq;
    const publicationSeq = mayHaveForked(sequencer, lostAtMs)
      ? undefined
      : await this.#publicationSeqOf(sequencer);
    if (sequencer.isClosed) return;
    if (
      publicationSeq !== undefined &&
      publicationSeq >= before &&
      sequencer.hasThrough(publicationSeq)
    ) {
      this.#resume(sequencer, topic);
      if (sequencer.isSuspended || sequencer.publicationSeq >= publicationSeq) return; // nothing was missed
    }
    const caughtUp = this.#parts.catchUpQueue.catchUp(sequencer);
    this.#resume(sequencer, topic); // takes effect when the catch-up is done
    await caughtUp;
  }

  /** Delivers the missed messages of a user's personal channels that have no sequencer. */
  async #restoreUnknown(topic: Subscription, lostAtMs: number): Promise<void> {
    const uid = uidOf(topic.topic);
    if (uid === undefined) return;
    const keys = await this.#changedSince(uid, lostAtMs - LISTED_SLACK_MS);
    if (!topic.isOpen) return;
    const { catchUpQueue } = this.#parts;
    await Promise.all(
      keys.map((key) => {
        const known = this.#find(key);
        if (known !== undefined && !catchUpQueue.isCatchingUp(known)) return undefined;
        return catchUpQueue.catchUp(known ?? this.#make(key));
      }),
    );
  }

  /** Undefined: cannot be read now. */
  async #publicationSeqOf(sequencer: Sequencer): Promise<number | undefined> {
    const { feed, sequencers } = this.#parts;
    try {
      return await this.#reads.run(() => feed.publicationSeqOf(sequencer.key));
    } catch (error) {
      sequencers.onError(error, "The position of a channel could not be read");
      return undefined;
    }
  }

  async #changedSince(uid: string, sinceMs: number): Promise<readonly ChannelKey[]> {
    const { feed, sequencers } = this.#parts;
    try {
      return await this.#reads.run(() => feed.personalChannelsSince(uid, sinceMs));
    } catch (error) {
      if (isTransient(error)) throw error;
      sequencers.onError(error, "The channels of a user could not be read");
      return [];
    }
  }

  /** Goes on unless this topic, or that of the other user, is lost. */
  #resume(sequencer: Sequencer, topic: Subscription): void {
    const lost = this.#topicsOf(sequencer.key).filter(isLost);
    for (const one of lost) this.#carry(one, sequencer); // it goes on with the last of them
    if (lost.length === 0 && !isLost(topic)) sequencer.resume();
  }

  #moveTo(topic: Subscription, sequencer: Sequencer): void {
    this.#carry(topic, sequencer);
    if (isLost(topic)) sequencer.suspend();
    else if (sequencer.isSuspended) {
      void this.#parts.catchUpQueue.catchUp(sequencer);
      sequencer.resume();
    }
  }

  #carriedBy(topic: Subscription): readonly Sequencer[] {
    if (topic.sequencer !== undefined) return [topic.sequencer];
    return [...(this.#carried.get(topic) ?? [])];
  }

  #carry(topic: Subscription, sequencer: Sequencer): void {
    const carried = this.#carried.get(topic) ?? new Set();
    this.#carried.set(topic, carried.add(sequencer));
  }

  /** Wanted topics of a personal channel's users. */
  #topicsOf(key: ChannelKey): readonly Subscription[] {
    return usersOf(key).flatMap((uid) => this.#users.get(uid) ?? []);
  }

  #find(key: ChannelKey): Sequencer | undefined {
    const found = this.#young.get(key);
    if (found !== undefined) return found;
    const older = this.#old.get(key);
    if (older === undefined) return undefined;
    this.#old.delete(key);
    this.#put(older);
    return older;
  }

  /** A sequencer for a personal channel without one. */
  #make(key: ChannelKey): Sequencer {
    const { clock, mayReorder, sequencers } = this.#parts;
    const topics = this.#topicsOf(key);
    const now = clock();
    const listenedMs = Math.min(...topics.map(({ sinceMs }) => sinceMs ?? now));
    const lostMs = Math.min(...topics.map(({ lostAtMs }) => lostAtMs ?? Number.POSITIVE_INFINITY));
    const isAfterLoss = lostMs < Number.POSITIVE_INFINITY;
    let missedMs = now - OVERTAKEN_MS;
    if (isAfterLoss)
      missedMs =
        this.#evictedMs < listenedMs
          ? Number.NEGATIVE_INFINITY // nothing was delivered since the subscription
          : lostMs - LOSS_SLACK_MS;
    const sequencer = new Sequencer(
      {
        ...{ key, isAfterLoss, readsBack: mayReorder || isAfterLoss },
        sinceMs: Math.max(listenedMs - SKEW_MS, missedMs),
      },
      sequencers,
    );
    if (topics.some(isLost)) sequencer.suspend();
    for (const topic of topics) this.#carry(topic, sequencer);
    this.#put(sequencer);
    return sequencer;
  }

  #put(sequencer: Sequencer): void {
    this.#young.set(sequencer.key, sequencer);
    if (this.#young.size * 2 <= this.#parts.maxPersonal) return;
    const evicted = this.#old;
    this.#old = this.#young;
    this.#young = new Map();
    for (const [key, one] of evicted)
      if (one.isIdle) this.#evict(one);
      else this.#young.set(key, one);
  }

  #evict(sequencer: Sequencer): void {
    sequencer.close();
    this.#evictedMs = this.#parts.clock();
    for (const topic of this.#topicsOf(sequencer.key)) this.#carried.get(topic)?.delete(sequencer);
  }

  #drop(sequencer: Sequencer): void {
    sequencer.close();
    this.#young.delete(sequencer.key);
    this.#old.delete(sequencer.key);
  }
}

/** Lost, and not subscribed again. */
function isLost({ isUp, lostAtMs }: Subscription): boolean {
  return lostAtMs !== undefined && !isUp;
}

/**
 * An equal publication number proves nothing here: a fail-over may have replaced recent
 * publications by as many others (I5).
 */
function mayHaveForked({ isNew, delivered, movedAtMs }: Sequencer, lostAtMs: number): boolean {
  if (isNew || delivered.streams.length > 0) return true;
  return movedAtMs >= lostAtMs - LOST_BY_REDIS_MS;
}
