// What do more nodes on one Redis bring, and what does the way through it cost? Messages stored and
// acknowledged, a group of 1000 members spread over 1, 2 and 3 nodes, the time from sending to
// receiving; beside them an embedded node, and Socket.IO with its Redis adapter, which stores
// nothing. With `--against`: two nodes of each build. All of it shares one machine, so processor
// time says more than the clock.

import type { Bench, Benchmark, Row, Sample } from "./support/benchmark.ts";
import {
  CALLERS,
  type ClusterSample,
  type Course,
  fanout,
  hop,
  inTurn,
  type Pair,
  perDelivery,
  rowsOf,
  type Setting,
  sends,
} from "./support/cluster-loads.ts";
import { startNodes, startPeers, startRedis, startRedisCluster } from "./support/clusters.ts";
import {
  type Contender,
  contender,
  createGroupForEach,
  eachGroupRequest,
  groupRequest,
  peer,
} from "./support/contenders.ts";
import { compileLoad, LoadClient } from "./support/load.ts";
import { redisLimit } from "./support/redis-limit.ts";
import { startBroker } from "./support/servers.ts";

const MANY_IN_FLIGHT = 16;
/** As many in flight as callers send at a time. */
const PIPELINED = { connections: 4, depth: MANY_IN_FLIGHT };
const PRIMARIES = 3;
/**
 * What is taken for a delivery when a quick run is over before the clock of processor time ticks.
 */
const LEAST_US = 0.01;

const STORED = {
  title: "stored and acknowledged over HTTP",
  unit: "messages/s",
};
const HOP = {
  title: "from POST to 10 members, one message at a time",
  unit: "µs, median",
};
/**
 * Where several are on their way, a busy node writes them together and seems cheaper than one with
 * less to do.
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
  question: "1, 2 and 3 nodes on one Redis, beside Socket.IO on the same one",

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

/** Two nodes of each build. */
async function startBuilds(bench: Bench, members: number) {
  const redis = await startRedis(bench);
  const contenders: Contender[] = [];
  for (const subject of bench.subjects) {
    if (subject.kind !== "broker") continue;
    const size = { name: `${subject.name} × 2`, count: 2, redis };
    const nodes = await startNodes(bench, subject, size);
    contenders.push(await contender(nodes, members));
  }
  return contenders;
}

/** An embedded node, ours on Redis by their number, the peer's by theirs. */
async function startAll(bench: Bench, members: number) {
  const [, build] = bench.subjects;
  if (build.kind !== "broker") throw new Error("There is no build to measure");
  const server = await startBroker(bench.workbench, build);
  const name = `${build.name}, embedded`;
  const embedded = { name, servers: [server], redis: undefined };
  const contenders = [await contender(embedded, members)];
  const redis = await startRedis(bench);
  const counts = bench.plan.isQuick ? [1, 2] : [1, 2, 3];
  for (const count of counts) {
    const size = { name: `${build.name} × ${count}`, count, redis };
    const nodes = await startNodes(bench, build, size);
    contenders.push(await contender(nodes, members));
  }
  const peers = await startPeers(bench, redis, counts);
  return [...contenders, ...peers.map(peer)];
}

async function compareAll(
  setting: Setting,
  [embedded, ...others]: readonly Contender[],
): Promise<readonly Row[]> {
  const ours = others.slice(0, others.length / 2);
  const peers = others.slice(others.length / 2);
  if (embedded === undefined) throw new Error("There is nothing to measure");
  const [alone] = ours;
  if (alone === undefined) throw new Error("No node of ours is on Redis");
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
  const [alone, ...courses] = [embedded, ...ours].map((its) => sends(its));
  const measured = await inTurn(setting, present([alone, ...courses]));
  const more = toFirst(courses);
  const cpu = [...pairs([alone], courses), ...more];
  return [
    ...rowsOf(measured, pairs([alone], courses), STORED),
    ...rowsOf(measured, more, STORED),
    ...rowsOf(measured, cpu, NODE_CPU, nodesUs),
    ...rowsOf(measured, more, REDIS_CPU, redisUs),
  ];
}

/**
 * One node on Redis beside what Redis alone costs at least, with as many in flight and as many
 * subscribers, and beside an embedded node: a member of the group is connected to each.
 */
async function compareLimits(
  setting: Setting,
  embedded: Contender,
  ours: Contender,
): Promise<readonly Row[]> {
  const { redis } = ours.nodes;
  if (redis === undefined) throw new Error("The node is not on Redis");
  const held = await Promise.all(
    [embedded, ours].map(({ nodes, opening }) =>
      setting.load.hold({
        ...{ port: nodes.servers[0]?.clientPort ?? 0, opening },
        connections: 1,
      }),
    ),
  );
  const subscribers = 1;
  const many = redisLimit(redis, { ...PIPELINED, subscribers });
  const unheard = redisLimit(redis, { ...PIPELINED, subscribers: 0 });
  const one = redisLimit(redis, { connections: 1, depth: 1, subscribers });
  const [plain, keyed] = [false, true].map(groupRequest);
  const bare = { what: "a group's, no key", ...given(plain) };
  const named = { what: "a group's, with a key", ...given(keyed) };
  const personal = sends(ours, { what: "personal, with a key" });
  const [group, groupKeyed] = [sends(ours, bare), sends(ours, named)];
  const alone = { callers: 1 };
  const [single, singleKeyed] = [bare, named].map((what) =>
    sends(ours, { ...what, ...alone, what: `${what.what}, 1 in flight` }),
  );
  const [home, homeKeyed] = [sends(embedded, bare), sends(embedded, named)];
  const atRedis = [
    ...[group, groupKeyed].map((course) => [many, course] as const),
    [unheard, personal] as const,
    ...present([single, singleKeyed]).map((course) => [one, course] as const),
  ];
  const atNode = [
    [home, group],
    [homeKeyed, groupKeyed],
  ] as const;
  const courses = new Set([...atRedis, ...atNode].flat());
  const measured = await inTurn(setting, [...courses]);
  await Promise.all(held.map((one) => one.release()));
  return [
    ...rowsOf(measured, atRedis, REDIS_CPU, redisUs),
    ...rowsOf(measured, atNode, NODE_CPU, nodesUs),
  ];
}

/**
 * A node on a Redis Cluster, each of 64 callers at a group of its own, beside what the servers cost
 * at least, with as many in flight and as many subscribers: one member of all groups is connected.
 */
async function onRedisCluster(setting: Setting): Promise<readonly Row[]> {
  const { bench, load } = setting;
  const [, build] = bench.subjects;
  if (build.kind !== "broker") throw new Error("There is no build to measure");
  const redis = await startRedisCluster(bench, PRIMARIES);
  const size = { name: "Redis Cluster", count: 1, redis };
  const ours = await contender(await startNodes(bench, build, size), 1);
  const { nodes, opening } = ours;
  await createGroupForEach(nodes, CALLERS);
  const port = nodes.servers[0]?.clientPort ?? 0;
  const held = await load.hold({ port, opening, connections: 1 });
  const least = redisLimit(redis, { ...PIPELINED, subscribers: 1 });
  const courses = [false, true].map((isKeyed) => {
    const what = `a group for each caller, ${isKeyed ? "with a" : "no"} key`;
    return sends(ours, { what, message: eachGroupRequest(isKeyed) });
  });
  const measured = await inTurn(setting, [least, ...courses]);
  await held.release();
  await Promise.all(nodes.servers.map((server) => server.stop()));
  return rowsOf(measured, toFirst([least, ...courses]), REDIS_CPU, redisUs);
}

const given = (message: Uint8Array | undefined) => (message === undefined ? {} : { message });

async function compareFanout(
  setting: Setting,
  ours: readonly Contender[],
  peers: readonly Contender[],
): Promise<readonly Row[]> {
  const [courses, others] = [ours.map(many), peers.map(many)];
  const [single, otherSingle] = [ours.map(one), peers.map(one)];
  const versus = pairs(others, courses);
  const most = courses.slice(-1);
  const least = most.map(() => leastFanout(setting, ours));
  const beside = pairs(least, most);
  const measured = await inTurn(setting, [...versus.flat(), ...least]);
  const scaled = await inTurn(setting, [...single, ...otherSingle]);
  const question = fanoutOf(setting);
  const perMessage = redisPerMessage(setting);
  return [
    ...rowsOf(measured, versus, question),
    ...rowsOf(measured, toFirst(courses), question),
    ...rowsOf(scaled, toFirst(single), BUSIEST, perBusiestSecond),
    ...rowsOf(scaled, toFirst(otherSingle), BUSIEST, perBusiestSecond),
    ...rowsOf(measured, [...versus, ...beside], REDIS_FANOUT_CPU, perMessage),
  ];
}

/**
 * What Redis costs at least where messages come one at a time, as from nodes that have a thousand
 * deliveries to make between two, and all nodes are subscribed.
 */
function leastFanout({ members }: Setting, contenders: readonly Contender[]): Course {
  const { nodes } = contenders.at(-1) ?? {};
  if (nodes?.redis === undefined) throw new Error("No node is on Redis");
  const count = nodes.servers.length;
  const load = { connections: 1, depth: 1, subscribers: count };
  return perDelivery(redisLimit(nodes.redis, load), members);
}

async function compareHops(
  setting: Setting,
  ours: readonly Contender[],
  peers: readonly Contender[],
): Promise<readonly Row[]> {
  const hopOf = (its: Contender) => hop(its, its.nodes.name);
  const courses = ours.map(hopOf);
  const others = peers.slice(0, 2).map(hopOf);
  const measured = await inTurn(setting, [...courses, ...others]);
  const onRedis = courses.slice(1);
  return [
    ...rowsOf(measured, pairs(courses.slice(0, 1), onRedis), HOP),
    ...rowsOf(measured, toFirst(onRedis), HOP),
    ...rowsOf(measured, pairs(others, onRedis), HOP),
  ];
}

async function compareBuilds(
  setting: Setting,
  contenders: readonly Contender[],
): Promise<readonly Row[]> {
  const stored = contenders.map((its) => sends(its));
  const told = contenders.map(many);
  const single = contenders.map(one);
  const hops = contenders.map((its) => hop(its, its.nodes.name));
  const sent = await inTurn(setting, stored);
  const spread = await inTurn(setting, told);
  const scaled = await inTurn(setting, single);
  const timed = await inTurn(setting, hops);
  const perMessage = redisPerMessage(setting);
  return [
    ...rowsOf(sent, toFirst(stored), STORED),
    ...rowsOf(sent, toFirst(stored), NODE_CPU, nodesUs),
    ...rowsOf(sent, toFirst(stored), REDIS_CPU, redisUs),
    ...rowsOf(spread, toFirst(told), fanoutOf(setting)),
    ...rowsOf(scaled, toFirst(single), BUSIEST, perBusiestSecond),
    ...rowsOf(spread, toFirst(told), REDIS_FANOUT_CPU, perMessage),
    ...rowsOf(timed, toFirst(hops), HOP),
  ];
}

/** The first with the first, the second with the second … as far as both go. */
function pairs(
  bases: readonly (Course | undefined)[],
  courses: readonly Course[],
): readonly Pair[] {
  return courses.flatMap((course, at) => {
    const base = bases[at];
    return base === undefined ? [] : [[base, course] as const];
  });
}

/** The first with each of the others. */
function toFirst([first, ...others]: readonly Course[]): readonly Pair[] {
  return first === undefined ? [] : others.map((one) => [first, one]);
}

function present(courses: readonly (Course | undefined)[]): readonly Course[] {
  return courses.filter((course) => course !== undefined);
}

const many = (contender: Contender): Course => fanout(contender, MANY_IN_FLIGHT);
const one = (contender: Contender): Course => fanout(contender, 1);

const fanoutOf = ({ members }: Setting) => ({
  title: `one group, ${members} members, ${MANY_IN_FLIGHT} messages in flight over HTTP`,
  unit: "deliveries/s",
});

const nodesUs = ({ cpuUs }: ClusterSample): Sample => ({ value: cpuUs ?? 0 });

const redisUs = ({ redisUs }: ClusterSample): Sample => ({ value: redisUs });

const redisPerMessage =
  ({ members }: Setting) =>
  ({ redisUs }: ClusterSample): Sample => ({ value: redisUs * members });

/** What the nodes would deliver if each had a core of its own and nothing else were in the way. */
const perBusiestSecond = ({ busiestUs }: ClusterSample): Sample => ({
  value: 1e6 / Math.max(busiestUs, LEAST_US),
});
