// The session directory of a cluster: which users are online and where, in Redis, one hash per user. Registration is one script there, so of main
// devices that log in at once on different nodes exactly one survives. An incarnation that does not live is dead, and the sessions it served are
// ignored. State: none; this node's sessions are in local-sessions.ts.

import { BrokerError, type CloseReason, isAway } from "../../broker/errors.ts";
import type { Presence, SessionRecord } from "../../broker/model.ts";
import type {
  LoginTerms,
  Registration,
  SessionDirectory,
  SessionName,
} from "../../broker/ports.ts";
import { isUnanswered } from "../../redis/errors.ts";
import { endedBy, presenceOf } from "../session-rules.ts";
import type { LocalSessions } from "./local-sessions.ts";
import type { Registry } from "./registry.ts";
import type { Restorer } from "./restore.ts";
import type { DirectorySteps } from "./steps.ts";

/** Users looked up at once by one call. */
const LOOKUPS_AT_ONCE = 256;
/** How long the reason why a session was ended is asked for. */
const ASK_MS = 3000;
const RETRY_MS = 50;

export interface DirectoryParts {
  readonly steps: DirectorySteps;
  readonly registry: Registry;
  readonly local: LocalSessions;
  readonly restorer: Pick<Restorer, "one" | "remove">;
}

export class RedisDirectory implements SessionDirectory {
  readonly #parts: DirectoryParts;

  constructor(parts: DirectoryParts) {
    this.#parts = parts;
  }

  async register(
    session: SessionRecord,
    terms: LoginTerms = {},
  ): Promise<Registration> {
    const { steps, registry, local, restorer } = this.#parts;
    const { incarnation } = registry;
    try {
      const entered = await steps.login(session, incarnation, terms);
      if (entered.kind !== "entered") return entered;
      const { since, ...registration } = entered;
      const { order } = registration;
      local.add({ session: registration.session, since, order });
      // What was entered under an incarnation that died meanwhile is ignored.
      if (registry.incarnation !== incarnation) await this.#again(session);
      return registration;
    } catch (error) {
      const wasIn = local.forget(session.sessionId);
      if (wasIn || isUnanswered(error)) restorer.remove(session); // its caller never will
      throw error;
    }
  }

  async unregister(session: SessionRecord): Promise<void> {
    const { steps, local, restorer } = this.#parts;
    const isLocal = local.forget(session.sessionId);
    try {
      await steps.remove(session);
    } catch (error) {
      if (isLocal) restorer.remove(session);
      throw error;
    }
  }

  /** A session of this node stays in `local` until it is closed: if the event does not come, it is found missing. */
  async end(session: SessionRecord, reason: CloseReason): Promise<void> {
    await this.#parts.steps.end(session, reason);
  }

  /**
   * Asked until Redis answers, `ASK_MS` at most: after a freeze the connection has to come back first. The reason of a session that left
   * `local` meanwhile was published.
   */
  async endedBy({
    uid,
    sessionId,
  }: SessionName): Promise<CloseReason | undefined> {
    const { steps, local } = this.#parts;
    const deadline = performance.now() + ASK_MS;
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

  async #again({ sessionId }: SessionRecord): Promise<void> {
    const { local, restorer } = this.#parts;
    await restorer.one(sessionId);
    if (!local.has(sessionId)) throw new BrokerError("unavailable"); // another one came in between
  }

  async #of(uid: string): Promise<Presence> {
    return presenceOf(uid, await this.#living(uid));
  }

  async #living(uid: string): Promise<readonly SessionRecord[]> {
    const { steps, registry } = this.#parts;
    const living: SessionRecord[] = [];
    for (const { session, incarnation } of await steps.read(uid)) {
      const isLive = registry.isLive(incarnation);
      if (isLive === true || (await isLive)) living.push(session);
    }
    return living;
  }
}
