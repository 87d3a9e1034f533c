// What a node moves before it serves: the folder of migrate.from, into its Redis. From the configuration to plain values. State: none.

import type { Config } from "../config/schema.ts";
import type { Migration } from "../migrate/migration.ts";
import { createMigration, type MoveParts } from "../migrate/wiring.ts";
import { type Logger, roomLogger } from "../observe/logger.ts";
import { maxStreamBytes } from "./drivers.ts";

/** A move as the configuration says; of `migrate.from` "" one that only waits for another process's. */
export function migrationOf(
  config: Config,
  parts: Omit<MoveParts, "clock">,
): Migration {
  const { store, streams } = config;
  const settings = {
    from: config.migrate.from,
    redis: config.redis,
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
): Migration | undefined {
  if (config.redis.url === "") return undefined;
  const log = roomLogger(logger, "migrate");
  let step = "";
  return migrationOf(config, {
    onProblem: (error, what) => log.warn({ err: error }, what),
    onFailure: (error, retryMs) =>
      log.error({ err: error, retryMs }, "migration failed"),
    onProgress(progress) {
      if (progress.step === step) return;
      step = progress.step;
      log.info(progress, "migration");
    },
  });
}
