// The command `jindou migrate`: one move with progress on standard error. State: the move's.

import type { Config } from "./config/schema.ts";
import type { Migration, OtherMove } from "./migrate/migration.ts";
import { Progress } from "./migrate/progress.ts";
import { migrationOf } from "./server/migration.ts";

/**
 * Resolves when everything is in Redis. Throws an Error with a message for the operator; a signal
 * ends it after the current page.
 */
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
  const say = (sentence: string) => {
    progress.end();
    stderr.write(`${sentence}\n`);
  };
  let compared = "";
  const migration = migrationOf(config, {
    onError: (error, what) => say(`jindou: ${what}: ${String(error)}`),
    onFailure() {}, // there is no second attempt
    onProgress: (how) => progress.show(how),
    onWaiting: waitingIn(say, progress),
    onLost(error) {
      say(`jindou: ${error instanceof Error ? error.message : String(error)}.`);
      process.exit(FAILED);
    },
    onCompared(counts) {
      const words = counts.map(({ what, count }) => `${count} ${what}`);
      compared = words.join(", ");
    },
  });
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.on(signal, stopOnce(migration));
  try {
    await migration.once();
  } finally {
    progress.end();
  }
  say(
    migration.state.status === "migrated"
      ? "Everything was moved by another process or an earlier one; nothing is left to do."
      : `Everything is in Redis and was compared: ${compared}. Keep the folder until you are sure of it.`,
  );
}

/**
 * Reports once that another process moves the data, then its progress and errors.
 */
function waitingIn(
  say: (sentence: string) => void,
  progress: Progress,
): (other: OtherMove) => void {
  let said: string | undefined;
  return ({ step, done, total, lastErr }) => {
    if (said === undefined) say("Another process moves the data; waiting for it.");
    if (lastErr !== undefined && lastErr !== said)
      say(`Its last try failed: ${lastErr}. Waiting for its next.`);
    said = lastErr ?? "";
    if (step !== "") progress.show({ step, done, total });
  };
}

/** A signal that repeats the first so soon is the same wish, as of npm. */
const ECHO_MS = 300;
const FAILED = 1;

/**
 * The first ends the move after its page, a later one the process at once: the next run goes on.
 */
function stopOnce(migration: Migration): () => void {
  let askedAtMs: number | undefined;
  return () => {
    const nowMs = performance.now();
    if (askedAtMs !== undefined && nowMs - askedAtMs > ECHO_MS) process.exit(FAILED);
    askedAtMs ??= nowMs;
    migration.close();
  };
}
