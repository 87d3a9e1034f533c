// The keys that sign stream URLs: one HASH that the whole cluster shares. Keeps no state.

import { BrokerError } from "../../../broker/errors.ts";
import type { SigningKey, SigningKeyStore } from "../../../broker/ports.ts";
import type { Keys } from "../../../redis/keys.ts";
import type { RedisStorePorts } from "../ports.ts";

const FORMAT = "1";

export const signingKeysKey = (keys: Keys): string => keys.shared("signingKeys");

export function createRedisSigningKeys({
  link,
  waitForReplicas,
}: Pick<RedisStorePorts, "link" | "waitForReplicas">): SigningKeyStore {
  const hash = signingKeysKey(link.keys);
  return {
    async signingKeys() {
      const reply = await link.call("hgetall", hash);
      // ioredis converts the reply of HGETALL to an object.
      const entries = Object.entries(reply as Record<string, Buffer>);
      const keys = entries.map(([number, stored]) => decode(Number(number), String(stored)));
      return keys.sort((a, b) => a.number - b.number);
    },

    async putSigningKeyOnce(key) {
      await link.write("hsetnx", hash, `${key.number}`, encodeSigningKey(key));
      const stored = await link.call("hget", hash, `${key.number}`);
      await waitForReplicas(hash);
      return decode(key.number, String(stored));
    },

    async removeSigningKey(number) {
      await link.write("hdel", hash, `${number}`);
      await waitForReplicas(hash);
    },
  };
}

export function encodeSigningKey({ secret, createdAtMs }: SigningKey): string {
  return `${FORMAT} ${createdAtMs} ${Buffer.from(secret).toString("hex")}`;
}

function decode(number: number, stored: string): SigningKey {
  const [format, createdAtMs, secret = ""] = stored.split(" ");
  if (format !== FORMAT)
    throw new BrokerError("internal", {
      message: `Redis holds a signing key of format ${format}, but this build reads only format ${FORMAT}. Start the build that wrote it`,
    });
  return { number, secret: Buffer.from(secret, "hex"), createdAtMs: Number(createdAtMs) };
}
