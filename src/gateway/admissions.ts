// Live sessions whose users are added to groups: each is given what was sent since, and then every message live. Some time passes between the store
// making somebody a member and the node hearing it and listening to the group, and by then it may be over. State: whose turn it is, per session.

import type { ChannelStore } from "../broker/ports.ts";
import { KeyedLock } from "../lib/keyed-lock.ts";
import { Semaphore } from "../lib/semaphore.ts";
import { type JoinParts, type JoinPorts, joinGroup } from "./join.ts";
import type { Session } from "./session.ts";

const READS_AT_ONCE = 128;

export type AdmissionsParts = Omit<JoinParts, "hub">;

export class Admissions {
  readonly #parts: AdmissionsParts;
  /** A session holds the messages of one group at a time. */
  readonly #turns = new KeyedLock();
  /** Thousands of sessions may be added to a group at once. */
  readonly #reads = new Semaphore(READS_AT_ONCE);
  /** Of who may see what others wait for: those that wait hold none of its places. */
  readonly #judgements = new Semaphore(READS_AT_ONCE);
  readonly #joinSeqs: ChannelStore["joinSeqs"];

  constructor({ store, ...parts }: AdmissionsParts) {
    const reads = this.#reads;
    const judgements = this.#judgements;
    this.#joinSeqs = (...asked) =>
      judgements.run(() => store.joinSeqs(...asked));
    this.#parts = {
      ...parts,
      store: {
        groupsOf: (...asked) => reads.run(() => store.groupsOf(...asked)),
        joinSeqs: (...asked) => reads.run(() => store.joinSeqs(...asked)),
        headSeq: (key) => reads.run(() => store.headSeq(key)),
        readMessages: (...asked) =>
          reads.run(() => store.readMessages(...asked)),
        readInbox: (...asked) => reads.run(() => store.readInbox(...asked)),
      },
    };
  }

  /**
   * Resolves when it is level and live, or its user is no member, or was told out meanwhile. Rejects when it cannot be made level; may be asked
   * again.
   */
  async admit(
    session: Session,
    channelId: string,
    hub: JoinPorts["hub"],
  ): Promise<void> {
    const { metrics } = this.#parts;
    metrics.levelling(1);
    try {
      await this.#turns.run(session.sessionId, async () => {
        try {
          await joinGroup(session, channelId, { ...this.#parts, hub });
        } catch (error) {
          hub.withdraw(session, channelId);
          throw error;
        }
      });
    } finally {
      metrics.levelling(-1);
    }
  }

  /** The same, holding nothing for who is no member, as nearly all are that were told out of the group. */
  async readmit(
    session: Session,
    channelId: string,
    hub: JoinPorts["hub"],
  ): Promise<void> {
    const [joinSeq] = await this.joinSeqs(channelId, [session.uid]);
    if (joinSeq !== undefined) await this.admit(session, channelId, hub);
  }

  /** See `ChannelStore`. Few are read at once. */
  joinSeqs(
    channelId: string,
    uids: readonly string[],
  ): Promise<readonly (number | undefined)[]> {
    return this.#joinSeqs(channelId, uids);
  }
}
