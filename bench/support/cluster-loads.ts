// The loads of the cluster bench, and how its contenders are measured: all in turn, round by round,
// so that whatever else the machine does hits each alike. No state.

import type { Bench, Question, Row, Sample } from "./benchmark.ts";
import type { Nodes } from "./clusters.ts";
import { type Contender, GROUPS, sendRequest } from "./contenders.ts";
import type { LoadClient, ProcessSample } from "./load.ts";
import { row } from "./stats.ts";

/** Calls at a time. */
export const CALLERS = 64;
const FEW = 10;

/** `cpuUs` is that of all nodes, without Redis. */
export interface ClusterSample extends Sample {
  readonly redisUs: number;
  /** Of the node that works most. */
  readonly busiestUs: number;
}

export interface Setting {
  readonly bench: Bench;
  readonly load: LoadClient;
  readonly members: number;
}

/** One contender under one load. */
export interface Course {
  readonly name: string;
  run(setting: Setting): Promise<ClusterSample>;
}

export type Measured = ReadonlyMap<Course, readonly ClusterSample[]>;

/** Messages stored and acknowledged over HTTP, 64 at a time, spread over all nodes. */
export function sends(
  { nodes }: Contender,
  {
    what = "",
    message = sendRequest(),
    callers = CALLERS,
  }: {
    /** Said beside the contender's name. */
    readonly what?: string;
    readonly message?: Uint8Array;
    readonly callers?: number;
  } = {},
): Course {
  return {
    name: what === "" ? nodes.name : `${nodes.name}, ${what}`,
    run: async ({ load, bench }) =>
      of(
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
 * A group's messages published over HTTP, `inFlight` on their way; members and publishers are
 * spread over all nodes.
 */
export function fanout({ nodes, ...its }: Contender, inFlight: number): Course {
  return {
    name: nodes.name,
    run: async ({ load, bench, members }) =>
      of(
        nodes,
        await load.fanout({
          ...{ opening: its.opening, replyStart: its.replyStart },
          port: nodes.servers.map(({ clientPort }) => clientPort),
          pid: pids(nodes),
          connections: members,
          depth: inFlight,
          message: its.publish(GROUPS.many),
          publishPort: nodes.servers.map(({ apiPort }) => apiPort),
          publishOpening: undefined,
          plan: bench.plan,
        }),
      ),
  };
}

/**
 * From a POST at the first node to ten members at the last, one message at a time: `value` is the
 * median in microseconds.
 */
export function hop({ nodes, ...its }: Contender, name: string): Course {
  return {
    name,
    async run({ load, bench }) {
      const sample = await load.fanout({
        ...{ opening: its.opening, replyStart: its.replyStart },
        port: nodes.servers.at(-1)?.clientPort ?? 0,
        pid: pids(nodes),
        connections: FEW,
        depth: 1,
        message: its.publish(GROUPS.few),
        publishPort: nodes.servers[0]?.apiPort ?? 0,
        publishOpening: undefined,
        plan: bench.plan,
      });
      const value = sample.latency?.p50 ?? Number.NaN;
      return { ...of(nodes, sample), value };
    },
  };
}

/** A course whose figures are for a message, by deliveries: to `members`. */
export function perDelivery(course: Course, members: number): Course {
  return {
    name: course.name,
    async run(setting) {
      const sample = await course.run(setting);
      return {
        ...sample,
        value: sample.value * members,
        redisUs: sample.redisUs / members,
      };
    },
  };
}

/** Runs each course once a round. */
export async function inTurn(setting: Setting, courses: readonly Course[]): Promise<Measured> {
  const samples = new Map(courses.map((one) => [one, [] as ClusterSample[]]));
  for (let round = 0; round < setting.bench.plan.rounds; round++)
    for (const [course, its] of samples) its.push(await course.run(setting));
  return samples;
}

export type Pair = readonly [Course, Course];

/**
 * A row for each pair: the first is what the second is compared with. `as` makes another figure of
 * a sample.
 */
export function rowsOf(
  measured: Measured,
  pairs: readonly Pair[],
  question: Question,
  as: (sample: ClusterSample) => Sample = (sample) => sample,
): readonly Row[] {
  const of = (course: Course) => (measured.get(course) ?? []).map(as);
  return pairs.map((pair) => row(question, pair, [of(pair[0]), of(pair[1])] as const));
}

function pids({ servers, redis }: Nodes): readonly number[] {
  const all = servers.map(({ pid }) => pid);
  return [...all, ...(redis?.processes ?? []).map(({ pid }) => pid)];
}

function of({ servers }: Nodes, sample: ProcessSample): ClusterSample {
  const { cpusUs, ...rest } = sample;
  const nodes = cpusUs.slice(0, servers.length);
  return {
    ...rest,
    cpuUs: sum(nodes),
    busiestUs: Math.max(...nodes),
    redisUs: sum(cpusUs.slice(servers.length)),
  };
}

function sum(all: readonly number[]): number {
  return all.reduce((so, one) => so + one, 0);
}
