// The accounts of the control plane: login, access tokens, logout. State: the accounts. Never keeps
// or logs a plain password or token.

import { createHmac, randomBytes } from "node:crypto";
import { AccessTokens } from "./access-tokens.ts";
import { BrokerError } from "./errors.ts";
import { LoginGate, type LoginLimits } from "./login-gate.ts";
import { type Account, type AccountConfig, firstAdmin, knownAccounts } from "./manager-accounts.ts";
import type { ManagerAccount } from "./model.ts";
import { decoyHash, PasswordChecker, type PasswordHash } from "./passwords.ts";
import type { Clock, ManagerStore, Throttle } from "./ports.ts";

// A check takes tens of milliseconds of CPU and one of the four I/O threads: one at a time.
const PASSWORD_CHECKS = { maxRunning: 1, maxWaiting: 256 };

interface Login {
  /** 256 random bits, base64url; only its hash is kept. */
  readonly token: string;
  readonly expireS: number;
  readonly account: ManagerAccount;
}

export interface Managers {
  /**
   * Loads the accounts; call it once the store has started, or earlier if no password must be
   * generated. Throws `bad_request` with a message if the configured ones cannot be used. Safe to
   * call twice.
   */
  start(): Promise<void>;
  /**
   * Throws `bad_credentials`, `too_many_attempts` (with the seconds to wait), `overloaded`,
   * `unavailable`.
   */
  login(username: string, password: string, clientAddress: string): Promise<Login>;
  /**
   * The account of a valid token. A revoked token is refused at once here and within 5 s on other
   * nodes, as is an expired one. A token ends with its account, and with a change of the account's
   * password, role or permissions. Throws `unavailable` before the accounts are loaded.
   */
  authenticate(token: string): Promise<ManagerAccount | undefined>;
  /** Revokes a token; harmless if it is not valid. */
  logout(token: string): Promise<void>;
}

export interface ManagersPorts {
  readonly store: ManagerStore;
  readonly throttle: Throttle;
  /** Empty: one account `admin`. */
  readonly accounts: readonly AccountConfig[];
  /** Password of that `admin`; "" or absent: a random one, made on first start. */
  readonly adminPassword?: string;
  readonly clock: Clock;
  readonly limits: LoginLimits & { readonly tokenTtlS: number };
  /** Shows the operator a generated password; called at most once per store. */
  announcePassword(username: string, password: string): void;
}

export function createManagers(parts: ManagersPorts): Managers {
  const { clock, limits } = parts;
  const gate = new LoginGate(parts.throttle, limits);
  const checker = new PasswordChecker(PASSWORD_CHECKS);
  let accounts: ReadonlyMap<string, Account> = new Map();
  /** One per account, at the cost of the account's hash. */
  let decoys: readonly PasswordHash[] = [];
  const decoySecret = randomBytes(16);
  let started: Promise<void> | undefined;
  const accountOf = (username: string) => accounts.get(username);
  const tokens = new AccessTokens({ store: parts.store, clock, accountOf });

  async function load(): Promise<void> {
    const { adminPassword = "", store, announcePassword } = parts;
    accounts =
      parts.accounts.length > 0
        ? await knownAccounts(parts.accounts)
        : await firstAdmin(adminPassword, store, announcePassword);
    decoys = [...accounts.values()].map(({ password }) => decoyHash(password));
  }

  /**
   * The same for each call with a username, so that its cost does not reveal which accounts exist.
   */
  function decoyOf(username: string): PasswordHash {
    const mac = createHmac("sha256", decoySecret).update(username);
    const at = mac.digest().readUInt32BE() % decoys.length;
    return decoys[at] ?? decoyHash();
  }

  return {
    start() {
      started ??= load();
      return started;
    },

    async login(username, password, clientAddress) {
      const known = accounts.get(username);
      const expected = known?.password ?? decoyOf(username);
      const isRight = await gate.attempt({ username, address: clientAddress }, (rank) =>
        checker.matches(password, expected, rank),
      );
      if (!isRight || known === undefined) throw new BrokerError("bad_credentials");
      const expiresAtMs = clock() + limits.tokenTtlS * 1000;
      const token = await tokens.give(known, expiresAtMs);
      return { token, expireS: limits.tokenTtlS, account: known.account };
    },

    async authenticate(token) {
      if (accounts.size === 0)
        throw new BrokerError("unavailable", {
          message:
            "The access tokens of admin cannot be checked before the store has started; the static token of api.token can be used",
        });
      return tokens.account(token);
    },
    logout: (token) => tokens.takeBack(token),
  };
}
