// Checks a client's credential as far as possible without the store: determines whether a token is
// a JWT, and checks the claims of a JWT. The store checks registered tokens. After a refusal,
// `mismatch` finds the device flag for which the token is registered. State: the header of the
// latest JWT.

import type { MaybePromise } from "../lib/maybe-promise.ts";
import { BrokerError } from "./errors.ts";
import {
  DEVICE_FLAGS,
  type Device,
  type DeviceFlag,
  type DeviceLevel,
  SYSTEM_UID,
} from "./model.ts";
import type { UserStore } from "./ports.ts";
import type { Rights } from "./rights.ts";
import { hashesEqual, hashToken } from "./tokens.ts";

/** How clients authenticate [config: auth.clients]. */
export type ClientAuth = "token" | "jwt" | "token+jwt" | "none";

/** Claims of a valid JWT. */
export interface Claims {
  readonly uid: string;
  /** Device flag, or `undefined` if the token is valid for all of the user's devices. */
  readonly flag: DeviceFlag | undefined;
  readonly level: DeviceLevel;
  /** Device id that replaces the id in CONNECT, or "" if the token contains no id. */
  readonly deviceId: string;
  /**
   * Unix seconds at which the token was issued. If the token does not contain this time, the value
   * is the earliest time at which a token that is valid now can have been issued.
   */
  readonly issuedS: number;
  /** Unix milliseconds at which the token expires, without the tolerance for clock differences. */
  readonly expiresAtMs: number;
  /** Rights of a session with the token. `undefined` if the token restricts nothing. */
  readonly rights: Rights | undefined;
}

export interface JwtVerifier {
  /**
   * Returns the claims of a token if its signature and claims are valid now. Throws or rejects with
   * `unauthorized`, or with `token_expired` if the token has expired but is otherwise valid. Throws
   * or rejects with `unavailable` if the token's key is not known yet, or if the known keys have
   * exceeded their maximum age.
   */
  verify(token: string): MaybePromise<Claims>;
  /** Counts a token that was refused because its device was logged out. */
  countRevoked(): void;
}

interface Bearer {
  readonly uid: string;
  readonly flag: DeviceFlag;
  readonly token: string;
}

/** A user's token that was used with the wrong device flag. */
export interface WrongFlag {
  readonly uid: string;
  /** Flag with which the token was used. */
  readonly flag: DeviceFlag;
  /** Flag for which the token is registered, or the flag in the JWT's claims. */
  readonly tokenFlag: DeviceFlag;
}

interface WrongFlagPorts {
  readonly store: Pick<UserStore, "device">;
  /**
   * True if the error message may name the token's flag. Set only if the HTTP API needs no
   * credential (protected mode).
   */
  readonly isNamedToClient: boolean;
  report(wrongFlag: WrongFlag): void;
}

/** The facts that a credential proves before the store is read. */
export type Proof =
  | { readonly kind: "none" }
  | {
      /** The store must compare this hash with the hash of the registered token. */
      readonly kind: "token";
      readonly tokenHash: Uint8Array;
    }
  | { readonly kind: "jwt"; readonly claims: Claims };

export interface Credentials {
  /**
   * Returns the facts that the token proves for this uid and device flag. Throws or rejects with
   * the errors of `JwtVerifier`. Also throws `unauthorized` if the claims name a different uid or
   * device flag.
   */
  prove(bearer: Bearer): MaybePromise<Proof>;
  /**
   * Throws `unauthorized` if the device was logged out after the token was issued. For a login, the
   * store makes this check instead, in the step that adds the session.
   */
  assertNotRevoked(claims: Claims, device: Device | undefined): void;
  /** Returns the error for a revoked token, and counts the token. */
  revoked(): BrokerError;
  /**
   * Returns the error for a token (not a JWT) that is not registered for the uid and device flag.
   * Looks for a different flag for which the token is registered.
   */
  mismatch(bearer: Omit<Bearer, "token">, tokenHash: Uint8Array): Promise<BrokerError>;
}

const NO_PROOF: Proof = { kind: "none" };
const MISMATCH = "uid, device flag and token do not match";
const FLAG_NAMES = ["app", "web", "desktop"] as const satisfies Record<DeviceFlag, string>;

/**
 * Creates the check of clients' credentials. `jwt` is required unless `mode` is `token` or `none`.
 * If `wrongFlags` is absent, a refusal never names the device flag of the token.
 */
export function createCredentials(
  mode: ClientAuth,
  jwt?: JwtVerifier,
  wrongFlags?: WrongFlagPorts,
): Credentials {
  /**
   * Header of the latest JWT. An issuer's tokens usually have the same header, which then need not
   * be parsed again.
   */
  let newestHeader = "";

  function isJwt(token: string): boolean {
    const parts = token.split(".", 4);
    const [header = ""] = parts;
    if (parts.length !== 3 || (header !== newestHeader && !isHeader(header))) return false;
    newestHeader = header;
    return true;
  }

  /** Returns the proof directly, not as a promise, if the signature has been verified before. */
  function proveJwt(bearer: Bearer): MaybePromise<Proof> {
    if (jwt === undefined) throw new BrokerError("internal");
    const claims = jwt.verify(bearer.token);
    return claims instanceof Promise
      ? claims.then((verified) => proofOf(bearer, verified))
      : proofOf(bearer, claims);
  }

  function proofOf({ uid, flag }: Bearer, claims: Claims): Proof {
    if (claims.uid !== uid || uid === SYSTEM_UID) throw mismatched();
    const { flag: tokenFlag = flag } = claims;
    if (tokenFlag !== flag) throw wrongFlag({ uid, flag, tokenFlag });
    return { kind: "jwt", claims };
  }

  function revoked(): BrokerError {
    jwt?.countRevoked();
    return mismatched();
  }

  function wrongFlag(refused: WrongFlag): BrokerError {
    wrongFlags?.report(refused);
    return wrongFlags?.isNamedToClient
      ? mismatched(
          `: the token is for device flag ${nameOf(refused.tokenFlag)}, but it is used with device flag ${nameOf(refused.flag)}`,
        )
      : mismatched();
  }

  return {
    assertNotRevoked({ issuedS }, device) {
      if (issuedS < (device?.revokedS ?? 0)) throw revoked();
    },

    revoked,

    async mismatch({ uid, flag }, tokenHash) {
      if (wrongFlags === undefined) return mismatched();
      const { store } = wrongFlags;
      const otherFlags = DEVICE_FLAGS.filter((other) => other !== flag);
      const devices = await Promise.all(otherFlags.map((other) => store.device(uid, other)));
      const device = devices.find((other) => other && hashesEqual(other.tokenHash, tokenHash));
      return device === undefined ? mismatched() : wrongFlag({ uid, flag, tokenFlag: device.flag });
    },

    prove(bearer) {
      const { token } = bearer;
      if (mode === "none") return NO_PROOF;
      if (mode === "jwt" || (mode === "token+jwt" && isJwt(token))) return proveJwt(bearer);
      return { kind: "token", tokenHash: hashToken(token) };
    },
  };
}

function mismatched(detail = ""): BrokerError {
  return new BrokerError("unauthorized", { message: `${MISMATCH}${detail}` });
}

function nameOf(flag: DeviceFlag): string {
  return `${flag} (${FLAG_NAMES[flag]})`;
}

/** Returns true if the text is the header of a JWT, the first of its three parts. */
function isHeader(text: string): boolean {
  try {
    const header: unknown = JSON.parse(Buffer.from(text, "base64url").toString());
    return typeof (header as { readonly alg?: unknown } | null)?.alg === "string";
  } catch {
    return false;
  }
}
