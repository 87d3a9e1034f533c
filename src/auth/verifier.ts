// Verifies clients' JWTs. A token's signature is verified once for each set of keys, because
// verifying it costs more than the rest of a login. A token's claims and times are checked at every
// login. The current set of keys stores the verified tokens.

import { hash } from "node:crypto";
import { compactVerify, decodeProtectedHeader, errors } from "jose";
import type { Claims, JwtVerifier } from "../broker/credentials.ts";
import { BrokerError } from "../broker/errors.ts";
import { MAX_TOKEN_LENGTH } from "../broker/model.ts";
import {
  type ClaimRules,
  judgeClaims,
  type Payload,
  type RefusalReason,
  TokenRefusal,
} from "./claims.ts";
import type { KeySet } from "./key-set.ts";

interface VerifierPorts {
  readonly keys: {
    /**
     * Returns the keys. Throws `unavailable` if no keys have been read yet, or if they are too old.
     */
    current(): KeySet;
    /** Returns the error for a token whose key is not among the current keys. */
    missing(kid: string): Error;
  };
  readonly rules: ClaimRules & { readonly algorithms: readonly string[] };
  /** Returns the current time in Unix milliseconds. */
  readonly clock: () => number;
  /** Called for each refused token. `detail` does not contain the token. */
  onRefused(reason: RefusalReason, detail: string): void;
}

type Header = ReturnType<typeof decodeProtectedHeader>;

const decoder = new TextDecoder("utf-8", { fatal: true });

export function createVerifier({ keys, rules, clock, onRefused }: VerifierPorts): JwtVerifier {
  const algorithms = [...rules.algorithms];

  async function payloadOf(token: string, set: KeySet): Promise<Payload> {
    const header = headerOf(token);
    const { alg } = header;
    if (alg === undefined || !algorithms.includes(alg))
      throw new TokenRefusal("algorithm", "alg is not in auth.jwt.algorithms");
    // No extension is supported. With `b64`, the payload would not be a JWT [RFC 7797, section 7].
    if (header.crit !== undefined)
      throw new TokenRefusal(
        "malformed",
        "the header has the parameter crit, which is not supported",
      );
    const candidates = await set.keysFor({ ...header, alg });
    let failure: unknown;
    for (const key of candidates)
      try {
        const { payload } = await compactVerify(token, key, { algorithms });
        return parsePayload(payload);
      } catch (error) {
        failure = error;
      }
    throw failure ?? keys.missing(header.kid ?? "");
  }

  /** Verifies the signature. If the keys change meanwhile, verifies it again with the new keys. */
  async function verifySignature(token: string, digest: string): Promise<Payload> {
    for (;;) {
      const set = keys.current();
      const payload = await payloadOf(token, set);
      if (keys.current() !== set) continue;
      set.verified.set(digest, payload);
      return payload;
    }
  }

  async function verifyNew(token: string, digest: string): Promise<Claims> {
    try {
      return judge(await verifySignature(token, digest));
    } catch (error) {
      throw refusalOf(error);
    }
  }

  function judge(payload: Payload): Claims {
    return judgeClaims(payload, rules, clock() / 1000);
  }

  function refusalOf(cause: unknown): BrokerError {
    if (cause instanceof BrokerError) return cause;
    const { reason, message } = cause instanceof TokenRefusal ? cause : toRefusal(cause);
    onRefused(reason, message);
    return new BrokerError(reason === "expired" ? "token_expired" : "unauthorized");
  }

  return {
    countRevoked: () =>
      onRefused("revoked", "iat is earlier than the device's logout (/user/device_quit)"),

    verify(token) {
      try {
        if (token.length > MAX_TOKEN_LENGTH)
          throw new TokenRefusal(
            "malformed",
            `the token has more than ${MAX_TOKEN_LENGTH} characters`,
          );
        const digest = hash("sha256", token, "base64url");
        const payload = keys.current().verified.get(digest);
        return payload === undefined ? verifyNew(token, digest) : judge(payload);
      } catch (error) {
        throw refusalOf(error);
      }
    },
  };
}

/** Matches three parts in base64url. `jose` would ignore other characters, such as line breaks. */
const COMPACT_FORM = /^[\w-]+\.[\w-]+\.[\w-]*$/;

function headerOf(token: string): Header {
  if (!COMPACT_FORM.test(token))
    throw new TokenRefusal("malformed", "the token does not have three parts in base64url");
  const { kid, ...header } = parseHeader(token);
  if ((kid ?? undefined) === undefined) return header; // null counts as absent
  if (typeof kid !== "string")
    throw new TokenRefusal("malformed", "the token's kid is not a string");
  return { ...header, kid };
}

function parseHeader(token: string): Header {
  try {
    return decodeProtectedHeader(token);
  } catch {
    throw new TokenRefusal("malformed", "the token's header cannot be read");
  }
}

function parsePayload(bytes: Uint8Array): Payload {
  try {
    const payload: unknown = JSON.parse(decoder.decode(bytes));
    if (typeof payload === "object" && payload !== null && !Array.isArray(payload))
      return payload as Payload; // a JSON object
  } catch {
    // handled below
  }
  throw new TokenRefusal("malformed", "the token's payload is not a JSON object");
}

/** Converts an error from `jose` or Web Crypto to a refusal whose message contains no secret. */
function toRefusal(cause: unknown): TokenRefusal {
  if (cause instanceof errors.JWSSignatureVerificationFailed)
    return new TokenRefusal("signature", "the signature is wrong");
  if (cause instanceof errors.JWSInvalid)
    return new TokenRefusal("malformed", "the token is not a signed token in compact form");
  return new TokenRefusal("key", "the key does not match the token's algorithm");
}
