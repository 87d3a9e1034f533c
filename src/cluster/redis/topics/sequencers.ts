// All sequencers of a node: one per subscribed group, and those of personal channels. State: the groups'
// sequencers; the parts hold theirs.

import type { ChannelKey } from "../../../broker/model.ts";
import {
  PersonalSequencers,
  type PersonalSequencersParts,
} from "./personal-sequencers.ts";
import { ReconnectRecovery } from "./reconnect-recovery.ts";
import { Sequencer } from "./sequencer.ts";
import type { Subscription } from "./subscription.ts";

/** Messages this much older than the subscription are never delivered. */
const OLD_MS = 5000;

export class Sequencers {
  readonly personal: PersonalSequencers;
  readonly #parts: PersonalSequencersParts;
  readonly #groups = new Map<ChannelKey, Sequencer>();
  readonly #losses: ReconnectRecovery;

  constructor(parts: PersonalSequencersParts) {
    this.#parts = parts;
    this.personal = new PersonalSequencers(parts);
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

  /** Reads now what sequencers still wait for. */
  closeGaps(): void {
    const { sequencers, catchUpQueue } = this.#parts;
    for (const sequencer of sequencers.gaps)
      void catchUpQueue.catchUp(sequencer);
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
}
