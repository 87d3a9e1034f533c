// Access tokens: issue, look up, revoke. A token is valid while its account has the password, role
// and permissions of the time of issue. State: a short-lived bounded cache of token hashes. Never
// keeps a plain token.

import { createHmac, randomBytes } from "node:crypto";
import { BoundedMap } from "../lib/bounded-map.ts";
import type { AccountIdentity } from "./manager-accounts.ts";
import type { ManagerAccount } from "./model.ts";
import type { Clock, ManagerStore } from "./ports.ts";
import { hashesEqual, hashToken } from "./tokens.ts";

/** Time-to-live of the cache: the longest time a logout at another node goes unnoticed here. */
const CACHE_MS = 5000;
const CACHE_ENTRIES = 1000;
const TOKEN_BYTES = 32;
const TOKEN_FORM = /^[A-Za-z0-9_-]{43}$/;

interface AccessTokensParts {
  readonly store: Omit<ManagerStore, "putPasswordOnce">;
  /** Undefined: the account is not configured; it has no valid tokens. */
  readonly accountOf: (username: string) => AccountIdentity | undefined;
  readonly clock: Clock;
}

interface CachedOwner {
  readonly account: ManagerAccount;
  readonly untilMs: number;
}

export class AccessTokens {
  readonly #parts: AccessTokensParts;
  readonly #owners = new BoundedMap<string, CachedOwner>(CACHE_ENTRIES);
  /** Grows with each revoked token, so that an older answer of the store is not cached after it. */
  #revocations = 0;

  constructor(parts: AccessTokensParts) {
    this.#parts = parts;
  }

  /** 256 random bits, base64url; only its hash is kept. Throws as the store does. */
  async give(known: AccountIdentity, expiresAtMs: number): Promise<string> {
    const token = randomBytes(TOKEN_BYTES).toString("base64url");
    const hash = hashToken(token);
    await this.#parts.store.putAccessToken(hash, ownerText(token, known), expiresAtMs);
    return token;
  }

  /** The account of a valid token. Throws as the store does. */
  async account(token: string): Promise<ManagerAccount | undefined> {
    if (!TOKEN_FORM.test(token)) return undefined;
    const hash = hashToken(token);
    const key = keyOf(hash);
    const nowMs = this.#parts.clock();
    const cached = this.#owners.get(key);
    if (cached !== undefined && nowMs < cached.untilMs) return cached.account;

    const revocations = this.#revocations;
    const owner = await this.#parts.store.accessTokenOwner(hash);
    const account = owner === undefined ? undefined : this.#accountFor(token, owner);
    if (account === undefined) this.#owners.delete(key);
    else if (revocations === this.#revocations)
      this.#owners.renew(key, { account, untilMs: nowMs + CACHE_MS });
    return account;
  }

  /** Harmless if it is not valid. Throws as the store does. */
  async takeBack(token: string): Promise<void> {
    const hash = hashToken(token);
    await this.#parts.store.removeAccessToken(hash);
    this.#revocations++;
    this.#owners.delete(keyOf(hash));
  }

  /**
   * Undefined: the account was removed or changed, or the token is of a build that stored the
   * username alone.
   */
  #accountFor(token: string, owner: string): ManagerAccount | undefined {
    const known = this.#parts.accountOf(usernameOf(owner));
    if (known === undefined) return undefined;
    const expected = Buffer.from(ownerText(token, known));
    return hashesEqual(Buffer.from(owner), expected) ? known.account : undefined;
  }
}

/**
 * A token's owner as the store keeps it. The tag binds the token to the account's fingerprint; its
 * key is the token, which is stored nowhere, so that a reader of the store cannot try passwords
 * against it.
 */
function ownerText(token: string, { account, fingerprint }: AccountIdentity): string {
  const mac = createHmac("sha256", token).update(fingerprint);
  return `${mac.digest("base64url")}\n${account.username}`;
}

function usernameOf(owner: string): string {
  return owner.slice(owner.indexOf("\n") + 1);
}

function keyOf(hash: Uint8Array): string {
  return Buffer.from(hash).toString("base64");
}
