// The sessions of this process. They are only in memory, because no session outlives the process.
// Only the newest main logins are stored in the database.

import { timingSafeEqual } from "node:crypto";
import type { CloseReason } from "../../../broker/errors.ts";
import {
  type Device,
  type DeviceLevel,
  MAIN_DEVICE,
  type SessionRecord,
} from "../../../broker/model.ts";
import type {
  ChannelStore,
  Clock,
  Confirmation,
  Incarnation,
  LoggedInSession,
  LoginResult,
  LoginTerms,
  NewestLogin,
  Publisher,
  SessionEntry,
  SessionName,
  SessionStore,
  UserStore,
} from "../../../broker/ports.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import type { KeyedLock } from "../../../lib/keyed-lock.ts";
import { toBrokerError } from "../../lifecycle.ts";
import { persist } from "../engine/database.ts";
import type { Tables } from "../engine/tables.ts";
import { decideLogin } from "./session-rules.ts";
import { type NewestLogins, userLock } from "./users.ts";

type EnteredResult = Extract<LoginResult, { readonly kind: "entered" }>;

interface SessionPorts {
  readonly tables: Tables;
  readonly users: Pick<UserStore, "device" | "isBanned">;
  readonly channels: Pick<ChannelStore, "groupsOf">;
  readonly logins: NewestLogins;
  readonly lock: KeyedLock;
  readonly publisher: Publisher;
  readonly clock: Clock;
}

const NO_ENTRIES: readonly SessionEntry[] = [];
const MAX_ENDED = 10_000;

export function createSessions(ports: SessionPorts): SessionStore {
  const { tables, users, channels, logins, lock, publisher, clock } = ports;
  const sessions = new Map<string, readonly SessionEntry[]>();
  const ended = new BoundedMap<string, CloseReason>(MAX_ENDED);

  let lastUs = 0;

  /** Two logins must not get the same time, and the clock may be set back. */
  function nowUs(): number {
    lastUs = Math.max(clock() * 1000, lastUs + 1);
    return lastUs;
  }

  const entriesOf = (uid: string) => sessions.get(uid) ?? NO_ENTRIES;

  function put(uid: string, entries: readonly SessionEntry[]): void {
    if (entries.length > 0) sessions.set(uid, entries);
    else sessions.delete(uid);
  }

  function publishPresence(uid: string, cause?: CloseReason): void {
    publisher.publish({ kind: "presence", uid, cause });
  }

  function find({ uid, sessionId }: SessionName): SessionEntry | undefined {
    return entriesOf(uid).find((entry) => entry.session.sessionId === sessionId);
  }

  function newestOf(session: SessionRecord): NewestLogin | undefined {
    if (session.level !== MAIN_DEVICE) return undefined;
    return logins.get(session.uid, session.flag);
  }

  function keep({ uid, flag }: SessionRecord, login: NewestLogin): Promise<void> {
    const nowMs = clock();
    return persist(tables, () => logins.put(uid, flag, login, nowMs));
  }

  function remove(session: SessionName, cause: CloseReason | undefined): void {
    const entry = find(session);
    if (entry === undefined) return;
    const { uid } = session;
    put(
      uid,
      entriesOf(uid).filter((other) => other !== entry),
    );
    publishPresence(uid, cause);
  }

  function publishEnd(name: SessionName, reason: CloseReason): void {
    const { uid, sessionId } = name;
    ended.set(sessionId, reason);
    publisher.publish({ kind: "end_session", uid, sessionId, reason });
  }

  /**
   * Removes a session. If it belongs to the newest main login, that login cannot be continued
   * later, unless the reason is a ban.
   */
  async function evict(session: SessionName, reason: CloseReason) {
    const entry = find(session);
    if (entry === undefined) return;
    ended.set(session.sessionId, reason);
    const newest = newestOf(entry.session);
    if (newest !== undefined && entry.order === newest.order)
      await keep(entry.session, { ...newest, ended: reason });
    remove(session, reason);
  }

  /** A session that is not in memory was ended. */
  async function confirm({ session }: LoggedInSession): Promise<Confirmation> {
    const device = await users.device(session.uid, session.flag);
    const isBanned = await users.isBanned(session.uid);
    const reason = isBanned ? "banned" : endedByDevice(session, device);
    if (reason !== undefined) {
      await evict(session, reason);
      return { kind: "refused", reason };
    }
    if (find(session) !== undefined) return { kind: "confirmed" };
    return {
      kind: "refused",
      reason: ended.get(session.sessionId) ?? "unavailable",
    };
  }

  async function enter(
    requested: SessionRecord,
    incarnation: Incarnation,
    { claim, tokenHash }: LoginTerms = {},
  ): Promise<Exclude<LoginResult, EnteredResult> | Omit<EnteredResult, "groups">> {
    const { uid, flag, sessionId } = requested;
    return lock.run(userLock(uid), async () => {
      const device = tokenHash === undefined ? undefined : await users.device(uid, flag);
      const level = levelOf(requested, tokenHash, device);
      if (level === undefined) return { kind: "unauthorized" };
      if (await users.isBanned(uid)) return { kind: "refused", reason: "banned" };
      const session = level === requested.level ? requested : { ...requested, level };
      const newest = newestOf(session);
      const entries = entriesOf(uid).filter((other) => other.session.sessionId !== sessionId);
      const decision = decideLogin(session, claim, { entries, newest, now: nowUs() });
      if (decision.kind === "refused") return decision;
      if (decision.newest !== undefined) {
        const stored = keep(session, decision.newest);
        if (isSameLogin(decision.newest, newest))
          // A failure only shortens the lifetime of the login. A full disk must not prevent a
          // reconnect.
          stored.catch(() => {});
        else await stored;
      }
      const removedIds = new Set([sessionId]);
      for (const { session } of decision.ended) removedIds.add(session.sessionId);
      const staying = entriesOf(uid).filter((other) => !removedIds.has(other.session.sessionId));
      const { order, since } = decision.entry;
      // A spread would give each entry a hidden class of its own.
      const entry = { session, order, since, incarnation };
      // `concat` allocates exactly the needed length, unlike a spread.
      put(uid, staying.concat(entry));
      for (const { session, reason } of decision.ended) publishEnd(session, reason);
      publishPresence(uid);
      return { kind: "entered", ...decision.entry };
    });
  }

  return {
    async login(requested, incarnation, terms) {
      const entered = await enter(requested, incarnation, terms);
      if (entered.kind !== "entered") return entered;
      return { ...entered, groups: await channels.groupsOf(requested.uid) };
    },

    async removeSession(session, cause) {
      ended.delete(session.sessionId);
      remove(session, cause);
    },

    endSession: (session, reason) =>
      lock.run(userLock(session.uid), async () => {
        await evict(session, reason);
        publishEnd(session, reason);
      }),

    confirmSessions: (entries) =>
      Promise.all(
        entries.map((entry) =>
          lock.run(userLock(entry.session.uid), () => confirm(entry)).catch(failure),
        ),
      ),

    sessionsOf: async (uids) => uids.map(entriesOf),
  };
}

function failure(cause: unknown): Confirmation {
  return { kind: "failed", error: toBrokerError(cause) };
}

function levelOf(
  requested: SessionRecord,
  tokenHash: Uint8Array | undefined,
  device: Device | undefined,
): DeviceLevel | undefined {
  if (tokenHash === undefined) return requested.level;
  // The token hash of a logged-out device is empty.
  if (device === undefined || tokenHash.length === 0) return undefined;
  if (device.tokenHash.length !== tokenHash.length) return undefined;
  const isSame = timingSafeEqual(device.tokenHash, tokenHash);
  return isSame ? device.level : undefined;
}

/** Returns why the current token of the device ends the session [decisions: /user/token again]. */
function endedByDevice(
  { tokenTag, level }: SessionRecord,
  device: Device | undefined,
): CloseReason | undefined {
  if (tokenTag === "" || device === undefined) return undefined; // no token to compare
  if (device.tokenHash.length === 0) return "logged_out";
  const tag = Buffer.from(tokenTag, "base64url"); // the first bytes of the token's hash
  const isSame = tag.equals(device.tokenHash.subarray(0, tag.length));
  return isSame || level !== MAIN_DEVICE ? undefined : "token_changed";
}

function isSameLogin(next: NewestLogin, before: NewestLogin | undefined) {
  return (
    next.order === before?.order &&
    next.label === before.label &&
    next.deviceId === before.deviceId &&
    next.ended === before.ended
  );
}
