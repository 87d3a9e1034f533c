// The sessions of users in Redis: a hash of entries per user, and one of newest logins
// (`lua/session_rules.lua`). Each step is a script on one user's slot, which publishes what it
// changed. No state.

import type { CloseReason } from "../../../broker/errors.ts";
import type { DeviceFlag, DeviceLevel, SessionRecord } from "../../../broker/model.ts";
import {
  type Confirmation,
  type Incarnation,
  LOGIN_TTL_MS,
  type LoggedInSession,
  type LoginResult,
  type SessionEntry,
  type SessionStore,
} from "../../../broker/ports.ts";
import { asBrokerError, errorOfReply } from "../../../redis/errors.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";

/**
 * An entry that no node confirmed for so long is dropped. Its node does so once a minute; one that
 * cannot for as long as this is dead, and comes back as another incarnation.
 */
const ENTRY_TTL_MS = 600_000;
/**
 * How long it is remembered that a session was ended whose node does not answer: one that comes
 * back later would enter it again.
 */
const ENDED_TTL_MS = 86_400_000;
/**
 * Sessions confirmed by one script: it keeps others from their turn for less than a millisecond.
 */
const CONFIRMED_PER_CALL = 50;

/** In front of every script on a user's sessions. */
export const SESSION_RULES = [
  `local ENTRY_TTL, LOGIN_TTL, ENDED_TTL = ${ENTRY_TTL_MS}, ${LOGIN_TTL_MS}, ${ENDED_TTL_MS}`,
  lua("session_rules"),
] as const;
const LOGIN = loadScript(lua("session_login"), ...SESSION_RULES);
const CONFIRM = loadScript(lua("session_confirm"), ...SESSION_RULES);
const END = loadScript(lua("session_end"), ...SESSION_RULES);
const REMOVE = loadScript(lua("session_remove"), ...SESSION_RULES);

/** The sessions of a store on Redis. */
export function createRedisSessions({ link }: Pick<RedisStorePorts, "link">): SessionStore {
  const keyOf = (uid: string) => link.keys.user("sessions", uid);
  const perCall = link.isCluster ? 1 : CONFIRMED_PER_CALL; // users are in slots of their own

  /** Never rejects. */
  async function confirm(
    sessions: readonly LoggedInSession[],
    incarnation: Incarnation,
  ): Promise<readonly Confirmation[]> {
    const keys = sessions.map(({ session }) => keyOf(session.uid));
    const args = [incarnation, ...sessions.flatMap(confirmArgs)];
    try {
      const replies = await link.run(CONFIRM, keys, args);
      return (replies as (readonly Buffer[])[]).map(readConfirmation);
    } catch (cause) {
      const error = asBrokerError(cause);
      return sessions.map(() => ({ kind: "failed", error }));
    }
  }

  return {
    async login(session, incarnation, { claim, tokenHash } = {}) {
      const { uid } = session;
      const order = claim !== undefined && "order" in claim ? claim.order : "";
      const label = claim !== undefined && "label" in claim ? claim.label : "";
      const token = Buffer.from(tokenHash ?? []);
      const [kind, ...rest] = (await link.run(
        LOGIN,
        [keyOf(uid)],
        [
          ...[uid, session.sessionId, incarnation, ...recordArgs(session)],
          ...[order, label, tokenHash === undefined ? "none" : "token", token],
        ],
      )) as [Buffer, ...Buffer[]]; // the list of groups apart
      const said = kind.toString() as LoginResult["kind"];
      if (said === "unauthorized") return { kind: said };
      if (said === "refused") return refusal(rest[0]);
      const [since, place, level, groups] = rest;
      return {
        kind: said,
        session: { ...session, level: Number(level) as DeviceLevel }, // the given one, or as putDevice wrote it
        since: Number(since),
        order: Number(place),
        groups: (groups as unknown as readonly Buffer[]).map(String), // as its header says
      };
    },

    async removeSession({ uid, sessionId }) {
      await link.run(REMOVE, [keyOf(uid)], [uid, sessionId]);
    },

    async endSession({ uid, sessionId, level }, reason) {
      await link.run(END, [keyOf(uid)], [uid, sessionId, reason, level]);
    },

    async confirmSessions(sessions, incarnation) {
      const calls: Promise<readonly Confirmation[]>[] = [];
      for (let at = 0; at < sessions.length; at += perCall)
        calls.push(confirm(sessions.slice(at, at + perCall), incarnation));
      return (await Promise.all(calls)).flat();
    },

    sessionsOf(uids) {
      const reads = uids.map(async (uid) => {
        const reply = await link.call("hgetall", keyOf(uid));
        const entries = Object.entries(reply as Record<string, Buffer>); // ioredis makes it one
        return entries.map(([id, text]) => readEntry(uid, id, text));
      });
      return Promise.all(reads);
    },
  };
}

/** What a script is given of a session behind its id. */
function recordArgs(session: SessionRecord): readonly Arg[] {
  return [session.flag, session.level, session.deviceId, session.tokenTag];
}

function confirmArgs({ session, since, order }: LoggedInSession): readonly Arg[] {
  const { uid, sessionId, tokenTag } = session;
  const token = Buffer.from(tokenTag, "base64url"); // how the token's hash begins
  return [uid, sessionId, ...recordArgs(session), token, since, order];
}

function readConfirmation([said, detail]: readonly Buffer[]): Confirmation {
  const kind = String(said) as Confirmation["kind"];
  if (kind === "refused") return refusal(detail);
  if (kind === "confirmed") return { kind };
  return { kind, error: errorOfReply(String(detail)) };
}

function refusal(reason: Buffer | undefined) {
  return {
    kind: "refused",
    reason: String(reason) as CloseReason, // as the scripts and `endSession` say it
  } as const;
}

/** Reads an entry of the user `uid` as the scripts write it. */
function readEntry(uid: string, sessionId: string, text: Buffer): SessionEntry {
  const [, incarnation, since, flag, level, deviceId, tokenTag, order] = JSON.parse(
    text.toString(),
  ) as [
    number,
    Incarnation,
    since: string,
    DeviceFlag,
    DeviceLevel,
    deviceId: string,
    tokenTag: string,
    order: string,
  ];
  const nodeId = incarnation.slice(0, incarnation.lastIndexOf(":"));
  return {
    session: { sessionId, nodeId, uid, flag, level, deviceId, tokenTag },
    incarnation,
    since: Number(since),
    order: Number(order),
  };
}
