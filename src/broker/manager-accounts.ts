// From configuration to accounts: checks them, hashes plain passwords, and makes the first `admin`
// if none is set. State: none. Never keeps or returns a plain password.

import { createHash, randomBytes } from "node:crypto";
import { BrokerError } from "./errors.ts";
import type { ManagerAccount, ManagerRole } from "./model.ts";
import { hashPassword, type PasswordHash, parsePasswordHash } from "./passwords.ts";
import type { ManagerStore } from "./ports.ts";

/** Permissions of control-plane calls; `*` is all of them [decisions: Roles and permissions]. */
export const PERMISSIONS = [
  "users:write",
  "channels:write",
  "messages:write",
  "events:write",
  "system:read",
  "*",
] as const;
export type Permission = (typeof PERMISSIONS)[number];

const ROLE_PERMISSIONS: Readonly<Record<ManagerRole, readonly Permission[]>> = {
  admin: ["*"],
  operator: ["users:write", "channels:write", "messages:write", "events:write", "system:read"],
  viewer: ["system:read"],
};

/** A configured manager: exactly one of `passwordHash` and `password` is set; "" is not set. */
export interface AccountConfig {
  readonly username: string;
  readonly passwordHash?: string;
  readonly password?: string;
  readonly role: ManagerRole;
  /** Empty or absent: the role's. */
  readonly permissions?: readonly string[];
}

export interface Account {
  readonly account: ManagerAccount;
  readonly password: PasswordHash;
  /** See `AccountIdentity`. */
  readonly fingerprint: Uint8Array;
}

/**
 * An account with a value that changes with its password, its role or its permissions, and is
 * equal on all nodes. Never stored or sent.
 */
export type AccountIdentity = Pick<Account, "account" | "fingerprint">;

const FIRST_ADMIN: AccountConfig = { username: "admin", role: "admin" };

/** The accounts by username. Throws `bad_request` with a message about the configuration. */
export async function knownAccounts(
  configured: readonly AccountConfig[],
): Promise<ReadonlyMap<string, Account>> {
  const known = new Map<string, Account>();
  for (const config of configured) {
    if (known.has(config.username)) throw wrong(config.username, "is configured twice");
    known.set(config.username, {
      ...identityOf(config),
      password: await kept(config),
    });
  }
  return known;
}

/**
 * The account of a server without configured ones: `admin` with the given password, else with a
 * random one made at the first start on a store, which `announce` shows the operator; the store
 * keeps its hash.
 */
export async function firstAdmin(
  adminPassword: string,
  store: ManagerStore,
  announce: (username: string, password: string) => void,
): Promise<ReadonlyMap<string, Account>> {
  if (adminPassword !== "") return knownAccounts([{ ...FIRST_ADMIN, password: adminPassword }]);
  const { username } = FIRST_ADMIN;
  const password = randomBytes(18).toString("base64url");
  const mine = await hashPassword(password);
  const { passwordHash } = await store.putPasswordOnce(username, {
    passwordHash: mine,
  });
  if (passwordHash === mine) announce(username, password);
  return knownAccounts([{ ...FIRST_ADMIN, passwordHash }]);
}

/** Whether the account has `permission`. */
export function allows(account: ManagerAccount, permission: Permission): boolean {
  const { permissions } = account;
  return permissions.includes("*") || permissions.includes(permission);
}

function toAccount(config: AccountConfig): ManagerAccount {
  const { username, role, permissions = [] } = config;
  for (const one of permissions)
    if (!PERMISSIONS.some((permission) => permission === one))
      throw wrong(username, `has the unknown permission ${JSON.stringify(one)}`);
  const granted = permissions.length > 0 ? [...permissions] : ROLE_PERMISSIONS[role];
  return { username, role, permissions: granted };
}

function identityOf(config: AccountConfig): AccountIdentity {
  const { passwordHash = "", password = "" } = config;
  const account = toAccount(config);
  const { username, role, permissions } = account;
  const sorted = [...permissions].sort();
  const facts = [username, passwordHash, password, role, sorted];
  const fingerprint = createHash("sha256").update(JSON.stringify(facts)).digest();
  return { account, fingerprint };
}

async function kept(config: AccountConfig): Promise<PasswordHash> {
  const { username, passwordHash = "", password = "" } = config;
  if ((passwordHash === "") === (password === ""))
    throw wrong(username, "needs either passwordHash or password");
  const text = passwordHash === "" ? await hashPassword(password) : passwordHash;
  const parsed = parsePasswordHash(text);
  if (parsed === undefined)
    throw wrong(username, "has a passwordHash that is not of the form scrypt$N$r$p$salt$hash");
  return parsed;
}

function wrong(username: string, what: string): BrokerError {
  return new BrokerError("bad_request", {
    message: `The manager ${JSON.stringify(username)} ${what}`,
  });
}
