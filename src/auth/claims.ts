// Checks the claims of a JWT whose signature is valid. Pure functions: the caller passes the
// current time.

import type { Claims } from "../broker/credentials.ts";
import { DEVICE_FLAGS, type DeviceFlag, type DeviceLevel, isId } from "../broker/model.ts";
import { parseRights, type Rights } from "../broker/rights.ts";

export interface ClaimRules {
  /** Required value of `iss`. "" means that `iss` is not checked. */
  readonly issuer: string;
  /** Value that `aud` must equal or contain. "" and "*" mean that `aud` is not checked. */
  readonly audience: string;
  readonly clockToleranceS: number;
  readonly maxAgeS: number;
  readonly requireExp: boolean;
  readonly deviceLevelDefault: number;
  readonly claims: {
    readonly uid: string;
    readonly deviceFlag: string;
    readonly deviceLevel: string;
    readonly deviceId: string;
  };
}

export type Payload = Readonly<Record<string, unknown>>;

/** Reason for refusing a token, as the metric `jindou_tokens_refused_total` reports it. */
export type RefusalReason =
  | "malformed"
  | "algorithm"
  | "key"
  | "signature"
  | "expired"
  | "not_yet_valid"
  | "lifetime"
  | "issuer"
  | "audience"
  | "claims"
  | "revoked";

/** A refused token. `message` is for the operator's log and never contains the token. */
export class TokenRefusal extends Error {
  readonly reason: RefusalReason;

  constructor(reason: RefusalReason, message: string) {
    super(message);
    this.name = "TokenRefusal";
    this.reason = reason;
  }
}

/** Maximum number of characters of a claim's value in a `TokenRefusal` message. */
const MAX_SHOWN = 64;

/**
 * Returns the claims that the broker uses. Throws `TokenRefusal` if the token is refused, with the
 * reason `expired` only if everything else is valid.
 */
export function judgeClaims(payload: Payload, rules: ClaimRules, nowS: number): Claims {
  const { issuer, audience, claims: names } = rules;
  if (issuer !== "" && payload.iss !== issuer)
    throw new TokenRefusal("issuer", `iss is ${shown(payload.iss)}, not auth.jwt.issuer`);
  if (audience !== "" && audience !== "*" && !audiencesOf(payload.aud).includes(audience))
    throw new TokenRefusal(
      "audience",
      `aud is ${shown(payload.aud)}, which does not contain auth.jwt.audience`,
    );
  const uid = payload[names.uid];
  if (typeof uid !== "string" || !isId(uid))
    throw new TokenRefusal(
      "claims",
      `${names.uid} is ${shown(uid)}, which is not a uid. Set auth.jwt.claims.uid to a claim that is a string of 1 to 128 characters without control characters and without @ # &`,
    );
  const claims = {
    uid,
    flag: integerAmong(payload, names.deviceFlag, DEVICE_FLAGS),
    level: (integerAmong(payload, names.deviceLevel, [0, 1]) ??
      rules.deviceLevelDefault) as DeviceLevel, // the schema of the setting allows 0 and 1
    deviceId: deviceIdOf(payload, names.deviceId),
    rights: rightsOf(payload),
  };
  const expiresAtMs = judgeTimes(payload, rules, nowS) * 1000;
  const issuedS = Math.floor(timeOf(payload, "iat") ?? earliestIssueS(rules, nowS));
  return { ...claims, issuedS, expiresAtMs };
}

/**
 * Returns the earliest possible issue time (Unix seconds) of a token without `iat` that is valid
 * now. A token's lifetime is at most `maxAgeS`. The tolerance is subtracted twice, because the
 * issuer's clock may be off by the tolerance, and because a token is accepted until `exp` plus the
 * tolerance.
 */
function earliestIssueS({ maxAgeS, clockToleranceS }: ClaimRules, nowS: number): number {
  return nowS - maxAgeS - 2 * clockToleranceS;
}

/** Returns the Unix time in seconds at which the token expires. */
function judgeTimes(payload: Payload, rules: ClaimRules, nowS: number): number {
  const { clockToleranceS, maxAgeS, requireExp } = rules;
  const exp = timeOf(payload, "exp");
  const nbf = timeOf(payload, "nbf");
  const iat = timeOf(payload, "iat");
  if (exp === undefined && (requireExp || iat === undefined))
    throw new TokenRefusal("lifetime", requireExp ? "exp is missing" : "exp and iat are missing");
  const endS = exp ?? (iat ?? 0) + maxAgeS;
  const startS = iat ?? nowS + clockToleranceS;
  if (endS - startS > maxAgeS)
    throw new TokenRefusal(
      "lifetime",
      `the token is valid for ${Math.ceil(endS - startS)} seconds, which is more than auth.jwt.maxAgeS`,
    );
  const earliestS = Math.max(nbf ?? 0, iat ?? 0);
  if (earliestS > nowS + clockToleranceS)
    throw new TokenRefusal(
      "not_yet_valid",
      `nbf or iat is ${Math.ceil(earliestS - nowS)} seconds in the future. Compare the issuer's clock with that of Redis, or of this machine if Redis is not used`,
    );
  if (endS + clockToleranceS <= nowS)
    throw new TokenRefusal("expired", `the token expired ${Math.floor(nowS - endS)} seconds ago`);
  return endS;
}

function audiencesOf(aud: unknown): readonly unknown[] {
  return Array.isArray(aud) ? aud : [aud];
}

function timeOf(payload: Payload, name: "exp" | "nbf" | "iat"): number | undefined {
  const value = payload[name];
  if (value === undefined || value === null) return undefined;
  if (typeof value === "number" && Number.isFinite(value)) return value;
  throw new TokenRefusal("claims", `${name} is ${shown(value)}, not a number of seconds`);
}

function integerAmong<const T extends DeviceFlag | DeviceLevel>(
  payload: Payload,
  name: string,
  allowed: readonly T[],
): T | undefined {
  const value = payload[name];
  if (value === undefined || value === null) return undefined;
  const match = allowed.find((each) => each === value);
  if (match !== undefined) return match;
  throw new TokenRefusal("claims", `${name} is ${shown(value)}, not one of ${allowed.join(", ")}`);
}

function deviceIdOf(payload: Payload, name: string): string {
  const value = payload[name];
  if (value === undefined || value === null) return "";
  if (typeof value === "string" && isId(value)) return value;
  throw new TokenRefusal("claims", `${name} is ${shown(value)}, which is not a device id`);
}

function rightsOf({ jd }: Payload): Rights | undefined {
  try {
    return parseRights(jd);
  } catch (error) {
    throw new TokenRefusal("claims", error instanceof Error ? error.message : String(error));
  }
}

/** Returns the value of a claim as JSON, truncated if it is long. */
function shown(value: unknown): string {
  const text = JSON.stringify(value) ?? "missing";
  return text.length <= MAX_SHOWN ? text : `${text.slice(0, MAX_SHOWN)}…`;
}
