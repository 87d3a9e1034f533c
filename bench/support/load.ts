// The load client (load.c) as the benches use it: compiled once per version of its source, then run
// as a child process for each measurement. State: none but the compiled program in
// node_modules/.cache.

import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import type { Plan, Sample } from "./benchmark.ts";
import type { Child, Workbench } from "./workbench.ts";

/** Microseconds. */
export interface Latency {
  readonly p50: number;
  readonly p99: number;
  readonly p999: number;
  readonly max: number;
}

/**
 * What the connections of a run say first, each in bytes ready to be sent; see the head of load.c
 * for the places in them.
 */
export interface Opening {
  readonly upgrade: Uint8Array;
  /** The first frame. */
  readonly open?: Uint8Array;
  /** Frames that answer it. Default: one. */
  readonly replies?: number;
}

interface Run {
  /** Where there are several, the connections are spread over them in turn. */
  readonly port: number | readonly number[];
  readonly connections: number;
  readonly message: Uint8Array;
  /** Unanswered requests on each connection, or messages on their way to everyone. */
  readonly depth: number;
  /** The server's process id, or those of all its processes, to count their processor time. */
  readonly pid: number | readonly number[];
  readonly plan: Plan;
}

export type RequestRun = Run &
  (
    | { readonly kind: "http" }
    | {
        readonly kind: "ws";
        readonly opening: Opening;
        readonly replyStart: Uint8Array;
      }
  );

export interface FanoutRun extends Run {
  readonly opening: Opening;
  readonly replyStart: Uint8Array;
  readonly publishPort: number | readonly number[];
  /** Over one socket; absent: over HTTP. */
  readonly publishOpening: Opening | undefined;
}

/**
 * Each connection views a stream of its own, which is published over an HTTP connection of its own.
 */
export interface StreamRun extends Omit<Run, "depth"> {
  readonly opening: Opening;
  readonly replyStart: Uint8Array;
  readonly publishPort: number;
  /** Messages a second of each stream. */
  readonly rate: number;
}

export interface Held {
  readonly connectSeconds: number;
  status(): Promise<HeldStatus>;
  /** Closes the connections. */
  release(): Promise<void>;
}

/** What became of held connections. */
export interface HeldStatus {
  readonly open: number;
  /**
   * Frames that begin with `replyStart`, of all open connections together, of the one with the
   * fewest and of the one with the most.
   */
  readonly received: number;
  readonly least: number;
  readonly most: number;
}

/** With the processor time of each process, microseconds for each operation. */
export interface ProcessSample extends Sample {
  readonly cpusUs: readonly number[];
}

interface Report {
  readonly operations: number;
  readonly seconds: number;
  readonly cpuSeconds: number;
  /** Of each process. */
  readonly cpus: readonly number[];
  readonly connectSeconds: number;
  readonly latencyUs: Latency;
}

const HERE = fileURLToPath(new URL(".", import.meta.url));
const CACHE = join(HERE, "../../node_modules/.cache/jindou-bench");
const SOURCES = [
  "load.c",
  "load-measure.h",
  "load-processes.h",
  "load-stream.h",
  "load-template.h",
];

/**
 * The path of the compiled load client. Throws with an error message when this machine has no C
 * compiler.
 */
export async function compileLoad(): Promise<string> {
  const hash = createHash("sha256");
  for (const file of SOURCES) hash.update(readFileSync(join(HERE, file)));
  const program = join(CACHE, `load-${hash.digest("hex").slice(0, 16)}`);
  if (existsSync(program)) return program;
  mkdirSync(CACHE, { recursive: true });
  const fresh = `${program}.${process.pid}`;
  try {
    await promisify(execFile)("cc", ["-O2", "-o", fresh, join(HERE, "load.c")]);
  } catch (cause) {
    throw new Error(
      "The load client could not be compiled. The benches need a C compiler under the name cc (Debian, Ubuntu: apt-get install gcc libc6-dev) and Linux",
      { cause },
    );
  }
  renameSync(fresh, program);
  return program;
}

export class LoadClient {
  readonly #workbench: Workbench;
  readonly #program: string;
  readonly #folder: string;
  #files: number;

  constructor(workbench: Workbench, program: string) {
    this.#workbench = workbench;
    this.#program = program;
    this.#folder = workbench.folder("load");
    this.#files = 0;
  }

  /**
   * Requests per second of a closed loop. Rejects when a connection breaks or a reply is not the
   * expected one.
   */
  async request(run: RequestRun): Promise<ProcessSample> {
    const args = [...this.#args(run), "mode=request", `kind=${run.kind}`];
    if (run.kind === "ws")
      args.push(...this.#opening(run.opening, ["upgrade", "open"]), reply(run.replyStart));
    return sample(await this.#finish(this.#start(args)));
  }

  /** Deliveries per second: each message goes to all connections. */
  async fanout(run: FanoutRun): Promise<ProcessSample> {
    const args = [
      ...this.#args(run),
      "mode=fanout",
      ...this.#opening(run.opening, ["upgrade", "open"]),
      reply(run.replyStart),
      `publishPort=${run.publishPort}`,
      `publish=${run.publishOpening === undefined ? "http" : "ws"}`,
    ];
    if (run.publishOpening !== undefined)
      args.push(...this.#opening(run.publishOpening, ["publishUpgrade", "publishOpen"]));
    return sample(await this.#finish(this.#start(args)));
  }

  /**
   * Messages a second that reached their viewer; latency from when each was due. An open loop: it
   * keeps its pace whatever the server does.
   */
  async stream(run: StreamRun): Promise<Sample> {
    const args = [
      ...this.#args({ ...run, depth: 1 }),
      "mode=stream",
      ...this.#opening(run.opening, ["upgrade", "open"]),
      reply(run.replyStart),
      `publishPort=${run.publishPort}`,
      `rate=${run.rate}`,
    ];
    return sample(await this.#finish(this.#start(args)));
  }

  /** Opens connections and keeps them. */
  async hold(run: {
    readonly port: number | readonly number[];
    readonly connections: number;
    readonly opening: Opening;
    /** Frames to count. Default: all. */
    readonly replyStart?: Uint8Array;
  }): Promise<Held> {
    const child = this.#start([
      "mode=hold",
      `port=${run.port}`,
      `connections=${run.connections}`,
      ...this.#opening(run.opening, ["upgrade", "open"]),
      ...(run.replyStart === undefined ? [] : [reply(run.replyStart)]),
    ]);
    const { connectSeconds } = JSON.parse(await child.line()) as Report;
    let asked = 0;
    return {
      connectSeconds,
      async status() {
        asked += 1;
        const mark = `"asked":${asked},`;
        child.write("\n");
        return JSON.parse(await child.line(mark)) as HeldStatus;
      },
      release: () => child.release(),
    };
  }

  #args({ port, connections, depth, pid, message, plan }: Run): string[] {
    return [
      `port=${port}`,
      `connections=${connections}`,
      `depth=${depth}`,
      `process=${pid}`,
      `message=${this.#file(message)}`,
      `warmup=${plan.warmupS}`,
      `seconds=${plan.seconds}`,
    ];
  }

  #opening(
    { upgrade, open, replies = 1 }: Opening,
    [upgradeName, openName]: readonly [string, string],
  ): string[] {
    const args = [`${upgradeName}=${this.#file(upgrade)}`];
    if (open !== undefined) args.push(`${openName}=${this.#file(open)}`, `replies=${replies}`);
    return args;
  }

  #file(bytes: Uint8Array): string {
    const path = join(this.#folder, String(this.#files++));
    writeFileSync(path, bytes);
    return path;
  }

  #start(args: readonly string[]): Child {
    return this.#workbench.spawn({
      name: "The load client",
      command: this.#program,
      args,
    });
  }

  async #finish(child: Child): Promise<Report> {
    return JSON.parse(await child.output()) as Report;
  }
}

function reply(start: Uint8Array): string {
  return `reply=${Buffer.from(start).toString("hex")}`;
}

function sample({ operations, seconds, cpuSeconds, cpus, latencyUs }: Report): ProcessSample {
  if (operations === 0) throw new Error("Nothing was measured: no reply came");
  return {
    value: operations / seconds,
    latency: latencyUs,
    cpuUs: (cpuSeconds * 1e6) / operations,
    cpusUs: cpus.map((cpu) => (cpu * 1e6) / operations),
  };
}
