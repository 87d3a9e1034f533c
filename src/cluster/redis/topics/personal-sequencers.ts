// Sequencers of personal channels. Publications arrive on the topics of both users, once or twice. A
// sequencer is created by the first publication and evicted when many others followed. State: sequencers in
// two generations, the users' topics, sequencers with early frames.

import type { ChannelKey } from "../../../broker/model.ts";
import type { ChannelFeed } from "../../../redis/channel-feed.ts";
import { usersOf } from "../../../redis/keys.ts";
import type { OrderedEvent } from "../../../redis/wire.ts";
import type { CatchUpQueue } from "./catch-up-queue.ts";
import { Sequencer, type SequencerParts } from "./sequencer.ts";
import type { Subscription } from "./subscription.ts";

export interface PersonalSequencersParts {
  readonly sequencers: SequencerParts;
  readonly catchUpQueue: CatchUpQueue;
  readonly feed: ChannelFeed;
  /** Unix milliseconds. */
  readonly clock: () => number;
  /** Publications may overtake each other (Redis Cluster). */
  readonly mayReorder: boolean;
  /** Limit of sequencers. */
  readonly max: number;
}

/** A sequencer and its covering topics: those followed without interruption. */
export interface Covered {
  readonly sequencer: Sequencer;
  readonly covering: readonly Subscription[];
}

/** Ordered publications of a personal channel. */
type PersonalEvent = Exclude<OrderedEvent, { readonly kind: "removal" }>;

interface Personal extends Covered {
  readonly uids: readonly string[];
  covering: readonly Subscription[];
}

/** Clocks of nodes differ by less than this. */
const SKEW_MS = 1000;
/** An overtaken publication arrives, or fails, within this time. */
const OVERTAKEN_MS = 5000;
/** Messages this much older than a loss may be missed, for a sequencer that was evicted. */
const LOSS_SLACK_MS = 2000;

export class PersonalSequencers {
  readonly #parts: PersonalSequencersParts;
  readonly #topics = new Map<string, Subscription>();
  /** Suspended sequencers that received frames of a topic before its subscription was confirmed. */
  readonly #early = new Map<Subscription, Set<Sequencer>>();
  /** Time of the last eviction: later a channel without sequencer may have been delivered. */
  #forgotMs = Number.NEGATIVE_INFINITY;
  #young = new Map<ChannelKey, Personal>();
  #old = new Map<ChannelKey, Personal>();

  constructor(parts: PersonalSequencersParts) {
    this.#parts = parts;
  }

  /** The user's topic is wanted from now on. */
  opened(uid: string, topic: Subscription): void {
    this.#topics.set(uid, topic);
  }

  /** The topic is subscribed for the first time. */
  up(topic: Subscription): void {
    const early = this.#early.get(topic);
    if (early === undefined) return;
    this.#early.delete(topic);
    for (const sequencer of early)
      if (sequencer.isSuspended) this.#catchUpAfterLoss(sequencer);
  }

  closed(uid: string): void {
    const topic = this.#topics.get(uid);
    if (topic === undefined) return;
    this.#topics.delete(uid);
    this.#early.delete(topic);
  }

  /** Takes a publication; `event` is the decoded frame. */
  accept(frame: Buffer, pub: number, event: PersonalEvent): void {
    const key = event.kind === "message" ? event.message.key : event.event.key;
    const found = this.find(key);
    if (found?.isSuspended) this.#noteEarly(found);
    if (found !== undefined) return found.accept(frame, event);
    const { sequencer, isAfterLoss } = this.#make(key);
    if (this.#parts.mayReorder || isAfterLoss) {
      sequencer.accept(frame);
      void this.#parts.catchUpQueue.catchUp(sequencer, { isAfterLoss });
      return;
    }
    const seq = event.kind === "message" ? event.message.messageSeq : 0;
    sequencer.begin(pub - 1, seq > 0 ? seq - 1 : undefined);
    sequencer.accept(frame, event);
    if (seq === 0) this.#learn(sequencer);
  }

  /** The channel's sequencer, if one covering topic was never lost. */
  find(key: ChannelKey): Sequencer | undefined {
    const found = this.#young.get(key) ?? this.#rejuvenated(key);
    if (found === undefined) return undefined;
    if (!this.#isContinuous(found)) {
      this.#young.delete(key);
      this.#forget(found);
      return undefined;
    }
    const { sequencer, covering } = found;
    if (sequencer.isSuspended && covering.some(isWhole))
      this.#catchUpAfterLoss(sequencer); // recovery of that topic does not include it
    return sequencer;
  }

  /** A sequencer for a channel that may have publications since its topics were lost. */
  unheard(key: ChannelKey): Sequencer {
    return this.#make(key).sequencer;
  }

  /** These topics are lost: sequencers without another covering topic buffer until recovery. */
  suspend(lost: ReadonlySet<Subscription>): void {
    for (const one of this.#all()) {
      if (!this.#isContinuous(one)) continue; // replaced at its next publication
      const { sequencer, covering } = one;
      const fromMs = lostFrom(covering.filter((topic) => lost.has(topic)));
      if (fromMs === undefined || isHeardFrom(covering, fromMs)) continue;
      if (covering.some(isUp)) this.#catchUpAfterLoss(sequencer);
      else sequencer.suspend();
    }
  }

  /** Suspended sequencers by covering topic. */
  suspended(
    topics: readonly Subscription[],
  ): ReadonlyMap<Subscription, readonly Covered[]> {
    const found = new Map<Subscription, Covered[]>(
      topics.map((topic) => [topic, []]),
    );
    for (const one of this.#all())
      if (one.sequencer.isSuspended && this.#isContinuous(one))
        for (const topic of one.covering) found.get(topic)?.push(one);
    return found;
  }

  /** Its missed publications are delivered, or a catch-up runs. */
  resume({ sequencer, covering }: Covered): void {
    if (covering.some(isUp)) sequencer.resume();
  }

  close(): void {
    for (const { sequencer } of this.#all()) sequencer.close();
    this.#young.clear();
    this.#old.clear();
  }

  *#all(): Iterable<Personal> {
    yield* this.#young.values();
    yield* this.#old.values();
  }

  /** A sequencer for a channel without one. */
  #make(key: ChannelKey): { sequencer: Sequencer; isAfterLoss: boolean } {
    const { clock, sequencers } = this.#parts;
    const uids = usersOf(key);
    const covering = uids.flatMap((uid) => this.#topics.get(uid) ?? []);
    const now = clock();
    const listenedMs = Math.min(...covering.map((one) => one.sinceMs ?? now));
    const lostMs = lostFrom(covering);
    const isAfterLoss = lostMs !== undefined && !isHeardFrom(covering, lostMs);
    let missedMs = now - OVERTAKEN_MS;
    if (isAfterLoss)
      missedMs =
        this.#forgotMs < listenedMs
          ? Number.NEGATIVE_INFINITY // nothing was delivered since the subscription
          : lostMs - LOSS_SLACK_MS;
    const sinceMs = Math.max(listenedMs - SKEW_MS, missedMs);
    const sequencer = new Sequencer(key, sinceMs, sequencers);
    if (isAfterLoss) sequencer.startAfterLoss();
    if (isAfterLoss && !covering.some(isUp)) sequencer.suspend();
    this.#put(key, { sequencer, uids, covering });
    return { sequencer, isAfterLoss };
  }

  /** Frames may arrive before the confirmation of their topic's subscription is processed. */
  #noteEarly(sequencer: Sequencer): void {
    for (const uid of usersOf(sequencer.key)) {
      const topic = this.#topics.get(uid);
      if (topic === undefined || topic.isUp || topic.losses > 0) continue;
      const early = this.#early.get(topic) ?? new Set();
      this.#early.set(topic, early.add(sequencer));
    }
  }

  /** One of its topics is subscribed again: reads the missed publications from the store. */
  #catchUpAfterLoss(sequencer: Sequencer): void {
    void this.#parts.catchUpQueue.catchUp(sequencer, { isAfterLoss: true });
    sequencer.resume();
  }

  #put(key: ChannelKey, personal: Personal): void {
    this.#young.set(key, personal);
    if (this.#young.size * 2 <= this.#parts.max) return;
    const gone = this.#old;
    this.#old = this.#young;
    this.#young = new Map();
    for (const [one, forgotten] of gone)
      if (forgotten.sequencer.isIdle) this.#forget(forgotten);
      else this.#young.set(one, forgotten);
  }

  #forget({ sequencer }: Personal): void {
    sequencer.close();
    this.#forgotMs = this.#parts.clock();
  }

  #rejuvenated(key: ChannelKey): Personal | undefined {
    const found = this.#old.get(key);
    if (found === undefined) return undefined;
    this.#old.delete(key);
    this.#put(key, found);
    return found;
  }

  /** One covering topic is still wanted; newly wanted ones are added. */
  #isContinuous(personal: Personal): boolean {
    const { covering, uids } = personal;
    if (!covering.some(isOpen)) return false;
    for (const uid of uids) {
      const topic = this.#topics.get(uid);
      if (topic !== undefined && !covering.includes(topic))
        personal.covering = [...covering.filter(isOpen), topic];
    }
    return true;
  }

  /** Started within a stream or at an unstored message: reads the head seq for a later catch-up. */
  #learn(sequencer: Sequencer): void {
    const { feed, sequencers } = this.#parts;
    feed.position(sequencer.key, { streams: [], marks: [] }).then(
      ({ pub, headSeq }) => {
        const later = Math.max(0, pub - sequencer.pub);
        sequencer.delivered.headSeq ??= Math.max(0, headSeq - later);
      },
      (error) =>
        sequencers.onProblem(
          error,
          "The position of a channel could not be read",
        ),
    );
  }
}

function isOpen({ isOpen }: Subscription): boolean {
  return isOpen;
}

function isUp({ isUp }: Subscription): boolean {
  return isUp;
}

/** Subscribed, and nothing missed. */
function isWhole({ isUp, lostAtMs }: Subscription): boolean {
  return isUp && lostAtMs === undefined;
}

/** Earliest loss among the topics; undefined: none. */
function lostFrom(topics: readonly Subscription[]): number | undefined {
  const times = topics.flatMap(({ lostAtMs }) => lostAtMs ?? []);
  return times.length > 0 ? Math.min(...times) : undefined;
}

/** Whether one topic received all publications since `fromMs`. */
function isHeardFrom(topics: readonly Subscription[], fromMs: number): boolean {
  return topics.some(
    (topic) =>
      isWhole(topic) && (topic.sinceMs ?? Number.POSITIVE_INFINITY) <= fromMs,
  );
}
