// The sessions that this node serves, and the ids of the sessions that the store must confirm
// because they may have ended.

import { withBackground } from "./model.ts";
import type { LoggedInSession } from "./ports.ts";

const NONE: readonly LoggedInSession[] = [];

export class LocalSessions {
  readonly #sessions = new Map<string, LoggedInSession>();
  readonly #byUid = new Map<string, readonly LoggedInSession[]>();
  /** Ids of sessions that may have ended, or may be missing from the store. */
  readonly unconfirmed = new Set<string>();
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

  all(): readonly LoggedInSession[] {
    return [...this.#sessions.values()];
  }

  of(uid: string): readonly LoggedInSession[] {
    return this.#byUid.get(uid) ?? NONE;
  }

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

  startConfirming(sessionId: string): void {
    this.unconfirmed.delete(sessionId);
    this.#deferred.delete(sessionId);
  }

  /**
   * Marks the next `count` sessions as unconfirmed. Stops after the last session. The next
   * call then starts with the first session.
   */
  confirmNextSoon(count: number): void {
    for (let remaining = count; remaining > 0; remaining--) {
      this.#cursor ??= this.#sessions.values(); // stays valid if `#sessions` changes
      const { done, value } = this.#cursor.next();
      if (done === true) {
        this.#cursor = undefined;
        return;
      }
      this.unconfirmed.add(value.session.sessionId);
    }
  }

  add(login: LoggedInSession): void {
    const { sessionId, uid } = login.session;
    this.forget(sessionId);
    this.#sessions.set(sessionId, login);
    // `concat` allocates exactly the needed length, unlike a spread.
    this.#byUid.set(uid, this.of(uid).concat(login));
  }

  /**
   * Sets `isBackground`. If the store has lost the session, a later confirmation stores this state
   * again.
   */
  setBackground(sessionId: string, isBackground: boolean): void {
    const login = this.#sessions.get(sessionId);
    if (login === undefined) return;
    const changed = { ...login, session: withBackground(login.session, isBackground) };
    this.#sessions.set(sessionId, changed);
    const { uid } = login.session;
    this.#byUid.set(
      uid,
      this.of(uid).map((other) => (other === login ? changed : other)),
    );
  }

  forget(sessionId: string): boolean {
    this.startConfirming(sessionId);
    const removed = this.#sessions.get(sessionId);
    if (removed === undefined) return false;
    const { uid } = removed.session;
    const remaining = this.of(uid).filter((login) => login !== removed);
    if (remaining.length > 0) this.#byUid.set(uid, remaining);
    else this.#byUid.delete(uid);
    return this.#sessions.delete(sessionId);
  }
}
