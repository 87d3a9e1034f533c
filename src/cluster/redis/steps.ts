// The steps of the session directory that run inside Redis, each on one user's sessions. State: none.

import { randomUUID } from "node:crypto";
import type { CloseReason } from "../../broker/errors.ts";
import {
  type DeviceFlag,
  type SessionRecord,
  userTopic,
} from "../../broker/model.ts";
import {
  type Claim,
  LOGIN_TTL_MS,
  type NewestLogin,
  type Registration,
} from "../../broker/ports.ts";
import type { RedisLink } from "../../redis/link.ts";
import { loadScript } from "../../redis/script.ts";
import { looseFrame } from "../../redis/wire.ts";
import {
  entryArgs,
  type Incarnation,
  readEnded,
  readEntry,
  readLogin,
  type ServedSession,
} from "./entry.ts";
import type { LocalSession } from "./local-sessions.ts";

const RULES = new URL("./lua/rules.lua", import.meta.url);
const register = loadScript(
  new URL("./lua/register.lua", import.meta.url),
  RULES,
);
const restore = loadScript(
  new URL("./lua/restore.lua", import.meta.url),
  RULES,
);
const end = loadScript(new URL("./lua/end.lua", import.meta.url), RULES);

/** What the link must be able to run for the directory. */
export const directoryScripts = [register, restore, end];

/**
 * An entry that no node confirmed for so long is dropped. Its node does so once a minute; one that cannot for as long as this is dead, and comes back as
 * another incarnation.
 */
const ENTRY_TTL_MS = 600_000;

export type Entered =
  | Extract<Registration, { readonly kind: "refused" }>
  | (Extract<Registration, { readonly kind: "entered" }> & {
      /** Its connection's place, as `restore` wants to know it. */
      readonly since: number;
    });

/** `there`: it was in. `renewed`: it was in under an earlier incarnation. `refused`: it was ended, and stays out. */
export type Restored =
  | { readonly kind: "there" | "renewed" | "entered" }
  | { readonly kind: "refused"; readonly reason: CloseReason };

/** All of them throw `unavailable`: the step may have run or not. */
export class DirectorySteps {
  readonly #link: RedisLink;

  constructor(link: RedisLink) {
    this.#link = link;
  }

  /** Enters a session under `incarnation` and notifies the nodes of those that it ends. */
  async enter(
    session: SessionRecord,
    incarnation: Incarnation,
    claim: Claim | undefined,
  ): Promise<Entered> {
    const { uid } = session;
    const order = claim !== undefined && "order" in claim ? claim.order : "";
    const label = claim !== undefined && "label" in claim ? claim.label : "";
    const [kind, ...rest] = (await this.#link.run(register, this.#keys(uid), [
      ...this.#args(session, incarnation),
      ...[order, label],
    ])) as [Buffer, ...Buffer[]];
    if (kind.toString() === "refused") return refusal(rest[0]);
    const [since, place, ...ended] = rest;
    return {
      kind: "entered",
      since: Number(since),
      order: Number(place),
      ended: readEnded(uid, ended),
    };
  }

  /**
   * Makes sure that a session is in under `incarnation` and does not expire, unless it was ended; notifies the nodes of earlier ones that it ends.
   */
  async restore(
    { session, since, order }: LocalSession,
    incarnation: Incarnation,
  ): Promise<Restored> {
    const [said, reason] = (await this.#link.run(
      restore,
      this.#keys(session.uid),
      [...this.#args(session, incarnation), since, order],
    )) as [Buffer, Buffer?];
    const kind = said.toString() as Restored["kind"];
    return kind === "refused" ? refusal(reason) : { kind };
  }

  /** The newest main login of a uid and flag, as far as it says why a session may not go on. */
  async newestLogin(
    uid: string,
    flag: DeviceFlag,
  ): Promise<NewestLogin | undefined> {
    const key = this.#link.keys.user("login", uid);
    const reply = (await this.#link.call("hget", key, flag)) as Buffer | null;
    return reply === null ? undefined : readLogin(reply);
  }

  /** Removes a session; harmless when it is not in. */
  async remove({ uid, sessionId }: SessionRecord): Promise<void> {
    await this.#link.call("hdel", this.#key(uid), sessionId);
  }

  /** Removes a session and notifies its node of the reason; also when it is not in. */
  async end(session: SessionRecord, reason: CloseReason): Promise<void> {
    const { uid, sessionId } = session;
    const event = { kind: "end_session", uid, sessionId, reason } as const;
    await this.#end(session, reason, looseFrame(`end ${randomUUID()}`, event));
  }

  /** The same of a session of this node, which needs no event. */
  async revoke(session: SessionRecord, reason: CloseReason): Promise<void> {
    await this.#end(session, reason, "");
  }

  /** All entries of a user, those of dead incarnations among them. */
  async read(uid: string): Promise<readonly ServedSession[]> {
    const reply = await this.#link.call("hgetall", this.#key(uid));
    const entries = Object.entries(reply as Record<string, Buffer>); // ioredis makes it one
    return entries.map(([id, text]) => readEntry(uid, id, text));
  }

  async #end(
    { uid, sessionId }: SessionRecord,
    reason: CloseReason,
    frame: Buffer | "",
  ): Promise<void> {
    const topic = this.#link.keys.topic(userTopic(uid));
    const args = [sessionId, topic, frame, reason, LOGIN_TTL_MS];
    await this.#link.run(end, this.#keys(uid), args);
  }

  /** HASH of a user's sessions: session id → entry (entry.ts). */
  #key(uid: string): string {
    return this.#link.keys.user("sess", uid);
  }

  /** Behind it: HASH of a user's newest main logins: flag → login (rules.lua). */
  #keys(uid: string): readonly [string, string] {
    return [this.#key(uid), this.#link.keys.user("login", uid)];
  }

  #args(
    session: SessionRecord,
    incarnation: Incarnation,
  ): readonly (string | number)[] {
    const { sessionId, uid } = session;
    const topic = this.#link.keys.topic(userTopic(uid));
    return [
      ...[sessionId, incarnation, ...entryArgs(session), uid, topic],
      ...[ENTRY_TTL_MS, LOGIN_TTL_MS],
    ];
  }
}

function refusal(reason: Buffer | undefined) {
  return {
    kind: "refused",
    reason: String(reason) as CloseReason, // as the scripts and `end` say it
  } as const;
}
