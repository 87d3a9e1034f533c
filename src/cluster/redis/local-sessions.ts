// The sessions this node serves, as the directory has to have them. Maps: sessions by id and by uid, how many the node holds of each uid, and
// removals that Redis did not confirm. Keeps the index of the node's life: at least the uids of which the directory has a session of this life.

import { isAway } from "../../broker/errors.ts";
import type { SessionRecord } from "../../broker/model.ts";
import type { RedisLink } from "../../redis/link.ts";
import type { Entry } from "../session-rules.ts";
import type { Life } from "./entry.ts";

/** A session in the directory and its places there. */
export type LocalSession = Entry;

const NONE: readonly LocalSession[] = [];

export class LocalSessions {
  readonly #link: RedisLink;
  readonly #onProblem: (error: unknown, what: string) => void;
  readonly #sessions = new Map<string, LocalSession>();
  readonly #byUid = new Map<string, readonly LocalSession[]>();
  readonly #holds = new Map<string, number>();
  readonly #owed = new Map<string, SessionRecord>();
  #cursor: Iterator<LocalSession> | undefined;

  constructor(
    link: RedisLink,
    onProblem: (error: unknown, what: string) => void,
  ) {
    this.#link = link;
    this.#onProblem = onProblem;
  }

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

  /** Sessions that may be in the directory and must not. */
  owed(): readonly SessionRecord[] {
    return [...this.#owed.values()];
  }

  /** A session of `uid` is about to be entered: from now on, and until `release`, the index names the uid. */
  hold(uid: string): void {
    this.#holds.set(uid, (this.#holds.get(uid) ?? 0) + 1);
  }

  /** Puts uids into the index of `life`. To be awaited before an entry is written, so that whoever sweeps the life finds all. */
  async index(life: Life, uids: readonly string[]): Promise<void> {
    await this.#link.call("sadd", this.#indexKey(life), ...uids);
  }

  /**
   * One entry less of `uid`. Not awaited: commands on one key run in the order in which they are sent, and a name too many in the index only
   * costs whoever sweeps it a look.
   */
  release(uid: string, life: Life | undefined): void {
    const left = (this.#holds.get(uid) ?? 0) - 1;
    if (left > 0) return void this.#holds.set(uid, left);
    this.#holds.delete(uid);
    if (life === undefined) return;
    this.#link
      .call("srem", this.#indexKey(life), uid)
      .catch((error: unknown) => this.#leftBehind(error));
  }

  /** The session is in; says whether it was known before (then it holds already). */
  add(local: LocalSession): boolean {
    const { sessionId, uid } = local.session;
    const isKnown = this.forget(sessionId);
    this.#sessions.set(sessionId, local);
    this.#byUid.set(uid, this.of(uid).concat(local)); // exactly as long as needed, unlike a spread
    return isKnown;
  }

  /** The session is not to be restored any more; says whether it was one of this node's. Its hold stays. */
  forget(sessionId: string): boolean {
    const found = this.#sessions.get(sessionId);
    if (found === undefined) return false;
    const { uid } = found.session;
    const left = this.of(uid).filter((one) => one !== found);
    if (left.length > 0) this.#byUid.set(uid, left);
    else this.#byUid.delete(uid);
    return this.#sessions.delete(sessionId);
  }

  /** Whether the directory has the session is not known; it has to go. Its hold stays until `settled`. */
  owe(session: SessionRecord): void {
    this.#owed.set(session.sessionId, session);
  }

  settled(sessionId: string): boolean {
    return this.#owed.delete(sessionId);
  }

  #indexKey(life: Life): string {
    return indexKey(this.#link, life);
  }

  #leftBehind(error: unknown): void {
    if (isAway(error)) return;
    this.#onProblem(error, "The index of sessions could not be written");
  }
}

/** SET of the uids of which the directory may have sessions of a life. */
export function indexKey(link: RedisLink, life: Life): string {
  return link.keys.life("uids", life);
}
