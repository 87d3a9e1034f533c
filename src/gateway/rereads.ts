// What sessions read again because events may be lost: their memberships and their inbox, where these have changed. However many users it is about, the
// store is asked by few at a time, and again until it answers; meanwhile sessions stay as they are. State: the users to be looked at, the reads that
// have not begun, whose memberships are being read.

import { BrokerError, isAway } from "../broker/errors.ts";
import type { InboxCommand } from "../broker/model.ts";
import type { ChannelStore, UserState, UserStore } from "../broker/ports.ts";
import { Semaphore } from "../lib/semaphore.ts";
import { type InboxParts, pullInbox } from "./inbox.ts";
import type { Session } from "./session.ts";

export interface RereadParts extends InboxParts {
  readonly store: Pick<ChannelStore, "groupsOf"> &
    Pick<UserStore, "userStates"> &
    InboxParts["store"];
  /** How long to wait after a read that failed. */
  readonly retryMs: number;
  /** A bug surfaced; `what` says where. */
  onBug(error: unknown, what: string): void;
}

const READS_AT_ONCE = 64;
/** Users that one read is about. */
const USERS_PER_READ = 100;

type Resync = (state: UserState | undefined) => void;

export class Rereads {
  readonly #parts: RereadParts;
  readonly #line = new Semaphore(READS_AT_ONCE);
  /** Users whose events may be lost. */
  readonly #missed = new Map<string, Resync>();
  readonly #settling = new Set<Session>();
  readonly #inbox: InboxParts;
  /** Reads that have not begun: the sessions of one user share them. */
  readonly #groupReads = new SharedReads<readonly string[]>();
  readonly #inboxReads = new SharedReads<readonly InboxCommand[]>();

  constructor(parts: RereadParts) {
    this.#parts = parts;
    const { metrics, limits, store, cluster } = parts;
    const readInbox: InboxParts["store"]["readInbox"] = (uid, afterSeq, page) =>
      this.#inboxReads.read(`${afterSeq} ${uid}`, (begin) =>
        this.#line.run(() => begin(() => store.readInbox(uid, afterSeq, page))),
      ); // no place is held while the client is waited for
    this.#inbox = { metrics, limits, cluster, store: { readInbox } };
  }

  /** Hands `resync` how the user stands; undefined: that cannot be found out. Many users are read at once, each once. */
  missed(uid: string, resync: Resync): void {
    this.#missed.set(uid, resync);
    if (this.#missed.size === 1) setImmediate(() => this.#readMissed());
  }

  #readMissed(): void {
    const all = [...this.#missed];
    this.#missed.clear();
    for (let at = 0; at < all.length; at += USERS_PER_READ)
      void this.#resync(all.slice(at, at + USERS_PER_READ));
  }

  async #resync(users: readonly (readonly [string, Resync])[]): Promise<void> {
    const { store, retryMs, onBug } = this.#parts;
    let states: readonly (UserState | undefined)[] = [];
    try {
      const uids = users.map(([uid]) => uid);
      states = await this.#line.run(() => store.userStates(uids));
    } catch (error) {
      if (isAway(error)) {
        await new Promise((go) => setTimeout(go, retryMs).unref());
        for (const [uid, resync] of users) this.missed(uid, resync);
        return;
      }
      onBug(error, "It could not be found out what users missed");
    }
    for (const [at, [, resync]] of users.entries()) resync(states[at]);
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
      const groups = await this.#groupsOf(session.uid);
      if (!session.membershipsStale) await adopt(groups); // else a change came, which what was read may not show
    }
    this.#settling.delete(session); // in the same breath as nothing is stale
  }

  #groupsOf(uid: string): Promise<readonly string[]> {
    return this.#groupReads.read(uid, (begin) =>
      this.#line.run(() => begin(() => this.#parts.store.groupsOf(uid))),
    );
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

/** Reads of one name that are asked for before the first of them has begun are one. */
class SharedReads<T> {
  readonly #waiting = new Map<string, Promise<T>>();

  /** `wait` is given how the read begins when its turn has come. */
  read(
    name: string,
    wait: (begin: (read: () => Promise<T>) => Promise<T>) => Promise<T>,
  ): Promise<T> {
    const found = this.#waiting.get(name);
    if (found !== undefined) return found;
    const begin = (read: () => Promise<T>): Promise<T> => {
      this.#waiting.delete(name);
      return read();
    };
    const made = Promise.resolve().then(() => wait(begin)); // behind all that ask in this turn
    this.#waiting.set(name, made);
    return made;
  }
}
