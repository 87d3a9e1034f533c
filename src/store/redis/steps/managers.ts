// Managers' passwords (hashes) and access tokens (by hash) in Redis, under keys that the whole
// cluster shares. No state.

import { BrokerError } from "../../../broker/errors.ts";
import type { ManagerStore } from "../../../broker/ports.ts";
import type { Keys } from "../../../redis/keys.ts";
import type { RedisStorePorts } from "../ports.ts";

const FORMAT = "1";
/**
 * How long an ended token's storage is kept: clocks differ, and it is the stored time that counts.
 */
const RECLAIM_AFTER_MS = 60_000;

type Link = Pick<RedisStorePorts["link"], "call" | "keys">;

/** The managers of a store on Redis. */
export function createRedisManagers({
  link,
  clock,
  written,
}: Pick<RedisStorePorts, "link" | "clock" | "written">): ManagerStore {
  const passwords = passwordsKey(link.keys);
  const tokenKey = (hash: Uint8Array) =>
    accessTokenKey(link.keys, Buffer.from(hash).toString("hex"));

  return {
    async putPasswordOnce(username, { passwordHash }) {
      const value = encodePassword(passwordHash);
      await link.call("hsetnx", passwords, username, value);
      const stored = await link.call("hget", passwords, username);
      await written(passwords);
      const [hash = ""] = fieldsOf(stored);
      return { passwordHash: hash };
    },

    async putAccessToken(tokenHash, owner, expiresAtMs) {
      const lifeMs = Math.ceil(Math.max(0, expiresAtMs - clock()));
      const value = encodeToken(owner, expiresAtMs);
      const ttlMs = lifeMs + RECLAIM_AFTER_MS;
      await link.call("set", tokenKey(tokenHash), value, "PX", ttlMs);
      await written(passwords);
    },

    accessTokenOwner: (tokenHash) => accessTokenOwner({ link, clock }, tokenHash),

    async removeAccessToken(tokenHash) {
      await link.call("del", tokenKey(tokenHash));
      await written(passwords);
    },
  };
}

/** As the port says it, of any link. */
export async function accessTokenOwner(
  { link, clock }: Pick<RedisStorePorts, "clock"> & { readonly link: Link },
  tokenHash: Uint8Array,
): Promise<string | undefined> {
  const hash = Buffer.from(tokenHash).toString("hex");
  const stored = await link.call("get", accessTokenKey(link.keys, hash));
  if (stored === null) return undefined;
  const [expiresAtMs, ...owner] = fieldsOf(stored);
  return clock() < Number(expiresAtMs) ? owner.join("\n") : undefined;
}

/** The hash of all passwords by username. */
export const passwordsKey = (keys: Keys): string => keys.shared("managers");

/** Of a token by its SHA-256 in hex. */
export const accessTokenKey = (keys: Keys, hash: string): string => keys.shared(`tokens:${hash}`);

export function encodePassword(passwordHash: string): string {
  return `${FORMAT}\n${passwordHash}`;
}

export function encodeToken(owner: string, expiresAtMs: number): string {
  return `${FORMAT}\n${expiresAtMs}\n${owner}`;
}

/** Throws `internal` on a newer format. */
function fieldsOf(stored: unknown): readonly string[] {
  const [format, ...fields] = String(stored).split("\n");
  if (format !== FORMAT)
    throw new BrokerError("internal", {
      message: `Redis holds managers' data of format ${format}; this build reads ${FORMAT}`,
    });
  return fields;
}
