// Recovery after a lost subscription: compares each affected sequencer with the store and catches up where
// publications were missed. Topics are independent of each other. State: the reads under way.

import { isAway } from "../../../broker/errors.ts";
import type { ChannelKey } from "../../../broker/model.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import type { ChannelFeed } from "../../../redis/channel-feed.ts";
import type { CatchUpQueue } from "./catch-up-queue.ts";
import type { Covered, PersonalSequencers } from "./personal-sequencers.ts";
import { type Subscription, uidOf } from "./subscription.ts";

type Sequencer = Covered["sequencer"];

export interface ReconnectRecoveryParts {
  readonly personal: PersonalSequencers;
  readonly catchUpQueue: CatchUpQueue;
  readonly feed: ChannelFeed;
  /** Unix milliseconds. */
  readonly clock: () => number;
  readonly onProblem: (error: unknown, what: string) => void;
}

const READS_AT_ONCE = 256;
/** Channels with messages this much older than the loss are checked too: clocks differ. */
const SLACK_MS = 60_000;
/** A fail-over loses nothing older than this. */
const LOST_BY_REDIS_MS = 10_000;

export class ReconnectRecovery {
  readonly #parts: ReconnectRecoveryParts;
  readonly #reads = new Semaphore(READS_AT_ONCE);

  constructor(parts: ReconnectRecoveryParts) {
    this.#parts = parts;
  }

  /**
   * These topics are subscribed again. One promise per topic, in order: resolves when the missed
   * publications in the store are delivered. Rejects `unavailable`; must be retried.
   */
  restore(topics: readonly Subscription[]): readonly Promise<void>[] {
    const { personal } = this.#parts;
    const suspended = personal.suspended(topics);
    const levelled = new Map<Sequencer, Promise<void>>();
    const level = (one: Covered, lostAtMs: number): Promise<void> => {
      const found = levelled.get(one.sequencer) ?? this.#level(one, lostAtMs);
      levelled.set(one.sequencer, found);
      return found;
    };
    return topics.map(async (topic) => {
      const lostAtMs = topic.lostAtMs ?? this.#parts.clock();
      if (topic.sequencer !== undefined)
        return this.#group(topic.sequencer, lostAtMs);
      const sequencers = suspended.get(topic) ?? [];
      await Promise.all([
        ...sequencers.map((one) => level(one, lostAtMs)),
        this.#unheard(topic, lostAtMs),
      ]);
    });
  }

  /** Removals are publications: an unchanged number means unchanged membership. */
  async #group(sequencer: Sequencer, lostAtMs: number): Promise<void> {
    const before = sequencer.pub;
    const pub = mayHaveForked(sequencer, lostAtMs)
      ? undefined
      : await this.#pubOf(sequencer);
    const repaired =
      pub === before ? undefined : this.#parts.catchUpQueue.catchUp(sequencer);
    sequencer.resume(); // takes effect when the catch-up is done
    await repaired;
  }

  /** Delivers the missed part of a known channel. Never rejects. */
  async #level(one: Covered, lostAtMs: number): Promise<void> {
    const { catchUpQueue, personal } = this.#parts;
    const { sequencer } = one;
    const before = sequencer.pub;
    const pub = mayHaveForked(sequencer, lostAtMs)
      ? undefined
      : await this.#pubOf(sequencer);
    if (sequencer.isClosed) return;
    if (pub !== undefined && pub >= before) {
      personal.resume(one);
      if (sequencer.pub >= pub) return; // arrived meanwhile
    }
    const repaired = catchUpQueue.catchUp(sequencer, { isAfterLoss: true });
    personal.resume(one);
    await repaired;
  }

  /** Undefined: cannot be read now. */
  async #pubOf(sequencer: Sequencer): Promise<number | undefined> {
    const { feed, onProblem } = this.#parts;
    try {
      return await this.#reads.run(() => feed.pubOf(sequencer.key));
    } catch (error) {
      onProblem(error, "The position of a channel could not be read");
      return undefined;
    }
  }

  /** Delivers missed messages of personal channels without a sequencer. */
  async #unheard(topic: Subscription, lostAtMs: number): Promise<void> {
    const uid = uidOf(topic.topic);
    if (uid === undefined) return;
    const { personal, catchUpQueue } = this.#parts;
    const keys = await this.#changed(uid, lostAtMs - SLACK_MS);
    const isAfterLoss = true;
    await Promise.all(
      keys.map((key) => {
        const known = personal.find(key);
        if (known !== undefined && !catchUpQueue.isCatchingUp(known))
          return undefined;
        return catchUpQueue.catchUp(known ?? personal.unheard(key), {
          isAfterLoss,
        });
      }),
    );
  }

  async #changed(uid: string, sinceMs: number): Promise<readonly ChannelKey[]> {
    const { feed, onProblem } = this.#parts;
    try {
      return await this.#reads.run(() =>
        feed.personalChannelsSince(uid, sinceMs),
      );
    } catch (error) {
      if (isAway(error)) throw error;
      onProblem(error, "The channels of a user could not be read");
      return [];
    }
  }
}

/**
 * An equal publication number proves nothing here: a fail-over may have replaced recent publications by as
 * many others (I5).
 */
function mayHaveForked(
  { isNew, delivered, movedAtMs }: Sequencer,
  lostAtMs: number,
): boolean {
  if (isNew || delivered.streams.length > 0) return true;
  return movedAtMs >= lostAtMs - LOST_BY_REDIS_MS;
}
