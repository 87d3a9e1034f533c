// Logs in the session for a CONNECT. The store decides whether the session is accepted, and which
// other sessions it ends. The hub closes the sockets of the ended sessions.

import type { Claims, Credentials, Proof } from "./credentials.ts";
import { BrokerError, type CloseReason } from "./errors.ts";
import type { Restrictions } from "./hooks.ts";
import { assertUserUid } from "./ids.ts";
import {
  type DeviceFlag,
  type DeviceLevel,
  isId,
  JWT_TAG,
  SECONDARY_DEVICE,
  type SessionRecord,
} from "./model.ts";
import type { UserStore } from "./ports.ts";
import { bothRights, type Rights } from "./rights.ts";
import type { SessionDirectory } from "./session-directory.ts";
import { claimIn } from "./session-names.ts";
import { hashesEqual, tokenTag } from "./tokens.ts";

export interface Login {
  readonly sessionId: string;
  readonly nodeId: string;
  readonly uid: string;
  readonly token: string;
  readonly flag: DeviceFlag;
  /** Device id chosen by the client. An empty id matches no other session. */
  readonly deviceId: string;
  /**
   * Device level chosen by the client. Used only if neither a JWT nor a registered device
   * determines the level.
   */
  readonly level: DeviceLevel | undefined;
  /** Name of the session to continue, or a name chosen for this login. "" if there is neither. */
  readonly sessionName: string;
  /** `undefined` if there is no connect hook. */
  readonly restrictions?: Restrictions | undefined;
}

/** Outcome of a login whose credential is valid. */
export type LoginOutcome =
  | {
      readonly kind: "entered";
      readonly record: SessionRecord;
      readonly order: number;
      readonly groups: readonly string[];
      readonly newestId: number;
      /** Unix milliseconds at which the session expires. `undefined` if it does not expire. */
      readonly expiresAtMs?: number | undefined;
      /** Rights of the session. `undefined` if the session has all rights of its user. */
      readonly rights?: Rights | undefined;
    }
  | {
      /** The session cannot be continued, and the client must not reconnect automatically. */
      readonly kind: "refused";
      readonly reason: CloseReason;
    };

export interface Sessions {
  /**
   * Logs a session in. A login of a main device ends the user's other main sessions of that flag as
   * `kicked`. Every login ends earlier sessions of the same device as `replaced` [decisions: Kick
   * rule, resume is no login]. Throws `unauthorized`, `token_expired`, `banned`, `reserved_uid`,
   * `bad_id` or `unavailable`.
   */
  logIn(login: Login): Promise<LoginOutcome>;
  /**
   * Verifies a login's credential before a hook is called. Throws the same errors as `logIn`,
   * except `banned`.
   */
  verify(login: Pick<Login, "uid" | "token" | "flag" | "deviceId">): Promise<void>;
  /**
   * Replaces the JWT of an open session with a later JWT of the same uid, device flag and level.
   * The device id must also be the same if the new JWT contains a device id. A session whose expiry
   * was set by a hook may have a registered token instead of a JWT. `token` must then be that
   * token. A refresh is not a login: it ends no session and keeps the order of logins. Throws
   * `bad_request` if the session does not expire, and also `unauthorized`, `token_expired` or
   * `unavailable`. If the call throws, the session keeps its token.
   */
  refresh(session: OpenSession, token: string): Promise<RefreshedToken>;
}

/** Terms of a token that has replaced an earlier token. */
export interface RefreshedToken {
  /** Unix milliseconds at which the token expires. `undefined` if the token is not a JWT. */
  readonly expiresAtMs: number | undefined;
  /** Rights of the session, as in `LoginOutcome`. */
  readonly rights: Rights | undefined;
}

const UNLIMITED: RefreshedToken = { expiresAtMs: undefined, rights: undefined };

interface OpenSession {
  readonly record: SessionRecord;
  readonly expiresAtMs: number | undefined;
  /** True if a hook may have made the session secondary. Such a session stays secondary. */
  readonly mayBeDemoted?: boolean;
}

export function createSessions({
  directory,
  credentials,
  store,
}: {
  readonly directory: Pick<SessionDirectory, "login">;
  readonly credentials: Credentials;
  readonly store: Pick<UserStore, "device">;
}): Sessions {
  return {
    async logIn(login) {
      const { level, sessionName, restrictions } = login;
      assertNames(login);
      const proving = credentials.prove(login);
      const proof = proving instanceof Promise ? await proving : proving;
      const tokenHash = proof.kind === "token" ? proof.tokenHash : undefined;
      const claims = proof.kind === "jwt" ? proof.claims : undefined;
      // The object is written field by field, because V8 stores the result of a spread in a slower
      // and larger form.
      const requested: SessionRecord = {
        sessionId: login.sessionId,
        nodeId: login.nodeId,
        uid: login.uid,
        flag: login.flag,
        level: restrictions?.isSecondary
          ? SECONDARY_DEVICE
          : (claims?.level ?? level ?? SECONDARY_DEVICE),
        deviceId: claims?.deviceId || login.deviceId,
        tokenTag: tagOf(proof),
      };
      const claim = claimIn(sessionName);
      const result = await directory.login(requested, {
        ...{ claim, tokenHash },
        issuedS: claims?.issuedS,
        isSecondary: restrictions?.isSecondary,
      });
      switch (result.kind) {
        case "unauthorized":
          throw tokenHash === undefined
            ? credentials.revoked()
            : await credentials.mismatch(login, tokenHash);
        case "refused":
          if (result.reason === "banned") throw new BrokerError("banned");
          return { kind: "refused", reason: result.reason };
        case "entered": {
          const { session, order, groups, newestId } = result;
          const expiresAtMs = earlierOf(claims?.expiresAtMs, restrictions?.expiresAtMs);
          const rights = bothRights(claims?.rights, restrictions?.rights);
          return { kind: "entered", record: session, order, groups, newestId, expiresAtMs, rights };
        }
      }
    },

    async verify(login) {
      assertNames(login);
      const { uid, flag } = login;
      const proof = await credentials.prove(login);
      if (proof.kind === "none") return;
      const device = await store.device(uid, flag);
      if (proof.kind === "jwt") return credentials.assertNotRevoked(proof.claims, device);
      if (device === undefined || !hashesEqual(device.tokenHash, proof.tokenHash))
        throw await credentials.mismatch(login, proof.tokenHash);
    },

    async refresh({ record, expiresAtMs, mayBeDemoted = false }, token) {
      if (expiresAtMs === undefined)
        throw new BrokerError("bad_request", {
          message: "The session does not expire, so its token cannot be refreshed",
        });
      const { uid, flag, tokenTag } = record;
      const proof = await credentials.prove({ uid, flag, token });
      if (
        tagOf(proof) !== tokenTag ||
        (proof.kind === "jwt" && !continuesWith(record, proof.claims, mayBeDemoted))
      )
        throw new BrokerError("unauthorized", {
          message:
            "The token does not match the uid, device flag, device level and device id of the session",
        });
      if (proof.kind === "none") return UNLIMITED;
      const device = await store.device(uid, flag);
      if (proof.kind === "token") {
        if (device !== undefined && hashesEqual(device.tokenHash, proof.tokenHash))
          return UNLIMITED;
        throw await credentials.mismatch(record, proof.tokenHash);
      }
      credentials.assertNotRevoked(proof.claims, device);
      if (proof.claims.expiresAtMs < expiresAtMs)
        throw new BrokerError("unauthorized", {
          message: "The token expires earlier than the token that it would replace",
        });
      return proof.claims;
    },
  };
}

function assertNames({ uid, deviceId }: Pick<Login, "uid" | "deviceId">): void {
  assertUserUid(uid);
  if (deviceId !== "" && !isId(deviceId))
    throw new BrokerError("bad_id", {
      message: "deviceId must have at most 128 characters, no control characters and none of @ # &",
    });
}

function earlierOf(a: number | undefined, b: number | undefined): number | undefined {
  return a === undefined || b === undefined ? (a ?? b) : Math.min(a, b);
}

function tagOf(proof: Proof): string {
  if (proof.kind === "none") return "";
  return proof.kind === "jwt" ? JWT_TAG : tokenTag(proof.tokenHash);
}

function continuesWith(
  { level, deviceId }: SessionRecord,
  claims: Claims,
  mayBeDemoted: boolean,
): boolean {
  const isSameLevel = claims.level === level || (mayBeDemoted && level === SECONDARY_DEVICE);
  return isSameLevel && (claims.deviceId === "" || claims.deviceId === deviceId);
}
