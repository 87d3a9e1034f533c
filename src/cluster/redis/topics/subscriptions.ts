// The topics a node listens to, and those it still lingers on because somebody may soon want them again. Makes good what was lost with a connection.
// State: the topics by name, which of them linger, which are lost or not made good yet. A topic that nobody wants any more is forgotten with its line.

import { BrokerError } from "../../../broker/errors.ts";
import type { Topic } from "../../../broker/model.ts";
import type { Clock, Resync } from "../../../broker/ports.ts";
import { Gate, pause, within } from "./deadline.ts";
import { DelayedUnsubscribe } from "./delayed-unsubscribe.ts";
import { groupKeyOf, type Subscription, uidOf } from "./subscription.ts";
import type { Sequencers } from "./sequencers.ts";

export interface SubscriptionsParts {
  readonly subscriber: {
    /** Rejects `unavailable`. */
    subscribe(name: string): Promise<void>;
    unsubscribe(name: string): void;
  };
  readonly lines: Sequencers;
  readonly clock: Clock;
  readonly nameOf: (topic: Topic) => string;
  readonly lingerMs: number;
  /** Topics lingered on at most. */
  readonly maxLingering: number;
  /** How long a topic that is lost just now may take to come back. */
  readonly timeoutMs: number;
  /** See `Resync`. */
  readonly judgeUsers: Resync["judgeUsers"];
  readonly onProblem: (error: unknown, what: string) => void;
  /** What was missed of these is told as far as the store has it. */
  readonly onRestored: (topics: readonly Topic[]) => void;
}

interface Entry extends Subscription {
  /** Settles when it is listened to, at first. */
  opening: Promise<void>;
  /** Somebody beside who opened it waits for it, or was told that it is there. */
  isShared: boolean;
  /** While it is lost: who waits for it. */
  readonly waiting: Set<() => void>;
}

/** A topic that came back after so many losses. */
interface Restoring {
  readonly entry: Entry;
  readonly losses: number;
}

const RETRY_MS = 200;

export class Subscriptions {
  readonly #parts: SubscriptionsParts;
  readonly #entries = new Map<string, Entry>();
  readonly #lingering: DelayedUnsubscribe<Entry>;
  /** Lost, or back and not made good yet. */
  readonly #lost = new Set<Entry>();
  #allWhole: Gate | undefined;
  /** Of users, lost, and not judged since. */
  readonly #unjudged = new Set<Entry>();
  #allJudged: Gate | undefined;
  /** Back, and to be made good in one go. */
  #back: Restoring[] = [];
  /** Made good, and to be told of in one go. */
  #restored: Restoring[] = [];
  #heldSinceMs: number | undefined;
  #isClosed = false;

  constructor(parts: SubscriptionsParts) {
    this.#parts = parts;
    const { lingerMs, maxLingering: max } = parts;
    const forget = (entry: Entry) => this.#forget(entry);
    this.#lingering = new DelayedUnsubscribe({ lingerMs, max, forget });
  }

  get size(): number {
    return this.#entries.size;
  }

  named(name: string): Subscription | undefined {
    return this.#entries.get(name);
  }

  /** DelayedUnsubscribe included. */
  has(topic: Topic): boolean {
    return this.#entries.has(this.#parts.nameOf(topic));
  }

  /** Rejects `unavailable`; a topic that was listened to before, or that others wait for, is still wanted then. */
  listen(topic: Topic): Promise<void> {
    if (this.#isClosed) return Promise.reject(new BrokerError("unavailable"));
    const name = this.#parts.nameOf(topic);
    const found = this.#entries.get(name);
    if (found === undefined) return this.#open(topic, name);
    this.#lingering.delete(found);
    if (this.#isThere(found)) return found.opening;
    found.isShared = true;
    return this.#comesBack(found);
  }

  unlisten(topic: Topic): void {
    const entry = this.#entries.get(this.#parts.nameOf(topic));
    if (entry !== undefined) this.#lingering.add(entry);
  }

  /** The subscriptions under these names are gone. */
  lost(names: readonly string[], sinceMs: number): void {
    const lost = new Set<Entry>();
    for (const name of names) {
      const entry = this.#entries.get(name);
      if (entry === undefined) continue;
      entry.isUp = false;
      entry.losses += 1;
      entry.lostAtMs ??= sinceMs;
      this.#lost.add(entry);
      if (uidOf(entry.topic) !== undefined) this.#unjudged.add(entry);
      lost.add(entry);
      entry.line?.suspend();
    }
    this.#parts.lines.personal.suspend(lost);
  }

  /** They are back. */
  back(names: readonly string[]): void {
    for (const name of names) {
      const entry = this.#entries.get(name);
      if (entry === undefined) continue;
      entry.isUp = true;
      this.#restoreSoon({ entry, losses: entry.losses });
    }
  }

  /** Rights may have been lost unheard since then: nothing more is told before it was judged, as after a loss. Once for each such time. */
  hold(sinceMs: number): void {
    if (this.#heldSinceMs === sinceMs) return;
    this.#heldSinceMs = sinceMs;
    const names: string[] = [];
    for (const entry of this.#entries.values())
      if (entry.isUp) names.push(entry.name); // also one that is being made good: what was judged of it is outdated
    this.lost(names, sinceMs);
    this.back(names);
  }

  /** Resolves once all users whose topics were lost are judged. */
  async usersJudged(): Promise<void> {
    if (this.#unjudged.size === 0) return;
    this.#allJudged ??= new Gate();
    await this.#allJudged.passed;
  }

  /** None of the topics that concern the caller is lost, and what was is made good. */
  areWhole(concerns: (topic: Topic) => boolean): boolean {
    for (const { topic } of this.#lost) if (concerns(topic)) return false;
    return true;
  }

  /** Resolves once nothing is lost and all that was missed is told, as far as it can be read. */
  async settled(): Promise<void> {
    if (this.#lost.size === 0) return;
    this.#allWhole ??= new Gate();
    await this.#allWhole.passed;
  }

  close(): void {
    this.#isClosed = true;
    this.#lingering.close();
    for (const entry of [...this.#entries.values()]) this.#forget(entry);
  }

  #open(topic: Topic, name: string): Promise<void> {
    const key = groupKeyOf(topic);
    const line =
      key === undefined ? undefined : this.#parts.lines.openGroup(key);
    const entry: Entry = {
      ...{ topic, name, line, sinceMs: undefined, isUp: false, isOpen: true },
      ...{ lostAtMs: undefined, losses: 0, waiting: new Set() },
      ...{ opening: Promise.resolve(), isShared: false },
    };
    this.#entries.set(name, entry);
    const uid = uidOf(topic);
    if (uid !== undefined) this.#parts.lines.personal.opened(uid, entry);
    entry.opening = this.#subscribe(entry).catch((error) => {
      if (entry.isShared) {
        entry.opening = Promise.resolve(); // it was subscribed, and comes back
      } else {
        this.#lingering.delete(entry);
        this.#forget(entry);
      }
      throw error;
    });
    return entry.opening;
  }

  async #subscribe(entry: Entry): Promise<void> {
    const { subscriber, lines, clock } = this.#parts;
    await subscriber.subscribe(entry.name);
    if (entry.losses === 0) {
      entry.isUp = true;
      lines.personal.up(entry);
    }
    if (entry.line !== undefined) await lines.begin(entry.line);
    if (!this.#isThere(entry)) await this.#comesBack(entry);
    if (!entry.isOpen) throw new BrokerError("unavailable");
    entry.sinceMs = clock();
  }

  #isThere(entry: Entry): boolean {
    return entry.lostAtMs === undefined;
  }

  async #comesBack(entry: Entry): Promise<void> {
    const back = new Gate();
    const open = () => back.open();
    entry.waiting.add(open);
    const { timeoutMs } = this.#parts;
    await within(back.passed, timeoutMs, "the topic did not come back").finally(
      () => entry.waiting.delete(open),
    );
    if (!entry.isOpen) throw new BrokerError("unavailable");
  }

  /** With all that come back in this turn of the event loop: each makes the lines be looked through. */
  #restoreSoon(restoring: Restoring): void {
    if (this.#back.push(restoring) > 1) return;
    setImmediate(() => {
      const back = this.#back.filter((one) => this.#isCurrent(one));
      this.#back = [];
      void this.#restoreAll(back);
    });
  }

  /** Users first: who may not go on gets nothing of the groups either. Users who could not be judged are judged again, and nobody else. */
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
      void this.#restoreLater(
        back.filter(waits),
        new BrokerError("unavailable"),
      );
    const judged = back.filter((one) => this.#isCurrent(one) && !waits(one));
    for (const { entry } of judged) this.#judged(entry);
    const restored = this.#parts.lines.restore(
      judged.map(({ entry }) => entry),
    );
    for (const [at, one] of judged.entries())
      void this.#restore(one, restored[at]);
  }

  async #restore(
    restoring: Restoring,
    told: Promise<void> | undefined,
  ): Promise<void> {
    try {
      await told;
      if (this.#restored.push(restoring) === 1)
        setImmediate(() => this.#tellRestored());
    } catch (error) {
      await this.#restoreLater([restoring], error);
    }
  }

  async #restoreLater(
    back: readonly Restoring[],
    error: unknown,
  ): Promise<void> {
    this.#parts.onProblem(error, "Missed messages could not be read");
    await pause(RETRY_MS);
    for (const one of back) this.#restoreSoon(one);
  }

  /** False: it was lost again, or is not wanted any more. */
  #isCurrent({ entry, losses }: Restoring): boolean {
    return entry.isOpen && entry.losses === losses;
  }

  #tellRestored(): void {
    const whole = this.#restored
      .filter((one) => this.#isCurrent(one))
      .map(({ entry }) => entry);
    this.#restored = [];
    if (whole.length === 0) return;
    for (const entry of whole) entry.lostAtMs = undefined;
    this.#parts.onRestored(whole.map(({ topic }) => topic));
    for (const entry of whole) {
      this.#letGo(entry);
      this.#noLongerLost(entry);
    }
  }

  /** Who waits for the topic goes on. */
  #letGo({ waiting }: Entry): void {
    for (const open of waiting) open();
  }

  #judged(entry: Entry): void {
    if (!this.#unjudged.delete(entry) || this.#unjudged.size > 0) return;
    this.#allJudged?.open();
    this.#allJudged = undefined;
  }

  #noLongerLost(entry: Entry): void {
    this.#judged(entry);
    this.#lost.delete(entry);
    if (this.#lost.size > 0) return;
    this.#allWhole?.open();
    this.#allWhole = undefined;
  }

  #forget(entry: Entry): void {
    if (!entry.isOpen) return;
    entry.isOpen = false;
    this.#entries.delete(entry.name);
    const uid = uidOf(entry.topic);
    if (uid !== undefined) this.#parts.lines.personal.closed(uid);
    if (entry.line !== undefined) this.#parts.lines.closeGroup(entry.line);
    this.#letGo(entry);
    this.#noLongerLost(entry);
    this.#parts.subscriber.unsubscribe(entry.name);
  }
}
