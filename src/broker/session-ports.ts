// What the domain asks of a store for sessions: the part of the Store port (`ports.ts`) that says who is logged in and where. Prose is contract, as
// there. Which of the incarnations that are named here live is the cluster's business.

import type { BrokerError, CloseReason } from "./errors.ts";
import type { SessionRecord } from "./model.ts";

/** One process of a node from start to death: `<node id>:<random>`. One that was declared dead never comes back; its process begins another. */
export type Incarnation = string;

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

/** What names a session to the store. */
export type SessionName = Pick<SessionRecord, "uid" | "sessionId">;

/** A session as a login entered it. Orders and sinces grow, per user. */
export interface LoggedIn {
  /** With the level that counts. */
  readonly session: SessionRecord;
  /** The place of its login among the logins of its uid and flag; a continued session has that of the session it continues. */
  readonly order: number;
  /** The place of its connection. */
  readonly since: number;
}

export type LoginResult =
  | ({ readonly kind: "entered" } & LoggedIn & {
        /** All groups that the user was in then, maybe others too: `ChannelStore.groupsAmong` says which. */
        readonly groups: readonly string[];
      })
  | {
      /** The session it claims to continue was ended: it is not in, and nothing changed. */
      readonly kind: "refused";
      readonly reason: CloseReason;
    }
  | {
      /** The user has no such device, or the device has another token: it is not in, and nothing changed. */
      readonly kind: "unauthorized";
    };

/** A session in the store. */
export interface SessionEntry extends LoggedIn {
  /** Which serves it. */
  readonly incarnation: Incarnation;
}

export type Confirmation =
  | { readonly kind: "confirmed" }
  | {
      /** It was ended, and is out. */
      readonly kind: "refused";
      readonly reason: CloseReason;
    }
  | {
      /** Whether it may go on could not be found out. */
      readonly kind: "failed";
      readonly error: BrokerError;
    };

/** Each step but `confirmSessions` is atomic, throws `unavailable` (it may have run or not), and publishes `presence` where it changes the user's sessions. */
export interface SessionStore {
  /**
   * Enters a session under `incarnation`, comparing its token and deciding which sessions it ends: every other main session of the same uid and flag
   * when it is a main one, any session of the same uid, flag and (non-empty) deviceId, and the session it continues. The ended ones are out when the
   * promise resolves; their nodes are notified to end them (`end_session`, published here only, once).
   *
   * Without a claim it is a login, later than all before. With one it continues an earlier session and keeps the order of its login: a main session
   * is refused when another device logged in later (whether or not that session is still in) or when it was ended by `endSession`. A claim that is
   * not known is a login [decisions: resume is no login]. A session that was entered by a token is in the answer of any `sessionsOf` that is called
   * after the device got another one.
   */
  login(
    session: SessionRecord,
    incarnation: Incarnation,
    terms?: LoginTerms,
  ): Promise<LoginResult>;
  /** Takes out a session that its node does not serve any more; harmless when it is not in. */
  removeSession(session: SessionName): Promise<void>;
  /**
   * Takes a session out and tells the node that serves it to end it (`end_session`): whichever node that is, and also when it is not in any more. A main
   * session that was in cannot be continued. Until it is removed, for a day at least, it cannot be confirmed either.
   */
  endSession(session: SessionRecord, reason: CloseReason): Promise<void>;
  /**
   * Whether sessions that logged in here and were not removed may go on, in order; each is a step of its own. `refused`: a login, `endSession`, or
   * the device's new token or logout ended it. Else it is in under `incarnation`, also where the store had lost it, and for as long as its node
   * confirms it once a minute. It never ends a session that logged in later. What cannot be done for one of them `failed`, and says nothing of the
   * others.
   */
  confirmSessions(
    sessions: readonly LoggedIn[],
    incarnation: Incarnation,
  ): Promise<readonly Confirmation[]>;
  /** The sessions of each user, those of dead incarnations among them. */
  sessionsOf(
    uids: readonly string[],
  ): Promise<readonly (readonly SessionEntry[])[]>;
}

/** The newest main login of a uid and flag. It outlives the session's entry: that a session is gone says nothing about later logins. */
export interface NewestLogin {
  readonly order: number;
  /** When its newest connection was entered, in the store's count. */
  readonly since: number;
  readonly deviceId: string;
  /** The client's own name for the login, until it has the server's; "" without one. */
  readonly label: string;
  /** Why it cannot be continued; undefined: it can. */
  readonly ended: CloseReason | undefined;
  /** Labels of earlier logins, oldest first. */
  readonly past: readonly string[];
}

/** A newest login is forgotten when nothing was heard of its session for so long: 30 days. */
export const LOGIN_TTL_MS = 30 * 86_400_000;
