// The sessions this node serves, as the directory has to have them. Maps: sessions by id and by uid, ids of those not judged.

import type { Entry } from "../session-rules.ts";

/** A session in the directory and its places there. */
export type LocalSession = Entry;

const NONE: readonly LocalSession[] = [];

export class LocalSessions {
  readonly #sessions = new Map<string, LocalSession>();
  readonly #byUid = new Map<string, readonly LocalSession[]>();
  /** Ids of sessions that were entered again and whose credential was not judged since: while they were missing nobody could end them. */
  readonly unjudged = new Set<string>();
  #cursor: Iterator<LocalSession> | undefined;

  get size(): number {
    return this.#sessions.size;
  }

  has(sessionId: string): boolean {
    return this.#sessions.has(sessionId);
  }

  get(sessionId: string): LocalSession | undefined {
    return this.#sessions.get(sessionId);
  }

  all(): readonly LocalSession[] {
    return [...this.#sessions.values()];
  }

  of(uid: string): readonly LocalSession[] {
    return this.#byUid.get(uid) ?? NONE;
  }

  /** The next `count` of all at most, behind those of the call before; at the end it begins again with the call after. */
  next(count: number): readonly LocalSession[] {
    const found: LocalSession[] = [];
    while (found.length < count) {
      this.#cursor ??= this.#sessions.values(); // stays right while sessions come and go
      const { done, value } = this.#cursor.next();
      if (done === true) {
        this.#cursor = undefined;
        break;
      }
      found.push(value);
    }
    return found;
  }

  /** The session is in; in place of an earlier registration of the same. */
  add(local: LocalSession): void {
    const { sessionId, uid } = local.session;
    this.forget(sessionId);
    this.#sessions.set(sessionId, local);
    this.#byUid.set(uid, this.of(uid).concat(local)); // exactly as long as needed, unlike a spread
  }

  /** The session is not to be restored any more; says whether it was one of this node's. */
  forget(sessionId: string): boolean {
    this.unjudged.delete(sessionId);
    const found = this.#sessions.get(sessionId);
    if (found === undefined) return false;
    const { uid } = found.session;
    const left = this.of(uid).filter((one) => one !== found);
    if (left.length > 0) this.#byUid.set(uid, left);
    else this.#byUid.delete(uid);
    return this.#sessions.delete(sessionId);
  }
}
