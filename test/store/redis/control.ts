// Stores with only users, channels and managers on a real Redis, each with keys of its own.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import type {
  ChannelStore,
  Clock,
  ManagerStore,
  Store,
  UserStore,
} from "../../../src/broker/ports.ts";
import { RedisLink } from "../../../src/redis/link.ts";
import type { RedisStorePorts } from "../../../src/store/redis/ports.ts";
import { createRedisChannels } from "../../../src/store/redis/steps/channels.ts";
import { createRedisManagers } from "../../../src/store/redis/steps/managers.ts";
import { createRedisUsers } from "../../../src/store/redis/steps/users.ts";
import { UnreadableRecords } from "../../../src/store/redis/unreadable.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { redisSettings } from "../../support/redis.ts";

const HOUR_S = 3600;
const LIMITS = {
  ...{ dedupeWindowS: HOUR_S, retentionS: 0, sweepIntervalMs: 60_000 },
  maxChannelMessages: 0,
  ...{ maxStreamBytes: 1000, maxInbox: 10, inboxTtlS: HOUR_S, logs: LOG_LIMITS },
};

function openLink(url: string): RedisLink {
  const prefix = `t${randomUUID().slice(0, 8)}`;
  return new RedisLink(redisSettings(url, { prefix }), {
    name: "test",
    onError: () => {}, // the callers get the errors
  });
}

/** The parts of the store that these tests use. */
export type ControlStore = UserStore &
  ChannelStore &
  ManagerStore &
  Pick<Store, "start" | "close" | "ping">;

/**
 * Creates the three parts on a link. Ports that only other parts use do nothing. The test may
 * replace `waitForReplicas`, which every wait for replicas then calls.
 */
function controlStore(
  link: RedisLink,
  {
    clock,
    waitForReplicas,
  }: { clock: Clock; waitForReplicas?: RedisStorePorts["waitForReplicas"] },
): ControlStore {
  const ports: RedisStorePorts = {
    ...{ link, clock, limits: LIMITS },
    onError: () => {},
    unreadable: new UnreadableRecords(() => {}),
    waitForReplicas: waitForReplicas ?? (() => undefined),
    observeReplicas: () => async () => await waitForReplicas?.(""),
  };
  return {
    ...createRedisUsers(ports),
    ...createRedisChannels(ports),
    ...createRedisManagers(ports),
    start: () => link.start(),
    close: () => link.close(),
    ping: () => link.ping(),
  };
}

/** Starts a link and a store, and returns them with the names of their keys. */
export async function startControl(
  t: Test,
  url: string,
  options: {
    readonly clock?: Clock;
    readonly waitForReplicas?: RedisStorePorts["waitForReplicas"];
  } = {},
) {
  const link = openLink(url);
  const store = controlStore(link, { clock: Date.now, ...options });
  await store.start();
  t.teardown(() => store.close());
  return { link, store, keys: link.keys };
}
