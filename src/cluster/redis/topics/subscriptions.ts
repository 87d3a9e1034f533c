// The node's subscriptions. Unsubscribing is delayed, because a topic is often needed again soon.
// After a loss, the users' access is checked and the missed publications are delivered before a
// topic counts as restored.

import { BrokerError } from "../../../broker/errors.ts";
import type { Topic } from "../../../broker/model.ts";
import type { Clock, ResyncHandler } from "../../../broker/ports.ts";
import { type Deferred, deferred } from "../../../lib/deferred.ts";
import { LinkedMap } from "../../../lib/linked-map.ts";
import type { Channels } from "./channels.ts";
import { pause, within } from "./deadline.ts";
import { type Subscription, uidOf } from "./subscription.ts";

interface SubscriptionsPorts {
  readonly subscriber: {
    /** Rejects with `unavailable` if the name cannot be subscribed to in time. */
    subscribe(name: string): Promise<void>;
    unsubscribe(name: string): void;
  };
  readonly channels: Channels;
  readonly clock: Clock;
  readonly nameOf: (topic: Topic) => string;
  readonly unsubscribeDelayMs: number;
  readonly maxDelayedUnsubscribes: number;
  readonly timeoutMs: () => number;
  readonly judgeUsers: ResyncHandler["judgeUsers"];
  readonly onError: (error: unknown, message: string) => void;
  /** Called when these topics are restored (see `Channels.restore`). */
  readonly onRestored: (topics: readonly Topic[]) => void;
}

interface Entry extends Subscription {
  subscribed: Promise<void>;
  /** Settles after `subscribed`, when the channel's position is also known. */
  opening: Promise<void>;
  /** True if another caller is waiting for the topic, or already uses it. */
  isShared: boolean;
  restored: Deferred | undefined;
}

interface Restoration {
  readonly entry: Entry;
  readonly lostCount: number;
}

const RETRY_INTERVAL_MS = 200;
const DONE = Promise.resolve();

export class Subscriptions {
  readonly #ports: SubscriptionsPorts;
  /** Entries by sharded channel name, which Redis delivers with each publication. */
  readonly #entries = new Map<string, Entry>();
  readonly #byTopic = new Map<Topic, Entry>();
  readonly #delayedUnsubscribes: DelayedUnsubscribe<Entry>;
  readonly #lost = new Set<Entry>();
  #allRestored: Deferred | undefined;
  /** Lost user topics whose user's access has not been checked since the loss. */
  readonly #unjudged = new Set<Entry>();
  #allJudged: Deferred | undefined;
  #resubscribed: Restoration[] = [];
  #recovered: Restoration[] = [];
  #suspendedSinceMs: number | undefined;
  #isClosed = false;

  constructor(ports: SubscriptionsPorts) {
    this.#ports = ports;
    const { unsubscribeDelayMs: delayMs, maxDelayedUnsubscribes: max } = ports;
    const forget = (entry: Entry) => this.#forget(entry);
    this.#delayedUnsubscribes = new DelayedUnsubscribe({ delayMs, max, forget });
  }

  get(name: string): Subscription | undefined {
    return this.#entries.get(name);
  }

  /**
   * Subscribes to topics, and waits until their channels' positions are known. If this fails for a
   * topic, the topic stays subscribed only if another caller uses it.
   */
  async listen(...topics: readonly Topic[]): Promise<void> {
    await this.#requestAll(topics, (entry) => entry.opening);
  }

  /**
   * Subscribes to topics. Resolves when Redis has confirmed the subscriptions. The result is true
   * if `listen` has already resolved for all topics and none of them is being restored. Rejects
   * with the same errors as `listen`.
   */
  subscribe(...topics: readonly Topic[]): Promise<boolean> {
    return this.#requestAll(topics, (entry) => entry.subscribed);
  }

  unlisten(topic: Topic): void {
    const entry = this.#byTopic.get(topic);
    if (entry !== undefined) this.#delayedUnsubscribes.add(entry);
  }

  markLost(names: readonly string[], sinceMs: number): void {
    for (const name of names) {
      const entry = this.#entries.get(name);
      if (entry === undefined) continue;
      entry.isUp = false;
      entry.lostCount += 1;
      entry.lostAtMs ??= sinceMs;
      this.#lost.add(entry);
      if (uidOf(entry.topic) !== undefined) this.#unjudged.add(entry);
      this.#ports.channels.suspend(entry);
    }
  }

  markResubscribed(names: readonly string[]): void {
    for (const name of names) {
      const entry = this.#entries.get(name);
      if (entry === undefined) continue;
      entry.isUp = true;
      this.#restoreSoon({ entry, lostCount: entry.lostCount });
    }
  }

  /** Treats all topics as lost since `sinceMs`. Further calls with the same time have no effect. */
  suspendAll(sinceMs: number): void {
    if (this.#suspendedSinceMs === sinceMs) return;
    this.#suspendedSinceMs = sinceMs;
    const names: string[] = [];
    // Topics that are being restored are included, because their users' access was last checked
    // before this loss.
    for (const entry of this.#entries.values()) if (entry.isUp) names.push(entry.name);
    this.markLost(names, sinceMs);
    this.markResubscribed(names);
  }

  async usersJudged(): Promise<void> {
    if (this.#unjudged.size === 0) return;
    this.#allJudged ??= deferred();
    await this.#allJudged.promise;
  }

  areRestored(concerns: (topic: Topic) => boolean): boolean {
    for (const { topic } of this.#lost) if (concerns(topic)) return false;
    return true;
  }

  async settled(): Promise<void> {
    if (this.#lost.size === 0) return;
    this.#allRestored ??= deferred();
    await this.#allRestored.promise;
  }

  close(): void {
    this.#isClosed = true;
    this.#delayedUnsubscribes.close();
    for (const entry of [...this.#entries.values()]) this.#forget(entry);
  }

  /** Requests topics. Resolves to true if all of them were already open and restored. */
  async #requestAll(
    topics: readonly Topic[],
    stage: (entry: Entry) => Promise<void>,
  ): Promise<boolean> {
    const unfinished = topics
      .map((topic) => this.#request(topic, stage))
      .filter((request) => request !== DONE);
    await Promise.all(unfinished);
    return unfinished.length === 0;
  }

  #request(topic: Topic, stage: (entry: Entry) => Promise<void>): Promise<void> {
    if (this.#isClosed) return Promise.reject(new BrokerError("unavailable"));
    const entry = this.#byTopic.get(topic);
    if (entry === undefined) return stage(this.#open(topic));
    this.#delayedUnsubscribes.delete(entry);
    if (this.#isRestored(entry)) return stage(entry);
    entry.isShared = true;
    return this.#waitUntilRestored(entry);
  }

  #open(topic: Topic): Entry {
    const { channels, nameOf } = this.#ports;
    const name = nameOf(topic);
    const sequencer = channels.createSequencer(topic);
    const entry: Entry = {
      ...{
        topic,
        name,
        sequencer,
        sinceMs: undefined,
        isUp: false,
        isOpen: true,
      },
      ...{ lostAtMs: undefined, lostCount: 0, restored: undefined },
      ...{ subscribed: DONE, opening: DONE, isShared: false },
    };
    this.#entries.set(name, entry);
    this.#byTopic.set(topic, entry);
    channels.addTopic(entry);
    entry.subscribed = this.#subscribe(entry);
    entry.opening = this.#begin(entry).catch((error) => {
      if (entry.isShared) {
        entry.subscribed = DONE;
        entry.opening = DONE; // the topic stays subscribed, and is restored in the background
      } else {
        this.#delayedUnsubscribes.delete(entry);
        this.#forget(entry);
      }
      throw error;
    });
    entry.opening.catch(() => {}); // a caller of `subscribe` does not await `opening`
    return entry;
  }

  async #subscribe(entry: Entry): Promise<void> {
    await this.#ports.subscriber.subscribe(entry.name);
    if (entry.lostCount === 0) entry.isUp = true;
  }

  async #begin(entry: Entry): Promise<void> {
    const { channels, clock } = this.#ports;
    await entry.subscribed;
    if (entry.sequencer !== undefined) await channels.begin(entry.sequencer);
    if (!this.#isRestored(entry)) await this.#waitUntilRestored(entry);
    if (!entry.isOpen) throw new BrokerError("unavailable");
    entry.sinceMs = clock();
    entry.subscribed = DONE;
    entry.opening = DONE;
  }

  #isRestored(entry: Entry): boolean {
    return entry.lostAtMs === undefined;
  }

  async #waitUntilRestored(entry: Entry): Promise<void> {
    entry.restored ??= deferred();
    const { promise } = entry.restored;
    const { timeoutMs } = this.#ports;
    await within(promise, timeoutMs(), "the lost topic was not restored in time");
    if (!entry.isOpen) throw new BrokerError("unavailable");
  }

  /** Queues a topic. All topics queued in one event-loop turn are restored together. */
  #restoreSoon(restoration: Restoration): void {
    if (this.#resubscribed.push(restoration) > 1) return;
    setImmediate(() => {
      const restorations = this.#resubscribed.filter((restoration) => this.#isCurrent(restoration));
      this.#resubscribed = [];
      void this.#restoreAll(restorations);
    });
  }

  /**
   * Checks users' access, then restores topics, so that a session without access receives nothing.
   */
  async #restoreAll(restorations: readonly Restoration[]): Promise<void> {
    let unjudged: ReadonlySet<string>;
    try {
      const uids = restorations.flatMap(({ entry }) => uidOf(entry.topic) ?? []);
      const uncheckedUids = uids.length > 0 ? await this.#ports.judgeUsers(uids) : [];
      unjudged = new Set(uncheckedUids);
    } catch (error) {
      return this.#retryLater(restorations, error);
    }
    const isUnjudged = ({ entry }: Restoration): boolean => {
      const uid = uidOf(entry.topic);
      return uid === undefined ? unjudged.size > 0 : unjudged.has(uid);
    };
    if (unjudged.size > 0)
      void this.#retryLater(restorations.filter(isUnjudged), new BrokerError("unavailable"));
    const judged = restorations.filter((item) => this.#isCurrent(item) && !isUnjudged(item));
    for (const { entry } of judged) this.#markJudged(entry);
    const restored = this.#ports.channels.restore(judged.map(({ entry }) => entry));
    for (const [at, restoration] of judged.entries()) void this.#restore(restoration, restored[at]);
  }

  async #restore(restoration: Restoration, recovered: Promise<void> | undefined): Promise<void> {
    try {
      await recovered;
      if (this.#recovered.push(restoration) === 1) setImmediate(() => this.#announceRestored());
    } catch (error) {
      await this.#retryLater([restoration], error);
    }
  }

  async #retryLater(restorations: readonly Restoration[], error: unknown): Promise<void> {
    this.#ports.onError(error, "Could not read missed messages; trying again");
    await pause(RETRY_INTERVAL_MS);
    for (const restoration of restorations) this.#restoreSoon(restoration);
  }

  #isCurrent({ entry, lostCount }: Restoration): boolean {
    return entry.isOpen && entry.lostCount === lostCount;
  }

  #announceRestored(): void {
    const entries = this.#recovered
      .filter((restoration) => this.#isCurrent(restoration))
      .map(({ entry }) => entry);
    this.#recovered = [];
    if (entries.length === 0) return;
    for (const entry of entries) entry.lostAtMs = undefined;
    this.#ports.onRestored(entries.map(({ topic }) => topic));
    for (const entry of entries) {
      this.#markRestored(entry);
    }
  }

  #markJudged(entry: Entry): void {
    if (!this.#unjudged.delete(entry) || this.#unjudged.size > 0) return;
    this.#allJudged?.resolve();
    this.#allJudged = undefined;
  }

  #markRestored(entry: Entry): void {
    entry.restored?.resolve();
    entry.restored = undefined;
    this.#markJudged(entry);
    this.#lost.delete(entry);
    if (this.#lost.size > 0) return;
    this.#allRestored?.resolve();
    this.#allRestored = undefined;
  }

  #forget(entry: Entry): void {
    if (!entry.isOpen) return;
    entry.isOpen = false;
    this.#entries.delete(entry.name);
    this.#byTopic.delete(entry.topic);
    this.#ports.channels.removeTopic(entry);
    this.#markRestored(entry);
    this.#ports.subscriber.unsubscribe(entry.name);
  }
}

/**
 * Holds items and releases them after a delay. If there are more than `max` items, the oldest one
 * is released immediately.
 */
class DelayedUnsubscribe<Item> {
  readonly #delayMs: number;
  readonly #max: number;
  readonly #forget: (item: Item) => void;
  /** Time of each item's release (`performance.now()`), in ascending order. */
  readonly #deadlines = new LinkedMap<Item, number>();
  #timer: NodeJS.Timeout | undefined;

  constructor(ports: {
    readonly delayMs: number;
    readonly max: number;
    readonly forget: (item: Item) => void;
  }) {
    this.#delayMs = ports.delayMs;
    this.#max = ports.max;
    this.#forget = ports.forget;
  }

  add(item: Item): void {
    if (this.#deadlines.has(item)) return;
    this.#deadlines.set(item, performance.now() + this.#delayMs);
    if (this.#deadlines.size > this.#max) this.#release(this.#deadlines.oldest?.key);
    this.#arm();
  }

  delete(item: Item): void {
    this.#deadlines.delete(item);
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#deadlines.clear();
  }

  #arm(): void {
    const { oldest } = this.#deadlines;
    if (this.#timer !== undefined || oldest === undefined) return;
    const delayMs = Math.max(0, oldest.value - performance.now());
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      const now = performance.now();
      for (const [item, deadline] of this.#deadlines)
        if (deadline <= now) this.#release(item);
        else break;
      this.#arm();
    }, delayMs).unref();
  }

  #release(item: Item | undefined): void {
    if (item === undefined) return;
    this.#deadlines.delete(item);
    this.#forget(item);
  }
}
