// Live sessions whose users are added to groups: each is given what was sent since, and then every message live. Some time passes between the store
// making somebody a member and the node hearing it and listening to the group. State: whose turn it is, per session.

import { GROUP_CHANNEL } from "../broker/model.ts";
import type { ConversationStore } from "../broker/ports.ts";
import { KeyedLock } from "../lib/keyed-lock.ts";
import { Line } from "../lib/line.ts";
import { type JoinParts, type JoinPorts, joinGroup } from "./join.ts";
import type { Session } from "./session.ts";

const READS_AT_ONCE = 128;

export interface AdmissionsParts extends Omit<JoinParts, "hub"> {
  readonly store: JoinPorts["store"] & Pick<ConversationStore, "conversation">;
}

export class Admissions {
  readonly #parts: AdmissionsParts;
  /** A session holds the messages of one group at a time. */
  readonly #turns = new KeyedLock();
  /** Thousands of sessions may be added to a group at once. */
  readonly #reads = new Line(READS_AT_ONCE);

  constructor({ store, ...parts }: AdmissionsParts) {
    const reads = this.#reads;
    this.#parts = {
      ...parts,
      store: {
        groupsOf: (uid) => reads.run(() => store.groupsOf(uid)),
        headSeq: (key) => reads.run(() => store.headSeq(key)),
        readMessages: (...asked) =>
          reads.run(() => store.readMessages(...asked)),
        readInbox: (...asked) => reads.run(() => store.readInbox(...asked)),
        conversation: (...asked) =>
          reads.run(() => store.conversation(...asked)),
      },
    };
  }

  /**
   * Of a session that nobody told of the group: what its user has not read since joining it is its to see. Rejects as `admit`; harmless when a
   * change of membership comes meanwhile, which makes `membershipsStale`.
   */
  async adopt(
    session: Session,
    channelId: string,
    hub: JoinPorts["hub"],
  ): Promise<void> {
    const channel = { id: channelId, type: GROUP_CHANNEL } as const;
    const { store } = this.#parts;
    const stands = await store.conversation(session.uid, channel);
    if (stands === undefined || session.membershipsStale) return;
    session.noteMembership(channelId, true, stands.readSeq);
    await this.admit(session, channelId, hub);
  }

  /** Of a session that noted since when. Rejects when it cannot be made level; may be asked again, or it comes back and resumes. */
  async admit(
    session: Session,
    channelId: string,
    hub: JoinPorts["hub"],
  ): Promise<void> {
    const { metrics } = this.#parts;
    metrics.levelling(1);
    try {
      await this.#turns.run(session.sessionId, async () => {
        const lastSeq = session.takeAdded(channelId);
        if (lastSeq === undefined) return; // told out meanwhile, or an earlier turn has done it
        const channel = { id: channelId, type: GROUP_CHANNEL } as const;
        const parts = { ...this.#parts, hub };
        try {
          await joinGroup(session, { channel, lastSeq }, parts);
        } catch (error) {
          hub.withdraw(session, channelId);
          throw error;
        }
      });
    } finally {
      metrics.levelling(-1);
    }
  }
}
