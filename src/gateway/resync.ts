// Updates sessions whose events may have been lost: reads their memberships and inboxes again if
// these have changed. The reads are repeated after a BrokerError, and the session does not change
// until they succeed. After any other error, the session is closed.

import { BrokerError, isTransient } from "../broker/errors.ts";
import type { InboxCommand } from "../broker/model.ts";
import type { ChannelStore, UserState, UserStore } from "../broker/ports.ts";
import type { Rights } from "../broker/rights.ts";
import { Semaphore } from "../lib/semaphore.ts";
import type { CatchUps } from "./catch-up.ts";
import type { Groups } from "./groups.ts";
import { type InboxPorts, mayLackCommands, noteLostCommands, pullInbox } from "./inbox.ts";
import type { Session } from "./session.ts";
import type { SessionsOf } from "./user-delivery.ts";

export interface ResyncPorts extends InboxPorts {
  readonly store: Pick<ChannelStore, "groupsOf"> &
    Pick<UserStore, "userStates"> &
    InboxPorts["store"];
  readonly groups: Groups;
  readonly catchUps: Pick<CatchUps, "join">;
  readonly retryMs: number;
  onError(error: unknown, context: string): void;
}

const READS_AT_ONCE = 64;
const USERS_PER_READ = 100;

export class SessionResync {
  readonly #ports: ResyncPorts;
  readonly #reads = new Semaphore(READS_AT_ONCE);
  readonly #missed = new Map<string, SessionsOf>();
  readonly #syncing = new Set<Session>();
  readonly #inbox: InboxPorts;
  /** Reads that have not started. Sessions of one user share them. */
  readonly #groupReads = new SharedReads<readonly string[]>();
  readonly #inboxReads = new SharedReads<readonly InboxCommand[]>();

  constructor(ports: ResyncPorts) {
    this.#ports = ports;
    const { metrics, limits, store, cluster } = ports;
    const readInbox: InboxPorts["store"]["readInbox"] = (uid, afterSeq, page) =>
      this.#inboxReads.read(`${afterSeq} ${uid}`, (begin) =>
        this.#reads.run(() => begin(() => store.readInbox(uid, afterSeq, page))),
      ); // the permit is released before `pullInbox` waits for the client
    this.#inbox = { metrics, limits, cluster, store: { readInbox } };
  }

  /**
   * Updates a user's sessions. The users of all calls in one event-loop turn are read in batches
   * of `USERS_PER_READ`.
   */
  updateUser(uid: string, sessionsOf: SessionsOf): void {
    for (const session of sessionsOf(uid)) noteLostCommands(session);
    this.#missed.set(uid, sessionsOf);
    if (this.#missed.size === 1) setImmediate(() => this.#readMissed());
  }

  updateInbox(session: Session): void {
    if (session.inbox !== undefined) {
      session.inbox.hasMore = true; // `pullInbox` then reads the missing commands as well
      return;
    }
    session.inbox = { hasMore: false, unstored: [] };
    void this.#untilDone(session, () => pullInbox(session, this.#inbox));
  }

  /**
   * Applies a session's rights after they have changed from `former`. The session immediately
   * leaves the groups that it may no longer read, and then joins the groups that it may read now.
   */
  applyRights(session: Session, former: Rights | undefined): void {
    const { groups } = this.#ports;
    session.formerRights ??= former;
    for (const id of [...(session.joining ?? []), ...session.groups.keys()])
      if (!session.mayReadGroup(id)) groups.removeSession(session, id);
    void this.updateMemberships(session);
  }

  /**
   * Updates a session's groups. While the session joins, only marks the groups as stale. Never
   * rejects.
   */
  async updateMemberships(session: Session): Promise<void> {
    session.membershipsStale = true;
    if (!session.hasJoined || this.#syncing.has(session)) return;
    this.#syncing.add(session);
    await this.#untilDone(session, () => this.#syncMemberships(session));
    // After a success, the session's entry in `#syncing` may belong to a later call.
    if (session.ended !== undefined) this.#syncing.delete(session);
  }

  #readMissed(): void {
    const users = [...this.#missed];
    this.#missed.clear();
    for (let start = 0; start < users.length; start += USERS_PER_READ)
      void this.#resync(users.slice(start, start + USERS_PER_READ));
  }

  async #resync(users: readonly (readonly [string, SessionsOf])[]): Promise<void> {
    const { store, retryMs, onError } = this.#ports;
    let states: readonly (UserState | undefined)[] = [];
    try {
      const uids = users.map(([uid]) => uid);
      states = await this.#reads.run(() => store.userStates(uids));
    } catch (error) {
      if (isTransient(error)) {
        await new Promise((resolve) => setTimeout(resolve, retryMs).unref());
        for (const [uid, sessionsOf] of users) this.updateUser(uid, sessionsOf);
        return;
      }
      onError(
        error,
        "Could not read the state of users whose events may have been lost; reading their groups and inboxes instead",
      );
    }
    for (const [index, [uid, sessionsOf]] of users.entries())
      for (const session of sessionsOf(uid)) this.#compare(session, states[index]);
  }

  #compare(session: Session, state: UserState | undefined): void {
    if (state === undefined || mayLackCommands(session, state.inboxSeq)) this.updateInbox(session);
    if (state === undefined || !hasGroups(session, readable(session, state.groups)))
      void this.updateMemberships(session);
  }

  async #syncMemberships(session: Session): Promise<void> {
    session.membershipsStale = true;
    while (session.membershipsStale && session.ended === undefined) {
      session.membershipsStale = false;
      const groups = readable(session, await this.#groupsOf(session.uid));
      // If a membership changed during the read, the result may be outdated and is read again.
      if (!session.membershipsStale) await this.#applyMemberships(session, groups);
    }
    // Must run in the same turn as the last check above, so that no change is missed between the
    // check and this statement.
    this.#syncing.delete(session);
    session.formerRights = undefined;
  }

  #groupsOf(uid: string): Promise<readonly string[]> {
    return this.#groupReads.read(uid, (begin) =>
      this.#reads.run(() => begin(() => this.#ports.store.groupsOf(uid))),
    );
  }

  /** Makes the session join and leave groups. Stops early if a membership changes. */
  async #applyMemberships(session: Session, channelIds: readonly string[]): Promise<void> {
    const isOutdated = () => session.membershipsStale || session.ended !== undefined;
    const { groups, catchUps } = this.#ports;
    const memberIds = new Set(channelIds);
    const slice = groups.slice();
    for (const ids of [session.joining ?? [], session.groups.keys()])
      for (const id of ids) {
        if (slice.shouldYield()) await slice.yield();
        if (isOutdated()) return;
        if (!memberIds.has(id)) groups.removeSession(session, id);
      }
    const failures: unknown[] = [];
    await slice.each(channelIds, async (id) => {
      if (isOutdated() || session.follows(id)) return;
      const joined = catchUps.join(session, id);
      await joined.catch((error) => failures.push(error));
    });
    if (failures.length > 0) throw failures[0];
  }

  async #untilDone(session: Session, step: () => Promise<void>): Promise<void> {
    const { retryMs, onError } = this.#ports;
    while (session.ended === undefined)
      try {
        return await step();
      } catch (error) {
        if (!(error instanceof BrokerError)) {
          onError(error, "Could not bring a session up to date; the session is closed");
          return session.end("unavailable"); // the client reconnects and resumes
        }
        await new Promise((resolve) => setTimeout(resolve, retryMs).unref());
      }
  }
}

/** Returns the user's groups that the session may read. */
function readable(session: Session, channelIds: readonly string[]): readonly string[] {
  return session.rights === undefined
    ? channelIds
    : channelIds.filter((id) => session.mayReadGroup(id));
}

function hasGroups(session: Session, channelIds: readonly string[]): boolean {
  const isSame = session.groups.size === channelIds.length;
  return session.hasJoined && isSame && channelIds.every((id) => session.follows(id));
}

/** Reads that have not started, by name. Requests for the same name share one read. */
class SharedReads<T> {
  readonly #shared = new Map<string, Promise<T>>();

  /** Returns the shared result. `wait` waits for its turn and then calls `begin` with the read. */
  read(
    name: string,
    wait: (begin: (read: () => Promise<T>) => Promise<T>) => Promise<T>,
  ): Promise<T> {
    const existing = this.#shared.get(name);
    if (existing !== undefined) return existing;
    const begin = (read: () => Promise<T>): Promise<T> => {
      this.#shared.delete(name);
      return read();
    };
    // The read starts in a microtask, so that all requests made by the currently running code share
    // it.
    const result = Promise.resolve().then(() => wait(begin));
    this.#shared.set(name, result);
    return result;
  }
}
