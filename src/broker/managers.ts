// The accounts of the control plane: logging in, access tokens and whose they are. State: the accounts, and a short-lived bounded cache of
// token hashes. Never keeps or tells a plain password or token.

import { randomBytes } from "node:crypto";
import { BrokerError } from "./errors.ts";
import { LoginGate, type LoginLimits } from "./login-gate.ts";
import {
  type AccountConfig,
  firstAdmin,
  type KnownAccount,
  knownAccounts,
} from "./manager-accounts.ts";
import type { ManagerAccount } from "./model.ts";
import { decoyHash, PasswordChecker, type PasswordHash } from "./passwords.ts";
import type { Clock, ManagerStore, Throttle } from "./ports.ts";
import { hashToken } from "./tokens.ts";

/** How long this node believes what the store said of a token: the longest a logout at another node goes unnoticed here. */
const CACHE_MS = 5000;
const CACHE_ENTRIES = 1000;
const TOKEN_BYTES = 32;
const TOKEN_FORM = /^[A-Za-z0-9_-]{43}$/;
// Each running check holds one of the process's four I/O threads for tens of milliseconds; the store's writes need the others.
const PASSWORD_CHECKS = { maxRunning: 2, maxWaiting: 64 };

export interface Login {
  /** 256 random bits, base64url. Shown this once; only its hash is kept. */
  readonly token: string;
  readonly expireS: number;
  readonly account: ManagerAccount;
}

export interface Managers {
  /**
   * Makes the accounts ready; call once the store has started. Throws `bad_request` with a sentence when the configured ones cannot be
   * used. Safe to call twice.
   */
  start(): Promise<void>;
  /** Throws `bad_credentials`, `too_many_attempts` (with the seconds to wait), `overloaded`, `unavailable`. */
  login(
    username: string,
    password: string,
    clientAddress: string,
  ): Promise<Login>;
  /** Whose valid token it is. A revoked one is refused at once here, and within 5 s on other nodes, as is one that expired. */
  authenticate(token: string): Promise<ManagerAccount | undefined>;
  /** Revokes a token; harmless when it is not valid. */
  logout(token: string): Promise<void>;
}

export interface ManagersParts {
  readonly store: ManagerStore;
  readonly throttle: Throttle;
  /** Empty: one account `admin`. */
  readonly accounts: readonly AccountConfig[];
  /** Password of that `admin`; "" or absent: a random one, made on first start. */
  readonly adminPassword?: string;
  readonly clock: Clock;
  readonly limits: LoginLimits & { readonly tokenTtlS: number };
  /** Tells the operator the password that was just made; called at most once in the store's life. */
  announcePassword(username: string, password: string): void;
}

export function createManagers(parts: ManagersParts): Managers {
  return new ManagerAccounts(parts);
}

interface CachedOwner {
  readonly account: ManagerAccount;
  readonly untilMs: number;
}

class ManagerAccounts implements Managers {
  readonly #parts: ManagersParts;
  readonly #gate: LoginGate;
  readonly #checker = new PasswordChecker(PASSWORD_CHECKS);
  readonly #owners = new Map<string, CachedOwner>();
  #accounts: ReadonlyMap<string, KnownAccount> = new Map();
  #decoy: PasswordHash = decoyHash();
  #started: Promise<void> | undefined;
  /** Grows with each logout, so that an answer the store gave before one is not cached after it. */
  #revocations = 0;

  constructor(parts: ManagersParts) {
    this.#parts = parts;
    this.#gate = new LoginGate(parts.throttle, parts.limits);
  }

  start(): Promise<void> {
    this.#started ??= this.#load();
    return this.#started;
  }

  async #load(): Promise<void> {
    const { accounts, adminPassword = "", store } = this.#parts;
    this.#accounts =
      accounts.length > 0
        ? await knownAccounts(accounts)
        : await firstAdmin(adminPassword, store, this.#parts.announcePassword);
    const [first] = this.#accounts.values();
    this.#decoy = decoyHash(first?.password);
  }

  async login(
    username: string,
    password: string,
    clientAddress: string,
  ): Promise<Login> {
    const known = this.#accounts.get(username);
    const isRight = await this.#gate.attempt(
      { username, address: clientAddress },
      () => this.#checker.matches(password, known?.password ?? this.#decoy),
    );
    if (!isRight || known === undefined)
      throw new BrokerError("bad_credentials");
    return this.#issue(known.account);
  }

  async #issue(account: ManagerAccount): Promise<Login> {
    const { store, clock, limits } = this.#parts;
    const token = randomBytes(TOKEN_BYTES).toString("base64url");
    const expiresAtMs = clock() + limits.tokenTtlS * 1000;
    await store.putAccessToken(hashToken(token), account.username, expiresAtMs);
    return { token, expireS: limits.tokenTtlS, account };
  }

  async authenticate(token: string): Promise<ManagerAccount | undefined> {
    if (!TOKEN_FORM.test(token)) return undefined;
    const hash = hashToken(token);
    const key = keyOf(hash);
    const nowMs = this.#parts.clock();
    const cached = this.#owners.get(key);
    if (cached !== undefined && nowMs < cached.untilMs) return cached.account;

    const revocations = this.#revocations;
    const username = await this.#parts.store.accessTokenOwner(hash);
    // An account that is configured no more has no valid tokens.
    const account = this.#accounts.get(username ?? "")?.account;
    if (account === undefined) this.#owners.delete(key);
    else if (revocations === this.#revocations)
      this.#remember(key, { account, untilMs: nowMs + CACHE_MS });
    return account;
  }

  #remember(key: string, owner: CachedOwner): void {
    this.#owners.delete(key); // to the end of the order: the first entry is the oldest
    this.#owners.set(key, owner);
    if (this.#owners.size <= CACHE_ENTRIES) return;
    const oldest = this.#owners.keys().next();
    if (!oldest.done) this.#owners.delete(oldest.value);
  }

  async logout(token: string): Promise<void> {
    const hash = hashToken(token);
    await this.#parts.store.removeAccessToken(hash);
    this.#revocations++;
    this.#owners.delete(keyOf(hash));
  }
}

function keyOf(hash: Uint8Array): string {
  return Buffer.from(hash).toString("base64");
}
