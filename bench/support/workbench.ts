// What a run leaves behind if nobody cleans up: child processes and temporary folders. State: the
// living children, the folders. `close` ends and removes them all at once and synchronously, so it
// works in an exit handler too. Kills only what it started.

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { tieToParent } from "../../test/support/child.ts";

/** How much of a child's output is kept to explain its failure. */
const KEPT_OUTPUT = 4000;

export interface Spawn {
  readonly name: string;
  readonly command: string;
  readonly args: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
  /** It is what is measured: on a pinned workbench it has a core of its own. */
  readonly isMeasured?: boolean;
}

/** A child process with its output collected. */
export class Child {
  readonly #process: ChildProcess;
  readonly #name: string;
  #stdout: string;
  #stderr: string;

  constructor({ name, command, args, env, cwd }: Spawn) {
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
      this.#stdout = (this.#stdout + text).slice(-KEPT_OUTPUT);
    });
    this.#process.stderr?.on("data", (text) => {
      this.#stderr = (this.#stderr + text).slice(-KEPT_OUTPUT);
    });
  }

  get pid(): number {
    return this.#process.pid ?? 0;
  }

  get hasEnded(): boolean {
    return this.#process.exitCode !== null || this.#process.signalCode !== null;
  }

  /**
   * The first line of its standard output that has `mark` in it. Rejects when it ends without one.
   */
  async line(mark = ""): Promise<string> {
    for (;;) {
      const lines = this.#stdout.split("\n").slice(0, -1);
      const found = lines.find((line) => line.includes(mark));
      if (found !== undefined) return found;
      if (this.hasEnded) throw this.failure("ended early");
      const over = new AbortController(); // the one that does not happen is forgotten
      await Promise.race([
        once(this.#process.stdout ?? this.#process, "data", over),
        once(this.#process, "close", over),
      ]).finally(() => over.abort());
    }
  }

  /** Its whole output (the last 4000 characters). Rejects when it ends with anything but 0. */
  async output(): Promise<string> {
    if (!this.hasEnded) await once(this.#process, "close");
    if (this.#process.exitCode !== 0) throw this.failure("failed");
    return this.#stdout;
  }

  /** To its standard input. */
  write(text: string): void {
    this.#process.stdin?.write(text);
  }

  /** Ends its standard input and waits for it to go. */
  async release(): Promise<void> {
    this.#process.stdin?.end();
    if (!this.hasEnded) await once(this.#process, "close");
  }

  /** Asks it to end and waits until it has. */
  async finish(): Promise<void> {
    if (this.hasEnded) return;
    this.#process.kill("SIGTERM");
    await once(this.#process, "close");
  }

  /** Ends it at once and waits until it is gone. */
  async stop(): Promise<void> {
    if (this.hasEnded) return;
    this.kill();
    await once(this.#process, "close");
  }

  kill(): void {
    if (!this.hasEnded) this.#process.kill("SIGKILL");
  }

  failure(what: string): Error {
    const output = `${this.#stderr}${this.#stdout}`.trim();
    const { signalCode } = this.#process;
    const end = signalCode === null ? "" : ` (${signalCode})`;
    return new Error(`${this.#name} ${what}${end}:\n${output}`);
  }
}

export class Workbench {
  readonly #children = new Set<Child>();
  readonly #folders = new Set<string>();
  readonly #cores = allowedCores();
  #isPinned = false;

  /**
   * Whether what is measured runs on the first core with all its threads and everything else on the
   * others, so that no background thread hides. Where this process may use one core only, nothing
   * is pinned. Throws without `taskset` (util-linux).
   */
  pin(isPinned: boolean): void {
    const [, ...others] = this.#cores;
    if (others.length === 0 || isPinned === this.#isPinned) return;
    const cores = isPinned ? others : this.#cores; // children inherit them
    const list = cores.join(",");
    execFileSync("taskset", ["-a", "-c", "-p", list, `${process.pid}`]);
    this.#isPinned = isPinned;
  }

  spawn(spawn: Spawn): Child {
    const isOnFirst = this.#isPinned && spawn.isMeasured === true;
    const child = new Child(isOnFirst ? onCore(this.#cores[0] ?? 0, spawn) : spawn);
    this.#children.add(child);
    return child;
  }

  /** An empty folder that is removed by `close` at the latest. */
  folder(name: string): string {
    const folder = mkdtempSync(join(tmpdir(), `jindou-bench-${name}-`));
    this.#folders.add(folder);
    return folder;
  }

  removeFolder(folder: string): void {
    if (this.#folders.delete(folder)) rmSync(folder, { recursive: true, force: true });
  }

  /** Safe to call twice. */
  close(): void {
    for (const child of this.#children) child.kill();
    this.#children.clear();
    for (const folder of this.#folders) this.removeFolder(folder);
  }
}

function onCore(core: number, { command, args, ...rest }: Spawn): Spawn {
  const pinned = ["-c", `${core}`, command, ...args];
  return { ...rest, command: "taskset", args: pinned };
}

/** The cores that this process may use, from a list such as `0-2,5`. */
function allowedCores(): readonly number[] {
  const status = readFileSync("/proc/self/status", "utf8");
  const list = /^Cpus_allowed_list:\s*(\S+)/m.exec(status)?.[1] ?? "0";
  return list.split(",").flatMap((range) => {
    const [first = 0, last = first] = range.split("-").map(Number);
    return Array.from({ length: last - first + 1 }, (_, at) => first + at);
  });
}
