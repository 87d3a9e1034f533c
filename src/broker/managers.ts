// The accounts of the control plane: logging in, giving access tokens and taking them back. State: the accounts. Never keeps or tells a plain
// password or token.

import { createHmac, randomBytes } from "node:crypto";
import { AccessTokens } from "./access-tokens.ts";
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

// Each check takes a processor for tens of milliseconds and one of the process's four I/O threads: one at a time, however many guess.
const PASSWORD_CHECKS = { maxRunning: 1, maxWaiting: 256 };

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
  /**
   * Whose valid token it is. A revoked one is refused at once here, and within 5 s on other nodes of the same data, as is one that expired. A token
   * ends with its account, and with a change of the account's password, role or permissions.
   */
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

class ManagerAccounts implements Managers {
  readonly #parts: ManagersParts;
  readonly #gate: LoginGate;
  readonly #checker = new PasswordChecker(PASSWORD_CHECKS);
  readonly #tokens: AccessTokens;
  #accounts: ReadonlyMap<string, KnownAccount> = new Map();
  /** One per account, costing what the account's hash costs. */
  #decoys: readonly PasswordHash[] = [];
  readonly #decoySecret = randomBytes(16);
  #started: Promise<void> | undefined;

  constructor(parts: ManagersParts) {
    this.#parts = parts;
    this.#gate = new LoginGate(parts.throttle, parts.limits);
    const accountOf = (username: string) => this.#accounts.get(username);
    this.#tokens = new AccessTokens({ ...parts, accountOf });
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
    this.#decoys = [...this.#accounts.values()].map(({ password }) =>
      decoyHash(password),
    );
  }

  async login(
    username: string,
    password: string,
    clientAddress: string,
  ): Promise<Login> {
    const known = this.#accounts.get(username);
    const isRight = await this.#gate.attempt(
      { username, address: clientAddress },
      (rank) =>
        this.#checker.matches(
          password,
          known?.password ?? this.#decoyOf(username),
          rank,
        ),
    );
    if (!isRight || known === undefined)
      throw new BrokerError("bad_credentials");
    return this.#issue(known);
  }

  /** Always the same one for a username, so that its cost does not tell whether there is such an account. */
  #decoyOf(username: string): PasswordHash {
    const mac = createHmac("sha256", this.#decoySecret).update(username);
    const at = mac.digest().readUInt32BE() % this.#decoys.length;
    return this.#decoys[at] ?? decoyHash();
  }

  async #issue(known: KnownAccount): Promise<Login> {
    const { clock, limits } = this.#parts;
    const expiresAtMs = clock() + limits.tokenTtlS * 1000;
    const token = await this.#tokens.give(known, expiresAtMs);
    return { token, expireS: limits.tokenTtlS, account: known.account };
  }

  authenticate(token: string): Promise<ManagerAccount | undefined> {
    return this.#tokens.account(token);
  }

  logout(token: string): Promise<void> {
    return this.#tokens.takeBack(token);
  }
}
