// The steps of the session directory that run inside Redis, each on one user's sessions. State: none.

import { randomUUID } from "node:crypto";
import type { CloseReason } from "../../broker/errors.ts";
import {
  type DeviceFlag,
  type DeviceLevel,
  presenceTopic,
  type SessionRecord,
  userTopic,
} from "../../broker/model.ts";
import {
  LOGIN_TTL_MS,
  type LoginTerms,
  type NewestLogin,
  type Registration,
  type SessionName,
} from "../../broker/ports.ts";
import type { RedisLink } from "../../redis/link.ts";
import { type Arg, loadScript } from "../../redis/script.ts";
import { looseFrame } from "../../redis/wire.ts";
import {
  entryArgs,
  type Incarnation,
  readEntry,
  readLogin,
  type ServedSession,
} from "./entry.ts";
import type { LocalSession } from "./local-sessions.ts";

const lua = (name: string) => new URL(`./lua/${name}.lua`, import.meta.url);
const LOGIN = loadScript(lua("login"), lua("rules"));
const RESTORE = loadScript(lua("restore"), lua("rules"));
const END = loadScript(lua("end"), lua("rules"));
const REMOVE = loadScript(lua("remove"));

/** What the link must be able to run for the directory. */
export const directoryScripts = [LOGIN, RESTORE, END, REMOVE];

/**
 * An entry that no node confirmed for so long is dropped. Its node does so once a minute; one that cannot for as long as this is dead, and comes back as
 * another incarnation.
 */
const ENTRY_TTL_MS = 600_000;

export type Entered =
  | Exclude<Registration, { readonly kind: "entered" }>
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

  /** Enters a session under `incarnation` and notifies the nodes of those that it ends, and those who watch the user. */
  async login(
    session: SessionRecord,
    incarnation: Incarnation,
    { claim, tokenHash }: LoginTerms,
  ): Promise<Entered> {
    const { uid } = session;
    const order = claim !== undefined && "order" in claim ? claim.order : "";
    const label = claim !== undefined && "label" in claim ? claim.label : "";
    const token = Buffer.from(tokenHash ?? []);
    const keys = [...this.#keys(uid), this.#link.keys.user("dev", uid)];
    const [kind, ...rest] = (await this.#link.run(LOGIN, keys, [
      ...this.#args(session, incarnation),
      ...[order, label, tokenHash === undefined ? "none" : "token", token],
    ])) as [Buffer, ...Buffer[]];
    const said = kind.toString() as Entered["kind"];
    if (said === "unauthorized") return { kind: said };
    if (said === "refused") return refusal(rest[0]);
    const [since, place, level] = rest;
    return {
      kind: said,
      session: { ...session, level: Number(level) as DeviceLevel }, // the given one, or as putDevice wrote it
      since: Number(since),
      order: Number(place),
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
      RESTORE,
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

  /** Removes a session and notifies those who watch the user; harmless when it is not in. */
  async remove({ uid, sessionId }: SessionName): Promise<void> {
    const args = [sessionId, ...this.#presence(uid)];
    await this.#link.run(REMOVE, [this.#key(uid)], args);
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
    await this.#link.run(END, this.#keys(uid), [
      ...[sessionId, ...this.#presence(uid), reason, LOGIN_TTL_MS],
      ...[topic, frame],
    ]);
  }

  /** HASH of a user's sessions: session id → entry (entry.ts). */
  #key(uid: string): string {
    return this.#link.keys.user("sess", uid);
  }

  /** Behind it: HASH of a user's newest main logins: flag → login (rules.lua). */
  #keys(uid: string): readonly [string, string] {
    return [this.#key(uid), this.#link.keys.user("login", uid)];
  }

  #args(session: SessionRecord, incarnation: Incarnation): readonly Arg[] {
    const { sessionId, uid } = session;
    const topic = this.#link.keys.topic(userTopic(uid));
    return [
      ...[sessionId, incarnation, ...entryArgs(session), uid, topic],
      ...[ENTRY_TTL_MS, LOGIN_TTL_MS, ...this.#presence(uid)],
    ];
  }

  /** What those who watch the user are notified with. */
  #presence(uid: string): readonly [topic: string, frame: Buffer] {
    const topic = this.#link.keys.topic(presenceTopic(uid));
    const event = { kind: "presence", uid } as const;
    return [topic, looseFrame(`presence ${randomUUID()}`, event)];
  }
}

function refusal(reason: Buffer | undefined) {
  return {
    kind: "refused",
    reason: String(reason) as CloseReason, // as the scripts and `end` say it
  } as const;
}
