// How does the throughput grow with the number of nodes on one Redis, and what does the path
// through Redis cost? Measures stored and acknowledged messages, the fan-out to a group of 1,000
// members on 1, 2 and 3 nodes, and the time from sending to receiving. Compares the results
// with those of an embedded node and of Socket.IO with its Redis adapter, which stores nothing.
// With `--against`, compares two nodes of each build. All processes share one machine, so CPU time
// is more meaningful than rates.

import type { Bench, Benchmark, Row, Sample } from "./support/benchmark.ts";
import {
  CALLERS,
  type ClusterSample,
  fanout,
  hop,
  type Pair,
  perDelivery,
  type Run,
  rowsOf,
  runAlternately,
  type Setting,
  sends,
} from "./support/cluster-loads.ts";
import { startNodes, startPeers, startRedis, startRedisCluster } from "./support/clusters.ts";
import {
  type Contender,
  createContender,
  createGroupForEach,
  eachGroupRequest,
  groupRequest,
  peerContender,
} from "./support/contenders.ts";
import { compileLoad, LoadClient } from "./support/load.ts";
import { redisLimit } from "./support/redis-limit.ts";
import { startBroker } from "./support/servers.ts";

const MANY_IN_FLIGHT = 16;
/** Load on Redis with as many messages in flight as in the runs with all callers. */
const PIPELINED = { connections: 4, depth: MANY_IN_FLIGHT };
const PRIMARIES = 3;
/**
 * Lower bound for the CPU time of a delivery. In a quick run the measured time may be 0, because
 * the kernel counts CPU time in steps of 10 ms.
 */
const MIN_CPU_US = 0.01;

const STORED = {
  title: "stored and acknowledged over HTTP",
  unit: "messages/s",
};
const HOP = {
  title: "from POST to 10 members, one message at a time",
  unit: "µs, median",
};
/**
 * Row about runs with one message in flight. With several messages in flight, a busy node writes
 * several messages at once, so that the node seems to need less time than a node with less load.
 */
const BUSIEST = {
  title: "fan-out, 1 in flight, per CPU-second of the busiest node",
  unit: "deliveries",
};
const NODE_CPU = {
  title: "nodes' processor time for each stored message",
  unit: "µs",
};
const REDIS_CPU = {
  title: "Redis' processor time for each stored message",
  unit: "µs",
};
const REDIS_FANOUT_CPU = {
  title: "Redis' processor time for each message to the group",
  unit: "µs",
};

export const cluster: Benchmark = {
  name: "cluster",
  question: "1, 2 and 3 nodes on one Redis, compared with Socket.IO on the same Redis",

  async run(bench) {
    const load = new LoadClient(bench.workbench, await compileLoad());
    const members = bench.plan.isQuick ? 50 : 1000;
    const setting = { bench, load, members };
    const isAgainst = bench.subjects[0].kind === "broker";
    const contenders = isAgainst
      ? await startBuilds(bench, members)
      : await startAll(bench, members);
    const compare = isAgainst ? compareBuilds : compareAll;
    const rows = await compare(setting, contenders);
    for (const { nodes } of contenders)
      await Promise.all(nodes.servers.map((server) => server.stop()));
    return isAgainst ? rows : [...rows, ...(await onRedisCluster(setting))];
  },
};

/** Starts two nodes of each build. */
async function startBuilds(bench: Bench, members: number) {
  const redis = await startRedis(bench);
  const contenders: Contender[] = [];
  for (const subject of bench.subjects) {
    if (subject.kind !== "broker") continue;
    const size = { name: `${subject.name} × 2`, count: 2, redis };
    const nodes = await startNodes(bench, subject, size);
    contenders.push(await createContender(nodes, members));
  }
  return contenders;
}

/** Starts an embedded node and, for each node count, our nodes on Redis and the peer's nodes. */
async function startAll(bench: Bench, members: number) {
  const [, build] = bench.subjects;
  if (build.kind !== "broker") throw new Error("the cluster bench needs a build to measure");
  const server = await startBroker(bench.workbench, build);
  const name = `${build.name}, embedded`;
  const embedded = { name, servers: [server], redis: undefined };
  const contenders = [await createContender(embedded, members)];
  const redis = await startRedis(bench);
  const counts = bench.plan.isQuick ? [1, 2] : [1, 2, 3];
  for (const count of counts) {
    const size = { name: `${build.name} × ${count}`, count, redis };
    const nodes = await startNodes(bench, build, size);
    contenders.push(await createContender(nodes, members));
  }
  const peers = await startPeers(bench, redis, counts);
  return [...contenders, ...peers.map(peerContender)];
}

async function compareAll(
  setting: Setting,
  [embedded, ...others]: readonly Contender[],
): Promise<readonly Row[]> {
  const ours = others.slice(0, others.length / 2);
  const peers = others.slice(others.length / 2);
  if (embedded === undefined) throw new Error("the embedded node is missing");
  const [alone] = ours;
  if (alone === undefined) throw new Error("there is no node on Redis");
  return [
    ...(await compareLimits(setting, embedded, alone)),
    ...(await compareSends(setting, embedded, ours)),
    ...(await compareFanout(setting, ours, peers)),
    ...(await compareHops(setting, [embedded, ...ours.slice(0, 2)], peers)),
  ];
}

async function compareSends(
  setting: Setting,
  embedded: Contender,
  ours: readonly Contender[],
): Promise<readonly Row[]> {
  const [alone, ...runs] = [embedded, ...ours].map((contender) => sends(contender));
  const measured = await runAlternately(setting, defined([alone, ...runs]));
  const toFirstPairs = pairWithFirst(runs);
  const cpu = [...pairs([alone], runs), ...toFirstPairs];
  return [
    ...rowsOf(measured, pairs([alone], runs), STORED),
    ...rowsOf(measured, toFirstPairs, STORED),
    ...rowsOf(measured, cpu, NODE_CPU, nodesUs),
    ...rowsOf(measured, toFirstPairs, REDIS_CPU, redisUs),
  ];
}

/**
 * Compares one node on Redis with an embedded node, and with the minimum cost of Redis alone for
 * the same numbers of messages in flight and subscribers. One member of the group is connected to
 * each node.
 */
async function compareLimits(
  setting: Setting,
  embedded: Contender,
  ours: Contender,
): Promise<readonly Row[]> {
  const { redis } = ours.nodes;
  if (redis === undefined) throw new Error("the node is not on Redis");
  const holds = await Promise.all(
    [embedded, ours].map(({ nodes, opening }) =>
      setting.load.hold({
        ...{ port: nodes.servers[0]?.clientPort ?? 0, opening },
        connections: 1,
      }),
    ),
  );
  const subscribers = 1;
  const manyInFlight = redisLimit(redis, { ...PIPELINED, subscribers });
  const withoutSubscriber = redisLimit(redis, { ...PIPELINED, subscribers: 0 });
  const singleRun = redisLimit(redis, { connections: 1, depth: 1, subscribers });
  const [plain, keyed] = [false, true].map(groupRequest);
  const bare = { what: "a group's, no key", ...messageOption(plain) };
  const named = { what: "a group's, with a key", ...messageOption(keyed) };
  const personal = sends(ours, { what: "personal, with a key" });
  const [group, groupKeyed] = [sends(ours, bare), sends(ours, named)];
  const alone = { callers: 1 };
  const [single, singleKeyed] = [bare, named].map((options) =>
    sends(ours, { ...options, ...alone, what: `${options.what}, 1 in flight` }),
  );
  const [home, homeKeyed] = [sends(embedded, bare), sends(embedded, named)];
  const atRedis = [
    ...[group, groupKeyed].map((run) => [manyInFlight, run] as const),
    [withoutSubscriber, personal] as const,
    ...defined([single, singleKeyed]).map((run) => [singleRun, run] as const),
  ];
  const atNode = [
    [home, group],
    [homeKeyed, groupKeyed],
  ] as const;
  const runs = new Set([...atRedis, ...atNode].flat());
  const measured = await runAlternately(setting, [...runs]);
  await Promise.all(holds.map((hold) => hold.release()));
  return [
    ...rowsOf(measured, atRedis, REDIS_CPU, redisUs),
    ...rowsOf(measured, atNode, NODE_CPU, nodesUs),
  ];
}

/**
 * Compares a node on a Redis Cluster with the minimum cost of the cluster's servers, for the same
 * numbers of messages in flight and subscribers. Each of 64 callers sends to its own group. One
 * user, who is a member of all groups, is connected.
 */
async function onRedisCluster(setting: Setting): Promise<readonly Row[]> {
  const { bench, load } = setting;
  const [, build] = bench.subjects;
  if (build.kind !== "broker") throw new Error("the cluster bench needs a build to measure");
  const redis = await startRedisCluster(bench, PRIMARIES);
  const size = { name: "Redis Cluster", count: 1, redis };
  const ours = await createContender(await startNodes(bench, build, size), 1);
  const { nodes, opening } = ours;
  await createGroupForEach(nodes, CALLERS);
  const port = nodes.servers[0]?.clientPort ?? 0;
  const holds = await load.hold({ port, opening, connections: 1 });
  const limits = redisLimit(redis, { ...PIPELINED, subscribers: 1 });
  const runs = [false, true].map((isKeyed) => {
    const description = `a group for each caller, ${isKeyed ? "with a" : "no"} key`;
    return sends(ours, { what: description, message: eachGroupRequest(isKeyed) });
  });
  const measured = await runAlternately(setting, [limits, ...runs]);
  await holds.release();
  await Promise.all(nodes.servers.map((server) => server.stop()));
  return rowsOf(measured, pairWithFirst([limits, ...runs]), REDIS_CPU, redisUs);
}

const messageOption = (message: Uint8Array | undefined) =>
  message === undefined ? {} : { message };

async function compareFanout(
  setting: Setting,
  ours: readonly Contender[],
  peers: readonly Contender[],
): Promise<readonly Row[]> {
  const [runs, peerRuns] = [ours.map(fanoutMany), peers.map(fanoutMany)];
  const [single, otherSingle] = [ours.map(fanoutSingle), peers.map(fanoutSingle)];
  const peerPairs = pairs(peerRuns, runs);
  const largest = runs.slice(-1);
  const limits = largest.map(() => fanoutLimit(setting, ours));
  const limitPairs = pairs(limits, largest);
  const measured = await runAlternately(setting, [...peerPairs.flat(), ...limits]);
  const scaled = await runAlternately(setting, [...single, ...otherSingle]);
  const question = fanoutOf(setting);
  const perMessage = redisPerMessage(setting);
  return [
    ...rowsOf(measured, peerPairs, question),
    ...rowsOf(measured, pairWithFirst(runs), question),
    ...rowsOf(scaled, pairWithFirst(single), BUSIEST, perBusiestSecond),
    ...rowsOf(scaled, pairWithFirst(otherSingle), BUSIEST, perBusiestSecond),
    ...rowsOf(measured, [...peerPairs, ...limitPairs], REDIS_FANOUT_CPU, perMessage),
  ];
}

/**
 * Returns a run that measures the minimum cost of a fan-out for Redis: one message at a time, to
 * one subscriber per node. Several messages at a time would be unrealistic, because the nodes
 * make a thousand deliveries between one message and the next.
 */
function fanoutLimit({ members }: Setting, contenders: readonly Contender[]): Run {
  const { nodes } = contenders.at(-1) ?? {};
  if (nodes?.redis === undefined) throw new Error("there is no node on Redis");
  const count = nodes.servers.length;
  const load = { connections: 1, depth: 1, subscribers: count };
  return perDelivery(redisLimit(nodes.redis, load), members);
}

async function compareHops(
  setting: Setting,
  ours: readonly Contender[],
  peers: readonly Contender[],
): Promise<readonly Row[]> {
  const hopOf = (contender: Contender) => hop(contender, contender.nodes.name);
  const runs = ours.map(hopOf);
  const peerRuns = peers.slice(0, 2).map(hopOf);
  const measured = await runAlternately(setting, [...runs, ...peerRuns]);
  const onRedis = runs.slice(1);
  return [
    ...rowsOf(measured, pairs(runs.slice(0, 1), onRedis), HOP),
    ...rowsOf(measured, pairWithFirst(onRedis), HOP),
    ...rowsOf(measured, pairs(peerRuns, onRedis), HOP),
  ];
}

async function compareBuilds(
  setting: Setting,
  contenders: readonly Contender[],
): Promise<readonly Row[]> {
  const stored = contenders.map((contender) => sends(contender));
  const fanouts = contenders.map(fanoutMany);
  const single = contenders.map(fanoutSingle);
  const hops = contenders.map((contender) => hop(contender, contender.nodes.name));
  const sent = await runAlternately(setting, stored);
  const spread = await runAlternately(setting, fanouts);
  const scaled = await runAlternately(setting, single);
  const timed = await runAlternately(setting, hops);
  const perMessage = redisPerMessage(setting);
  return [
    ...rowsOf(sent, pairWithFirst(stored), STORED),
    ...rowsOf(sent, pairWithFirst(stored), NODE_CPU, nodesUs),
    ...rowsOf(sent, pairWithFirst(stored), REDIS_CPU, redisUs),
    ...rowsOf(spread, pairWithFirst(fanouts), fanoutOf(setting)),
    ...rowsOf(scaled, pairWithFirst(single), BUSIEST, perBusiestSecond),
    ...rowsOf(spread, pairWithFirst(fanouts), REDIS_FANOUT_CPU, perMessage),
    ...rowsOf(timed, pairWithFirst(hops), HOP),
  ];
}

/** Pairs the runs of both lists by their index, up to the length of the shorter list. */
function pairs(bases: readonly (Run | undefined)[], runs: readonly Run[]): readonly Pair[] {
  return runs.flatMap((run, at) => {
    const base = bases[at];
    return base === undefined ? [] : [[base, run] as const];
  });
}

/** Pairs the first run with each of the others. */
function pairWithFirst([first, ...others]: readonly Run[]): readonly Pair[] {
  return first === undefined ? [] : others.map((run) => [first, run]);
}

function defined(runs: readonly (Run | undefined)[]): readonly Run[] {
  return runs.filter((run) => run !== undefined);
}

const fanoutMany = (contender: Contender): Run => fanout(contender, MANY_IN_FLIGHT);
const fanoutSingle = (contender: Contender): Run => fanout(contender, 1);

const fanoutOf = ({ members }: Setting) => ({
  title: `one group, ${members} members, ${MANY_IN_FLIGHT} messages in flight over HTTP`,
  unit: "deliveries/s",
});

const nodesUs = ({ cpuUs }: ClusterSample): Sample => ({ value: cpuUs ?? 0 });

const redisUs = ({ redisUs }: ClusterSample): Sample => ({ value: redisUs });

const redisPerMessage =
  ({ members }: Setting) =>
  ({ redisUs }: ClusterSample): Sample => ({ value: redisUs * members });

/** Returns the rate at which the busiest node would use one core completely. */
const perBusiestSecond = ({ busiestUs }: ClusterSample): Sample => ({
  value: 1e6 / Math.max(busiestUs, MIN_CPU_US),
});
