// Runs the load client (load.c). It is compiled once for each version of its source, into
// node_modules/.cache, and runs as a child process for each measurement.

import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import type { Plan, Sample } from "./benchmark.ts";
import type { Child, Workbench } from "./workbench.ts";

/** Latencies in microseconds. */
export interface Latency {
  readonly p50: number;
  readonly p99: number;
  readonly p999: number;
  readonly max: number;
}

/**
 * First bytes that each connection of a run sends. The header of load.c describes the placeholders
 * in them.
 */
export interface Opening {
  /** WebSocket upgrade, or `undefined` for frames over TCP (option `framing` of load.c). */
  readonly upgrade: Uint8Array | undefined;
  /** First frame after the upgrade. */
  readonly open?: Uint8Array;
  /** Number of frames with which the server replies to the first frame. Default: 1. */
  readonly replies?: number;
  /** Bytes by which these frames are recognised. Default: all frames count. */
  readonly opened?: Uint8Array;
}

interface LoadRun {
  /** Port of the server. Connections are spread over several ports in turn. */
  readonly port: number | readonly number[];
  readonly connections: number;
  readonly message: Uint8Array;
  /** Number of unanswered requests on each connection, or of messages in flight in a fan-out. */
  readonly depth: number;
  /** Process ids of the servers, whose CPU time is measured. 0 for a server on another machine. */
  readonly pid: number | readonly number[];
  /** IPv4 address of the server. Default: 127.0.0.1. */
  readonly host?: string | undefined;
  /**
   * Messages per second of an open loop, in which latencies count from the scheduled times. Absent
   * for a closed loop.
   */
  readonly rate?: number | undefined;
  readonly plan: Pick<Plan, "warmupS" | "seconds">;
}

export type RequestRun = LoadRun &
  (
    | { readonly kind: "http" }
    | {
        readonly kind: "ws";
        readonly opening: Opening;
        readonly replyStart: Uint8Array;
        readonly isPacked?: boolean | undefined;
      }
  );

export interface FanoutRun extends LoadRun {
  readonly opening: Opening;
  readonly replyStart: Uint8Array;
  /** True if a frame may contain several replies. Each begins with the bytes of `replyStart`. */
  readonly isPacked?: boolean | undefined;
  readonly publishPort: number | readonly number[];
  /** First bytes that the publisher's socket sends, `undefined` to publish over HTTP. */
  readonly publishOpening: Opening | undefined;
}

/** Run with one stream for each viewer. Each stream is published over its own HTTP connection. */
export interface StreamRun extends Omit<LoadRun, "depth" | "rate"> {
  readonly opening: Opening;
  readonly replyStart: Uint8Array;
  readonly publishPort: number;
  /** Messages per second of each stream. */
  readonly rate: number;
}

export interface HeldConnections {
  readonly connectSeconds: number;
  /** Process that holds the connections. */
  readonly pid: number;
  status(): Promise<HeldStatus>;
  /** Closes the connections. */
  release(): Promise<void>;
}

/** State of held connections. */
export interface HeldStatus {
  readonly open: number;
  /** Number of received frames that begin with `replyStart`, on all open connections together. */
  readonly received: number;
  /** Number of these frames on the connection that received the fewest. */
  readonly least: number;
  /** Number of these frames on the connection that received the most. */
  readonly most: number;
}

/** Sample with the CPU time of each process. */
export interface ProcessSample extends Sample {
  /** CPU time of each process for each operation, microseconds. */
  readonly cpusUs: readonly number[];
}

/** Output of the load client. */
interface Report {
  readonly operations: number;
  readonly seconds: number;
  readonly cpuSeconds: number;
  /** CPU time of each process, seconds. */
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
  "load-schedule.h",
  "load-template.h",
];

/** Compiles the load client if necessary and returns its path. Rejects without a C compiler. */
export async function compileLoad(): Promise<string> {
  const hash = createHash("sha256");
  for (const file of SOURCES) hash.update(readFileSync(join(HERE, file)));
  const program = join(CACHE, `load-${hash.digest("hex").slice(0, 16)}`);
  if (existsSync(program)) return program;
  mkdirSync(CACHE, { recursive: true });
  const temporary = `${program}.${process.pid}`;
  try {
    await promisify(execFile)("cc", ["-O2", "-o", temporary, join(HERE, "load.c")]);
  } catch (cause) {
    throw new Error(
      "Could not compile the load client. The benches need Linux and a C compiler named cc (Debian, Ubuntu: apt-get install gcc libc6-dev).",
      { cause },
    );
  }
  renameSync(temporary, program);
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
   * Measures requests per second in a closed loop, or in an open loop if `rate` is present. Rejects
   * if a connection is closed or a reply is not the expected one.
   */
  async request(run: RequestRun): Promise<ProcessSample> {
    const args = [...this.#args(run), "mode=request", `kind=${run.kind}`];
    if (run.kind === "ws")
      args.push(
        ...this.#opening(run.opening, ""),
        replyOption(run.replyStart),
        ...packedOption(run.isPacked),
      );
    return toSample(await this.#finish(this.#start(args)));
  }

  /** Measures deliveries per second of messages that all connections receive. */
  async fanout(run: FanoutRun): Promise<ProcessSample> {
    const args = [
      ...this.#args(run),
      "mode=fanout",
      ...this.#opening(run.opening, ""),
      replyOption(run.replyStart),
      ...packedOption(run.isPacked),
      `publishPort=${run.publishPort}`,
      `publish=${run.publishOpening === undefined ? "http" : "ws"}`,
    ];
    if (run.publishOpening !== undefined)
      args.push(...this.#opening(run.publishOpening, "publish"));
    return toSample(await this.#finish(this.#start(args)));
  }

  /**
   * Measures how many messages per second reach their viewers, in an open loop: the sending rate
   * does not depend on the server. The latency of a message is measured from the time at which it
   * was due to be sent.
   */
  async stream(run: StreamRun): Promise<Sample> {
    const args = [
      ...this.#args({ ...run, depth: 1 }),
      "mode=stream",
      ...this.#opening(run.opening, ""),
      replyOption(run.replyStart),
      `publishPort=${run.publishPort}`,
    ];
    return toSample(await this.#finish(this.#start(args)));
  }

  /** Opens connections and keeps them open. */
  async hold(run: {
    readonly host?: string | undefined;
    readonly port: number | readonly number[];
    readonly connections: number;
    /** Number of the first connection. Default: 0. */
    readonly first?: number;
    readonly opening: Opening;
    /** First bytes of the frames to count. Default: all frames are counted. */
    readonly replyStart?: Uint8Array;
  }): Promise<HeldConnections> {
    const child = this.#start([
      "mode=hold",
      ...(run.host === undefined ? [] : [`host=${run.host}`]),
      `port=${run.port}`,
      `connections=${run.connections}`,
      `first=${run.first ?? 0}`,
      ...this.#opening(run.opening, ""),
      ...(run.replyStart === undefined ? [] : [replyOption(run.replyStart)]),
    ]);
    const { connectSeconds } = JSON.parse(await child.line()) as Report;
    let queries = 0;
    return {
      connectSeconds,
      pid: child.pid,
      async status() {
        queries += 1;
        const mark = `"query":${queries},`;
        child.write("\n");
        return JSON.parse(await child.line(mark)) as HeldStatus;
      },
      release: () => child.release(),
    };
  }

  #args({ host, port, connections, depth, rate, pid, message, plan }: LoadRun): string[] {
    return [
      ...(host === undefined ? [] : [`host=${host}`]),
      ...(rate === undefined ? [] : [`rate=${rate}`]),
      `port=${port}`,
      `connections=${connections}`,
      `depth=${depth}`,
      `process=${pid}`,
      `message=${this.#file(message)}`,
      `warmup=${plan.warmupS}`,
      `seconds=${plan.seconds}`,
    ];
  }

  /** Returns the options for the first bytes of the clients, or of the publisher. */
  #opening({ upgrade, open, replies = 1, opened }: Opening, whose: "" | "publish"): string[] {
    const option = (name: string, value: string) =>
      whose === ""
        ? `${name}=${value}`
        : `publish${name[0]?.toUpperCase()}${name.slice(1)}=${value}`;
    const args = [
      upgrade === undefined ? "framing=varint" : option("upgrade", this.#file(upgrade)),
    ];
    if (open !== undefined) args.push(option("open", this.#file(open)), `replies=${replies}`);
    if (opened !== undefined) args.push(option("opened", Buffer.from(opened).toString("hex")));
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

function replyOption(start: Uint8Array): string {
  return `reply=${Buffer.from(start).toString("hex")}`;
}

function packedOption(isPacked = false): readonly string[] {
  return isPacked ? ["packed=1"] : [];
}

function toSample({ operations, seconds, cpuSeconds, cpus, latencyUs }: Report): ProcessSample {
  if (operations === 0)
    throw new Error("the load client received no reply, so nothing was measured");
  return {
    value: operations / seconds,
    latency: latencyUs,
    cpuUs: (cpuSeconds * 1e6) / operations,
    cpusUs: cpus.map((cpu) => (cpu * 1e6) / operations),
  };
}
