// User sessions in Redis: one HASH of entries, one of newest logins and one of ends per user
// (`lua/session_rules.lua`). Each change is one script in the user's slot. The script also
// publishes the change, unless only an expiry or the background state changes. Keeps no state.

import { type CloseReason, KICK_REASONS } from "../../../broker/errors.ts";
import {
  type DeviceFlag,
  type DeviceLevel,
  firstMessageId,
  JWT_TAG,
  type SessionRecord,
} from "../../../broker/model.ts";
import {
  type Confirmation,
  type Incarnation,
  LOGIN_TTL_MS,
  type LoggedInSession,
  type LoginResult,
  type SessionEntry,
  type SessionStore,
} from "../../../broker/ports.ts";
import { piecesOf } from "../../../lib/pieces.ts";
import { asBrokerError } from "../../../redis/errors.ts";
import { idCounterOf } from "../../../redis/id-counters.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { COUNTERS_APART_MS } from "./channel-names.ts";
import { createUserEvents, USER_FEED } from "./user-events.ts";

/**
 * Time to live of an entry. A node that does not confirm a session for this time is most likely
 * dead.
 */
const ENTRY_TTL_MS = 600_000;
/** Time for which the end of a session is recorded, so that no node adds the session again. */
const ENDED_TTL_MS = 86_400_000;
/** Maximum number of sessions per script, to limit the delay of other calls. */
const SESSIONS_PER_CALL = 50;

export const SESSION_RULES = [
  `local ENTRY_TTL, LOGIN_TTL, ENDED_TTL = ${ENTRY_TTL_MS}, ${LOGIN_TTL_MS}, ${ENDED_TTL_MS}`,
  lua("session_rules"),
] as const;
/** Placed in front of scripts that add or remove sessions and write the corresponding events. */
export const SESSION_CHANGES = [
  ...USER_FEED,
  `local KICK_REASONS = ' ${KICK_REASONS.join(" ")} '\n`,
  ...SESSION_RULES,
  lua("user_events"),
] as const;
const LOGIN = loadScript(lua("session_login"), ...SESSION_CHANGES);
const CONFIRM = loadScript(lua("session_confirm"), ...SESSION_CHANGES);
const END = loadScript(lua("session_end"), ...SESSION_CHANGES);
const READ = loadScript(lua("sessions_read"));
const REMOVE = loadScript(lua("session_remove"), ...SESSION_CHANGES);
const STATE = loadScript(lua("session_state"));

export function createRedisSessions({
  link,
  clock,
  demand,
  waitForReplicas,
  judgesBans = false,
}: Pick<RedisStorePorts, "link" | "clock" | "demand" | "waitForReplicas" | "judgesBans">): Omit<
  SessionStore,
  "joinState"
> {
  const { bucketOfUser, eventArgs, runFor, flush, relist } = createUserEvents({
    ...{ link, demand, waitForReplicas },
  });
  const judgement = judgesBans ? "judge" : "ignore";
  const keyOf = (uid: string) => link.keys.user("sessions", uid);
  const idKeys = link.isCluster ? [] : [idCounterOf(link, 0).key];
  const perCall = link.isCluster ? 1 : SESSIONS_PER_CALL; // each user is in a different slot

  /**
   * Confirms sessions with one script. Never rejects. If the script fails, each result has the kind
   * `failed`.
   */
  async function confirm(
    sessions: readonly LoggedInSession[],
    incarnation: Incarnation,
  ): Promise<readonly Confirmation[]> {
    const keys = sessions.map(({ session }) => keyOf(session.uid));
    const args = sessions.flatMap((session) =>
      confirmArgs(session, bucketOfUser(session.session.uid)),
    );
    const run = async (isAnnounced: 0 | 1) => {
      const first = [incarnation, judgement, ...eventArgs(), isAnnounced];
      const replies = await link.run(CONFIRM, keys, [...first, ...args]);
      return replies as readonly (readonly Buffer[])[]; // see the header of `session_confirm.lua`
    };
    try {
      // The first session is enough for `runFor`, because a script returns a demand only on a Redis
      // Cluster, where a call has one session.
      const uid = sessions[0]?.session.uid ?? "";
      const replies = await runFor(uid, run, ([reply]) => reply?.[0]);
      if (replies.some(([, , hasEvents]) => hasEvents !== undefined)) await flush(uid);
      return replies.map((reply) => readConfirmation(link, reply));
    } catch (cause) {
      const error = asBrokerError(cause);
      return sessions.map(() => ({ kind: "failed", error }));
    }
  }

  async function read(uids: readonly string[]): Promise<readonly (readonly SessionEntry[])[]> {
    const replies = (await link.run(READ, uids.map(keyOf), [])) as readonly (readonly Buffer[])[];
    return uids.map((uid, place) => entriesOf(uid, replies[place] ?? []));
  }

  return {
    async login(session, incarnation, { claim, tokenHash, issuedS, isSecondary } = {}) {
      const { uid } = session;
      const order = claim !== undefined && "order" in claim ? claim.order : "";
      const label = claim !== undefined && "label" in claim ? claim.label : "";
      const proof = [
        ...(tokenHash === undefined ? [] : ["token", Buffer.from(tokenHash)]),
        ...(issuedS === undefined ? [] : ["jwt", issuedS]),
      ];
      // On a Redis Cluster, the script cannot read the message id counters, because they are in
      // other slots. Messages that are stored after the login have higher ids than `oldestId`.
      const oldestId = link.isCluster ? firstMessageId(clock() - COUNTERS_APART_MS) : 0;
      const args = [
        ...[uid, session.sessionId, incarnation, ...recordArgs(session)],
        ...[order, label, ...(proof.length === 0 ? ["none", ""] : proof), judgement],
        ...[isSecondary ? "secondary" : "any", bucketOfUser(uid), ...eventArgs()],
      ];
      const reply = await runFor(uid, (isAnnounced) =>
        link.run(LOGIN, [keyOf(uid), ...idKeys], [...args, isAnnounced]),
      );
      const [kind, ...fields] = reply as [Buffer, ...Buffer[]]; // but the groups are a list
      const result = kind.toString() as LoginResult["kind"];
      if (result === "unauthorized") return { kind: result };
      await Promise.all([flush(uid), result === "entered" ? relist(uid) : undefined]);
      if (result === "refused") return refusal(fields[0]);
      const [since, loginOrder, level, groups, newestId] = fields;
      return {
        kind: result,
        // The level that was passed in, the level that `putDevice` wrote, or 0.
        session: { ...session, level: Number(level) as DeviceLevel },
        since: Number(since),
        order: Number(loginOrder),
        groups: (groups as unknown as readonly Buffer[]).map(String),
        newestId: Math.max(oldestId, Number(newestId)),
      };
    },

    async removeSession({ uid, sessionId }, cause) {
      const args = [uid, sessionId, cause ?? "", bucketOfUser(uid), ...eventArgs()];
      const remove = () =>
        runFor(uid, (isAnnounced) => link.run(REMOVE, [keyOf(uid)], [...args, isAnnounced]));
      await remove();
      if (demand?.feed && cause !== undefined && KICK_REASONS.includes(cause))
        // If the replicas do not confirm the write, a fail-over may have undone the login that
        // ended the session, and lost the event. Repeating the script then writes the event.
        await waitForReplicas(keyOf(uid))?.catch(remove);
      await flush(uid);
    },

    async endSession({ uid, sessionId, level }, reason) {
      const args = [uid, sessionId, reason, level, bucketOfUser(uid), ...eventArgs()];
      await runFor(uid, (isAnnounced) => link.run(END, [keyOf(uid)], [...args, isAnnounced]));
      await flush(uid);
    },

    async confirmSessions(sessions, incarnation) {
      const calls: Promise<readonly Confirmation[]>[] = [];
      for (let at = 0; at < sessions.length; at += perCall)
        calls.push(confirm(sessions.slice(at, at + perCall), incarnation));
      return (await Promise.all(calls)).flat();
    },

    async setBackground({ uid, sessionId }, isBackground) {
      await link.run(STATE, [keyOf(uid)], [sessionId, isBackground ? 1 : 0]);
    },

    async sessionsOf(uids) {
      const reads: Promise<readonly (readonly SessionEntry[])[]>[] = [];
      for (const users of piecesOf(uids, perCall)) reads.push(read(users));
      return (await Promise.all(reads)).flat();
    },
  };
}

function recordArgs(session: SessionRecord): readonly Arg[] {
  return [session.flag, session.level, session.deviceId, session.tokenTag];
}

function confirmArgs({ session, since, order }: LoggedInSession, bucket: string): readonly Arg[] {
  const { uid, sessionId, tokenTag, isBackground } = session;
  // A tag other than `JWT_TAG` is the beginning of the hash of a registered token, or empty.
  const token = Buffer.from(tokenTag === JWT_TAG ? "" : tokenTag, "base64url");
  const background = isBackground ? 1 : "";
  return [uid, bucket, sessionId, ...recordArgs(session), token, since, order, background];
}

function readConfirmation(
  link: Pick<RedisLink, "errorOf">,
  [result, detail]: readonly Buffer[],
): Confirmation {
  const kind = String(result) as Confirmation["kind"];
  if (kind === "refused") return refusal(detail);
  if (kind === "confirmed") return { kind };
  return { kind, error: link.errorOf(CONFIRM, String(detail)) };
}

function refusal(reason: Buffer | undefined) {
  return {
    kind: "refused",
    // The reason comes from a script, or was passed to `endSession`.
    reason: String(reason) as CloseReason,
  } as const;
}

/**
 * Decodes the entries of a user's sessions. `fields` alternates between the id and the text of an
 * entry.
 */
function entriesOf(uid: string, fields: readonly Buffer[]): readonly SessionEntry[] {
  const entries: SessionEntry[] = [];
  for (let at = 1; at < fields.length; at += 2)
    entries.push(readEntry(uid, String(fields[at - 1]), String(fields[at])));
  return entries;
}

function readEntry(uid: string, sessionId: string, text: string): SessionEntry {
  const [, incarnation, since, flag, level, deviceId, tokenTag, order, , background] = JSON.parse(
    text,
  ) as [
    number,
    Incarnation,
    since: string,
    DeviceFlag,
    DeviceLevel,
    deviceId: string,
    tokenTag: string,
    order: string,
    expires: string,
    background?: 1,
  ];
  const nodeId = incarnation.slice(0, incarnation.lastIndexOf(":"));
  const session = { sessionId, nodeId, uid, flag, level, deviceId, tokenTag };
  return {
    session: background === 1 ? { ...session, isBackground: true } : session,
    incarnation,
    since: Number(since),
    order: Number(order),
  };
}
