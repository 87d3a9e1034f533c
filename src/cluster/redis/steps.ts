// The steps of the session directory that run inside Redis, each on one user's sessions. State: none.

import { randomUUID } from "node:crypto";
import type { CloseReason } from "../../broker/errors.ts";
import { type SessionRecord, userTopic } from "../../broker/model.ts";
import type { RedisLink } from "../../redis/link.ts";
import { loadScript } from "../../redis/script.ts";
import { looseFrame } from "../../redis/wire.ts";
import {
  type Entry,
  entryArgs,
  type Life,
  readEntry,
  readSessions,
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
const end = loadScript(new URL("./lua/end.lua", import.meta.url));
const sweep = loadScript(new URL("./lua/sweep.lua", import.meta.url), RULES);

/** What the link must be able to run for the directory. */
export const directoryScripts = [register, restore, end, sweep];

export interface Entered {
  /** When it came in, as `restore` wants to know it. */
  readonly since: string;
  readonly ended: readonly SessionRecord[];
}

/** `there`: nothing was to be done. `renewed`: it was there under an earlier life. `refused`: `by` logged in later, the session stays out. */
export type Restored =
  | { readonly kind: "there" | "renewed" | "entered" }
  | { readonly kind: "refused"; readonly by: SessionRecord };

/** All of them throw `unavailable`: the step may have run or not. */
export class DirectorySteps {
  readonly #link: RedisLink;

  constructor(link: RedisLink) {
    this.#link = link;
  }

  /** Enters a session under `life` and tells the nodes of those that it ends. */
  async enter(session: SessionRecord, life: Life): Promise<Entered> {
    const { uid } = session;
    const [since, ...ended] = (await this.#link.run(
      register,
      [this.#key(uid)],
      this.#args(session, life),
    )) as [Buffer, ...Buffer[]];
    return { since: since.toString(), ended: readSessions(uid, ended) };
  }

  /** Makes sure that a session is in under `life`, unless a later one stands in its place; tells the nodes of earlier ones that it ends. */
  async restore(
    { session, since }: LocalSession,
    life: Life,
  ): Promise<Restored> {
    const { uid } = session;
    const [code, ...others] = (await this.#link.run(
      restore,
      [this.#key(uid)],
      [...this.#args(session, life), since],
    )) as [number, ...Buffer[]];
    if (code === 0) return { kind: "there" };
    if (code === 1) return { kind: "renewed" };
    const [by] = readSessions(uid, others);
    return by === undefined || code === 2
      ? { kind: "entered" }
      : { kind: "refused", by };
  }

  /** Takes a session out; harmless when it is not in. */
  async remove({ uid, sessionId }: SessionRecord): Promise<void> {
    await this.#link.call("hdel", this.#key(uid), sessionId);
  }

  /** Takes a session out and tells its node why; tells when it is not in, too. */
  async end(session: SessionRecord, reason: CloseReason): Promise<void> {
    const { uid, sessionId } = session;
    const event = { kind: "end_session", uid, sessionId, reason } as const;
    const frame = looseFrame(`end ${randomUUID()}`, event);
    const topic = this.#link.keys.topic(userTopic(uid));
    await this.#link.run(end, [this.#key(uid)], [sessionId, topic, frame]);
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

  /** HASH of a user's sessions: session id → entry (entry.ts). */
  #key(uid: string): string {
    return this.#link.keys.user("sess", uid);
  }

  #args(session: SessionRecord, life: Life): readonly (string | number)[] {
    const { sessionId, uid } = session;
    const topic = this.#link.keys.topic(userTopic(uid));
    return [sessionId, life, ...entryArgs(session), uid, topic];
  }
}
