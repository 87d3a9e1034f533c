// Reads the memory and CPU time of a process from /proc, and sets its scheduling (Linux).

import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";

/** Clock ticks per second in /proc, which is 100 on all current Linux systems. */
const TICKS_PER_SECOND = 100;
/** Positions of fields in the result of `statOf`. */
const USER_TIME = 11;
const CHILDREN_USER_TIME = 13;

/** Returns the resident set of the process in bytes. */
export function residentBytes(pid: number): number {
  return statusBytes(pid, "VmRSS");
}

/**
 * Returns the size of the resident set without the pages of files, such as those of a mapped
 * database, which the kernel can drop at any time.
 */
export function privateBytes(pid: number): number {
  return statusBytes(pid, "RssAnon");
}

/** Returns the value of a field of `/proc/<pid>/status` whose unit is kB. */
function statusBytes(pid: number, name: string): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  const match = new RegExp(`^${name}:\\s+(\\d+) kB$`, "m").exec(status);
  if (match === null) throw new Error(`cannot read the memory of process ${pid} from /proc`);
  return Number(match[1]) * 1024;
}

/**
 * Lets all threads of the process run only while a processor is idle (SCHED_IDLE). Child processes
 * that it starts later inherit this.
 */
export function useIdleTimeOnly(pid: number): void {
  execFileSync("chrt", ["--all-tasks", "--idle", "--pid", "0", String(pid)]);
}

/** Returns the user and system time of all threads of the process so far, in steps of 10 ms. */
export function cpuSeconds(pid: number): number {
  return secondsIn(statOf(pid), USER_TIME);
}

/** Returns the processor time of the child processes that have ended so far, in steps of 10 ms. */
export function endedChildrenSeconds(): number {
  return secondsIn(statOf("self"), CHILDREN_USER_TIME);
}

/** Returns the fields of `/proc/<pid>/stat` that follow the name of the program. */
function statOf(pid: number | "self"): readonly string[] {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  return stat.slice(stat.lastIndexOf(")") + 2).split(" ");
}

/** Returns the sum of the user time in a field and the system time in the next field. */
function secondsIn(fields: readonly string[], at: number): number {
  return (Number(fields[at]) + Number(fields[at + 1])) / TICKS_PER_SECOND;
}

/**
 * Returns the processor time of all current threads of the process, in steps of a nanosecond. The
 * time of a thread that has ended is not included.
 */
export function threadSeconds(pid: number): number {
  const folder = `/proc/${pid}/task`;
  const times = readdirSync(folder).map((thread) =>
    Number(readFileSync(`${folder}/${thread}/schedstat`, "utf8").split(" ")[0]),
  );
  return times.reduce((sum, ns) => sum + ns, 0) / 1e9;
}
