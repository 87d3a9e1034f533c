// Makes good what was lost with a connection, once it is back: every line that may have missed something is compared with the store, and repaired
// where it did. Each topic for itself: one that cannot be read holds up no other. State: none beside the reads under way.

import { isAway } from "../../../broker/errors.ts";
import type { ChannelKey } from "../../../broker/model.ts";
import { Line } from "../../../lib/line.ts";
import type { ChannelFeed } from "../../../redis/arrivals.ts";
import { type Subscription, uidOf } from "./subscription.ts";
import type { PersonalSequencers, Covered } from "./personal-sequencers.ts";
import type { CatchUpQueue } from "./catch-up-queue.ts";

type Sequencer = Covered["line"];

export interface ReconnectRecoveryParts {
  readonly personal: PersonalSequencers;
  readonly repairs: CatchUpQueue;
  readonly feed: ChannelFeed;
  /** Unix milliseconds. */
  readonly clock: () => number;
  readonly onProblem: (error: unknown, what: string) => void;
}

const READS_AT_ONCE = 256;
/** Channels with messages by so much older than the loss are looked at: clocks differ, and what is of no interest is left out later. */
const SLACK_MS = 60_000;
/** What is older than this by the time of the loss is not lost by a fail-over. */
const LOST_BY_REDIS_MS = 10_000;

export class ReconnectRecovery {
  readonly #parts: ReconnectRecoveryParts;
  readonly #reads = new Line(READS_AT_ONCE);

  constructor(parts: ReconnectRecoveryParts) {
    this.#parts = parts;
  }

  /**
   * What is published under these topics comes again. For each, in their order: resolves when what was missed was told, as far as the store has it
   * and can be read. Rejects `unavailable`; then it is to be done again.
   */
  restore(topics: readonly Subscription[]): readonly Promise<void>[] {
    const { personal } = this.#parts;
    const suspended = personal.suspended(topics);
    const levelled = new Map<Sequencer, Promise<void>>();
    const level = (one: Covered, lostAtMs: number): Promise<void> => {
      const found = levelled.get(one.line) ?? this.#level(one, lostAtMs);
      levelled.set(one.line, found);
      return found;
    };
    return topics.map(async (topic) => {
      const lostAtMs = topic.lostAtMs ?? this.#parts.clock();
      if (topic.line !== undefined) return this.#group(topic.line, lostAtMs);
      const lines = suspended.get(topic) ?? [];
      await Promise.all([
        ...lines.map((one) => level(one, lostAtMs)),
        this.#unheard(topic, lostAtMs),
      ]);
    });
  }

  /** Where nothing was published meanwhile nobody was removed either. */
  async #group(line: Sequencer, lostAtMs: number): Promise<void> {
    const before = line.pub;
    const pub = isInDoubt(line, lostAtMs) ? undefined : await this.#pubOf(line);
    const repaired =
      pub === before ? undefined : this.#parts.repairs.repair(line);
    line.resume(); // when that is done
    await repaired;
  }

  /** Tells what is missing of a channel that the node knows. Never rejects. */
  async #level(one: Covered, lostAtMs: number): Promise<void> {
    const { repairs, personal } = this.#parts;
    const { line } = one;
    const before = line.pub;
    const pub = isInDoubt(line, lostAtMs) ? undefined : await this.#pubOf(line);
    if (line.isClosed) return;
    if (pub !== undefined && pub >= before) {
      personal.resume(one);
      if (line.pub >= pub) return; // what is missing came meanwhile
    }
    const repaired = repairs.repair(line, { isAfterLoss: true });
    personal.resume(one);
    await repaired;
  }

  /** Undefined: it cannot be read just now. */
  async #pubOf(line: Sequencer): Promise<number | undefined> {
    const { feed, onProblem } = this.#parts;
    try {
      return await this.#reads.run(() => feed.pubOf(line.key));
    } catch (error) {
      onProblem(error, "The position of a channel could not be read");
      return undefined;
    }
  }

  /** Tells what is missing of the user's channels that were not heard of before. */
  async #unheard(topic: Subscription, lostAtMs: number): Promise<void> {
    const uid = uidOf(topic.topic);
    if (uid === undefined) return;
    const { personal, repairs } = this.#parts;
    const keys = await this.#changed(uid, lostAtMs - SLACK_MS);
    const isAfterLoss = true;
    await Promise.all(
      keys.map((key) => {
        const known = personal.find(key);
        if (known !== undefined && !repairs.isRepairing(known))
          return undefined;
        return repairs.repair(known ?? personal.unheard(key), { isAfterLoss });
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

/** The number of its newest publication does not tell whether the line is level: a fail-over may have replaced what was told by as much else. */
function isInDoubt(
  { isNew, told, movedAtMs }: Sequencer,
  lostAtMs: number,
): boolean {
  if (isNew || told.streams.length > 0) return true;
  return movedAtMs >= lostAtMs - LOST_BY_REDIS_MS;
}
