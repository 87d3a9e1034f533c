// A session expires with its JWT, or at the time that the connect hook sets. Notifies sessions that
// expire soon, ends expired sessions, and replaces a session's JWT on its open connection. Owns the
// time of the next step for each session that expires.

import { BrokerError } from "../broker/errors.ts";
import type { ConnectHook } from "../broker/hooks.ts";
import {
  channelKey,
  EXPIRING_EVENT,
  MAIN_DEVICE,
  PERSON_CHANNEL,
  type SessionRecord,
  SYSTEM_UID,
} from "../broker/model.ts";
import type { Clock } from "../broker/ports.ts";
import { areSameRights, bothRights, type Rights } from "../broker/rights.ts";
import type { SessionDirectory } from "../broker/session-directory.ts";
import type { RefreshedToken, Sessions } from "../broker/sessions.ts";
import type { TokenGate } from "../broker/token-gate.ts";
import { TimerWheel } from "../lib/timer-wheel.ts";
import type { Session } from "./session.ts";

interface ExpiryPorts {
  readonly sessions: Pick<Sessions, "refresh">;
  readonly tokens: Pick<TokenGate, "attempt">;
  readonly directory: Pick<SessionDirectory, "local">;
  readonly clock: Clock;
  /** Time from a token's expiry to the end of its session. */
  readonly toleranceS: number;
  /** Additional time for clients that cannot refresh their token. */
  readonly legacyGraceS: number;
  /**
   * Called at each refresh, after the new token was verified. `undefined` if no hook is configured.
   */
  readonly connectHook?: ConnectHook | undefined;
  /** Called after a refresh has changed a session's rights. */
  rightsChanged(session: Session, former: Rights | undefined): void;
}

/**
 * `EXPIRING_EVENT` is pushed at a random time between these fractions of the token's remaining
 * life, so that clients whose tokens expire together do not refresh together.
 */
const EARLIEST = 0.8;
const LATEST = 0.9;

export class CredentialExpiry {
  readonly #ports: ExpiryPorts;
  readonly #wheel = new TimerWheel<Session>((session) => this.#due(session));

  constructor(ports: ExpiryPorts) {
    this.#ports = ports;
  }

  /**
   * Schedules the notification that the session expires soon, and the end of the session at
   * `expiresAtMs` (Unix milliseconds) plus the grace time (see `#endAfter`). A refresh of the
   * token replaces this schedule.
   */
  start(session: Session, expiresAtMs: number): void {
    if (session.ended !== undefined) return;
    session.expiresAtMs = expiresAtMs;
    const lifeMs = expiresAtMs - this.#ports.clock();
    // A client that acknowledges messages is a WuKongIM client. It is not notified, because it
    // cannot refresh its token.
    session.isExpiring = session.codec.acknowledges || lifeMs <= 0;
    if (session.isExpiring) this.#endAfter(session, expiresAtMs);
    else this.#wheel.set(session, lifeMs * (EARLIEST + (LATEST - EARLIEST) * Math.random()));
  }

  #endAfter(session: Session, expiresAtMs: number): void {
    const { clock, toleranceS, legacyGraceS } = this.#ports;
    const graceS = session.codec.acknowledges ? toleranceS + legacyGraceS : toleranceS;
    this.#wheel.set(session, expiresAtMs - clock() + graceS * 1000);
  }

  #due(session: Session): void {
    const { expiresAtMs } = session;
    if (session.isExpiring || expiresAtMs === undefined) return session.end("token_expired");
    session.isExpiring = true;
    this.#endAfter(session, expiresAtMs);
    // If the CONNACK has not been sent yet, no event is needed, because the CONNACK will contain
    // the expiry.
    if (session.hasConnack) this.#pushExpiring(session);
  }

  #pushExpiring(session: Session): void {
    const timestampMs = this.#ports.clock();
    const channel = { id: SYSTEM_UID, type: PERSON_CHANNEL } as const;
    const event = {
      ...{ key: channelKey(channel, session.uid), channel, fromUid: SYSTEM_UID, clientMsgNo: "" },
      ...{ eventId: `e${timestampMs.toString(36)}-${session.sessionId}`, type: EXPIRING_EVENT },
      data: JSON.stringify({ expiresInS: this.expiresInS(session) }),
      ...{ timestampMs, stream: undefined },
    };
    // `push` would drop the event if the session may not read its personal channels.
    session.pushFrames(session.codec.encodePush({ kind: "event", channel, event }));
  }

  /** Must be called when a session's connection has closed. */
  stop(session: Session): void {
    this.#wheel.delete(session);
  }

  /**
   * Replaces a session's token, and returns the seconds until the session expires, or `undefined`
   * if it no longer expires. Throws the errors of `Sessions.refresh` and of the hook, and
   * `rate_limited` if the token gate refuses the attempt. If a refresh is refused, the session
   * keeps its token and ends when that token expires. If several concurrent refreshes are accepted,
   * the refresh that began last sets the terms. Without a hook, a refresh never makes the session
   * expire earlier.
   */
  async refresh(session: Session, token: string): Promise<number | undefined> {
    const { sessions, tokens, directory } = this.#ports;
    const record = directory.local(session.sessionId)?.session;
    if (record === undefined) throw new BrokerError("unavailable"); // the session has ended
    const { connection, uid } = session;
    session.refreshes ??= { begun: 0, applied: 0 };
    const { refreshes } = session;
    refreshes.begun += 1;
    const number = refreshes.begun;
    const { connectHook } = this.#ports;
    const open = { record, expiresAtMs: session.expiresAtMs };
    const refreshed = await tokens.attempt({ address: connection.remoteAddress, uid }, () =>
      sessions.refresh({ ...open, mayBeDemoted: connectHook !== undefined }, token),
    );
    const terms =
      connectHook === undefined
        ? refreshed
        : await this.#restrict(session, { record, token, refreshed }, connectHook);
    // Without a hook, a refresh does not replace a later time that a concurrent refresh has set.
    const isEarlier =
      connectHook === undefined && (terms.expiresAtMs ?? 0) < (session.expiresAtMs ?? 0);
    if (number > refreshes.applied && !isEarlier) {
      refreshes.applied = number;
      this.#apply(session, terms);
    }
    return this.expiresInS(session);
  }

  #apply(session: Session, { expiresAtMs, rights }: RefreshedToken): void {
    this.#setRights(session, rights);
    if (expiresAtMs !== undefined) return this.start(session, expiresAtMs);
    session.expiresAtMs = undefined;
    this.stop(session);
  }

  #setRights(session: Session, rights: Rights | undefined): void {
    const former = session.rights;
    if (areSameRights(former, rights)) return;
    session.rights = rights;
    this.#ports.rightsChanged(session, former);
  }

  /** Returns the terms of the new token after the hook has restricted them. */
  async #restrict(
    session: Session,
    refresh: {
      readonly record: SessionRecord;
      readonly token: string;
      readonly refreshed: RefreshedToken;
    },
    connectHook: ConnectHook,
  ): Promise<RefreshedToken> {
    const { token, refreshed } = refresh;
    const { expiresAtMs = Number.POSITIVE_INFINITY, rights } = refreshed;
    const { uid, flag, deviceId, level } = refresh.record;
    const attempt = { uid, token, flag, deviceId, isRefresh: true };
    const restrictions = await connectHook.ask({ ...attempt, ...session.connectionFacts });
    if (restrictions.isSecondary && level === MAIN_DEVICE)
      throw new BrokerError("refused_by_hook", {
        message: "The backend no longer allows this session to be a main session. Connect again.",
      });
    const endsAtMs = Math.min(expiresAtMs, restrictions.expiresAtMs ?? Number.POSITIVE_INFINITY);
    return {
      expiresAtMs: Number.isFinite(endsAtMs) ? endsAtMs : undefined,
      rights: bothRights(rights, restrictions.rights),
    };
  }

  /** Returns the whole seconds until the session expires, or `undefined` if it does not expire. */
  expiresInS({ expiresAtMs }: Session): number | undefined {
    if (expiresAtMs === undefined) return undefined;
    return Math.max(0, Math.floor((expiresAtMs - this.#ports.clock()) / 1000));
  }
}
