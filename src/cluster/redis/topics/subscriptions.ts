// The node's subscriptions. Unsubscribing is delayed, because a topic is often wanted again soon.
// After a loss each topic is judged, read and delivered before it counts as whole. State:
// subscriptions by name; which are lost, not judged, or not recovered.

import { BrokerError } from "../../../broker/errors.ts";
import type { Topic } from "../../../broker/model.ts";
import type { Clock, ResyncHandler } from "../../../broker/ports.ts";
import { type Deferred, deferred } from "../../../lib/deferred.ts";
import type { Channels } from "./channels.ts";
import { pause, within } from "./deadline.ts";
import { type Subscription, uidOf } from "./subscription.ts";

interface SubscriptionsParts {
  readonly subscriber: {
    /** Rejects `unavailable`. */
    subscribe(name: string): Promise<void>;
    unsubscribe(name: string): void;
  };
  readonly channels: Channels;
  readonly clock: Clock;
  readonly nameOf: (topic: Topic) => string;
  readonly lingerMs: number;
  /** Limit of delayed unsubscribes. */
  readonly maxLingering: number;
  /** Longest wait for a lost topic. */
  readonly timeoutMs: number;
  /** See `ResyncHandler`. */
  readonly judgeUsers: ResyncHandler["judgeUsers"];
  readonly onError: (error: unknown, what: string) => void;
  /** Missed publications of these topics that the store keeps are delivered. */
  readonly onRestored: (topics: readonly Topic[]) => void;
}

interface Entry extends Subscription {
  /** Settles with the first subscription, and then `opening` with the position in the channel. */
  subscribed: Promise<void>;
  opening: Promise<void>;
  /** Another caller waits for it, or was answered. */
  isShared: boolean;
  /** Callers wait for it while the topic is lost. */
  back: Deferred | undefined;
}

/** A topic that is subscribed again, and how often it had been lost by then. */
interface Restoring {
  readonly entry: Entry;
  readonly lostCount: number;
}

const RETRY_MS = 200;
const DONE = Promise.resolve();

export class Subscriptions {
  readonly #parts: SubscriptionsParts;
  readonly #entries = new Map<string, Entry>();
  readonly #lingering: DelayedUnsubscribe<Entry>;
  /** Lost, or subscribed again and not recovered. */
  readonly #lost = new Set<Entry>();
  #allWhole: Deferred | undefined;
  /** Users' topics that are lost and not judged since. */
  readonly #unjudged = new Set<Entry>();
  #allJudged: Deferred | undefined;
  /** Subscribed again; recovered together. */
  #back: Restoring[] = [];
  /** Recovered; announced together. */
  #restored: Restoring[] = [];
  #heldSinceMs: number | undefined;
  #isClosed = false;

  constructor(parts: SubscriptionsParts) {
    this.#parts = parts;
    const { lingerMs, maxLingering: max } = parts;
    const forget = (entry: Entry) => this.#forget(entry);
    this.#lingering = new DelayedUnsubscribe({ lingerMs, max, forget });
  }

  named(name: string): Subscription | undefined {
    return this.#entries.get(name);
  }

  /** Rejects `unavailable`; a topic subscribed before, or awaited by others, stays wanted. */
  listen(topic: Topic): Promise<void> {
    return this.#wanted(topic, (entry) => entry.opening);
  }

  /** Rejects as `listen`. */
  subscribe(topic: Topic): Promise<void> {
    return this.#wanted(topic, (entry) => entry.subscribed);
  }

  unlisten(topic: Topic): void {
    const entry = this.#entries.get(this.#parts.nameOf(topic));
    if (entry !== undefined) this.#lingering.add(entry);
  }

  /** These subscriptions are lost. */
  lost(names: readonly string[], sinceMs: number): void {
    for (const name of names) {
      const entry = this.#entries.get(name);
      if (entry === undefined) continue;
      entry.isUp = false;
      entry.lostCount += 1;
      entry.lostAtMs ??= sinceMs;
      this.#lost.add(entry);
      if (uidOf(entry.topic) !== undefined) this.#unjudged.add(entry);
      this.#parts.channels.lost(entry);
    }
  }

  /** These are subscribed again. */
  back(names: readonly string[]): void {
    for (const name of names) {
      const entry = this.#entries.get(name);
      if (entry === undefined) continue;
      entry.isUp = true;
      this.#restoreSoon({ entry, lostCount: entry.lostCount });
    }
  }

  /** Rights may have ended unnoticed since then: treats all topics as lost. Once per `sinceMs`. */
  hold(sinceMs: number): void {
    if (this.#heldSinceMs === sinceMs) return;
    this.#heldSinceMs = sinceMs;
    const names: string[] = [];
    for (const entry of this.#entries.values()) if (entry.isUp) names.push(entry.name); // also during recovery: its judgement is outdated
    this.lost(names, sinceMs);
    this.back(names);
  }

  /** Resolves when all users whose topics were lost are judged. */
  async usersJudged(): Promise<void> {
    if (this.#unjudged.size === 0) return;
    this.#allJudged ??= deferred();
    await this.#allJudged.promise;
  }

  /** No topic that concerns the caller is lost or unrecovered. */
  areWhole(concerns: (topic: Topic) => boolean): boolean {
    for (const { topic } of this.#lost) if (concerns(topic)) return false;
    return true;
  }

  /** Resolves when no topic is lost or unrecovered. */
  async settled(): Promise<void> {
    if (this.#lost.size === 0) return;
    this.#allWhole ??= deferred();
    await this.#allWhole.promise;
  }

  close(): void {
    this.#isClosed = true;
    this.#lingering.close();
    for (const entry of [...this.#entries.values()]) this.#forget(entry);
  }

  #wanted(topic: Topic, stage: (entry: Entry) => Promise<void>): Promise<void> {
    if (this.#isClosed) return Promise.reject(new BrokerError("unavailable"));
    const name = this.#parts.nameOf(topic);
    const found = this.#entries.get(name);
    if (found === undefined) return stage(this.#open(topic, name));
    this.#lingering.delete(found);
    if (this.#isThere(found)) return stage(found);
    found.isShared = true;
    return this.#comesBack(found);
  }

  #open(topic: Topic, name: string): Entry {
    const { channels } = this.#parts;
    const sequencer = channels.sequencerOf(topic);
    const entry: Entry = {
      ...{
        topic,
        name,
        sequencer,
        sinceMs: undefined,
        isUp: false,
        isOpen: true,
      },
      ...{ lostAtMs: undefined, lostCount: 0, back: undefined },
      ...{ subscribed: DONE, opening: DONE, isShared: false },
    };
    this.#entries.set(name, entry);
    channels.opened(entry);
    entry.subscribed = this.#subscribe(entry);
    entry.opening = this.#begin(entry).catch((error) => {
      if (entry.isShared) {
        entry.subscribed = DONE;
        entry.opening = DONE; // it was subscribed; recovery brings it back
      } else {
        this.#lingering.delete(entry);
        this.#forget(entry);
      }
      throw error;
    });
    entry.opening.catch(() => {}); // a caller of `subscribe` does not wait for it
    return entry;
  }

  async #subscribe(entry: Entry): Promise<void> {
    await this.#parts.subscriber.subscribe(entry.name);
    if (entry.lostCount === 0) entry.isUp = true;
  }

  async #begin(entry: Entry): Promise<void> {
    const { channels, clock } = this.#parts;
    await entry.subscribed;
    if (entry.sequencer !== undefined) await channels.begin(entry.sequencer);
    if (!this.#isThere(entry)) await this.#comesBack(entry);
    if (!entry.isOpen) throw new BrokerError("unavailable");
    entry.sinceMs = clock();
    entry.subscribed = DONE;
    entry.opening = DONE;
  }

  #isThere(entry: Entry): boolean {
    return entry.lostAtMs === undefined;
  }

  async #comesBack(entry: Entry): Promise<void> {
    entry.back ??= deferred();
    const { promise } = entry.back;
    const { timeoutMs } = this.#parts;
    await within(promise, timeoutMs, "the topic did not come back");
    if (!entry.isOpen) throw new BrokerError("unavailable");
  }

  /** Together with all others of this event-loop turn: each recovery scans the sequencers. */
  #restoreSoon(restoring: Restoring): void {
    if (this.#back.push(restoring) > 1) return;
    setImmediate(() => {
      const back = this.#back.filter((one) => this.#isCurrent(one));
      this.#back = [];
      void this.#restoreAll(back);
    });
  }

  /**
   * Users before groups: a session that lost its right receives nothing. Users that could not be
   * judged are retried.
   */
  async #restoreAll(back: readonly Restoring[]): Promise<void> {
    let unjudged: ReadonlySet<string>;
    try {
      const uids = back.flatMap(({ entry }) => uidOf(entry.topic) ?? []);
      const left = uids.length > 0 ? await this.#parts.judgeUsers(uids) : [];
      unjudged = new Set(left);
    } catch (error) {
      return this.#restoreLater(back, error);
    }
    const waits = ({ entry }: Restoring): boolean => {
      const uid = uidOf(entry.topic);
      return uid === undefined ? unjudged.size > 0 : unjudged.has(uid);
    };
    if (unjudged.size > 0)
      void this.#restoreLater(back.filter(waits), new BrokerError("unavailable"));
    const judged = back.filter((one) => this.#isCurrent(one) && !waits(one));
    for (const { entry } of judged) this.#judged(entry);
    const restored = this.#parts.channels.restore(judged.map(({ entry }) => entry));
    for (const [at, one] of judged.entries()) void this.#restore(one, restored[at]);
  }

  async #restore(restoring: Restoring, recovered: Promise<void> | undefined): Promise<void> {
    try {
      await recovered;
      if (this.#restored.push(restoring) === 1) setImmediate(() => this.#announceRestored());
    } catch (error) {
      await this.#restoreLater([restoring], error);
    }
  }

  async #restoreLater(back: readonly Restoring[], error: unknown): Promise<void> {
    this.#parts.onError(error, "Missed messages could not be read");
    await pause(RETRY_MS);
    for (const one of back) this.#restoreSoon(one);
  }

  /** False: lost again, or not wanted any more. */
  #isCurrent({ entry, lostCount }: Restoring): boolean {
    return entry.isOpen && entry.lostCount === lostCount;
  }

  #announceRestored(): void {
    const whole = this.#restored.filter((one) => this.#isCurrent(one)).map(({ entry }) => entry);
    this.#restored = [];
    if (whole.length === 0) return;
    for (const entry of whole) entry.lostAtMs = undefined;
    this.#parts.onRestored(whole.map(({ topic }) => topic));
    for (const entry of whole) {
      this.#noLongerLost(entry);
    }
  }

  #judged(entry: Entry): void {
    if (!this.#unjudged.delete(entry) || this.#unjudged.size > 0) return;
    this.#allJudged?.resolve();
    this.#allJudged = undefined;
  }

  #noLongerLost(entry: Entry): void {
    entry.back?.resolve();
    entry.back = undefined;
    this.#judged(entry);
    this.#lost.delete(entry);
    if (this.#lost.size > 0) return;
    this.#allWhole?.resolve();
    this.#allWhole = undefined;
  }

  #forget(entry: Entry): void {
    if (!entry.isOpen) return;
    entry.isOpen = false;
    this.#entries.delete(entry.name);
    this.#parts.channels.closed(entry);
    this.#noLongerLost(entry);
    this.#parts.subscriber.unsubscribe(entry.name);
  }
}

/** Releases items after a delay, unless one is wanted again; over the limit the oldest at once. */
class DelayedUnsubscribe<Item> {
  readonly #lingerMs: number;
  readonly #max: number;
  readonly #forget: (item: Item) => void;
  /** Deadlines, in order. */
  readonly #ends = new Map<Item, number>();
  #timer: NodeJS.Timeout | undefined;

  constructor(parts: {
    readonly lingerMs: number;
    readonly max: number;
    readonly forget: (item: Item) => void;
  }) {
    this.#lingerMs = parts.lingerMs;
    this.#max = parts.max;
    this.#forget = parts.forget;
  }

  /** No effect on a waiting item. */
  add(item: Item): void {
    if (this.#ends.has(item)) return;
    this.#ends.set(item, performance.now() + this.#lingerMs);
    if (this.#ends.size > this.#max) this.#end(this.#oldest?.[0]);
    this.#arm();
  }

  delete(item: Item): void {
    this.#ends.delete(item);
  }

  /** Releases nothing any more. */
  close(): void {
    clearTimeout(this.#timer);
    this.#ends.clear();
  }

  get #oldest(): readonly [Item, number] | undefined {
    return this.#ends.entries().next().value;
  }

  #arm(): void {
    const oldest = this.#oldest;
    if (this.#timer !== undefined || oldest === undefined) return;
    const leftMs = Math.max(0, oldest[1] - performance.now());
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      const now = performance.now();
      for (const [item, endsAt] of this.#ends)
        if (endsAt <= now) this.#end(item);
        else break;
      this.#arm();
    }, leftMs).unref();
  }

  #end(item: Item | undefined): void {
    if (item === undefined) return;
    this.#ends.delete(item);
    this.#forget(item);
  }
}
