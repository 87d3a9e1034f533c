// Creates the embedded store and a cluster of one node. Keeps no state.

import { LocalThrottle, SingleNode } from "../cluster/single.ts";
import { roomLogger } from "../observe/logger.ts";
import { setAside } from "../store/embedded/set-aside.ts";
import { createEmbeddedStore } from "../store/embedded/store.ts";
import { type DriverPorts, type Drivers, judgesBans, logoutMs, maxStreamBytes } from "./drivers.ts";
import { WallClock } from "./wall-clock.ts";

export function createEmbeddedDrivers(ports: DriverPorts): Drivers {
  const { config, logger, about, onLost, newStore } = ports;
  const { families } = ports.metrics;
  const { store: settings, streams, logs, commands } = config;
  const cluster = new SingleNode(about.nodeId, about);
  const log = roomLogger(logger, "store");
  const clock = new WallClock({
    onInvalid: (timeMs) =>
      log.error(
        { clock: new Date(timeMs).toISOString() },
        "The clock of this machine shows a time after 2080. Until it is set, the broker continues from the last valid time. Set the clock",
      ),
    onValid: () => log.info("The clock of this machine shows a valid time again"),
  });
  const store = createEmbeddedStore({
    ...settings,
    maxStreamBytes: maxStreamBytes(config),
    maxActiveStreamBytes: streams.maxActiveBytes,
    maxStreamDataBytes: streams.maxDataBytes,
    maxInbox: commands.maxInbox,
    inboxTtlS: commands.expireS,
    logs,
    judgesBans: judgesBans(config),
    logoutMs: logoutMs(config),
    publisher: cluster,
    clock: clock.now,
    steadyClock: () => performance.now(),
    onError: (error, message) => log.error({ err: error }, message),
    onLost,
    onNotice: (facts, message) => log.info(facts, message),
    onDiskChange(isFull, freeBytes) {
      if (isFull)
        log.error(
          { freeBytes },
          "The disk of the store is full, so new data is rejected. Free some space on it",
        );
      else log.info({ freeBytes }, "The disk of the store has space again: new data is accepted");
    },
  });
  families.clockInvalid.of().from(() => (clock.isInvalid ? 1 : 0));
  families.storeFreeBytes.of().from(() => store.stats().freeBytes);
  families.storeDiskBytes.of().from(() => store.stats().diskBytes);
  families.messagesDuplicate.of().from(() => store.stats().duplicates);
  families.storeAppends.of().from(() => store.stats().appends);
  families.storeCheckpoints.of().from(() => store.stats().checkpoints);
  families.storeMemtableRecords.of().from(() => store.stats().memtableRecords);
  families.storeMemtableBytes.of().from(() => store.stats().memtableBytes);
  families.storeWalBytes.of().from(() => store.stats().walBytes);
  families.streamsActive.of().from(() => store.stats().activeStreams);
  families.streamsActiveBytes.of().from(() => store.stats().activeStreamBytes);
  families.logsOpen.of().from(() => store.stats().openLogs);
  families.logsActiveBytes.of().from(() => store.stats().activeLogBytes);
  families.commandsDropped.of().from(() => store.stats().inboxDropped);
  const throttle = new LocalThrottle(() => performance.now());
  const start = async (signal?: AbortSignal) => {
    const former = newStore ? await setAside(settings.path, Date.now(), signal) : undefined;
    if (former !== undefined)
      log.warn(
        { former },
        "The former store was moved to another folder, and a new store was created",
      );
    await store.start(signal);
  };
  return {
    store: { ...store, start },
    cluster,
    throttle,
    clock: clock.now,
    lookBackMs: 0,
    async reach() {},
    reason: () => undefined,
    isKnownOutage: () => false,
    async close() {},
  };
}
