// The sessions of this process: they are in memory, because none outlives it. Only the newest
// logins are kept. State: sessions by uid, and why those were ended that nobody has taken out
// since.

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
import { place } from "./session-rules.ts";
import { type NewestLogins, userLock } from "./users.ts";

type Entered = Extract<LoginResult, { readonly kind: "entered" }>;

interface SessionParts {
  readonly tables: Tables;
  readonly users: Pick<UserStore, "device">;
  readonly channels: Pick<ChannelStore, "groupsOf">;
  readonly logins: NewestLogins;
  readonly lock: KeyedLock;
  readonly publisher: Publisher;
  readonly clock: Clock;
}

const NO_ENTRIES: readonly SessionEntry[] = [];
/** Ended sessions that their connections have not left yet. */
const MAX_ENDED = 10_000;

export function createSessions(parts: SessionParts): SessionStore {
  const { tables, users, channels, logins, lock, publisher, clock } = parts;
  const sessions = new Map<string, readonly SessionEntry[]>();
  const ended = new BoundedMap<string, CloseReason>(MAX_ENDED);

  let lastUs = 0;

  /**
   * Microseconds, each time later: a session that left may have logged in just now, or the clock
   * went back.
   */
  function nowUs(): number {
    lastUs = Math.max(clock() * 1000, lastUs + 1);
    return lastUs;
  }

  const entriesOf = (uid: string) => sessions.get(uid) ?? NO_ENTRIES;

  function put(uid: string, entries: readonly SessionEntry[]): void {
    if (entries.length > 0) sessions.set(uid, entries);
    else sessions.delete(uid);
  }

  function publishPresence(uid: string): void {
    publisher.publish({ kind: "presence", uid });
  }

  function find({ uid, sessionId }: SessionName): SessionEntry | undefined {
    return entriesOf(uid).find((one) => one.session.sessionId === sessionId);
  }

  function newestOf(session: SessionRecord): NewestLogin | undefined {
    if (session.level !== MAIN_DEVICE) return undefined;
    return logins.get(session.uid, session.flag);
  }

  function keep({ uid, flag }: SessionRecord, login: NewestLogin): Promise<void> {
    const nowMs = clock();
    return persist(tables, () => logins.put(uid, flag, login, nowMs));
  }

  function remove(session: SessionName): void {
    const entry = find(session);
    if (entry === undefined) return;
    const { uid } = session;
    put(
      uid,
      entriesOf(uid).filter((one) => one !== entry),
    );
    publishPresence(uid);
  }

  function publishEnd(name: SessionName, reason: CloseReason): void {
    const { uid, sessionId } = name;
    ended.set(sessionId, reason);
    publisher.publish({ kind: "end_session", uid, sessionId, reason });
  }

  /** Takes a session out that cannot be continued then, if it is a main one. */
  async function takeOut(session: SessionName, reason: CloseReason) {
    const entry = find(session);
    if (entry === undefined) return;
    ended.set(session.sessionId, reason);
    const newest = newestOf(entry.session);
    if (newest !== undefined && entry.order === newest.order)
      await keep(entry.session, { ...newest, ended: reason });
    remove(session);
  }

  /** Nothing is lost in memory: a session that is not in was ended. */
  async function confirm({ session }: LoggedInSession): Promise<Confirmation> {
    const device = await users.device(session.uid, session.flag);
    const reason = endedByDevice(session, device);
    if (reason !== undefined) {
      await takeOut(session, reason);
      return { kind: "refused", reason };
    }
    if (find(session) !== undefined) return { kind: "confirmed" };
    return {
      kind: "refused",
      reason: ended.get(session.sessionId) ?? "unavailable",
    };
  }

  async function enter(
    asked: SessionRecord,
    incarnation: Incarnation,
    { claim, tokenHash }: LoginTerms = {},
  ): Promise<Exclude<LoginResult, Entered> | Omit<Entered, "groups">> {
    const { uid, flag, sessionId } = asked;
    return lock.run(userLock(uid), async () => {
      const device = tokenHash === undefined ? undefined : await users.device(uid, flag);
      const level = levelOf(asked, tokenHash, device);
      if (level === undefined) return { kind: "unauthorized" };
      const session = level === asked.level ? asked : { ...asked, level };
      const newest = newestOf(session);
      const entries = entriesOf(uid).filter((other) => other.session.sessionId !== sessionId);
      const placed = place(session, claim, { entries, newest, now: nowUs() });
      if (placed.kind === "refused") return placed;
      if (placed.newest !== undefined) {
        const kept = keep(session, placed.newest);
        if (isSameLogin(placed.newest, newest))
          kept.catch(() => {}); // only a later end of its time is lost: a full disk keeps nobody from reconnecting
        else await kept;
      }
      const gone = new Set([sessionId]);
      for (const { session } of placed.ended) gone.add(session.sessionId);
      const staying = entriesOf(uid).filter((other) => !gone.has(other.session.sessionId));
      const { order, since } = placed.entry;
      const entry = { session, order, since, incarnation }; // a spread would give each entry a hidden class of its own
      put(uid, staying.concat(entry)); // exactly as long as needed, unlike a spread
      for (const { session, reason } of placed.ended) publishEnd(session, reason);
      publishPresence(uid);
      return { kind: "entered", ...placed.entry };
    });
  }

  return {
    async login(asked, incarnation, terms) {
      const entered = await enter(asked, incarnation, terms);
      if (entered.kind !== "entered") return entered;
      return { ...entered, groups: await channels.groupsOf(asked.uid) };
    },

    async removeSession(session) {
      ended.delete(session.sessionId);
      remove(session);
    },

    endSession: (session, reason) =>
      lock.run(userLock(session.uid), async () => {
        await takeOut(session, reason);
        publishEnd(session, reason);
      }),

    confirmSessions: (all) =>
      Promise.all(
        all.map((one) => lock.run(userLock(one.session.uid), () => confirm(one)).catch(failure)),
      ),

    sessionsOf: async (uids) => uids.map(entriesOf),
  };
}

function failure(cause: unknown): Confirmation {
  return { kind: "failed", error: toBrokerError(cause) };
}

/** The level that counts; undefined: the device does not have the token. */
function levelOf(
  asked: SessionRecord,
  tokenHash: Uint8Array | undefined,
  device: Device | undefined,
): DeviceLevel | undefined {
  if (tokenHash === undefined) return asked.level;
  if (device === undefined || tokenHash.length === 0) return undefined; // that of a device that logged out is empty
  if (device.tokenHash.length !== tokenHash.length) return undefined;
  const isSame = timingSafeEqual(device.tokenHash, tokenHash);
  return isSame ? device.level : undefined;
}

/**
 * Why a session may not go on as far as its device decides; undefined: it may [decisions:
 * /user/token again].
 */
function endedByDevice(
  { tokenTag, level }: SessionRecord,
  device: Device | undefined,
): CloseReason | undefined {
  if (tokenTag === "" || device === undefined) return undefined; // it needed none
  if (device.tokenHash.length === 0) return "logged_out";
  const tag = Buffer.from(tokenTag, "base64url"); // how the token's hash begins
  const isSame = tag.equals(device.tokenHash.subarray(0, tag.length));
  return isSame || level !== MAIN_DEVICE ? undefined : "token_changed";
}

/** A reconnect of it changed nothing that a later decision needs. */
function isSameLogin(next: NewestLogin, before: NewestLogin | undefined) {
  return (
    next.order === before?.order &&
    next.label === before.label &&
    next.deviceId === before.deviceId &&
    next.ended === before.ended
  );
}
