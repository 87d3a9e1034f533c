// Stores the settings, delivery states and parked events of webhook endpoints as texts, each in its
// own row. State: the newest delivery attempts, which are not stored.

import {
  type TextChanges,
  type WebhookStore,
  type WebhookTextKind,
  webhookLeaseName,
} from "../../../broker/webhook-ports.ts";
import { endOfPrefix, fieldsOf, type Stored, transact } from "../engine/database.ts";
import type { Tables } from "../engine/tables.ts";
import type { Leases } from "./leases.ts";

const VERSION = 1;

/** Kind of a row in the table `webhooks`. Only a settings row stores an endpoint's version. */
export type WebhookRowKind = "settings" | WebhookTextKind;

export function createEmbeddedWebhooks(tables: Tables, leases: Leases): WebhookStore {
  const { webhooks: table } = tables;
  const attemptsById = new Map<string, readonly string[]>();

  function* rowsOf(kind: WebhookRowKind, ...id: readonly string[]) {
    const prefix = [kind, ...id];
    for (const { key, value } of table.getRange({ start: prefix, end: endOfPrefix(prefix) }))
      yield { id: key[1] ?? "", name: key[2] ?? "", value };
  }

  function exists(id: string): boolean {
    return table.doesExist(["settings", id, ""]);
  }

  /** Replaces and removes texts of an endpoint. Adds a new text only if `mayAdd` is true. */
  function putTexts(kind: WebhookTextKind, id: string, changes: TextChanges, mayAdd: boolean) {
    for (const [name, text] of changes) {
      const key = [kind, id, name];
      if (text === undefined) void table.remove(key);
      else if (mayAdd || table.doesExist(key)) void table.put(key, [VERSION, text]);
    }
  }

  return {
    async webhooks() {
      return [...rowsOf("settings")].map(({ id, value }) => webhookOf(id, value));
    },

    putWebhook: (id, settings, expected, max, freesSpace = false) =>
      transact(
        tables,
        () => {
          const stored = table.get(["settings", id, ""]);
          const version = stored === undefined ? 0 : webhookOf(id, stored).version;
          if (version !== expected) return "changed";
          if (version === 0 && [...rowsOf("settings")].length >= max) return "full";
          void table.put(["settings", id, ""], [VERSION, settings, version + 1]);
          return "done";
        },
        freesSpace ? "reclaim" : "store",
      ),

    async removeWebhook(id) {
      const existed = await transact(
        tables,
        () => {
          const isStored = exists(id);
          void table.remove(["settings", id, ""]);
          for (const kind of ["state", "parked"] as const)
            for (const { name } of [...rowsOf(kind, id)]) void table.remove([kind, id, name]);
          return isStored;
        },
        "reclaim",
      );
      // The attempts and the lease are removed after the transaction, because calls that run during
      // the transaction may add attempts or acquire the lease.
      attemptsById.delete(id);
      leases.forget(webhookLeaseName(id));
      return existed;
    },

    async acquireWebhookLeases(ids) {
      return Promise.all(
        ids.map((id) => (exists(id) ? leases.acquireLease(webhookLeaseName(id)) : undefined)),
      );
    },

    async webhookTexts(id, kind) {
      const rows = [...rowsOf(kind, id)];
      return new Map(rows.map(({ name, value }) => [name, String(fieldsOf(value, VERSION)[0])]));
    },

    saveWebhookTexts: (target, { state = new Map(), parked = new Map() }) =>
      transact(
        tables,
        () => {
          const { webhookId: id } = target;
          if (!exists(id)) return false;
          const hasLease = "token" in target;
          if (hasLease && !leases.isHeld(webhookLeaseName(id))) return false;
          putTexts("state", id, state, hasLease);
          putTexts("parked", id, parked, hasLease);
          return true;
        },
        // A save without parked events stores the progress of deliveries. It must succeed on a full
        // disk, because old events can be removed only after this progress is stored.
        parked.size === 0 ? "reclaim" : "store",
      ),

    async addWebhookAttempts(id, attempts, keep) {
      if (!exists(id)) return;
      const newest = [...attempts].reverse();
      attemptsById.set(id, [...newest, ...(attemptsById.get(id) ?? [])].slice(0, keep));
    },

    async webhookAttempts(id, limit) {
      return (attemptsById.get(id) ?? []).slice(0, limit);
    },
  };
}

export function webhookOf(id: string, stored: Stored) {
  const [settings, version] = fieldsOf(stored, VERSION);
  return { id, version: Number(version), settings: String(settings) };
}
