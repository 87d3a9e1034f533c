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
  type Entry,
  entryArgs,
  type Life,
  readEnded,
  readEntry,
  readLogin,
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
const sweep = loadScript(new URL("./lua/sweep.lua", import.meta.url), RULES);

/** What the link must be able to run for the directory. */
export const directoryScripts = [register, restore, end, sweep];

export type Entered =
  | Extract<Registration, { readonly kind: "refused" }>
  | (Extract<Registration, { readonly kind: "entered" }> & {
      /** Its connection's place, as `restore` wants to know it. */
      readonly since: number;
    });

/** `there`: nothing was to be done. `renewed`: it was there under an earlier life. `refused`: it was ended, and stays out. */
export type Restored =
  | { readonly kind: "there" | "renewed" | "entered" }
  | { readonly kind: "refused"; readonly reason: CloseReason };

/** All of them throw `unavailable`: the step may have run or not. */
export class DirectorySteps {
  readonly #link: RedisLink;

  constructor(link: RedisLink) {
    this.#link = link;
  }

  /** Enters a session under `life` and tells the nodes of those that it ends. */
  async enter(
    session: SessionRecord,
    life: Life,
    claim: Claim | undefined,
  ): Promise<Entered> {
    const { uid } = session;
    const order = claim !== undefined && "order" in claim ? claim.order : "";
    const label = claim !== undefined && "label" in claim ? claim.label : "";
    const [kind, ...rest] = (await this.#link.run(register, this.#keys(uid), [
      ...this.#args(session, life),
      order,
      label,
      LOGIN_TTL_MS,
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

  /** Makes sure that a session is in under `life`, unless it was ended; tells the nodes of earlier ones that it ends. */
  async restore(
    { session, since, order }: LocalSession,
    life: Life,
  ): Promise<Restored> {
    const [said, reason] = (await this.#link.run(
      restore,
      this.#keys(session.uid),
      [...this.#args(session, life), since, order, LOGIN_TTL_MS],
    )) as [Buffer, Buffer?];
    const kind = said.toString() as Restored["kind"];
    return kind === "refused" ? refusal(reason) : { kind };
  }

  /** The newest main login of a uid and flag, as far as it tells why a session may not go on. */
  async newestLogin(
    uid: string,
    flag: DeviceFlag,
  ): Promise<NewestLogin | undefined> {
    const key = this.#link.keys.user("login", uid);
    const reply = (await this.#link.call("hget", key, flag)) as Buffer | null;
    return reply === null ? undefined : readLogin(reply);
  }

  /** Takes a session out; harmless when it is not in. */
  async remove({ uid, sessionId }: SessionRecord): Promise<void> {
    await this.#link.call("hdel", this.#key(uid), sessionId);
  }

  /** Takes a session out and tells its node why; tells when it is not in, too. */
  async end(session: SessionRecord, reason: CloseReason): Promise<void> {
    const { uid, sessionId } = session;
    const event = { kind: "end_session", uid, sessionId, reason } as const;
    await this.#end(session, reason, looseFrame(`end ${randomUUID()}`, event));
  }

  /** The same of a session of this node, which needs no event. */
  async revoke(session: SessionRecord, reason: CloseReason): Promise<void> {
    await this.#end(session, reason, "");
  }

  /** Whether the directory has the session. */
  async has({ uid, sessionId }: SessionRecord): Promise<boolean> {
    const reply = await this.#link.call("hexists", this.#key(uid), sessionId);
    return reply === 1;
  }

  /** Takes out what `life` left of a user's sessions; says whether there was anything. */
  async sweep(uid: string, life: Life): Promise<boolean> {
    return (await this.#link.run(sweep, [this.#key(uid)], [life])) !== 0;
  }

  /** Everything the directory has of a user, dead lives' leavings among it. */
  async read(uid: string): Promise<readonly Entry[]> {
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

  #args(session: SessionRecord, life: Life): readonly (string | number)[] {
    const { sessionId, uid } = session;
    const topic = this.#link.keys.topic(userTopic(uid));
    return [sessionId, life, ...entryArgs(session), uid, topic];
  }
}

function refusal(reason: Buffer | undefined) {
  return {
    kind: "refused",
    reason: String(reason) as CloseReason, // as the scripts and `end` say it
  } as const;
}
