// Login, authentication and logout of managers, the users of the control plane. Plain passwords and
// tokens must never be stored or logged.

import { createHmac, randomBytes } from "node:crypto";
import { AccessTokens } from "./access-tokens.ts";
import { BrokerError } from "./errors.ts";
import { LoginGate, type LoginLimits } from "./login-gate.ts";
import {
  type Account,
  type AccountConfig,
  configuredAccounts,
  firstAdmin,
} from "./manager-accounts.ts";
import type { ManagerAccount } from "./model.ts";
import { decoyHash, PasswordChecker, type PasswordHash } from "./passwords.ts";
import type { Clock, ManagerStore, Throttle } from "./ports.ts";

// Checking a password takes tens of milliseconds of CPU time and occupies one of the four I/O
// threads, so only one check runs at a time.
const PASSWORD_CHECKS = { maxRunning: 1, maxWaiting: 256 };

interface Login {
  /** 256 random bits in base64url. Only the hash of the token is stored. */
  readonly token: string;
  readonly expireS: number;
  readonly account: ManagerAccount;
}

export interface Managers {
  /**
   * Loads the accounts. Further calls have no effect. The store must already be started, because
   * this call may store a generated password.
   */
  start(): Promise<void>;
  /**
   * Throws `bad_credentials`, `too_many_attempts` with the time to wait, `overloaded` or
   * `unavailable`.
   */
  login(username: string, password: string, clientAddress: string): Promise<Login>;
  /**
   * Returns a token's owner, or `undefined` if the token is not valid. The node that revoked the
   * token rejects it immediately, other nodes within 5 s. Throws `unavailable` before the accounts
   * are loaded.
   */
  authenticate(token: string): Promise<ManagerAccount | undefined>;
  logout(token: string): Promise<void>;
}

export interface ManagersPorts {
  readonly store: ManagerStore;
  readonly throttle: Throttle;
  readonly accounts: readonly AccountConfig[];
  readonly adminPassword?: string;
  readonly clock: Clock;
  readonly limits: LoginLimits & { readonly tokenTtlS: number };
  /** Shows a generated password to the operator. Called at most once per store. */
  announcePassword(username: string, password: string): void;
}

export function createManagers(ports: ManagersPorts): Managers {
  const { clock, limits } = ports;
  const gate = new LoginGate(ports.throttle, limits);
  const checker = new PasswordChecker(PASSWORD_CHECKS);
  let accounts: ReadonlyMap<string, Account> = new Map();
  let decoys: readonly PasswordHash[] = [];
  const decoySecret = randomBytes(16);
  let started: Promise<void> | undefined;
  const accountOf = (username: string) => accounts.get(username);
  const tokens = new AccessTokens({ store: ports.store, clock, accountOf });

  async function load(): Promise<void> {
    const { adminPassword = "", store, announcePassword } = ports;
    accounts =
      ports.accounts.length > 0
        ? await configuredAccounts(ports.accounts)
        : await firstAdmin(adminPassword, store, announcePassword);
    decoys = [...accounts.values()].map(({ password }) => decoyHash(password));
  }

  /**
   * Returns the hash to check for an unknown username, so that the duration of a login does not
   * reveal whether the username exists. The hash is always the same for a given username.
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
      const account = accounts.get(username);
      const expected = account?.password ?? decoyOf(username);
      const isRight = await gate.attempt({ username, address: clientAddress }, (rank) =>
        checker.matches(password, expected, rank),
      );
      if (!isRight || account === undefined) throw new BrokerError("bad_credentials");
      const expiresAtMs = clock() + limits.tokenTtlS * 1000;
      const token = await tokens.issue(account, expiresAtMs);
      return { token, expireS: limits.tokenTtlS, account: account.account };
    },

    async authenticate(token) {
      if (accounts.size === 0)
        throw new BrokerError("unavailable", {
          message:
            "Access tokens of the `admin` account cannot be checked until the store has started. Use the static token of api.token",
        });
      return tokens.account(token);
    },
    logout: (token) => tokens.revoke(token),
  };
}
