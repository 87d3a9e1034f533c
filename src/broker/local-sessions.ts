// The sessions this node serves, as the store has to have them. Maps: sessions by id and by uid, ids of those to be confirmed, now or later.

import type { LoggedIn } from "./ports.ts";

const NONE: readonly LoggedIn[] = [];

export class LocalSessions {
  readonly #sessions = new Map<string, LoggedIn>();
  readonly #byUid = new Map<string, readonly LoggedIn[]>();
  /** Ids of sessions that may have lost the right to go on, or their entry. */
  readonly unconfirmed = new Set<string>();
  /** Ids of sessions to be confirmed with `confirmDeferred`, unless somebody asks about them before. */
  readonly #deferred = new Set<string>();
  #cursor: Iterator<LoggedIn> | undefined;

  get size(): number {
    return this.#sessions.size;
  }

  has(sessionId: string): boolean {
    return this.#sessions.has(sessionId);
  }

  get(sessionId: string): LoggedIn | undefined {
    return this.#sessions.get(sessionId);
  }

  of(uid: string): readonly LoggedIn[] {
    return this.#byUid.get(uid) ?? NONE;
  }

  /** These are to be confirmed, as far as they are this node's. */
  confirmSoon(sessions: Iterable<LoggedIn>): void {
    for (const { session } of sessions)
      if (this.has(session.sessionId)) this.unconfirmed.add(session.sessionId);
  }

  /** All are to be confirmed with `confirmDeferred`. */
  deferAll(): void {
    for (const id of this.#sessions.keys()) this.#deferred.add(id);
  }

  confirmDeferred(): void {
    for (const id of this.#deferred) this.unconfirmed.add(id);
    this.#deferred.clear();
  }

  /** The store is asked about the session now. */
  asked(sessionId: string): void {
    this.unconfirmed.delete(sessionId);
    this.#deferred.delete(sessionId);
  }

  /** The next `count` of all at most are to be confirmed, behind those of the call before; at the end it begins again with the call after. */
  confirmNextSoon(count: number): void {
    for (let left = count; left > 0; left--) {
      this.#cursor ??= this.#sessions.values(); // stays right while sessions come and go
      const { done, value } = this.#cursor.next();
      if (done === true) {
        this.#cursor = undefined;
        return;
      }
      this.unconfirmed.add(value.session.sessionId);
    }
  }

  /** The session is in; in place of an earlier login of the same. */
  add(entered: LoggedIn): void {
    const { sessionId, uid } = entered.session;
    this.forget(sessionId);
    this.#sessions.set(sessionId, entered);
    this.#byUid.set(uid, this.of(uid).concat(entered)); // exactly as long as needed, unlike a spread
  }

  /** The session is not served any more; says whether it was one of this node's. */
  forget(sessionId: string): boolean {
    this.asked(sessionId);
    const found = this.#sessions.get(sessionId);
    if (found === undefined) return false;
    const { uid } = found.session;
    const left = this.of(uid).filter((one) => one !== found);
    if (left.length > 0) this.#byUid.set(uid, left);
    else this.#byUid.delete(uid);
    return this.#sessions.delete(sessionId);
  }
}
