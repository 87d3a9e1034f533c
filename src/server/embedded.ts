// One node alone: the embedded store, and a cluster of one. State: none of its own.

import { LocalThrottle, SingleNode } from "../cluster/single.ts";
import { roomLogger } from "../observe/logger.ts";
import type { Metrics } from "../observe/metrics.ts";
import {
  createEmbeddedStore,
  type EmbeddedStore,
} from "../store/embedded/store.ts";
import { type DriverParts, type Drivers, maxStreamBytes } from "./drivers.ts";

export function createEmbeddedDrivers(parts: DriverParts): Drivers {
  const { config, logger, metrics, about, onLost } = parts;
  const { store: settings, streams, commands } = config;
  const cluster = new SingleNode(about.nodeId, about);
  const log = roomLogger(logger, "store");
  const store = createEmbeddedStore({
    ...settings,
    maxStreamBytes: maxStreamBytes(config),
    maxActiveStreamBytes: streams.maxActiveBytes,
    maxInbox: commands.maxInbox,
    inboxTtlS: commands.expireS,
    publisher: cluster,
    clock: Date.now,
    onProblem: (error, what) => log.error({ err: error }, what),
    onLost,
  });
  exposeStats(store, metrics);
  const throttle = new LocalThrottle(Date.now);
  return { store, cluster, throttle, async close() {} };
}

function exposeStats(store: EmbeddedStore, { families }: Metrics): void {
  families.messagesDuplicate.of().from(() => store.stats().duplicates);
  families.storeAppends.of().from(() => store.stats().appends);
  families.storeCheckpoints.of().from(() => store.stats().checkpoints);
  families.storeTailRecords.of().from(() => store.stats().tailRecords);
  families.storeTailBytes.of().from(() => store.stats().tailBytes);
  families.storeJournalBytes.of().from(() => store.stats().journalBytes);
  families.streamsActive.of().from(() => store.stats().activeStreams);
  families.streamsActiveBytes.of().from(() => store.stats().activeStreamBytes);
  families.commandsDropped.of().from(() => store.stats().inboxDropped);
}
