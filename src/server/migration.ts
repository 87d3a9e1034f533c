// What a node moves before it serves: the folder of migrate.from, into its Redis. From the configuration to plain values. State: none.

import type { Config } from "../config/schema.ts";
import { MAX_RETRY_MS, type Migration } from "../migrate/migration.ts";
import { createMigration, type MoveParts } from "../migrate/wiring.ts";
import { type Logger, roomLogger } from "../observe/logger.ts";
import { maxStreamBytes } from "./drivers.ts";

/** Longer than a process that moves pauses, and is held up by the opening of its folder, with its right lost meanwhile. */
const ABANDONED_AFTER_MS = MAX_RETRY_MS + 5000;

/** A move as the configuration says; of `migrate.from` "" one that only waits for another process's. */
export function migrationOf(
  config: Config,
  parts: Omit<MoveParts, "clock">,
): Migration {
  const { store, streams } = config;
  const settings = {
    from: config.migrate.from,
    redis: config.redis,
    deadAfterMs: config.cluster.deadAfterMs,
    abandonedAfterMs: ABANDONED_AFTER_MS,
    store: {
      ...store,
      maxStreamBytes: maxStreamBytes(config),
      maxActiveStreamBytes: streams.maxActiveBytes,
      maxInbox: config.commands.maxInbox,
      inboxTtlS: config.commands.expireS,
    },
  };
  return createMigration(settings, { clock: Date.now, ...parts });
}

/** Of a node; undefined: it keeps its data itself. */
export function nodeMigration(
  config: Config,
  logger: Logger,
  onLost: (error: unknown) => void,
): Migration | undefined {
  if (config.redis.url === "") return undefined;
  const log = roomLogger(logger, "migrate");
  const said = { step: "", other: "" };
  return migrationOf(config, {
    onProblem: (error, what) => log.warn({ err: error }, what),
    onFailure(error, retryMs) {
      if (retryMs === undefined)
        log.error(
          { err: error },
          "The migration failed and is not tried again",
        );
      else
        log.error(
          { err: error, retryMs },
          "The migration failed and is tried again",
        );
    },
    onProgress(progress) {
      if (progress.step === said.step) return;
      said.step = progress.step;
      log.info(progress, "The migration began a step");
    },
    onWaiting({ step, isAbandoned, lastErr }) {
      const words = `${step} ${isAbandoned} ${lastErr}`;
      if (words === said.other) return;
      said.other = words;
      if (isAbandoned)
        log.warn(
          { step, lastErr },
          "The migration by another process was abandoned",
        );
      else log.info({ step, lastErr }, "Another process migrates the data");
    },
    onCompared: (counts) =>
      log.info({ counts }, "The migrated data was compared"),
    onLost,
  });
}
