// Collects what libraries and Node.js print to standard output and standard error, because only the
// log should be written there. Changes the global `console`.

import { format } from "node:util";
import { isReportedElsewhere } from "../redis/causes.ts";

/**
 * Passes to `report` each text that would otherwise be printed, except texts that are reported
 * elsewhere.
 */
export function collectLibraryOutput(report: (text: string) => void): void {
  const collect = (...values: readonly unknown[]) => {
    const text = format(...values);
    if (!isReportedElsewhere(text)) report(text);
  };
  for (const method of ["debug", "error", "info", "log", "trace", "warn"] as const)
    console[method] = collect;
  process.removeAllListeners("warning"); // Node.js' own listener prints warnings
  process.on("warning", ({ name, message }) => collect(`${name}: ${message}`));
}
