// What Linux knows of a process: its memory and its processor time. Reads /proc; no state.

import { readFileSync } from "node:fs";

/** Ticks of /proc per second: 100 on every Linux of today. */
const TICKS_PER_SECOND = 100;

/** The resident set in bytes. */
export function residentBytes(pid: number): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  const found = /^VmRSS:\s+(\d+) kB$/m.exec(status);
  if (found === null) throw new Error(`The memory of process ${pid} cannot be read`);
  return Number(found[1]) * 1024;
}

/** User and system time of all its threads so far, in steps of 10 ms. */
export function cpuSeconds(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_SECOND;
}
