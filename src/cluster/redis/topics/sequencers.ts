// All sequencers of a node: one per subscribed group, and those of personal channels. State: the groups'
// sequencers; the parts hold theirs.

import type { ChannelKey } from "../../../broker/model.ts";
import { CatchUpWaiters, MAX_WAIT_MS } from "./catch-up-waiters.ts";
import { within } from "./deadline.ts";
import {
  PersonalSequencers,
  type PersonalSequencersParts,
} from "./personal-sequencers.ts";
import { ReconnectRecovery } from "./reconnect-recovery.ts";
import { Sequencer } from "./sequencer.ts";
import type { Subscription } from "./subscription.ts";

export interface SequencersParts extends PersonalSequencersParts {
  /** Resolves when publications before the call have arrived. Rejects after a timeout. */
  readonly mark: () => Promise<void>;
}

/** Position that a reader has seen. */
interface Through {
  readonly pub: number;
  readonly messageId: number;
}

/** Messages this much older than the subscription are never delivered. */
const OLD_MS = 5000;

export class Sequencers {
  readonly personal: PersonalSequencers;
  readonly #parts: SequencersParts;
  readonly #groups = new Map<ChannelKey, Sequencer>();
  readonly #patience: CatchUpWaiters;
  readonly #losses: ReconnectRecovery;

  constructor(parts: SequencersParts) {
    this.#parts = parts;
    this.personal = new PersonalSequencers(parts);
    this.#patience = new CatchUpWaiters(parts.catchUpQueue);
    const { onProblem } = parts.sequencers;
    const { personal } = this;
    this.#losses = new ReconnectRecovery({ ...parts, personal, onProblem });
  }

  /** A new sequencer of a group: buffers until `begin`. */
  openGroup(key: ChannelKey): Sequencer {
    const { sequencers, clock } = this.#parts;
    const sinceMs = clock() - OLD_MS;
    const sequencer = new Sequencer(key, sinceMs, sequencers);
    this.#groups.set(key, sequencer);
    return sequencer;
  }

  closeGroup(sequencer: Sequencer): void {
    sequencer.close();
    if (this.#groups.get(sequencer.key) === sequencer)
      this.#groups.delete(sequencer.key);
  }

  /** Delivers what is published to the group from now on. Throws `unavailable`. */
  async begin(sequencer: Sequencer): Promise<void> {
    await this.#parts.catchUpQueue.begin(sequencer);
  }

  /** See `Arrivals`. */
  level(
    key: ChannelKey,
    pub: number,
    messageId = 0,
  ): Promise<void> | undefined {
    const through = { pub, messageId };
    if (!key.startsWith("2:")) return this.#personalLevel(key, through);
    const sequencer = this.#groups.get(key);
    return sequencer === undefined ? undefined : this.#wait(sequencer, through);
  }

  /** See `ReconnectRecovery`. */
  restore(topics: readonly Subscription[]): readonly Promise<void>[] {
    return this.#losses.restore(topics);
  }

  close(): void {
    for (const sequencer of this.#groups.values()) sequencer.close();
    this.#groups.clear();
    this.personal.close();
  }

  #personalLevel(key: ChannelKey, through: Through): Promise<void> | undefined {
    if (!this.personal.isListenedTo(key)) return undefined;
    const sequencer = this.personal.find(key);
    return sequencer === undefined
      ? this.#unheard(key, through)
      : this.#wait(sequencer, through);
  }

  /** An id above the delivered ones with a delivered number: forked history, wait for the catch-up. */
  #wait(
    sequencer: Sequencer,
    { pub, messageId }: Through,
  ): Promise<void> | undefined {
    const { lastId } = sequencer.delivered;
    const isOfForkedHistory = lastId > 0 && lastId < messageId;
    if (!sequencer.isNew && sequencer.pub >= pub && !isOfForkedHistory)
      return undefined;
    return this.#patience.wait(sequencer, pub);
  }

  /** A personal channel without sequencer: its publication may be on the way, or older than the subscription. */
  async #unheard(key: ChannelKey, through: Through): Promise<void> {
    try {
      await within(this.#parts.mark(), MAX_WAIT_MS, "no mark came");
    } catch {
      return; // recovery delivers it after the reconnect
    }
    if (!this.personal.isListenedTo(key)) return;
    const sequencer =
      this.personal.find(key) ?? this.personal.beginAt(key, through.pub);
    await this.#wait(sequencer, through);
  }
}
