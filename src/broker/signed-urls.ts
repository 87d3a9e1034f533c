// Signs stream URLs and verifies their signatures. A signature allows its bearer to read or write
// one path until the signature expires. Keeps a copy of the signing keys, which all nodes share
// through the store.

import { createHmac, randomBytes } from "node:crypto";
import { CoalescedTask } from "../lib/coalesced-task.ts";
import { BrokerError } from "./errors.ts";
import type { Clock, SigningKey, SigningKeyStore } from "./ports.ts";
import type { TokenGate } from "./token-gate.ts";
import { hashesEqual } from "./tokens.ts";

/** Access that a signature allows. `write` includes `read`. */
type SignedAccess = "read" | "write";

interface SignedGrant {
  readonly access: SignedAccess;
  /** User on whose behalf the bearer writes to a channel, or "" if there is no such user. */
  readonly fromUid: string;
  /** Time at which the signature expires, in Unix seconds. */
  readonly expiresAtS: number;
}

export interface SignedUrls {
  /** Returns the value of the `sig` parameter for a path. The path must be percent-decoded. */
  sign(path: string, grant: SignedGrant): Promise<string>;
  /**
   * Returns the grant in a signature. Throws `unauthorized` if the signature is malformed, has
   * expired, is for a different path, or was made with a key that is no longer valid. The last two
   * cases count as a wrong credential from `address`. Once the network of `address` has reached its
   * limit of wrong credentials (see `TokenGate`), its checks are slowed down, and may throw
   * `rate_limited`. Without an address, no failure is counted and no check is slowed down.
   */
  verify(path: string, signature: string, address?: string): Promise<SignedGrant>;
  /**
   * Creates a new key. URLs that were signed earlier stay valid for at most `OVERLAP_MS`. Throws
   * `rate_limited` if `MAX_KEYS` keys are still valid.
   */
  rotate(): Promise<SigningKey>;
}

interface SignedUrlPorts {
  readonly store: SigningKeyStore;
  readonly tokens: Pick<TokenGate, "attempt">;
  /** The store's clock, shared by all nodes. */
  readonly clock: Clock;
}

/** Time for which a key stays valid after the next key is created. */
export const OVERLAP_MS = 86_400_000;
export const MAX_EXPIRY_S = 604_800;
const MAX_KEYS = 16;
const SECRET_BYTES = 32;
/**
 * Age of the local copy above which the keys are read again, because another node may have rotated
 * them.
 */
const MAX_AGE_MS = 60_000;
/**
 * First character of the name that stands for a signature in the token gate. No uid contains this
 * character.
 */
const SIGNATURE_MARK = "#";
const SIGNATURE = /^(\d{1,12})\.(read|write)\.([\w-]{0,700})\.([\w-]{43})$/;

export function createSignedUrls({ store, tokens, clock }: SignedUrlPorts): SignedUrls {
  let keys: readonly SigningKey[] = [];
  let readAtMs = -Infinity;
  const reading = new CoalescedTask(async () => {
    const startMs = performance.now();
    keys = await store.signingKeys();
    readAtMs = startMs;
  });

  /** Returns the keys that are currently valid, newest last. */
  function validKeys(): readonly SigningKey[] {
    const nowMs = clock();
    return keys.filter((_, at) => {
      const next = keys[at + 1];
      return next === undefined || nowMs < next.createdAtMs + OVERLAP_MS;
    });
  }

  async function newestKey(): Promise<SigningKey> {
    if (performance.now() - readAtMs > MAX_AGE_MS) await reading.run();
    return keys.at(-1) ?? createKey(1);
  }

  async function createKey(number: number): Promise<SigningKey> {
    const secret = randomBytes(SECRET_BYTES);
    const key = await store.putSigningKeyOnce({ number, secret, createdAtMs: clock() });
    await reading.run();
    return key;
  }

  function isSignedBy(valid: readonly SigningKey[], text: string, mac: Uint8Array): boolean {
    return valid.some(({ secret }) => hashesEqual(macOf(secret, text), mac));
  }

  async function requireSigned(text: string, mac: Uint8Array): Promise<void> {
    const isFresh = performance.now() - readAtMs <= MAX_AGE_MS;
    if (isFresh && isSignedBy(validKeys(), text, mac)) return;
    await reading.run(); // another node may have created the key after the last read
    if (!isSignedBy(validKeys(), text, mac))
      throw refusal(
        "The parameter sig is not valid for this path, or its key has been replaced; request a new URL from POST /v1/sign",
      );
  }

  return {
    async sign(path, grant) {
      const { secret } = await newestKey();
      const { expiresAtS, access, fromUid } = grant;
      const mac = Buffer.from(macOf(secret, signedText(path, grant))).toString("base64url");
      const uid = Buffer.from(fromUid).toString("base64url");
      return `${expiresAtS}.${access}.${uid}.${mac}`;
    },

    async verify(path, signature, address) {
      const [grant, mac] = parse(signature) ?? [];
      if (grant === undefined || mac === undefined)
        throw refusal("The parameter sig is not a signature; request a new URL from POST /v1/sign");
      if (clock() >= grant.expiresAtS * 1000)
        throw refusal("The signed URL has expired; request a new one from POST /v1/sign");
      const text = signedText(path, grant);
      if (address === undefined) await requireSigned(text, mac);
      else {
        const uid = `${SIGNATURE_MARK}${Buffer.from(mac).toString("base64url")}`;
        const bearer = { address, uid, isSignature: true };
        await tokens.attempt(bearer, () => requireSigned(text, mac));
      }
      return grant;
    },

    async rotate() {
      await reading.run();
      const valid = validKeys();
      if (valid.length >= MAX_KEYS)
        throw new BrokerError("rate_limited", {
          message: `${MAX_KEYS} signing keys are still valid; wait until one of them expires`,
        });
      const key = await createKey((keys.at(-1)?.number ?? 0) + 1);
      for (const { number } of keys)
        if (number < key.number && !valid.some((other) => other.number === number))
          await store.removeSigningKey(number);
      return key;
    },
  };
}

function parse(signature: string): readonly [SignedGrant, Uint8Array] | undefined {
  const [, expiresAt, access, uid = "", mac = ""] = SIGNATURE.exec(signature) ?? [];
  if (access === undefined) return undefined;
  const grant = {
    access: access as SignedAccess, // the pattern allows no other value
    fromUid: Buffer.from(uid, "base64url").toString(),
    expiresAtS: Number(expiresAt),
  };
  return [grant, Buffer.from(mac, "base64url")];
}

function signedText(path: string, { expiresAtS, access, fromUid }: SignedGrant): string {
  return `${expiresAtS}\n${access}\n${fromUid}\n${path}`;
}

function macOf(secret: Uint8Array, text: string): Uint8Array {
  return createHmac("sha256", secret).update(text).digest();
}

function refusal(message: string): BrokerError {
  return new BrokerError("unauthorized", { message });
}
