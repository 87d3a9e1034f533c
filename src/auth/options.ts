// Schema of the configuration section `auth.jwt`.

import { Type } from "typebox";
import type { ClientAuth } from "../broker/credentials.ts";

/** Signature algorithms that can be allowed [RFC 7518, RFC 8037, RFC 9864]. */
export const ALGORITHMS = [
  "HS256",
  "HS384",
  "HS512",
  "RS256",
  "RS384",
  "RS512",
  "PS256",
  "PS384",
  "PS512",
  "ES256",
  "ES384",
  "ES512",
  "EdDSA",
  "Ed25519",
] as const;

/** Returns true if clients may authenticate with JWTs. Otherwise `auth.jwt` has no effect. */
export function acceptsJwts(clients: ClientAuth): boolean {
  return clients === "jwt" || clients === "token+jwt";
}

const CLOSED = { additionalProperties: false };

const claimName = (name: string, meaning: string) =>
  Type.String({
    default: name,
    minLength: 1,
    maxLength: 128,
    description: `Name of the claim with ${meaning}`,
  });

export const jwtOptions = Type.Object(
  {
    algorithms: Type.Array(Type.Enum([...ALGORITHMS]), {
      default: [],
      description:
        "Signature algorithms that are accepted: `HS256`, `HS384`, `HS512`, `RS256`, `RS384`, `RS512`, `PS256`, `PS384`, `PS512`, `ES256`, `ES384`, `ES512`, `EdDSA` or `Ed25519`. Must be set if clients authenticate with JWTs; name only those that your issuer uses. The HS algorithms need `auth.jwt.secretFile`, and all others a public key.",
    }),
    secretFile: Type.String({
      default: "",
      unit: "path",
      description:
        "File with the secret for the HS algorithms, at least 32 bytes. If the file is UTF-8 text, the secret is the text without a byte-order mark and trailing line breaks. Text that has quotes around it, spaces at its ends or control characters is rejected. If the file is not UTF-8, all its bytes are the secret.",
    }),
    previousSecretFile: Type.String({
      default: "",
      unit: "path",
      description:
        "File with the former secret, which the secret in `auth.jwt.secretFile` replaces. Tokens signed with either secret are accepted, so that the secret can be changed without ending sessions.",
    }),
    publicKeyFile: Type.String({
      default: "",
      unit: "path",
      description:
        "PEM file with the issuer's public key or certificate, for all algorithms except the HS algorithms.",
    }),
    jwksFile: Type.String({
      default: "",
      unit: "path",
      description:
        "File with the issuer's public keys as a JWKS (RFC 7517). It is read again every `auth.jwt.jwksRefreshS`.",
    }),
    jwksUrl: Type.String({
      default: "",
      maxLength: 2048,
      description:
        "URL at which your identity provider publishes its public keys as a JWKS (the `jwks_uri` in its OpenID configuration). `auth.jwt.issuer` or `auth.jwt.audience` must be set as well.",
    }),
    jwksRefreshS: Type.Integer({
      default: 300,
      minimum: 10,
      maximum: 86_400,
      unit: "seconds",
      description:
        "Time after which the JWKS is read again. After that, tokens signed with a key that was removed from the JWKS are rejected. A token with an unknown key makes the node read the JWKS earlier, at most once every 30 seconds.",
    }),
    jwksMaxStaleS: Type.Integer({
      default: 86_400,
      minimum: 60,
      maximum: 31_536_000,
      unit: "seconds",
      description:
        "Time for which the keys stay valid while the JWKS cannot be read. After that time, JWTs are rejected with `unavailable`.",
    }),
    issuer: Type.String({
      default: "",
      maxLength: 512,
      description:
        "Value that the claim `iss` must have. An empty value means that `iss` is not checked.",
    }),
    audience: Type.String({
      default: "",
      maxLength: 512,
      description:
        "Value that the claim `aud` must have, or contain if it is a list. An empty value or `*` means that `aud` is not checked.",
    }),
    clockToleranceS: Type.Integer({
      default: 30,
      minimum: 0,
      maximum: 60,
      unit: "seconds",
      description:
        "Maximum difference between the issuer's clock and the store's clock (that of Redis, or of this machine without Redis). Tokens are accepted from this many seconds before the later of `nbf` and `iat` until this many seconds after `exp`. At the latter time, open sessions with the token are closed, unless `auth.jwt.legacyGraceS` applies to them.",
    }),
    maxAgeS: Type.Integer({
      default: 86_400,
      minimum: 60,
      maximum: 31_536_000,
      unit: "seconds",
      description:
        "Maximum lifetime of a token, from `iat` (without `iat`, from now plus `auth.jwt.clockToleranceS`) to `exp`. Tokens with a longer lifetime are rejected. Short lifetimes, 5 to 15 minutes, limit what a stolen token can do.",
    }),
    requireExp: Type.Boolean({
      default: true,
      description:
        "Whether tokens without `exp` are rejected. Otherwise, such a token must have `iat`, and expires `auth.jwt.maxAgeS` after `iat`.",
    }),
    legacyGraceS: Type.Integer({
      default: 0,
      minimum: 0,
      maximum: 86_400,
      unit: "seconds",
      description:
        "Additional time for which a session stays open after `exp` plus `auth.jwt.clockToleranceS` if its client cannot refresh a token. Such clients use WKProto or WuKongIM's JSON-RPC.",
    }),
    deviceLevelDefault: Type.Integer({
      default: 0,
      minimum: 0,
      maximum: 1,
      unit: "device level",
      description: "Device level of tokens that do not contain the device level claim.",
    }),
    claims: Type.Object(
      {
        uid: claimName(
          "sub",
          "the uid, a string. CONNECT must name the same uid. If your provider's `sub` is not a valid uid, for example an email address, configure the provider to add a claim that contains a valid uid, and set this key to the name of that claim.",
        ),
        deviceFlag: claimName(
          "device_flag",
          "the device flag (0, 1 or 2). If a token has it, CONNECT must name the same device flag.",
        ),
        deviceLevel: claimName("device_level", "the device level (0 or 1)."),
        deviceId: claimName(
          "device_id",
          "the device id. If a token has this claim, the claim replaces the device id in CONNECT.",
        ),
      },
      CLOSED,
    ),
  },
  CLOSED,
);
