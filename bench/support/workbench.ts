// Owns the child processes and temporary folders of a run. `close` kills and removes all of them
// synchronously, so that it works in an exit handler. Must not kill processes that it did not
// start.

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { tieToParent } from "../../test/support/child.ts";

/** Maximum number of characters of a child's output that are kept for error messages. */
const MAX_OUTPUT = 4000;

export interface SpawnOptions {
  readonly name: string;
  readonly command: string;
  readonly args: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
  /** True if the process is measured. On a pinned workbench, it then runs on the first core. */
  readonly isMeasured?: boolean;
}

/** A child process whose output is collected. */
export class Child {
  readonly #process: ChildProcess;
  readonly #name: string;
  #stdout: string;
  #stderr: string;

  constructor({ name, command, args, env, cwd }: SpawnOptions) {
    this.#name = name;
    this.#stdout = "";
    this.#stderr = "";
    this.#process = spawn(...tieToParent(command, args), {
      stdio: ["pipe", "pipe", "pipe"],
      env: { ...process.env, ...env },
      ...(cwd !== undefined && { cwd }),
    });
    this.#process.on("error", (error) => {
      this.#stderr += error.message;
    });
    this.#process.stdout?.on("data", (text) => {
      this.#stdout = (this.#stdout + text).slice(-MAX_OUTPUT);
    });
    this.#process.stderr?.on("data", (text) => {
      this.#stderr = (this.#stderr + text).slice(-MAX_OUTPUT);
    });
  }

  get pid(): number {
    return this.#process.pid ?? 0;
  }

  get hasEnded(): boolean {
    return this.#process.exitCode !== null || this.#process.signalCode !== null;
  }

  /**
   * Waits for a line of stdout that contains `mark` and returns it. Rejects if the process ends
   * first.
   */
  async line(mark = ""): Promise<string> {
    for (;;) {
      const lines = this.#stdout.split("\n").slice(0, -1);
      const matchingLine = lines.find((line) => line.includes(mark));
      if (matchingLine !== undefined) return matchingLine;
      if (this.hasEnded) throw this.failure("ended early");
      const abort = new AbortController(); // removes the listener of the event that does not happen
      await Promise.race([
        once(this.#process.stdout ?? this.#process, "data", abort),
        once(this.#process, "close", abort),
      ]).finally(() => abort.abort());
    }
  }

  /**
   * Waits for the end of the process and returns its output (the last 4000 characters). Rejects if
   * its exit code is not 0.
   */
  async output(): Promise<string> {
    if (!this.hasEnded) await once(this.#process, "close");
    if (this.#process.exitCode !== 0) throw this.failure("failed");
    return this.#stdout;
  }

  /** Writes to the process's stdin. */
  write(text: string): void {
    this.#process.stdin?.write(text);
  }

  /** Closes the process's stdin and waits until the process has ended. */
  async release(): Promise<void> {
    this.#process.stdin?.end();
    if (!this.hasEnded) await once(this.#process, "close");
  }

  /** Sends SIGTERM and waits until the process has ended. */
  async finish(): Promise<void> {
    if (this.hasEnded) return;
    this.#process.kill("SIGTERM");
    await once(this.#process, "close");
  }

  /** Kills the process and waits until it has ended. */
  async stop(): Promise<void> {
    if (this.hasEnded) return;
    this.kill();
    await once(this.#process, "close");
  }

  kill(): void {
    if (!this.hasEnded) this.#process.kill("SIGKILL");
  }

  failure(problem: string): Error {
    const output = `${this.#stderr}${this.#stdout}`.trim();
    const { signalCode } = this.#process;
    const end = signalCode === null ? "" : ` (${signalCode})`;
    return new Error(`${this.#name} ${problem}${end}:\n${output}`);
  }
}

export class Workbench {
  readonly #children = new Set<Child>();
  readonly #folders = new Set<string>();
  readonly #cores = allowedCores();
  #isPinned = false;

  /**
   * With `true`, runs all threads of the measured process on the first core and everything else on
   * the other cores, so that the measurement includes the background threads. Has no effect if this
   * process may use only one core. Throws without `taskset` (util-linux).
   */
  pin(isPinned: boolean): void {
    const [, ...otherCores] = this.#cores;
    if (otherCores.length === 0 || isPinned === this.#isPinned) return;
    const cores = isPinned ? otherCores : this.#cores; // child processes inherit these cores
    const list = cores.join(",");
    execFileSync("taskset", ["-a", "-c", "-p", list, `${process.pid}`]);
    this.#isPinned = isPinned;
  }

  spawn(spawn: SpawnOptions): Child {
    const isOnFirst = this.#isPinned && spawn.isMeasured === true;
    const child = new Child(isOnFirst ? onCore(this.#cores[0] ?? 0, spawn) : spawn);
    this.#children.add(child);
    return child;
  }

  /** Creates an empty folder, which `close` removes. */
  folder(name: string): string {
    const folder = mkdtempSync(join(tmpdir(), `jindou-bench-${name}-`));
    this.#folders.add(folder);
    return folder;
  }

  removeFolder(folder: string): void {
    if (this.#folders.delete(folder)) rmSync(folder, { recursive: true, force: true });
  }

  /** Kills all child processes and removes all folders. May be called more than once. */
  close(): void {
    for (const child of this.#children) child.kill();
    this.#children.clear();
    for (const folder of this.#folders) this.removeFolder(folder);
  }
}

function onCore(core: number, { command, args, ...options }: SpawnOptions): SpawnOptions {
  const pinned = ["-c", `${core}`, command, ...args];
  return { ...options, command: "taskset", args: pinned };
}

/** Returns the cores that this process may use. The kernel reports them as a list like `0-2,5`. */
function allowedCores(): readonly number[] {
  const status = readFileSync("/proc/self/status", "utf8");
  const list = /^Cpus_allowed_list:\s*(\S+)/m.exec(status)?.[1] ?? "0";
  return list.split(",").flatMap((range) => {
    const [first = 0, last = first] = range.split("-").map(Number);
    return Array.from({ length: last - first + 1 }, (_, at) => first + at);
  });
}
