// Issues, looks up and revokes managers' access tokens. A token becomes invalid when the password,
// role or permissions of its account change. The tokens themselves must never be stored.

import { createHmac, randomBytes } from "node:crypto";
import { BoundedMap } from "../lib/bounded-map.ts";
import type { AccountIdentity } from "./manager-accounts.ts";
import type { ManagerAccount } from "./model.ts";
import type { Clock, ManagerStore } from "./ports.ts";
import { hashesEqual, hashToken } from "./tokens.ts";

/** Maximum delay before a logout on another node takes effect on this node. */
const CACHE_MS = 5000;
const CACHE_ENTRIES = 1000;
const TOKEN_BYTES = 32;
const TOKEN_FORM = /^[A-Za-z0-9_-]{43}$/;

/** Returns true if the text has the form of an access token, even if no such token is valid. */
export function hasAccessTokenForm(text: string): boolean {
  return TOKEN_FORM.test(text);
}

interface AccessTokensPorts {
  readonly store: Omit<ManagerStore, "putPasswordOnce">;
  readonly accountOf: (username: string) => AccountIdentity | undefined;
  readonly clock: Clock;
}

interface CachedOwner {
  readonly account: ManagerAccount;
  readonly untilMs: number;
}

export class AccessTokens {
  readonly #ports: AccessTokensPorts;
  readonly #owners = new BoundedMap<string, CachedOwner>(CACHE_ENTRIES);
  /**
   * Number of tokens that this node has revoked. If it increases while a token's owner is being
   * read, the owner is not cached, because that token may have been revoked.
   */
  #revocationCount = 0;

  constructor(ports: AccessTokensPorts) {
    this.#ports = ports;
  }

  async issue(account: AccountIdentity, expiresAtMs: number): Promise<string> {
    const token = randomBytes(TOKEN_BYTES).toString("base64url");
    const hash = hashToken(token);
    await this.#ports.store.putAccessToken(hash, ownerText(token, account), expiresAtMs);
    return token;
  }

  async account(token: string): Promise<ManagerAccount | undefined> {
    if (!hasAccessTokenForm(token)) return undefined;
    const hash = hashToken(token);
    const key = keyOf(hash);
    const nowMs = this.#ports.clock();
    const cached = this.#owners.get(key);
    if (cached !== undefined && nowMs < cached.untilMs) return cached.account;

    const revocationCount = this.#revocationCount;
    const owner = await this.#ports.store.accessTokenOwner(hash);
    const account = owner === undefined ? undefined : this.#accountFor(token, owner);
    if (account === undefined) this.#owners.delete(key);
    else if (revocationCount === this.#revocationCount)
      this.#owners.renew(key, { account, untilMs: nowMs + CACHE_MS });
    return account;
  }

  async revoke(token: string): Promise<void> {
    const hash = hashToken(token);
    await this.#ports.store.removeAccessToken(hash);
    this.#revocationCount++;
    this.#owners.delete(keyOf(hash));
  }

  #accountFor(token: string, owner: string): ManagerAccount | undefined {
    const identity = this.#ports.accountOf(usernameOf(owner));
    if (identity === undefined) return undefined;
    const expected = Buffer.from(ownerText(token, identity));
    return hashesEqual(Buffer.from(owner), expected) ? identity.account : undefined;
  }
}

/**
 * Returns the text that is stored for a token. It contains an HMAC of the account's fingerprint.
 * The key of the HMAC is the token, which is not stored, so nobody can use a stored text to guess
 * the password.
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
