// The session directory of a cluster: who is online where, in Redis, one hash per user. Registration is one atomic step there, so of main devices
// that log in at once on different nodes exactly one survives. Sessions of nodes that do not live are as good as gone. State: none; this node's
// sessions are in local-sessions.ts.

import { BrokerError, type CloseReason, isAway } from "../../broker/errors.ts";
import type { Presence, SessionRecord } from "../../broker/model.ts";
import type {
  Claim,
  Registration,
  SessionDirectory,
} from "../../broker/ports.ts";
import { endedBy, presenceOf } from "../session-rules.ts";
import type { LocalSessions } from "./local-sessions.ts";
import type { Registry } from "./registry.ts";
import type { DirectorySteps } from "./steps.ts";

/** Users looked up at once by one call. */
const LOOKUPS_AT_ONCE = 256;
/** For the answer why a session was ended. */
const PATIENCE_MS = 3000;
const RETRY_MS = 50;

export interface DirectoryParts {
  readonly steps: DirectorySteps;
  readonly registry: Registry;
  readonly local: LocalSessions;
  /** Makes sure of a session that is in `local`. */
  readonly restore: (sessionId: string) => Promise<void>;
  /** A session may be in the directory that has to go: `local` owes it. */
  readonly onOwed: () => void;
  readonly onProblem: (error: unknown, what: string) => void;
}

export class RedisDirectory implements SessionDirectory {
  readonly #parts: DirectoryParts;

  constructor(parts: DirectoryParts) {
    this.#parts = parts;
  }

  async register(session: SessionRecord, claim?: Claim): Promise<Registration> {
    const { steps, registry, local } = this.#parts;
    const { life } = registry;
    const { uid } = session;
    local.hold(uid);
    try {
      await local.index(life, [uid]);
      const entered = await steps.enter(session, life, claim);
      if (entered.kind === "refused") {
        local.release(uid, life);
        return entered;
      }
      const { since, order, ended } = entered;
      const wasHeld = local.add({ session, since, order });
      if (wasHeld) local.release(uid, undefined);
      // What was entered under a life that ended meanwhile is swept with it.
      if (registry.life !== life) await this.#again(session);
      return { kind: "entered", order, ended };
    } catch (error) {
      if (local.forget(session.sessionId)) local.release(uid, undefined); // the hold that is owed stays
      this.#owe(session); // it may be in: its caller will never take it out
      throw error;
    }
  }

  async unregister(session: SessionRecord): Promise<void> {
    const { steps, registry, local } = this.#parts;
    const isLocal = local.forget(session.sessionId);
    try {
      await steps.remove(session);
    } catch (error) {
      if (isLocal) this.#owe(session);
      throw error;
    }
    if (isLocal) local.release(session.uid, registry.currentLife);
  }

  /** A session of this node stays in `local` until it is closed: if the word does not come, it is found missing. */
  async end(session: SessionRecord, reason: CloseReason): Promise<void> {
    await this.#parts.steps.end(session, reason);
  }

  /**
   * Asked until Redis answers, `PATIENCE_MS` at most: after a freeze the connection has to come back first. The reason of a
   * session that left `local` meanwhile was published.
   */
  async endedBy({
    uid,
    sessionId,
  }: Pick<SessionRecord, "uid" | "sessionId">): Promise<
    CloseReason | undefined
  > {
    const { steps, local } = this.#parts;
    const deadline = performance.now() + PATIENCE_MS;
    for (;;) {
      const found = local.get(sessionId);
      if (found === undefined) return undefined;
      try {
        return endedBy(found, await steps.newestLogin(uid, found.session.flag));
      } catch (error) {
        if (!isAway(error) || performance.now() > deadline) throw error;
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS).unref());
      }
    }
  }

  async sessionsOf(uid: string): Promise<readonly SessionRecord[]> {
    this.#parts.registry.assertLiving();
    return this.#living(uid);
  }

  async presence(uids: readonly string[]): Promise<readonly Presence[]> {
    this.#parts.registry.assertLiving();
    const different = [...new Set(uids)];
    const found = new Map<string, Presence>();
    for (let at = 0; at < different.length; at += LOOKUPS_AT_ONCE) {
      const some = different.slice(at, at + LOOKUPS_AT_ONCE);
      for (const one of await Promise.all(some.map((uid) => this.#of(uid))))
        found.set(one.uid, one);
    }
    return uids.map((uid) => found.get(uid) ?? presenceOf(uid, []));
  }

  #owe(session: SessionRecord): void {
    this.#parts.local.owe(session);
    this.#parts.onOwed();
  }

  async #again({ sessionId }: SessionRecord): Promise<void> {
    const { local, restore } = this.#parts;
    await restore(sessionId);
    if (!local.has(sessionId)) throw new BrokerError("unavailable"); // another one came in between
  }

  async #of(uid: string): Promise<Presence> {
    return presenceOf(uid, await this.#living(uid));
  }

  async #living(uid: string): Promise<readonly SessionRecord[]> {
    const { steps, registry } = this.#parts;
    const living: SessionRecord[] = [];
    for (const { session, life } of await steps.read(uid)) {
      const answer = registry.isLive(life);
      if (typeof answer === "boolean" ? answer : await answer)
        living.push(session);
      else if (registry.isGone(life)) this.#clear(uid, life);
    }
    return living;
  }

  /** What is left of a life that was swept long ago would never be looked at again. */
  #clear(uid: string, life: string): void {
    const { steps, onProblem } = this.#parts;
    steps
      .sweep(uid, life)
      .catch((error: unknown) =>
        onProblem(error, "Sessions of a user could not be removed"),
      );
  }
}
