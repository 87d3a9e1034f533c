// Measures the workloads of the overview with all peers in turn, so that other load on the machine
// affects all of them. The measured servers share the first core. Everything else runs on the other
// cores.

import {
  type Contender,
  needsHistory,
  type Peer,
  type PeerSetting,
  type Work,
} from "../peers/peer.ts";
import type { Sample } from "../support/benchmark.ts";
import { waitUntilIdle } from "../support/cost.ts";
import { compileLoad, LoadClient } from "../support/load.ts";
import { residentBytes, threadSeconds } from "../support/proc.ts";
import type { Server } from "../support/servers.ts";
import { figure } from "../support/stats.ts";
import type { Progress } from "./progress.ts";
import type { OverviewRow, PeerFigure } from "./results.ts";
import type { PlannedWork } from "./works.ts";

export interface MeasureOptions {
  readonly rounds: number;
  readonly seconds: number;
  /** Seconds of load before each measurement. */
  readonly warmupS: number;
  /** Seconds of an uncounted first run of each peer, in which V8 compiles the code. */
  readonly uncountedS: number;
  readonly rate: number | undefined;
}

/**
 * Estimated seconds that a server needs to start, and that the load client needs in addition to its
 * run.
 */
const START_S = 1.5;
const LOAD_START_S = 0.3;
/** Estimated time for starting a server and connecting all clients at once. */
const STORM_S = 4;

/** Returns the estimated time of a workload in seconds. */
export function estimate(
  { work }: PlannedWork,
  allPeers: readonly Peer[],
  options: MeasureOptions,
): number {
  const { rounds, seconds, uncountedS } = options;
  const peers = peersFor(work, allPeers).length;
  if (isStorm(work)) return peers * rounds * STORM_S;
  const counted = rounds * runSeconds(options, seconds);
  return peers * (START_S + runSeconds(options, uncountedS) + counted);
}

function peersFor(work: Work, peers: readonly Peer[]): readonly Peer[] {
  return needsHistory(work) ? peers.filter(({ keepsHistory }) => keepsHistory) : peers;
}

/** Returns true if clients connect at once and send nothing. */
function isStorm(work: Work): boolean {
  return work.kind === "connect" || needsHistory(work);
}

/** Returns the estimated time of one run of the load client. */
function runSeconds({ warmupS }: MeasureOptions, seconds: number): number {
  return LOAD_START_S + warmupS + seconds;
}

interface StartedPeer {
  readonly peer: Peer;
  readonly contender: Contender;
}

export class Measurement {
  readonly #setting: PeerSetting;
  readonly #options: MeasureOptions;
  readonly #load: LoadClient;
  readonly #progress: Progress;

  private constructor(
    setting: PeerSetting,
    options: MeasureOptions,
    load: LoadClient,
    progress: Progress,
  ) {
    this.#setting = setting;
    this.#options = options;
    this.#load = load;
    this.#progress = progress;
  }

  static async create(
    setting: PeerSetting,
    options: MeasureOptions,
    progress: Progress,
  ): Promise<Measurement> {
    const load = new LoadClient(setting.workbench, await compileLoad());
    return new Measurement(setting, options, load, progress);
  }

  /** Measures a workload with all peers that support it. */
  async rows(planned: PlannedWork, allPeers: readonly Peer[]): Promise<readonly OverviewRow[]> {
    const peers = peersFor(planned.work, allPeers);
    return isStorm(planned.work)
      ? this.#stormRows(planned, peers)
      : [await this.#messageRow(planned, peers)];
  }

  async #messageRow(planned: PlannedWork, peers: readonly Peer[]): Promise<OverviewRow> {
    const { rounds, seconds, uncountedS } = this.#options;
    const step = <T>(what: string, estimateS: number, run: () => Promise<T>) =>
      this.#progress.step(`${planned.id}: ${what}`, estimateS, run);
    const started: StartedPeer[] = [];
    for (const peer of peers) {
      const contender = await step(`starts ${peer.name}`, START_S, () =>
        peer.start(this.#setting, planned.work),
      );
      if (contender !== undefined) started.push({ peer, contender });
    }
    for (const { peer, contender } of started)
      await step(`warms up ${peer.name}`, runSeconds(this.#options, uncountedS), () =>
        this.#run(planned, contender, uncountedS),
      );
    const samples = new Map<Peer, Sample[]>(started.map(({ peer }) => [peer, []]));
    for (let round = 0; round < rounds; round++)
      for (const { peer, contender } of started) {
        const sample = await step(
          `measures ${peer.name}, round ${round + 1} of ${rounds}`,
          runSeconds(this.#options, seconds),
          () => this.#run(planned, contender, seconds),
        );
        samples.get(peer)?.push(sample);
      }
    for (const { contender } of started) await stopAll(contender);
    return rowOf(planned, { unit: planned.unit, isLowerBetter: false }, samples);
  }

  async #run(planned: PlannedWork, contender: Contender, seconds: number): Promise<Sample> {
    const { cpuUs, ...sample } = await this.#runLoad(planned, contender, seconds);
    const isHere = contender.servers.every(({ pid }) => pid > 0);
    return { ...sample, ...(isHere && cpuUs !== undefined && { cpuUs }) };
  }

  #runLoad(planned: PlannedWork, contender: Contender, seconds: number): Promise<Sample> {
    const { work, connections, depth } = planned;
    const { servers, opening, replyStart, isPacked, publishOpening } = contender;
    const clientPorts = servers.map(({ clientPort }) => clientPort);
    const apiPorts = servers.map(({ apiPort }) => apiPort);
    const isHttp = work.kind === "post" || (work.kind === "fanout" && work.via === "http");
    const run = {
      ...{
        host: servers[0]?.host,
        pid: servers.map(({ pid }) => pid),
        connections,
        depth,
        opening,
      },
      ...{ message: contender.message(), replyStart, isPacked },
      rate: this.#options.rate,
      plan: { warmupS: this.#options.warmupS, seconds },
    };
    if (work.kind === "fanout")
      return this.#load.fanout({
        ...run,
        port: clientPorts,
        publishPort: isHttp ? apiPorts : clientPorts,
        publishOpening: isHttp ? undefined : publishOpening,
      });
    return this.#load.request({
      ...run,
      kind: isHttp ? "http" : "ws",
      port: isHttp ? apiPorts : clientPorts,
    });
  }

  async #stormRows(planned: PlannedWork, peers: readonly Peer[]): Promise<readonly OverviewRow[]> {
    const { rounds } = this.#options;
    const rates = new Map<Peer, Sample[]>(peers.map((peer) => [peer, []]));
    const memories = new Map<Peer, Sample[]>(peers.map((peer) => [peer, []]));
    for (let round = 0; round < rounds; round++)
      for (const peer of peers)
        await this.#progress.step(
          `${planned.id}: measures ${peer.name}, round ${round + 1} of ${rounds}`,
          STORM_S,
          async () => {
            const storm = await this.#storm(planned, peer);
            if (storm === undefined) return;
            const { rate, cpuUs, bytes } = storm;
            rates.get(peer)?.push({ value: rate, ...(cpuUs !== undefined && { cpuUs }) });
            if (bytes !== undefined) memories.get(peer)?.push({ value: bytes });
          },
        );
    const rate = rowOf(planned, { unit: planned.unit, isLowerBetter: false }, rates);
    if (planned.work.kind !== "connect") return rate.figures.length > 0 ? [rate] : [];
    const memory = {
      ...planned,
      id: "memory",
      title: "memory of an idle connection (less is better)",
    };
    return [rate, rowOf(memory, { unit: "bytes", isLowerBetter: true }, memories)].filter(
      ({ figures }) => figures.length > 0,
    );
  }

  /**
   * Connects and disconnects a tenth of the clients as a warm-up, and then connects all clients at
   * once. The processor time and the memory of a server that runs elsewhere are not known.
   */
  async #storm({ work, connections }: PlannedWork, peer: Peer) {
    const contender = await peer.start(this.#setting, work);
    if (contender === undefined) return undefined;
    const { servers, opening } = contender;
    const port = servers.map(({ clientPort }) => clientPort);
    const hold = (count: number) =>
      this.#load.hold({ host: servers[0]?.host, port, connections: count, opening });
    await (await hold(Math.ceil(connections / 10))).release();
    const before = await stateOf(servers);
    const held = await hold(connections);
    const after = await stateOf(servers);
    await held.release();
    await stopAll(contender);
    return {
      rate: connections / held.connectSeconds,
      ...(before !== undefined &&
        after !== undefined && {
          cpuUs: ((after.cpu - before.cpu) * 1e6) / connections,
          bytes: Math.max(0, after.bytes - before.bytes) / connections,
        }),
    };
  }
}

async function stopAll({ servers }: Contender): Promise<void> {
  for (const server of servers) await server.stop();
}

/**
 * Waits until the servers are idle, and returns their processor time and memory. Returns
 * `undefined` if the servers run elsewhere.
 */
async function stateOf(servers: readonly Server[]) {
  const pids = servers.map(({ pid }) => pid);
  if (pids.includes(0)) return undefined;
  for (const server of servers) await waitUntilIdle(server);
  const sum = (read: (pid: number) => number) => pids.reduce((total, pid) => total + read(pid), 0);
  return { cpu: sum(threadSeconds), bytes: sum(residentBytes) };
}

function rowOf(
  { id, title, loop }: PlannedWork,
  { unit, isLowerBetter }: Pick<OverviewRow, "unit" | "isLowerBetter">,
  samples: ReadonlyMap<Peer, readonly Sample[]>,
): OverviewRow {
  const measured = [...samples].filter(([, values]) => values.length > 0);
  const figures = measured.map(([{ name }, values]) => figure(name, values));
  const raw = figures.find(({ subject }) => subject === "raw");
  return {
    ...{ id, title, unit, isLowerBetter, loop },
    figures: figures.map(({ subject, spread, ...rest }): PeerFigure => {
      const ratio = rest.value / (raw?.value ?? 0);
      const cpuRatio = (rest.cpuUs ?? 0) / (raw?.cpuUs ?? 0);
      return {
        ...{ peer: subject, ...rest, spread: Number.isFinite(spread) ? spread : 0 },
        ...(Number.isFinite(ratio) && { ratio }),
        ...(Number.isFinite(cpuRatio) && { cpuRatio }),
      };
    }),
  };
}
