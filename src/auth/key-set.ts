// A set of keys that verify signatures, and the tokens that were verified with these keys. When a
// key changes, a new set is created, so that no token stays verified after its key was removed.

import { createPublicKey, type KeyObject } from "node:crypto";
import {
  type CryptoKey,
  createLocalJWKSet,
  errors,
  type JSONWebKeySet,
  type JWTHeaderParameters,
} from "jose";
import { BoundedMap } from "../lib/bounded-map.ts";
import type { Payload } from "./claims.ts";

type Key = CryptoKey | KeyObject;
type Header = Pick<JWTHeaderParameters, "alg" | "kid">;

/** Maximum number of verified tokens in a set. Each token takes a few hundred bytes. */
const MAX_VERIFIED = 50_000;

export class KeySet {
  /** Payloads of tokens with a valid signature, by the token's SHA-256 hash. */
  readonly verified = new BoundedMap<string, Payload>(MAX_VERIFIED);
  /** Returns the keys that may verify the signature of a token with this header. */
  readonly keysFor: (header: Header) => Promise<readonly Key[]>;

  constructor(keysFor: KeySet["keysFor"]) {
    this.keysFor = keysFor;
  }
}

const MIN_SECRET_BYTES = 32;
/**
 * Sample secrets from well-known web pages. They have at least `MIN_SECRET_BYTES` bytes, but they
 * are public.
 */
const SAMPLE_SECRETS = [
  "a-string-secret-at-least-256-bits-long",
  "a-valid-string-secret-that-is-at-least-384-bits-long",
  "a-valid-string-secret-that-is-at-least-512-bits-long-which-is-very-long",
];

/** Returns the reason why a secret must not be used, or `undefined` if it may be used. */
export function secretFault(secret: Uint8Array): string | undefined {
  if (secret.length < MIN_SECRET_BYTES)
    return `it has ${secret.length} bytes, but needs at least ${MIN_SECRET_BYTES}. Create a secret with openssl rand -base64 48`;
  const isSample = SAMPLE_SECRETS.includes(Buffer.from(secret).toString());
  if (isSample || new Set(secret).size < 8)
    return "it is easy to guess. Create a secret with openssl rand -base64 48";
  return undefined;
}

export function secretKeys(secrets: readonly Uint8Array[]): KeySet {
  const byAlgorithm = new Map<string, Promise<readonly Key[]>>();
  return new KeySet(({ alg }) => {
    const keys = byAlgorithm.get(alg) ?? Promise.all(secrets.map((key) => hmacKey(key, alg)));
    byAlgorithm.set(alg, keys);
    return keys;
  });
}

async function hmacKey(secret: Uint8Array, alg: string): Promise<CryptoKey> {
  const algorithm = { name: "HMAC", hash: `SHA-${alg.slice(2)}` };
  return crypto.subtle.importKey("raw", secret, algorithm, false, ["verify"]);
}

/** Creates a set with the key in the text. Throws if it is not a public key or a certificate. */
export function publicKeys(pem: string): KeySet {
  if (pem.includes("PRIVATE KEY"))
    throw new Error("it contains a private key. It must contain only the public key");
  const key = publicKeyOf(pem);
  return new KeySet(async () => [key]);
}

/** Maximum number of keys that are tried for a token whose header matches several keys. */
const MAX_CANDIDATES = 4;

/** Creates the set of keys in a JWKS. Throws if the text is not a JWKS. */
export function jwksKeys(text: string): KeySet {
  const getKey = createLocalJWKSet(parseJwks(text));
  return new KeySet(async (header) => {
    try {
      return [await getKey(header)];
    } catch (error) {
      if (error instanceof errors.JWKSNoMatchingKey) return [];
      if (!(error instanceof errors.JWKSMultipleMatchingKeys)) throw error;
      const keys: CryptoKey[] = [];
      for await (const key of error) if (keys.push(key) === MAX_CANDIDATES) break;
      return keys;
    }
  });
}

function parseJwks(text: string): JSONWebKeySet {
  let document: unknown;
  try {
    document = JSON.parse(text);
  } catch {
    throw new Error("the keys are not a JSON document");
  }
  const { keys } = Object(document) as { readonly keys?: unknown };
  if (!Array.isArray(keys) || keys.some((key) => typeof key !== "object" || key === null))
    throw new Error('the keys are not a JWKS, which is an object with a list "keys"');
  return document as JSONWebKeySet; // checked above as far as `jose` requires it
}

function publicKeyOf(pem: string): KeyObject {
  try {
    return createPublicKey(pem);
  } catch {
    throw new Error("it does not contain a public key or a certificate in PEM form");
  }
}
