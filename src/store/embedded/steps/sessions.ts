// The sessions of this process. They are only in memory, because no session outlives the process.
// Only the newest main logins are stored in the database.

import { timingSafeEqual } from "node:crypto";
import { type CloseReason, isTransient, KICK_REASONS } from "../../../broker/errors.ts";
import type { EventDemand } from "../../../broker/event-demand-ports.ts";
import type { EventDraft } from "../../../broker/event-ports.ts";
import {
  type Device,
  type DeviceFlag,
  type DeviceLevel,
  JWT_TAG,
  MAIN_DEVICE,
  SECONDARY_DEVICE,
  type SessionRecord,
  userTopic,
  withBackground,
} from "../../../broker/model.ts";
import type { OnlineStore } from "../../../broker/online-ports.ts";
import type {
  Clock,
  Confirmation,
  Incarnation,
  LoggedInSession,
  LoginResult,
  LoginTerms,
  NewestLogin,
  Publisher,
  SessionEntry,
  SessionRef,
  SessionStore,
} from "../../../broker/ports.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import type { KeyedLock } from "../../../lib/keyed-lock.ts";
import { andThen, type MaybePromise } from "../../../lib/maybe-promise.ts";
import { toBrokerError } from "../../lifecycle.ts";
import { commit, ensureDurable } from "../engine/database.ts";
import type { Purpose } from "../engine/disk-space.ts";
import type { EventLog } from "../engine/event-log.ts";
import type { Tables } from "../engine/tables.ts";
import type { EmbeddedChannels } from "./channels.ts";
import type { EventOutbox } from "./event-outbox.ts";
import { OnlineUsers } from "./online-users.ts";
import { decideLogin, type LoginDecision } from "./session-rules.ts";
import { type DeviceTable, type NewestLogins, userLock } from "./users.ts";

type Refused = Exclude<LoginResult, { readonly kind: "entered" }>;
type EnteredDecision = Extract<LoginDecision, { readonly kind: "entered" }>;

interface SessionPorts {
  readonly tables: Tables;
  readonly devices: DeviceTable;
  readonly channels: Pick<EmbeddedChannels, "groupsNow">;
  readonly appends: { readonly newestId: number };
  readonly logins: NewestLogins;
  readonly lock: KeyedLock;
  readonly events: Pick<EventLog, "isOn">;
  readonly outbox: Pick<EventOutbox, "transact">;
  readonly demand: { readonly current: EventDemand };
  readonly publisher: Publisher;
  readonly clock: Clock;
  readonly onError: (error: Error, what: string) => void;
}

const NO_ENTRIES: readonly SessionEntry[] = [];
const MAX_ENDED = 10_000;

export interface EmbeddedSessions extends Omit<SessionStore, "joinState">, OnlineStore {
  isEntered(session: SessionRef): boolean;
}

interface LeftSession {
  readonly session: SessionRecord;
  /** `undefined` if only the connection ended. */
  readonly reason: CloseReason | undefined;
}

export function createEmbeddedSessions(ports: SessionPorts): EmbeddedSessions {
  const { tables, devices, channels, appends, logins, lock, publisher, clock } = ports;
  const { events, outbox, demand, onError } = ports;
  const sessions = new Map<string, readonly SessionEntry[]>();
  const online = new OnlineUsers(ports, (uid) => sessions.has(uid));
  const ended = new BoundedMap<string, CloseReason>(MAX_ENDED);

  let lastUs = 0;

  /** Returns the time in microseconds. No two logins get the same time. */
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

  function find({ uid, sessionId }: SessionRef): SessionEntry | undefined {
    return entriesOf(uid).find((entry) => entry.session.sessionId === sessionId);
  }

  function newestOf(session: SessionRecord): NewestLogin | undefined {
    if (session.level !== MAIN_DEVICE) return undefined;
    return logins.get(session.uid, session.flag);
  }

  /** Stores a user's newest main login. Resolves before the login is on the disk. */
  function keepNewest(
    { uid, flag }: SessionRecord,
    login: NewestLogin,
    purpose?: Purpose,
  ): Promise<void> {
    const nowMs = clock();
    return commit(tables, () => logins.put(uid, flag, login, nowMs), purpose);
  }

  function remove(session: SessionRef, cause: CloseReason | undefined): MaybePromise<void> {
    const entry = find(session);
    if (entry === undefined) return;
    const { uid } = session;
    put(
      uid,
      entriesOf(uid).filter((other) => other !== entry),
    );
    publishPresence(uid, cause);
    return writeEvents(uid, undefined, [{ session: entry.session, reason: cause }]);
  }

  /**
   * Writes the events for a change to a user's sessions. Never rejects, because a login or logout
   * is valid even without its events. Returns `undefined` if there is nothing to write.
   */
  function writeEvents(
    uid: string,
    opened: SessionRecord | undefined,
    left: readonly LeftSession[],
  ): MaybePromise<void> {
    if (!events.isOn) return;
    const last = left.at(-1);
    if (!sessions.has(uid) && last !== undefined) online.left(uid, last.session.flag);
    const isNew = opened !== undefined && online.isNew(uid);
    const isOnDemand = demand.current.session;
    const kicked = left.filter(({ reason }) => reason && KICK_REASONS.includes(reason));
    if (!isNew && !isOnDemand && kicked.length === 0) return;
    const flags = entriesOf(uid).map(({ session }) => session.flag);
    return outbox
      .transact((emit) => {
        if (emit === undefined) return;
        if (isNew) online.put(uid, opened.flag, emit);
        for (const { session, reason } of kicked) emit(kickEvent(session, reason));
        if (!isOnDemand) return;
        if (opened !== undefined) emit(sessionEvent("session.opened", { session: opened, flags }));
        for (const { session, reason } of left)
          emit(sessionEvent("session.closed", { session, flags, reason }));
      })
      .catch((error: Error) => {
        if (!isTransient(error)) onError(error, "Could not write a session's events");
      });
  }

  function publishEnd({ uid, sessionId }: SessionRef, reason: CloseReason): void {
    ended.set(sessionId, reason);
    publisher.publish({ kind: "end_session", uid, sessionId, reason });
  }

  /**
   * Removes a session. If it belongs to the newest main login, that login cannot be continued
   * later, unless the reason is a ban. Does not wait until the removal is on the disk.
   */
  async function evict(session: SessionRef, reason: CloseReason) {
    const entry = find(session);
    if (entry === undefined) return;
    ended.set(session.sessionId, reason);
    const newest = newestOf(entry.session);
    if (newest !== undefined && entry.order === newest.order)
      // The row replaces a row of a similar size, so a session can be ended even on a full disk.
      await keepNewest(entry.session, { ...newest, ended: reason }, "reclaim");
    await remove(session, reason);
  }

  /**
   * Confirms a session, or removes it if a ban or the device's current token ends it. A session
   * that is not in memory has ended.
   */
  async function confirm({ session }: LoggedInSession): Promise<Confirmation> {
    const device = devices.get(session.uid, session.flag);
    const isBanned = devices.isBanned(session.uid);
    const reason = isBanned ? "banned" : endedByDevice(session, device);
    if (reason !== undefined) {
      await evict(session, reason); // need not be durable, because the ban or device is stored
      return { kind: "refused", reason };
    }
    if (find(session) !== undefined) return { kind: "confirmed" };
    return {
      kind: "refused",
      reason: ended.get(session.sessionId) ?? "unavailable",
    };
  }

  /**
   * Adds a session. Waits until a main login is on the disk, unless the login changes only times of
   * the newest main login, as a reconnect usually does.
   */
  function addLogin(
    requested: SessionRecord,
    incarnation: Incarnation,
    { claim, tokenHash, issuedS, isSecondary }: LoginTerms,
  ): MaybePromise<Refused | LoggedInSession> {
    const { uid, flag, sessionId } = requested;
    const needsDevice = tokenHash !== undefined || issuedS !== undefined;
    const device = needsDevice ? devices.get(uid, flag) : undefined;
    if (issuedS !== undefined && issuedS < (device?.revokedS ?? 0)) return { kind: "unauthorized" };
    const ownLevel = levelIfAuthorized(requested, tokenHash, device);
    if (ownLevel === undefined) return { kind: "unauthorized" };
    const level = isSecondary ? SECONDARY_DEVICE : ownLevel;
    if (devices.isBanned(uid)) return { kind: "refused", reason: "banned" };
    const session = level === requested.level ? requested : { ...requested, level };
    const newest = newestOf(session);
    const entries = entriesOf(uid).filter((other) => other.session.sessionId !== sessionId);
    const decision = decideLogin(session, claim, { entries, newest, now: nowUs() });
    if (decision.kind === "refused") return decision;
    if (decision.newest === undefined) return enterSession(decision, incarnation);
    const stored = keepNewest(session, decision.newest).then(() => ensureDurable(tables));
    if (!isSameLogin(decision.newest, newest))
      return stored.then(() => enterSession(decision, incarnation));
    // The failure is ignored: it only shortens the lifetime of the login, and a full disk must not
    // prevent a reconnect.
    stored.catch(() => {});
    return enterSession(decision, incarnation);
  }

  /** Adds the session and removes the sessions that it ends. */
  function enterSession(
    { entry, ended }: EnteredDecision,
    incarnation: Incarnation,
  ): MaybePromise<LoggedInSession> {
    const { session, order, since } = entry;
    const { uid, sessionId } = session;
    const removedIds = new Set([sessionId]);
    for (const { session } of ended) removedIds.add(session.sessionId);
    const staying = entriesOf(uid).filter((other) => !removedIds.has(other.session.sessionId));
    // `concat` allocates exactly the needed length, unlike a spread.
    put(uid, staying.concat({ session, order, since, incarnation }));
    for (const { session, reason } of ended) publishEnd(session, reason);
    publishPresence(uid);
    return andThen(writeEvents(uid, session, ended), () => entry);
  }

  return {
    login(requested, incarnation, terms = {}) {
      const entered = lock.run(userLock(requested.uid), () =>
        addLogin(requested, incarnation, terms),
      );
      return andThen(entered, (result) => {
        if ("kind" in result) return result;
        const newestId = appends.newestId;
        return andThen(channels.groupsNow(requested.uid), (groups) => {
          const { session, order, since } = result;
          return { kind: "entered", session, order, since, groups, newestId } as const;
        });
      });
    },

    isEntered: (session) => find(session) !== undefined,

    async removeSession(session, cause) {
      ended.delete(session.sessionId);
      await remove(session, cause);
    },

    endSession: (session, reason) =>
      lock.run(userLock(session.uid), async () => {
        await evict(session, reason);
        publishEnd(session, reason);
        await ensureDurable(tables); // last: a failing disk must not keep the session online
      }),

    confirmSessions: (entries) =>
      Promise.all(
        entries.map((entry) =>
          lock.run(userLock(entry.session.uid), () => confirm(entry)).catch(failure),
        ),
      ),

    async setBackground(session, isBackground) {
      const entries = entriesOf(session.uid).map((entry) =>
        entry.session.sessionId === session.sessionId
          ? { ...entry, session: withBackground(entry.session, isBackground) }
          : entry,
      );
      put(session.uid, entries);
    },

    sessionsOf: async (uids) => uids.map(entriesOf),
    takeOnline: (terms) => online.takeOnline(terms),
    endOnline: (uid, deadSessions, leftMs) => online.endOnline(uid, deadSessions, leftMs),
  };
}

function kickEvent(
  { uid, flag, deviceId }: SessionRecord,
  reason: CloseReason | undefined,
): EventDraft {
  const fields = { device_flag: flag, device_id: deviceId, reason };
  return { type: "session.kicked", key: userTopic(uid), messageSeq: 0, fields };
}

/**
 * Returns the event for a session. `flags` are the device flags of all of the user's current
 * sessions.
 */
function sessionEvent(
  type: "session.opened" | "session.closed",
  {
    session,
    flags,
    reason,
  }: {
    readonly session: SessionRecord;
    readonly flags: readonly DeviceFlag[];
    readonly reason?: CloseReason | undefined;
  },
): EventDraft {
  const { uid, flag, deviceId, sessionId } = session;
  return {
    ...{ type, key: userTopic(uid), messageSeq: 0 },
    fields: {
      ...{ device_flag: flag, device_id: deviceId, session_id: sessionId },
      device_online_count: flags.filter((other) => other === flag).length,
      total_online_count: flags.length,
      ...(reason === undefined ? {} : { reason }),
    },
  };
}

function failure(cause: unknown): Confirmation {
  return { kind: "failed", error: toBrokerError(cause) };
}

/**
 * Returns the level of the session: that of the registered device if a token is checked. Returns
 * `undefined` if the token does not match. The hash of a device that has logged out is empty, and
 * matches no token.
 */
function levelIfAuthorized(
  requested: SessionRecord,
  tokenHash: Uint8Array | undefined,
  device: Device | undefined,
): DeviceLevel | undefined {
  if (tokenHash === undefined) return requested.level;
  if (device === undefined || tokenHash.length === 0) return undefined;
  if (device.tokenHash.length !== tokenHash.length) return undefined;
  const isSame = timingSafeEqual(device.tokenHash, tokenHash);
  return isSame ? device.level : undefined;
}

/**
 * Returns the reason why the device's current token ends the session, or `undefined` if the session
 * may continue [decisions: /user/token again].
 */
function endedByDevice(
  { tokenTag, level }: SessionRecord,
  device: Device | undefined,
): CloseReason | undefined {
  // The tokens can be compared only if both the session and the device have a registered token.
  if (tokenTag === "" || tokenTag === JWT_TAG || device === undefined) return undefined;
  if (device.tokenHash.length === 0) return "logged_out";
  const tag = Buffer.from(tokenTag, "base64url"); // the first bytes of the token's hash
  const isSame = tag.equals(device.tokenHash.subarray(0, tag.length));
  return isSame || level !== MAIN_DEVICE ? undefined : "token_changed";
}

/** Returns true if the logins differ at most in `since`, which a crash may lose. */
function isSameLogin(next: NewestLogin, before: NewestLogin | undefined) {
  return (
    next.order === before?.order &&
    next.label === before.label &&
    next.deviceId === before.deviceId &&
    next.ended === before.ended
  );
}
