// What the domain asks of a cluster for sessions: the part of the Cluster port (`ports.ts`) that knows who is online where. Prose is contract, as
// there.

import type { CloseReason } from "./errors.ts";
import type { DeviceFlag, Presence, SessionRecord } from "./model.ts";

/** What a CONNECT says about the session it continues. */
export type Claim =
  | {
      /** A name the server gave: the order of its login. */
      readonly order: number;
    }
  | {
      /** Any other name: one the client chose for its login and repeats until it has the server's. */
      readonly label: string;
    };

/** On which terms a session asks to be entered. */
export interface LoginTerms {
  /** The session it continues; undefined: it is a login. */
  readonly claim?: Claim | undefined;
  /** Of the token that its device must have; the session then has the device's level. Undefined: it needs none. */
  readonly tokenHash?: Uint8Array | undefined;
}

/** What names a session to the directory. */
export type SessionName = Pick<SessionRecord, "uid" | "sessionId">;

export type Registration =
  | {
      readonly kind: "entered";
      /** As it was entered: with the level that counts. */
      readonly session: SessionRecord;
      /** The place of its login among the logins of its uid and flag; a continued session has that of the session it continues. */
      readonly order: number;
    }
  | {
      /** The session it claims to continue was ended: it is not in, and nothing changed. */
      readonly kind: "refused";
      readonly reason: CloseReason;
    }
  | {
      /** The user has no such device, or the device has another token: it is not in, and nothing changed. */
      readonly kind: "unauthorized";
    };

export interface SessionDirectory {
  /**
   * Enters a session, atomically comparing its token and deciding which sessions it ends: every other main session of the same uid and flag when it is a
   * main one, any session of the same uid, flag and (non-empty) deviceId, and the session it continues. The ended ones are out of the directory when
   * the promise resolves; their nodes are told to end them (`end_session`).
   *
   * Without a claim it is a login, later than all before. With one it continues an earlier session and keeps the order of its login: a main session
   * is refused when another device logged in later (whether or not that session is still in) or when it was ended by `end`. A claim that is not
   * known is a login [decisions: resume is no login]. A session that was entered by a token is in the answer of any `sessionsOf` that is called after
   * the device got another one.
   *
   * This and the two steps below publish `presence` where they change the user's sessions.
   */
  register(session: SessionRecord, terms?: LoginTerms): Promise<Registration>;
  /** Takes a session out; harmless when it is not in. */
  unregister(session: SessionRecord): Promise<void>;
  /**
   * Takes a session out and tells the node that serves it to end it (`end_session`), in one step: whichever node that is, and also when it is not
   * in any more. A main session that was in cannot be continued. Throws `unavailable`: all happened or nothing.
   */
  end(session: SessionRecord, reason: CloseReason): Promise<void>;
  /** Why a session that this node registered may not go on: a later login, or `end`. Undefined: it may, or it is not known. Throws `unavailable`. */
  endedBy(session: SessionName): Promise<CloseReason | undefined>;
  sessionsOf(uid: string): Promise<readonly SessionRecord[]>;
  /** One record per uid, in order, duplicates included. */
  presence(uids: readonly string[]): Promise<readonly Presence[]>;
}

/** The newest main login of a uid and flag. It outlives the session's entry: that a session is gone says nothing about later logins. */
export interface NewestLogin {
  readonly order: number;
  /** When its newest connection was entered, in the directory's count. */
  readonly since: number;
  readonly deviceId: string;
  /** The client's own name for the login, until it has the server's; "" without one. */
  readonly label: string;
  /** Why it cannot be continued; undefined: it can. */
  readonly ended: CloseReason | undefined;
  /** Labels of earlier logins, oldest first. */
  readonly past: readonly string[];
}

/** Where a directory without storage of its own keeps the newest logins, so that they survive a restart. */
export interface LoginStore {
  newestLogin(uid: string, flag: DeviceFlag): Promise<NewestLogin | undefined>;
  /** Durable when it resolves; kept for `LOGIN_TTL_MS`. */
  putNewestLogin(
    uid: string,
    flag: DeviceFlag,
    login: NewestLogin,
  ): Promise<void>;
}

/** A newest login is forgotten when nothing was heard of its session for so long: 30 days. */
export const LOGIN_TTL_MS = 30 * 86_400_000;
