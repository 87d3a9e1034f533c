// One move as this process: `jindou migrate`. Shows how far it is on standard error, and ends with a sentence. State: none but the move's.

import type { Config } from "./config/schema.ts";
import type { Migration } from "./migrate/migration.ts";
import { Progress } from "./migrate/progress.ts";
import { migrationOf } from "./server/migration.ts";

/** Resolves when everything is in Redis. Throws an Error with a sentence for the operator; a signal ends it after the page under way. */
export async function moveData(config: Config): Promise<void> {
  const { stderr } = process;
  const progress = new Progress(
    {
      isTTY: stderr.isTTY === true,
      columns: stderr.columns ?? 80,
      write: (text) => stderr.write(text),
    },
    () => performance.now(),
  );
  const migration = migrationOf(config, {
    onProblem(error, what) {
      progress.end();
      stderr.write(`jindou: ${what}: ${String(error)}\n`);
    },
    onFailure() {}, // of tries that are followed by another; there is one here
    onProgress: (how) => progress.show(how),
  });
  for (const signal of ["SIGINT", "SIGTERM"] as const)
    process.on(signal, stopOnce(migration));
  try {
    await migration.once();
  } finally {
    progress.end();
  }
  stderr.write(
    migration.state.status === "migrated"
      ? "Everything was moved before; nothing is left to do.\n"
      : "Everything is in Redis and was compared. Keep the folder until you are sure of it.\n",
  );
}

/** A signal that repeats the first so soon is the same wish, as of npm. */
const ECHO_MS = 300;
const FAILED = 1;

/** The first ends the move after its page, a later one the process at once: the next run goes on. */
function stopOnce(migration: Migration): () => void {
  let askedAtMs: number | undefined;
  return () => {
    const nowMs = performance.now();
    if (askedAtMs !== undefined && nowMs - askedAtMs > ECHO_MS)
      process.exit(FAILED);
    askedAtMs ??= nowMs;
    migration.close();
  };
}
