// Webhook endpoints in Redis: their settings, states, parked events and attempts, in the slot of
// the keys that the whole cluster shares. Keeps no state.

import { BrokerError } from "../../../broker/errors.ts";
import {
  type StoredWebhook,
  type WebhookStore,
  type WebhookTextKind,
  webhookLeaseName,
} from "../../../broker/webhook-ports.ts";
import type { Keys } from "../../../redis/keys.ts";
import { loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { leaseKey } from "./leases.ts";

const PUT = loadScript(lua("webhook_put"));
const REMOVE = loadScript(lua("webhook_remove"));
const SAVE = loadScript(lua("webhook_save"));
const LEASES = loadScript(lua("webhook_leases"), lua("lease_acquire"));
const ADD_ATTEMPTS = loadScript(lua("webhook_attempts"));

const FORMAT = "1";

export const webhooksKey = (keys: Keys): string => keys.shared("webhooks");

export const webhookTextsKey = (keys: Keys, kind: WebhookTextKind, id: string): string =>
  keys.shared(`${kind === "state" ? "webhookState" : "webhookParked"}:${id}`);

export function createRedisWebhooks({
  link,
  waitForReplicas,
}: Pick<RedisStorePorts, "link" | "waitForReplicas">): WebhookStore {
  const { keys } = link;
  const hash = webhooksKey(keys);
  const leaseOf = (id: string) => leaseKey(keys, webhookLeaseName(id));
  const attemptsKey = (id: string) => keys.shared(`webhookAttempts:${id}`);
  const stateKey = (id: string) => webhookTextsKey(keys, "state", id);
  const parkedKey = (id: string) => webhookTextsKey(keys, "parked", id);

  return {
    async webhooks() {
      const reply = await link.call("hgetall", hash);
      // ioredis converts the reply of HGETALL to an object.
      const entries = Object.entries(reply as Record<string, Buffer>);
      return entries
        .map(([id, stored]) => decode(id, String(stored)))
        .sort((a, b) => (a.id < b.id ? -1 : 1));
    },

    async putWebhook(id, settings, expected, max) {
      const reply = String(await link.run(PUT, [hash], [id, settings, expected, max]));
      await waitForReplicas(hash);
      return reply === "changed" || reply === "full" ? reply : "done";
    },

    async removeWebhook(id) {
      const ofEndpoint = [leaseOf(id), stateKey(id), parkedKey(id), attemptsKey(id)];
      const removed = await link.run(REMOVE, [hash, ...ofEndpoint], [id]);
      await waitForReplicas(hash);
      return removed === 1;
    },

    async acquireWebhookLeases(ids, owner, ttlMs) {
      if (ids.length === 0) return [];
      const reply = await link.run(LEASES, [hash, ...ids.map(leaseOf)], [owner, ttlMs, ...ids]);
      const tokens = (reply as readonly unknown[]).map(Number); // see `webhook_leases.lua`
      return ids.map((id, at) => {
        const token = tokens[at] ?? 0;
        return token === 0 ? undefined : { name: webhookLeaseName(id), token };
      });
    },

    async webhookTexts(id, kind) {
      const reply = await link.call("hgetall", webhookTextsKey(keys, kind, id));
      const entries = Object.entries(reply as Record<string, Buffer>); // converted by ioredis
      return new Map(entries.map(([name, text]) => [name, String(text)]));
    },

    async saveWebhookTexts(target, { state = new Map(), parked = new Map() }) {
      const { webhookId: id } = target;
      const changes = [...state, ...parked].flatMap(([name, text]) => [name, text ?? ""]);
      const token = "token" in target ? `${target.token}` : "";
      const names = [hash, leaseOf(id), stateKey(id), parkedKey(id)];
      const saved = await link.run(SAVE, names, [id, token, state.size, ...changes]);
      await waitForReplicas(hash);
      return saved === 1;
    },

    async addWebhookAttempts(id, attempts, keep) {
      if (attempts.length === 0) return;
      await link.run(ADD_ATTEMPTS, [hash, attemptsKey(id)], [id, keep, ...attempts]);
    },

    async webhookAttempts(id, limit) {
      const rows = await link.call("lrange", attemptsKey(id), 0, limit - 1);
      return (rows as readonly Buffer[]).map(String); // the reply of LRANGE
    },
  };
}

export function encodeWebhook({ version, settings }: Omit<StoredWebhook, "id">): string {
  return `${FORMAT} ${version} ${settings}`;
}

function decode(id: string, stored: string): StoredWebhook {
  const [, format, version, settings = ""] = /^(\d+) (\d+) (.*)$/s.exec(stored) ?? [];
  if (format !== FORMAT)
    throw new BrokerError("internal", {
      message: `Redis holds a webhook of format ${format}, but this build reads only format ${FORMAT}. Start the build that wrote it`,
    });
  return { id, version: Number(version), settings };
}
