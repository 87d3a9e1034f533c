// Turns the event feed of a stopped embedded store on or off, for `jindou events`. Keeps no state.

import { Events } from "../broker/events.ts";
import type { Config } from "../config/schema.ts";
import { hasDatabase } from "../store/embedded/engine/data-folder.ts";
import { createEmbeddedStore } from "../store/embedded/store.ts";
import { judgesBans, logoutMs, maxStreamBytes } from "./drivers.ts";

/**
 * Interval between sweeps of expired data. Sweeps are not needed, because the store is open only
 * briefly.
 */
const NEVER_MS = 2 ** 31 - 1;

/**
 * Opens the data folder and turns its event feed on or off. Returns the cursor after which the feed
 * is complete, or `undefined` if Redis is configured or the folder contains no database. Throws a
 * BrokerError if a node uses the folder.
 */
export async function switchStoppedFeed(
  config: Config,
  isOn: boolean,
): Promise<string | undefined> {
  const { store: settings, streams, logs, commands } = config;
  if (config.redis.url !== "" || !hasDatabase(settings.path)) return undefined;
  let lost: Error | undefined;
  const onError = (error: Error) => {
    lost ??= error;
  };
  const store = createEmbeddedStore({
    ...{ ...settings, sweepIntervalMs: NEVER_MS, logs },
    ...{ maxStreamBytes: maxStreamBytes(config), maxActiveStreamBytes: streams.maxActiveBytes },
    ...{ maxInbox: commands.maxInbox, inboxTtlS: commands.expireS },
    ...{ judgesBans: judgesBans(config), logoutMs: logoutMs(config) },
    publisher: { publish() {} },
    ...{ clock: Date.now, onError, onLost: onError },
  });
  await store.start();
  try {
    const cursor = await new Events({ store, toJson: () => ({}) }).switch(isOn);
    if (lost !== undefined) throw lost;
    return cursor;
  } finally {
    await store.close();
  }
}
