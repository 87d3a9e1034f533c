// Creates the migration of a node or of `jindou migrate` from the configuration, and logs the
// migration of a node. Keeps no state.

import type { Config } from "../config/schema.ts";
import { Migration, type MoveEvents } from "../migrate/migration.ts";
import { type Logger, roomLogger } from "../observe/logger.ts";
import { maxStreamBytes } from "./drivers.ts";
import { outageLog } from "./redis-drivers.ts";

export function migrationOf(config: Config, events: MoveEvents): Migration {
  const { store, streams } = config;
  const settings = {
    from: config.migrate.from,
    redis: config.redis,
    deadAfterMs: config.cluster.deadAfterMs,
    store: {
      ...store,
      maxStreamBytes: maxStreamBytes(config),
      maxStreamDataBytes: streams.maxDataBytes,
      maxActiveStreamBytes: streams.maxActiveBytes,
      maxInbox: config.commands.maxInbox,
      inboxTtlS: config.commands.expireS,
    },
  };
  return new Migration(settings, events);
}

export function nodeMigration(
  config: Config,
  logger: Logger,
  onLost: (error: unknown) => void,
): Migration {
  const log = roomLogger(logger, "migrate");
  const lastLogged = { step: "", waiting: "" };
  return migrationOf(config, {
    onError: (error, message) => log.warn({ err: error }, message),
    onNotice: (facts, message) => log.info(facts, message),
    onOutage: outageLog(log),
    onFailure(error, retryMs) {
      if (retryMs === undefined)
        log.error({ err: error }, "The migration failed and will not be retried");
      else log.error({ err: error, retryMs }, "The migration failed and will be retried");
    },
    onProgress(progress) {
      if (progress.step === lastLogged.step) return;
      lastLogged.step = progress.step;
      log.info(progress, "A step of the migration began");
    },
    onWaiting({ step, isAbandoned, lastErr }) {
      const state = `${step} ${isAbandoned} ${lastErr}`;
      if (state === lastLogged.waiting) return;
      lastLogged.waiting = state;
      if (isAbandoned)
        log.warn({ step, lastErr }, "The migration by another process was abandoned");
      else log.info({ step, lastErr }, "Another process is migrating the data");
    },
    onCompared: (counts) => log.info({ counts }, "The migrated data was compared"),
    onLost,
  });
}
