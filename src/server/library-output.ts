// Collects what libraries and Node.js print on standard output and standard error, where only this
// process and its log should write. Changes the console of the process.

import { format } from "node:util";
import { isReportedElsewhere } from "../redis/causes.ts";

/** Passes each text that is printed from now on to `report`, and prints nothing. */
export function collectLibraryOutput(report: (text: string) => void): void {
  const collect = (...values: readonly unknown[]) => {
    const text = format(...values);
    if (!isReportedElsewhere(text)) report(text);
  };
  for (const method of ["debug", "error", "info", "log", "trace", "warn"] as const)
    console[method] = collect;
  process.removeAllListeners("warning"); // the listener of Node.js prints warnings
  process.on("warning", ({ name, message }) => collect(`${name}: ${message}`));
}
