// Ends sessions whose JWT has expired, and replaces the JWT of a session on its open connection.
// State: the time at which each session with a JWT ends.

import { BrokerError } from "../broker/errors.ts";
import type { Clock } from "../broker/ports.ts";
import type { SessionDirectory } from "../broker/session-directory.ts";
import type { Sessions } from "../broker/sessions.ts";
import type { TokenGate } from "../broker/token-gate.ts";
import { TimerWheel } from "../lib/timer-wheel.ts";
import type { Session } from "./session.ts";

interface ExpiryPorts {
  readonly sessions: Pick<Sessions, "refresh">;
  readonly tokens: Pick<TokenGate, "attempt">;
  readonly directory: Pick<SessionDirectory, "local">;
  readonly clock: Clock;
  /** Time after the expiry of a token until its session ends. */
  readonly toleranceS: number;
  /** Additional time for clients that cannot refresh their token. */
  readonly legacyGraceS: number;
}

export class CredentialExpiry {
  readonly #ports: ExpiryPorts;
  readonly #wheel = new TimerWheel<Session>((session) => session.end("token_expired"));

  constructor(ports: ExpiryPorts) {
    this.#ports = ports;
  }

  /** Ends the session some time after `expiresAtMs` (Unix milliseconds) unless it is refreshed. */
  start(session: Session, expiresAtMs: number): void {
    if (session.ended !== undefined) return;
    session.expiresAtMs = expiresAtMs;
    const { clock, toleranceS, legacyGraceS } = this.#ports;
    // Only clients of WuKongIM acknowledge messages. They cannot refresh their token.
    const graceS = session.codec.acknowledges ? toleranceS + legacyGraceS : toleranceS;
    this.#wheel.set(session, expiresAtMs - clock() + graceS * 1000);
  }

  /** Must be called when the connection of a session has closed. */
  stop(session: Session): void {
    this.#wheel.delete(session);
  }

  /**
   * Replaces the token of a session and returns the seconds until the new token expires. Throws the
   * errors of `Sessions.refresh`, and `rate_limited` after too many wrong tokens. A refused session
   * keeps its token, and ends when that expires.
   */
  async refresh(session: Session, token: string): Promise<number> {
    const { sessions, tokens, directory } = this.#ports;
    const record = directory.local(session.sessionId)?.session;
    if (record === undefined) throw new BrokerError("unavailable"); // the session has ended
    const { connection, uid } = session;
    const expiresAtMs = await tokens.attempt({ address: connection.remoteAddress, uid }, () =>
      sessions.refresh({ record, expiresAtMs: session.expiresAtMs }, token),
    );
    // A concurrent refresh may have set a later time.
    this.start(session, Math.max(expiresAtMs, session.expiresAtMs ?? 0));
    return this.expiresInS(session) ?? 0;
  }

  /** Returns the whole seconds until the token expires, `undefined` if it does not expire. */
  expiresInS({ expiresAtMs }: Session): number | undefined {
    if (expiresAtMs === undefined) return undefined;
    return Math.max(0, Math.floor((expiresAtMs - this.#ports.clock()) / 1000));
  }
}
