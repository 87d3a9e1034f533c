// What sessions read again because word of it may not have come: their memberships and their inbox. However many are told at once, the store is
// asked by few at a time, and again until it answers; meanwhile sessions stay as they are. State: whose memberships are being read.

import { BrokerError } from "../broker/errors.ts";
import type { ChannelStore } from "../broker/ports.ts";
import { Line } from "../lib/line.ts";
import { type InboxParts, pullInbox } from "./inbox.ts";
import type { Session } from "./session.ts";

export interface RereadParts extends InboxParts {
  readonly store: Pick<ChannelStore, "groupsOf"> & InboxParts["store"];
  /** How long to wait after a read that failed. */
  readonly retryMs: number;
  /** A bug surfaced; `what` says where. */
  onBug(error: unknown, what: string): void;
}

const READS_AT_ONCE = 64;

export class Rereads {
  readonly #parts: RereadParts;
  readonly #line = new Line(READS_AT_ONCE);
  readonly #settling = new Set<Session>();
  readonly #inbox: InboxParts;

  constructor(parts: RereadParts) {
    this.#parts = parts;
    const { metrics, limits, store, cluster } = parts;
    const readInbox: InboxParts["store"]["readInbox"] = (...asked) =>
      this.#line.run(() => store.readInbox(...asked)); // no place is held while the client is waited for
    this.#inbox = { metrics, limits, cluster, store: { readInbox } };
  }

  /** Gives the session what is in its inbox and did not come. */
  inbox(session: Session): void {
    if (session.inbox !== undefined) {
      session.inbox.hasMore = true; // whoever reads it reads on
      return;
    }
    session.inbox = { hasMore: false, told: [] };
    void this.#insist(session, () => pullInbox(session, this.#inbox));
  }

  /** Hands the session's groups to `adopt` as they are now. One that is joining looks for itself. */
  memberships(
    session: Session,
    adopt: (groups: readonly string[]) => Promise<void>,
  ): void {
    session.membershipsStale = true;
    if (!session.hasJoined || this.#settling.has(session)) return;
    this.#settling.add(session);
    const settle = () => this.#settle(session, adopt);
    void this.#insist(session, settle).then(() =>
      this.#settling.delete(session),
    );
  }

  async #settle(
    session: Session,
    adopt: (groups: readonly string[]) => Promise<void>,
  ): Promise<void> {
    session.membershipsStale = true;
    while (session.membershipsStale && session.ended === undefined) {
      session.membershipsStale = false;
      const groups = await this.#line.run(() =>
        this.#parts.store.groupsOf(session.uid),
      );
      if (!session.membershipsStale) await adopt(groups); // else a change came, which what was read may not show
    }
    this.#settling.delete(session); // in the same breath as nothing is stale
  }

  /** Until it succeeds or the session is over. */
  async #insist(session: Session, step: () => Promise<void>): Promise<void> {
    const { retryMs, onBug } = this.#parts;
    while (session.ended === undefined)
      try {
        return await step();
      } catch (error) {
        if (!(error instanceof BrokerError)) {
          onBug(error, "A session could not be brought up to date");
          return session.end("unavailable"); // it comes back and resumes
        }
        await new Promise((go) => setTimeout(go, retryMs).unref());
      }
  }
}
