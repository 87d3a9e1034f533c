// All lines of arrivals of a node: those of the groups it listens to and those of personal channels. Readers wait here for what they have seen in the
// store, and what was lost with a connection is made good here. State: the groups' lines; the parts hold theirs.

import type { ChannelKey } from "../../../broker/model.ts";
import { Sequencer } from "./sequencer.ts";
import { within } from "./deadline.ts";
import type { Subscription } from "./subscription.ts";
import { ReconnectRecovery } from "./reconnect-recovery.ts";
import { MAX_WAIT_MS, CatchUpWaiters } from "./catch-up-waiters.ts";
import { PersonalSequencers, type PersonalSequencersParts } from "./personal-sequencers.ts";

export interface SequencersParts extends PersonalSequencersParts {
  /** Resolves once everything published before the call has come. Rejects in time. */
  readonly mark: () => Promise<void>;
}

/** How far a reader has seen a channel. */
interface Through {
  readonly pub: number;
  readonly messageId: number;
}

/** Of a group what is older than this when it is listened to is none of the line's business, whatever goes wrong. */
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
    this.#patience = new CatchUpWaiters(parts.repairs);
    const { onProblem } = parts.lines;
    const { personal } = this;
    this.#losses = new ReconnectRecovery({ ...parts, personal, onProblem });
  }

  /** A new line of a group: it keeps what comes until `begin`. */
  openGroup(key: ChannelKey): Sequencer {
    const { lines, clock } = this.#parts;
    const sinceMs = clock() - OLD_MS;
    const line = new Sequencer(key, sinceMs, lines);
    this.#groups.set(key, line);
    return line;
  }

  closeGroup(line: Sequencer): void {
    line.close();
    if (this.#groups.get(line.key) === line) this.#groups.delete(line.key);
  }

  /** Everything published to the group from now on is told. Throws `unavailable`. */
  async begin(line: Sequencer): Promise<void> {
    await this.#parts.repairs.begin(line);
  }

  /** See `Arrivals`. */
  level(
    key: ChannelKey,
    pub: number,
    messageId = 0,
  ): Promise<void> | undefined {
    const through = { pub, messageId };
    if (!key.startsWith("2:")) return this.#personalLevel(key, through);
    const line = this.#groups.get(key);
    return line === undefined ? undefined : this.#wait(line, through);
  }

  /** See `ReconnectRecovery`. */
  restore(topics: readonly Subscription[]): readonly Promise<void>[] {
    return this.#losses.restore(topics);
  }

  close(): void {
    for (const line of this.#groups.values()) line.close();
    this.#groups.clear();
    this.personal.close();
  }

  #personalLevel(key: ChannelKey, through: Through): Promise<void> | undefined {
    if (!this.personal.isListenedTo(key)) return undefined;
    const line = this.personal.find(key);
    return line === undefined
      ? this.#unheard(key, through)
      : this.#wait(line, through);
  }

  /** A number that was told already, of a message that was not: it was given out again, and what else was is to be told first. */
  #wait(
    line: Sequencer,
    { pub, messageId }: Through,
  ): Promise<void> | undefined {
    const { lastId } = line.told;
    const isOfAnotherPast = lastId > 0 && lastId < messageId;
    if (!line.isNew && line.pub >= pub && !isOfAnotherPast) return undefined;
    return this.#patience.wait(line, pub);
  }

  /** Of a channel that was not heard of: what was published may be on its way, or older than this node's interest. */
  async #unheard(key: ChannelKey, through: Through): Promise<void> {
    try {
      await within(this.#parts.mark(), MAX_WAIT_MS, "no mark came");
    } catch {
      return; // the connection is lost, or Redis is: what was missed is told when it is back
    }
    if (!this.personal.isListenedTo(key)) return;
    const line =
      this.personal.find(key) ?? this.personal.beginAt(key, through.pub);
    await this.#wait(line, through);
  }
}
