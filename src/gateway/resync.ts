// What sessions read again because events may be lost: their memberships and their inbox, where
// these have changed. However many users it is about, the store is asked by few at a time, and
// again until it answers; meanwhile sessions stay as they are. State: the users to be looked at,
// the reads that have not begun, the sessions whose memberships are being read.

import { BrokerError, isTransient } from "../broker/errors.ts";
import type { InboxCommand } from "../broker/model.ts";
import type { ChannelStore, UserState, UserStore } from "../broker/ports.ts";
import { Semaphore } from "../lib/semaphore.ts";
import type { CatchUps } from "./catch-up.ts";
import type { Groups } from "./groups.ts";
import { type InboxParts, mayLackCommands, noteLostCommands, pullInbox } from "./inbox.ts";
import type { Session } from "./session.ts";
import type { SessionsOf } from "./user-delivery.ts";

export interface ResyncParts extends InboxParts {
  readonly store: Pick<ChannelStore, "groupsOf"> &
    Pick<UserStore, "userStates"> &
    InboxParts["store"];
  readonly groups: Groups;
  readonly catchUps: Pick<CatchUps, "join">;
  /** How long to wait after a read that failed. */
  readonly retryMs: number;
  /** A bug surfaced; `what` says where. */
  onError(error: unknown, what: string): void;
}

const READS_AT_ONCE = 64;
/** Users that one read is about. */
const USERS_PER_READ = 100;

export class Resync {
  readonly #parts: ResyncParts;
  readonly #reads = new Semaphore(READS_AT_ONCE);
  /** Users whose events may be lost. */
  readonly #missed = new Map<string, SessionsOf>();
  readonly #settling = new Set<Session>();
  readonly #inbox: InboxParts;
  /** Reads that have not begun: the sessions of one user share them. */
  readonly #groupReads = new SharedReads<readonly string[]>();
  readonly #inboxReads = new SharedReads<readonly InboxCommand[]>();

  constructor(parts: ResyncParts) {
    this.#parts = parts;
    const { metrics, limits, store, cluster } = parts;
    const readInbox: InboxParts["store"]["readInbox"] = (uid, afterSeq, page) =>
      this.#inboxReads.read(`${afterSeq} ${uid}`, (begin) =>
        this.#reads.run(() => begin(() => store.readInbox(uid, afterSeq, page))),
      ); // no permit is held while the client is waited for
    this.#inbox = { metrics, limits, cluster, store: { readInbox } };
  }

  /**
   * Events of the user may be lost: its sessions read again what they have otherwise than the user
   * stands. Many users are read at once, each once.
   */
  missed(uid: string, sessionsOf: SessionsOf): void {
    for (const session of sessionsOf(uid)) noteLostCommands(session);
    this.#missed.set(uid, sessionsOf);
    if (this.#missed.size === 1) setImmediate(() => this.#readMissed());
  }

  /** Gives the session what is in its inbox and did not come. */
  inbox(session: Session): void {
    if (session.inbox !== undefined) {
      session.inbox.hasMore = true; // the reader goes on
      return;
    }
    session.inbox = { hasMore: false, unstored: [] };
    void this.#untilDone(session, () => pullInbox(session, this.#inbox));
  }

  /**
   * Resolves when the session follows exactly the groups that the store has, and has what was sent
   * in them since its user joined, or another call sees to that, or it is over. One that is joining
   * does so when it has joined. Never rejects.
   */
  async memberships(session: Session): Promise<void> {
    session.membershipsStale = true;
    if (!session.hasJoined || this.#settling.has(session)) return;
    this.#settling.add(session);
    await this.#untilDone(session, () => this.#settle(session));
    this.#settling.delete(session);
  }

  #readMissed(): void {
    const all = [...this.#missed];
    this.#missed.clear();
    for (let at = 0; at < all.length; at += USERS_PER_READ)
      void this.#resync(all.slice(at, at + USERS_PER_READ));
  }

  async #resync(users: readonly (readonly [string, SessionsOf])[]): Promise<void> {
    const { store, retryMs, onError } = this.#parts;
    let states: readonly (UserState | undefined)[] = [];
    try {
      const uids = users.map(([uid]) => uid);
      states = await this.#reads.run(() => store.userStates(uids));
    } catch (error) {
      if (isTransient(error)) {
        await new Promise((go) => setTimeout(go, retryMs).unref());
        for (const [uid, sessionsOf] of users) this.missed(uid, sessionsOf);
        return;
      }
      onError(error, "It could not be found out what users missed");
    }
    for (const [at, [uid, sessionsOf]] of users.entries())
      for (const session of sessionsOf(uid)) this.#compare(session, states[at]);
  }

  /**
   * `state`: of the session's user; undefined: that cannot be found out. A removal is published on
   * the group's topic, too.
   */
  #compare(session: Session, state: UserState | undefined): void {
    if (state === undefined || mayLackCommands(session, state.inboxSeq)) this.inbox(session);
    if (state === undefined || !hasGroups(session, state.groups)) void this.memberships(session);
  }

  async #settle(session: Session): Promise<void> {
    session.membershipsStale = true;
    while (session.membershipsStale && session.ended === undefined) {
      session.membershipsStale = false;
      const groups = await this.#groupsOf(session.uid);
      if (!session.membershipsStale) await this.#adopt(session, groups); // else a change came, which what was read may not show
    }
    this.#settling.delete(session); // in the same turn as nothing is stale
  }

  #groupsOf(uid: string): Promise<readonly string[]> {
    return this.#groupReads.read(uid, (begin) =>
      this.#reads.run(() => begin(() => this.#parts.store.groupsOf(uid))),
    );
  }

  /**
   * Makes the session follow exactly these groups. Stops when a membership changes meanwhile: the
   * caller reads them again.
   */
  async #adopt(session: Session, channelIds: readonly string[]): Promise<void> {
    const isOutdated = () => session.membershipsStale || session.ended !== undefined;
    const { groups, catchUps } = this.#parts;
    const wanted = new Set(channelIds);
    const slice = groups.slice();
    for (const ids of [session.joining ?? [], session.groups.keys()])
      for (const id of ids) {
        if (slice.isUsedUp()) await slice.rest();
        if (isOutdated()) return;
        if (!wanted.has(id)) groups.takeOut(session, id);
      }
    const failures: unknown[] = [];
    await slice.each(channelIds, async (id) => {
      if (isOutdated() || session.follows(id)) return;
      const joined = catchUps.join(session, id);
      await joined.catch((error) => failures.push(error));
    });
    if (failures.length > 0) throw failures[0];
  }

  /** Retries until it succeeds or the session is over. */
  async #untilDone(session: Session, step: () => Promise<void>): Promise<void> {
    const { retryMs, onError } = this.#parts;
    while (session.ended === undefined)
      try {
        return await step();
      } catch (error) {
        if (!(error instanceof BrokerError)) {
          onError(error, "A session could not be brought up to date");
          return session.end("unavailable"); // it comes back and resumes
        }
        await new Promise((go) => setTimeout(go, retryMs).unref());
      }
  }
}

/** The session has joined, and follows exactly these groups. */
function hasGroups(session: Session, channelIds: readonly string[]): boolean {
  const isSame = session.groups.size === channelIds.length;
  return session.hasJoined && isSame && channelIds.every((id) => session.follows(id));
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
