// The lines of personal channels: their publications come on the topics of both users, once or twice. A line is made when the channel is first
// heard of and forgotten when many others were heard of since. State: the lines, in two generations; the users' topics, and what came early on them.

import type { ChannelKey } from "../../../broker/model.ts";
import type { ChannelFeed } from "../../../redis/arrivals.ts";
import { usersOf } from "../../../redis/keys.ts";
import type { OrderedEvent } from "../../../redis/wire.ts";
import { Sequencer, type SequencerParts } from "./sequencer.ts";
import type { Subscription } from "./subscription.ts";
import type { CatchUpQueue } from "./catch-up-queue.ts";

export interface PersonalSequencersParts {
  readonly lines: SequencerParts;
  readonly repairs: CatchUpQueue;
  readonly feed: ChannelFeed;
  /** Unix milliseconds. */
  readonly clock: () => number;
  /** Whether publications may overtake each other on the way. */
  readonly mayReorder: boolean;
  /** Lines kept at most. */
  readonly max: number;
}

/** A line, and the topics that it has been following without a break. */
export interface Covered {
  readonly line: Sequencer;
  readonly covering: readonly Subscription[];
}

/** What a personal channel publishes in turn. */
type PersonalEvent = Exclude<OrderedEvent, { readonly kind: "removal" }>;

interface Personal extends Covered {
  readonly uids: readonly string[];
  covering: readonly Subscription[];
}

/** Clocks of nodes differ by less. */
const SKEW_MS = 1000;
/** What was overtaken comes, or is given up by its node, within this time. */
const OVERTAKEN_MS = 5000;
/** By so much what may be missing after a loss is older than the loss, where the line was forgotten and begins anew. */
const LOSS_SLACK_MS = 2000;

export class PersonalSequencers {
  readonly #parts: PersonalSequencersParts;
  readonly #topics = new Map<string, Subscription>();
  /** Suspended lines that a topic may have brought something before the node knew that it is up. */
  readonly #early = new Map<Subscription, Set<Sequencer>>();
  /** When a line was forgotten last: from then on a channel without one may have been told of. */
  #forgotMs = Number.NEGATIVE_INFINITY;
  #young = new Map<ChannelKey, Personal>();
  #old = new Map<ChannelKey, Personal>();

  constructor(parts: PersonalSequencersParts) {
    this.#parts = parts;
  }

  /** The user's topic is listened to from now on. */
  opened(uid: string, topic: Subscription): void {
    this.#topics.set(uid, topic);
  }

  /** The topic is up for the first time. */
  up(topic: Subscription): void {
    const early = this.#early.get(topic);
    if (early === undefined) return;
    this.#early.delete(topic);
    for (const line of early) if (line.isSuspended) this.#mend(line);
  }

  closed(uid: string): void {
    const topic = this.#topics.get(uid);
    if (topic === undefined) return;
    this.#topics.delete(uid);
    this.#early.delete(topic);
  }

  /** Whether the node listens to one of the channel's topics. */
  isListenedTo(key: ChannelKey): boolean {
    return usersOf(key).some((uid) => this.#topics.has(uid));
  }

  /** A publication came; `event` is the frame, decoded. */
  accept(frame: Buffer, pub: number, event: PersonalEvent): void {
    const key = event.kind === "message" ? event.message.key : event.event.key;
    const found = this.find(key);
    if (found?.isSuspended) this.#noteEarly(found);
    if (found !== undefined) return found.accept(frame, event);
    const { line, isAfterLoss } = this.#make(key);
    if (this.#parts.mayReorder || isAfterLoss) {
      line.accept(frame);
      void this.#parts.repairs.repair(line, { isAfterLoss });
      return;
    }
    const seq = event.kind === "message" ? event.message.messageSeq : 0;
    line.begin(pub - 1, seq > 0 ? seq - 1 : undefined);
    line.accept(frame, event);
    if (seq === 0) this.#learn(line);
  }

  /** The channel's line, if it has missed nothing of what the node listened to. */
  find(key: ChannelKey): Sequencer | undefined {
    const found = this.#young.get(key) ?? this.#rejuvenated(key);
    if (found === undefined) return undefined;
    if (!this.#isContinuous(found)) {
      this.#young.delete(key);
      this.#forget(found);
      return undefined;
    }
    const { line, covering } = found;
    if (line.isSuspended && covering.some(isWhole)) this.#mend(line); // no `restore` of that topic will
    return line;
  }

  /** A line for a channel without one that may have been published to while its topics were lost. */
  unheard(key: ChannelKey): Sequencer {
    return this.#make(key).line;
  }

  /** A reader saw the channel at `pub`, and everything through it has come that was to come. */
  beginAt(key: ChannelKey, pub: number): Sequencer {
    const { line, isAfterLoss } = this.#make(key);
    void this.#parts.repairs.repair(line, { pub, isAfterLoss });
    return line;
  }

  /** These topics were lost just now: lines that have no other keep what comes until `restore`. */
  suspend(lost: ReadonlySet<Subscription>): void {
    for (const one of this.#all()) {
      if (!this.#isContinuous(one)) continue; // is begun anew when it is heard of
      const { line, covering } = one;
      const fromMs = lostFrom(covering.filter((topic) => lost.has(topic)));
      if (fromMs === undefined || isHeardFrom(covering, fromMs)) continue;
      if (covering.some(isUp)) this.#mend(line);
      else line.suspend();
    }
  }

  /** Lines that have missed what these topics did, by topic. */
  suspended(
    topics: readonly Subscription[],
  ): ReadonlyMap<Subscription, readonly Covered[]> {
    const found = new Map<Subscription, Covered[]>(
      topics.map((topic) => [topic, []]),
    );
    for (const one of this.#all())
      if (one.line.isSuspended && this.#isContinuous(one))
        for (const topic of one.covering) found.get(topic)?.push(one);
    return found;
  }

  /** What it missed was told, or is being repaired. */
  resume({ line, covering }: Covered): void {
    if (covering.some(isUp)) line.resume();
  }

  close(): void {
    for (const { line } of this.#all()) line.close();
    this.#young.clear();
    this.#old.clear();
  }

  *#all(): Iterable<Personal> {
    yield* this.#young.values();
    yield* this.#old.values();
  }

  /** A line of a channel that was not heard of, or not lately. */
  #make(key: ChannelKey): { line: Sequencer; isAfterLoss: boolean } {
    const { clock, lines } = this.#parts;
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
          ? Number.NEGATIVE_INFINITY // nothing of it was told since they are listened to
          : lostMs - LOSS_SLACK_MS;
    const sinceMs = Math.max(listenedMs - SKEW_MS, missedMs);
    const line = new Sequencer(key, sinceMs, lines);
    if (isAfterLoss && !covering.some(isUp)) line.suspend();
    this.#put(key, { line, uids, covering });
    return { line, isAfterLoss };
  }

  /** Frames may come together with the word that their topic is subscribed, which the node takes a moment later. */
  #noteEarly(line: Sequencer): void {
    for (const uid of usersOf(line.key)) {
      const topic = this.#topics.get(uid);
      if (topic === undefined || topic.isUp || topic.losses > 0) continue;
      const early = this.#early.get(topic) ?? new Set();
      this.#early.set(topic, early.add(line));
    }
  }

  /** One of its topics is up: what was missed before is read from the store. */
  #mend(line: Sequencer): void {
    void this.#parts.repairs.repair(line, { isAfterLoss: true });
    line.resume();
  }

  #put(key: ChannelKey, personal: Personal): void {
    this.#young.set(key, personal);
    if (this.#young.size * 2 <= this.#parts.max) return;
    const gone = this.#old;
    this.#old = this.#young;
    this.#young = new Map();
    for (const [one, forgotten] of gone)
      if (forgotten.line.isIdle) this.#forget(forgotten);
      else this.#young.set(one, forgotten);
  }

  #forget({ line }: Personal): void {
    line.close();
    this.#forgotMs = this.#parts.clock();
  }

  #rejuvenated(key: ChannelKey): Personal | undefined {
    const found = this.#old.get(key);
    if (found === undefined) return undefined;
    this.#old.delete(key);
    this.#put(key, found);
    return found;
  }

  /** One topic at least was followed all the time; the others count from now on. */
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

  /** It began amid a stream or with what is not stored: how far the messages are is asked for, in case it must be repaired. */
  #learn(line: Sequencer): void {
    const { feed, lines } = this.#parts;
    feed.standing(line.key, []).then(
      ({ pub, headSeq }) => {
        const later = Math.max(0, pub - line.pub);
        line.told.headSeq ??= Math.max(0, headSeq - later);
      },
      (error) =>
        lines.onProblem(error, "The position of a channel could not be read"),
    );
  }
}

function isOpen({ isOpen }: Subscription): boolean {
  return isOpen;
}

function isUp({ isUp }: Subscription): boolean {
  return isUp;
}

/** Nothing of it has to be made good. */
function isWhole({ isUp, lostAtMs }: Subscription): boolean {
  return isUp && lostAtMs === undefined;
}

/** From when on something was missed of one of them; undefined: of none. */
function lostFrom(topics: readonly Subscription[]): number | undefined {
  const times = topics.flatMap(({ lostAtMs }) => lostAtMs ?? []);
  return times.length > 0 ? Math.min(...times) : undefined;
}

/** Whether everything published from then on reached the node by one of them. */
function isHeardFrom(topics: readonly Subscription[], fromMs: number): boolean {
  return topics.some(
    (topic) =>
      isWhole(topic) && (topic.sinceMs ?? Number.POSITIVE_INFINITY) <= fromMs,
  );
}
