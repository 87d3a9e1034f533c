// Turns the configured managers into accounts: checks them, hashes plain passwords, and creates an
// `admin` account if no manager is configured. Plain passwords must never be stored or returned.

import { createHash, randomBytes } from "node:crypto";
import { BrokerError } from "./errors.ts";
import type { ManagerAccount, ManagerRole } from "./model.ts";
import { hashPassword, type PasswordHash, parsePasswordHash } from "./passwords.ts";
import type { ManagerStore } from "./ports.ts";

/**
 * Permissions for control-plane calls. `*` means all permissions [decisions: Roles and
 * permissions].
 */
export const PERMISSIONS = [
  "users:write",
  "channels:write",
  "messages:write",
  "events:read",
  "events:write",
  "streams:read",
  "streams:write",
  "webhooks:read",
  "webhooks:write",
  "system:read",
  "system:write",
  "*",
] as const;
export type Permission = (typeof PERMISSIONS)[number];

const ROLE_PERMISSIONS: Readonly<Record<ManagerRole, readonly Permission[]>> = {
  admin: ["*"],
  operator: [
    "users:write",
    "channels:write",
    "messages:write",
    "events:read",
    "events:write",
    "streams:read",
    "streams:write",
    "webhooks:read",
    "webhooks:write",
    "system:read",
  ],
  viewer: ["events:read", "webhooks:read", "system:read"],
};

/** Exactly one of `passwordHash` and `password` must be set. "" means not set. */
export interface AccountConfig {
  readonly username: string;
  readonly passwordHash?: string;
  readonly password?: string;
  readonly role: ManagerRole;
  /** If empty or absent, the account has its role's permissions. */
  readonly permissions?: readonly string[];
}

export interface Account {
  readonly account: ManagerAccount;
  readonly password: PasswordHash;
  readonly fingerprint: Uint8Array;
}

/** The fingerprint may be a fast hash of a plain password, so it must never be stored or sent. */
export type AccountIdentity = Pick<Account, "account" | "fingerprint">;

const FIRST_ADMIN: AccountConfig = { username: "admin", role: "admin" };

/** Throws `bad_request` if the configuration is not valid. */
export async function configuredAccounts(
  configured: readonly AccountConfig[],
): Promise<ReadonlyMap<string, Account>> {
  const accounts = new Map<string, Account>();
  for (const config of configured) {
    if (accounts.has(config.username))
      throw configError(config.username, "is configured twice; remove one of the entries");
    accounts.set(config.username, {
      ...identityOf(config),
      password: await passwordHashOf(config),
    });
  }
  return accounts;
}

/**
 * Returns the `admin` account. If `adminPassword` is "", the first start with a store generates a
 * password, stores its hash and calls `announce` to show it to the operator.
 */
export async function firstAdmin(
  adminPassword: string,
  store: ManagerStore,
  announce: (username: string, password: string) => void,
): Promise<ReadonlyMap<string, Account>> {
  if (adminPassword !== "")
    return configuredAccounts([{ ...FIRST_ADMIN, password: adminPassword }]);
  const { username } = FIRST_ADMIN;
  const password = randomBytes(18).toString("base64url");
  const generatedHash = await hashPassword(password);
  const { passwordHash } = await store.putPasswordOnce(username, {
    passwordHash: generatedHash,
  });
  if (passwordHash === generatedHash) announce(username, password);
  return configuredAccounts([{ ...FIRST_ADMIN, passwordHash }]);
}

export function allows(account: ManagerAccount, permission: Permission): boolean {
  const { permissions } = account;
  return permissions.includes("*") || permissions.includes(permission);
}

function toAccount(config: AccountConfig): ManagerAccount {
  const { username, role, permissions = [] } = config;
  for (const permission of permissions)
    if (!PERMISSIONS.some((valid) => valid === permission))
      throw configError(
        username,
        `has the unknown permission ${JSON.stringify(permission)}; use only ${PERMISSIONS.join(", ")}`,
      );
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

async function passwordHashOf(config: AccountConfig): Promise<PasswordHash> {
  const { username, passwordHash = "", password = "" } = config;
  if ((passwordHash === "") === (password === ""))
    throw configError(username, "must have either passwordHash or password, but not both");
  const text = passwordHash === "" ? await hashPassword(password) : passwordHash;
  const parsed = parsePasswordHash(text);
  if (parsed === undefined)
    throw configError(
      username,
      "has a passwordHash that is not valid; create one with jindou hash-password",
    );
  return parsed;
}

function configError(username: string, what: string): BrokerError {
  return new BrokerError("bad_request", {
    message: `The manager ${JSON.stringify(username)} ${what}`,
  });
}
