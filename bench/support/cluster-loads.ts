// The loads of the cluster bench. All contenders are measured in turn, round by round, so that
// other load on the machine affects each of them equally.

import type { Bench, Question, Row, Sample } from "./benchmark.ts";
import type { Nodes } from "./clusters.ts";
import { type Contender, GROUPS, sendRequest } from "./contenders.ts";
import type { LoadClient, ProcessSample } from "./load.ts";
import { row } from "./stats.ts";

/** Number of parallel callers. */
export const CALLERS = 64;
const FEW_MEMBERS = 10;

/** Sample of several nodes. `cpuUs` is the CPU time of all nodes together, without Redis. */
export interface ClusterSample extends Sample {
  readonly redisUs: number;
  /** CPU time of the busiest node. */
  readonly busiestUs: number;
}

export interface Setting {
  readonly bench: Bench;
  readonly load: LoadClient;
  readonly members: number;
}

/** Measurement of one contender under one load. */
export interface Run {
  readonly name: string;
  run(setting: Setting): Promise<ClusterSample>;
}

export type RunSamples = ReadonlyMap<Run, readonly ClusterSample[]>;

/**
 * Returns a run that measures the rate of messages that are sent over HTTP, stored and
 * acknowledged. The callers are spread over all nodes.
 */
export function sends(
  { nodes }: Contender,
  {
    what = "",
    message = sendRequest(),
    callers = CALLERS,
  }: {
    /** Description that is added to the contender's name. */
    readonly what?: string;
    readonly message?: Uint8Array;
    readonly callers?: number;
  } = {},
): Run {
  return {
    name: what === "" ? nodes.name : `${nodes.name}, ${what}`,
    run: async ({ load, bench }) =>
      toClusterSample(
        nodes,
        await load.request({
          kind: "http",
          port: nodes.servers.map(({ apiPort }) => apiPort),
          pid: pids(nodes),
          connections: callers,
          depth: 1,
          message,
          plan: bench.plan,
        }),
      ),
  };
}

/**
 * Returns a run that measures the fan-out of a group's messages, published over HTTP with
 * `inFlight` messages in flight. Members and publishers are spread over all nodes.
 */
export function fanout({ nodes, ...contenderFields }: Contender, inFlight: number): Run {
  return {
    name: nodes.name,
    run: async ({ load, bench, members }) =>
      toClusterSample(
        nodes,
        await load.fanout({
          ...{ opening: contenderFields.opening, replyStart: contenderFields.replyStart },
          port: nodes.servers.map(({ clientPort }) => clientPort),
          pid: pids(nodes),
          connections: members,
          depth: inFlight,
          message: contenderFields.publish(GROUPS.many),
          publishPort: nodes.servers.map(({ apiPort }) => apiPort),
          publishOpening: undefined,
          plan: bench.plan,
        }),
      ),
  };
}

/**
 * Returns a run that measures the time from a POST to the first node until ten members on the last
 * node have received the message. One message is in flight at a time. `value` is the median in
 * microseconds.
 */
export function hop({ nodes, ...contenderFields }: Contender, name: string): Run {
  return {
    name,
    async run({ load, bench }) {
      const sample = await load.fanout({
        ...{ opening: contenderFields.opening, replyStart: contenderFields.replyStart },
        port: nodes.servers.at(-1)?.clientPort ?? 0,
        pid: pids(nodes),
        connections: FEW_MEMBERS,
        depth: 1,
        message: contenderFields.publish(GROUPS.few),
        publishPort: nodes.servers[0]?.apiPort ?? 0,
        publishOpening: undefined,
        plan: bench.plan,
      });
      const value = sample.latency?.p50 ?? Number.NaN;
      return { ...toClusterSample(nodes, sample), value };
    },
  };
}

/** Converts the values of a run from messages to deliveries, `members` for each message. */
export function perDelivery(run: Run, members: number): Run {
  return {
    name: run.name,
    async run(setting) {
      const sample = await run.run(setting);
      return {
        ...sample,
        value: sample.value * members,
        redisUs: sample.redisUs / members,
      };
    },
  };
}

/** Executes each run once in every round. */
export async function runAlternately(setting: Setting, runs: readonly Run[]): Promise<RunSamples> {
  const samples = new Map(runs.map((run) => [run, [] as ClusterSample[]]));
  for (let round = 0; round < setting.bench.plan.rounds; round++)
    for (const [run, runSamples] of samples) runSamples.push(await run.run(setting));
  return samples;
}

export type Pair = readonly [Run, Run];

/**
 * Returns a row for each pair. The first run of the pair is the baseline. `as` selects the value of a
 * sample.
 */
export function rowsOf(
  measured: RunSamples,
  pairs: readonly Pair[],
  question: Question,
  as: (sample: ClusterSample) => Sample = (sample) => sample,
): readonly Row[] {
  const toClusterSample = (run: Run) => (measured.get(run) ?? []).map(as);
  return pairs.map((pair) =>
    row(question, pair, [toClusterSample(pair[0]), toClusterSample(pair[1])] as const),
  );
}

function pids({ servers, redis }: Nodes): readonly number[] {
  const nodePids = servers.map(({ pid }) => pid);
  return [...nodePids, ...(redis?.processes ?? []).map(({ pid }) => pid)];
}

function toClusterSample({ servers }: Nodes, sample: ProcessSample): ClusterSample {
  const { cpusUs, ...fields } = sample;
  const nodes = cpusUs.slice(0, servers.length);
  return {
    ...fields,
    cpuUs: sum(nodes),
    busiestUs: Math.max(...nodes),
    redisUs: sum(cpusUs.slice(servers.length)),
  };
}

function sum(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0);
}
