// The command `jindou migrate`: runs one migration and prints its progress to standard error.

import type { Config } from "./config/schema.ts";
import { printable } from "./lib/printable.ts";
import type { Migration, OtherMove } from "./migrate/migration.ts";
import { Progress } from "./migrate/progress.ts";
import { sentenceOf } from "./observe/error-fields.ts";
import { collectLibraryOutput } from "./server/library-output.ts";
import { migrationOf } from "./server/migration.ts";
import { onStopSignal } from "./signals.ts";

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
  const print = (line: string) => {
    progress.end();
    stderr.write(`${line}\n`);
  };
  collectLibraryOutput((text) => print(`jindou: a library has printed: ${printable(text)}`));
  let compared = "";
  const migration = migrationOf(config, {
    onError: (error, what) => print(`jindou: ${what}: ${sentenceOf(error)}`),
    onNotice: (_facts, what) => print(`${what}.`),
    onWarning: (warning) => print(`jindou: warning: ${warning}.`),
    onOutage: ({ message, fields: { reason } }) =>
      print(`jindou: ${reason === undefined ? message : `${message}: ${reason}`}.`),
    onFailure() {}, // `once` throws the error
    onProgress: (current) => progress.show(current),
    onWaiting: reportOther(print, progress),
    onLost(error) {
      print(`jindou: ${sentenceOf(error)}.`);
      process.exit(FAILED);
    },
    onCompared(counts) {
      const texts = counts.map(({ what, count }) => `${count} ${what}`);
      compared = texts.join(", ");
    },
  });
  onStopSignal(stopOnce(migration));
  try {
    await migration.once();
  } finally {
    progress.end();
  }
  print(
    migration.state.status === "migrated"
      ? "Everything was already migrated, by another process or an earlier run."
      : `Everything is in Redis and was compared: ${compared}. Keep the folder until you have checked the result.`,
  );
}

function reportOther(
  print: (line: string) => void,
  progress: Progress,
): (other: OtherMove) => void {
  let printed: string | undefined;
  return ({ step, done, total, lastErr }) => {
    if (printed === undefined) print("Another process is migrating the data. Waiting for it.");
    if (lastErr !== undefined && lastErr !== printed)
      print(
        `Waiting for the next attempt of the other process. Its last attempt failed: ${lastErr}`,
      );
    printed = lastErr ?? "";
    if (step !== "") progress.show({ step, done, total });
  };
}

/** Time during which further signals are ignored, because npm sends each signal a second time. */
const ECHO_MS = 300;
const FAILED = 1;

/**
 * Returns a signal handler. The first signal stops the migration after the current page. A later
 * signal ends the process.
 */
function stopOnce(migration: Migration): () => void {
  let stoppedAtMs: number | undefined;
  return () => {
    const nowMs = performance.now();
    if (stoppedAtMs !== undefined && nowMs - stoppedAtMs > ECHO_MS) process.exit(FAILED);
    stoppedAtMs ??= nowMs;
    migration.close();
  };
}
