// Stores managers' passwords (as hashes) and access tokens (under their hash) in keys that the
// whole cluster shares. Keeps no state.

import { BrokerError } from "../../../broker/errors.ts";
import type { ManagerStore } from "../../../broker/ports.ts";
import type { Keys } from "../../../redis/keys.ts";
import type { RedisStorePorts } from "../ports.ts";

const FORMAT = "1";
/** Time for which the key of an expired token is kept, because nodes' clocks differ. */
const RECLAIM_AFTER_MS = 60_000;

type Link = Pick<RedisStorePorts["link"], "call" | "keys">;

export function createRedisManagers({
  link,
  clock,
  waitForReplicas,
}: Pick<RedisStorePorts, "link" | "clock" | "waitForReplicas">): ManagerStore {
  const passwords = passwordsKey(link.keys);
  const tokenKey = (hash: Uint8Array) =>
    accessTokenKey(link.keys, Buffer.from(hash).toString("hex"));

  return {
    async putPasswordOnce(username, { passwordHash }) {
      const value = encodePassword(passwordHash);
      await link.write("hsetnx", passwords, username, value);
      const stored = await link.call("hget", passwords, username);
      await waitForReplicas(passwords);
      const [hash = ""] = fieldsOf(stored);
      return { passwordHash: hash };
    },

    async putAccessToken(tokenHash, owner, expiresAtMs) {
      const remainingMs = Math.ceil(Math.max(0, expiresAtMs - clock()));
      const value = encodeToken(owner, expiresAtMs);
      const ttlMs = remainingMs + RECLAIM_AFTER_MS;
      await link.write("set", tokenKey(tokenHash), value, "PX", ttlMs);
      await waitForReplicas(passwords);
    },

    accessTokenOwner: (tokenHash) => accessTokenOwner({ link, clock }, tokenHash),

    async removeAccessToken(tokenHash) {
      await link.write("del", tokenKey(tokenHash));
      await waitForReplicas(passwords);
    },
  };
}

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

export const passwordsKey = (keys: Keys): string => keys.shared("managers");

export const accessTokenKey = (keys: Keys, hash: string): string => keys.shared(`tokens:${hash}`);

export function encodePassword(passwordHash: string): string {
  return `${FORMAT}\n${passwordHash}`;
}

export function encodeToken(owner: string, expiresAtMs: number): string {
  return `${FORMAT}\n${expiresAtMs}\n${owner}`;
}

function fieldsOf(stored: unknown): readonly string[] {
  const [format, ...fields] = String(stored).split("\n");
  if (format !== FORMAT)
    throw new BrokerError("internal", {
      message: `Redis holds a manager's password or token in format ${format}, but this build reads only format ${FORMAT}. Start the build that wrote it`,
    });
  return fields;
}
