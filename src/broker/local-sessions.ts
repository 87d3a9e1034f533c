// The sessions this node serves, as the store must have them. Maps: sessions by id and by uid, ids
// of sessions to confirm now or later.

import type { LoggedInSession } from "./ports.ts";

const NONE: readonly LoggedInSession[] = [];

export class LocalSessions {
  readonly #sessions = new Map<string, LoggedInSession>();
  readonly #byUid = new Map<string, readonly LoggedInSession[]>();
  /** Ids of sessions that may have lost the right to go on, or their entry. */
  readonly unconfirmed = new Set<string>();
  /** Ids of sessions to confirm with `confirmDeferred`, unless they are confirmed before. */
  readonly #deferred = new Set<string>();
  #cursor: Iterator<LoggedInSession> | undefined;

  get size(): number {
    return this.#sessions.size;
  }

  has(sessionId: string): boolean {
    return this.#sessions.has(sessionId);
  }

  get(sessionId: string): LoggedInSession | undefined {
    return this.#sessions.get(sessionId);
  }

  of(uid: string): readonly LoggedInSession[] {
    return this.#byUid.get(uid) ?? NONE;
  }

  /** Marks those of them that this node serves. */
  confirmSoon(sessions: Iterable<LoggedInSession>): void {
    for (const { session } of sessions)
      if (this.has(session.sessionId)) this.unconfirmed.add(session.sessionId);
  }

  deferAll(): void {
    for (const id of this.#sessions.keys()) this.#deferred.add(id);
  }

  confirmDeferred(): void {
    for (const id of this.#deferred) this.unconfirmed.add(id);
    this.#deferred.clear();
  }

  /** The session is being confirmed. */
  asked(sessionId: string): void {
    this.unconfirmed.delete(sessionId);
    this.#deferred.delete(sessionId);
  }

  /** Marks the next `count` sessions in turn; after the last it begins again with the next call. */
  confirmNextSoon(count: number): void {
    for (let left = count; left > 0; left--) {
      this.#cursor ??= this.#sessions.values(); // stays valid while sessions come and go
      const { done, value } = this.#cursor.next();
      if (done === true) {
        this.#cursor = undefined;
        return;
      }
      this.unconfirmed.add(value.session.sessionId);
    }
  }

  /** Replaces an earlier login of the same session. */
  add(entered: LoggedInSession): void {
    const { sessionId, uid } = entered.session;
    this.forget(sessionId);
    this.#sessions.set(sessionId, entered);
    this.#byUid.set(uid, this.of(uid).concat(entered)); // exactly as long as needed, unlike a spread
  }

  /** Returns whether this node served it. */
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
