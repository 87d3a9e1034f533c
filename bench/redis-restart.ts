// What does a restart of Redis cost two nodes with 10,000 connected sessions in two groups each?
// Measures the time until the presence of all users is correct and until the first message to each
// group has reached every member, and the CPU time and commands of Redis until then. Redis is
// stopped with SIGTERM, killed, or killed and kept down until the nodes count as dead. Each outage
// happens twice: once without calls, so that all commands come from the nodes, and once with
// queries of presence and messages.

import { setTimeout as pause } from "node:timers/promises";
import { Redis } from "ioredis";
import { Backend, TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Question, Row, Sample, Subject } from "./support/benchmark.ts";
import {
  chooseRedisLocation,
  type RedisLocation,
  spawnRedis,
  waitForRedis,
} from "./support/clusters.ts";
import {
  CONNECTION_NUMBER,
  connectFrame,
  connectionNumber,
  frameStart,
  NATIVE_UPGRADE,
  sampleMessage,
  sendBody,
} from "./support/frames.ts";
import { compileLoad, type HeldConnections, LoadClient } from "./support/load.ts";
import { type RedisUsage, RedisWatch, total } from "./support/redis-watch.ts";
import { type Server, startBroker } from "./support/servers.ts";
import { row } from "./support/stats.ts";
import type { Child } from "./support/workbench.ts";

const USER = `user${CONNECTION_NUMBER}`;
const HOST = "127.0.0.1";
const NODES = 2;
const GROUP_SIZE = 100;
const IDLE_S = 5;
const RETRY_MS = 50;
const POLL_MS = 20;
const TIMEOUT_S = 120;
const SENDERS = 16;
/** Time to wait after the last message, in which a second delivery of a message would arrive. */
const REPEAT_WAIT_MS = 500;

/** The signal that stops Redis, and the time for which Redis stays down. */
interface Outage {
  readonly name: string;
  readonly signal: "SIGTERM" | "SIGKILL";
  readonly downMs: number;
}

const OUTAGES: readonly Outage[] = [
  { name: "restarted", signal: "SIGTERM", downMs: 0 },
  { name: "killed", signal: "SIGKILL", downMs: 0 },
  { name: "killed, 5 s down", signal: "SIGKILL", downMs: 5000 },
];

/** Results of one outage. Times are in seconds since Redis accepted commands again. */
interface Recovery {
  readonly presenceS: number;
  readonly messagesS: number;
  readonly queried: RedisUsage;
  /** Time until the nodes' command rate is back at its idle level. */
  readonly restS: number;
  readonly alone: RedisUsage;
  /** Number of connections that the nodes closed. */
  readonly closedSessions: number;
  readonly sessions: number;
  readonly topics: number;
}

interface Setup {
  readonly bench: Bench;
  readonly place: RedisLocation;
  redis: Child;
  readonly servers: readonly Server[];
  readonly connections: HeldConnections;
  readonly uids: readonly string[];
  /** One member of each group, by the group's id. */
  readonly groups: ReadonlyMap<string, string>;
  /** Commands per second while the sessions are idle. */
  readonly idle: number;
  /** Number of messages that each session must have received so far. */
  sentCount: number;
}

const QUESTIONS: readonly (Question & {
  readonly select: (recovery: Recovery) => number;
})[] = [
  {
    ...{ title: "presence is correct on both nodes after", unit: "s" },
    select: ({ presenceS }) => presenceS,
  },
  {
    ...{ title: "all sessions have the first message after", unit: "s" },
    select: ({ messagesS }) => messagesS,
  },
  {
    ...{ title: "the nodes are idle again after, left alone", unit: "s" },
    select: ({ restS }) => restS,
  },
  {
    ...{ title: "Redis' processor time, left alone", unit: "s" },
    select: ({ alone }) => alone.cpuSeconds,
  },
  {
    ...{ title: "Redis' peak of processor time, left alone", unit: "% of a core" },
    select: ({ alone }) => alone.peakShare * 100,
  },
  {
    ...{ title: "Redis' peak of processor time, queried", unit: "% of a core" },
    select: ({ queried }) => queried.peakShare * 100,
  },
  {
    ...{ title: "commands for each session, left alone", unit: "commands" },
    select: ({ alone, sessions }) => total(alone.commands) / sessions,
  },
  {
    ...{ title: "sessions that stayed connected", unit: "sessions" },
    select: ({ sessions, closedSessions }) => sessions - closedSessions,
  },
];

export const redisRestart: Benchmark = {
  name: "redis-restart",
  question: "Redis restarts under two nodes with connected sessions",

  async run(bench) {
    const { plan, subjects } = bench;
    const load = new LoadClient(bench.workbench, await compileLoad());
    const outages = plan.isQuick ? OUTAGES.slice(0, 2) : OUTAGES;
    const measured = new Map<string, Recovery[]>();
    for (let round = 0; round < plan.rounds; round++)
      for (const subject of subjects) {
        if (subject.kind !== "broker") continue;
        for (const [name, recovery] of await runOutages(bench, {
          load,
          subject,
          outages,
        })) {
          const previous = measured.get(name) ?? [];
          measured.set(name, [...previous, recovery]);
        }
      }
    return pairs(bench, outages).flatMap(([base, other]) =>
      QUESTIONS.map(({ select, ...question }): Row => {
        const samples = (name: string): readonly Sample[] =>
          (measured.get(name) ?? []).map((recovery) => ({ value: select(recovery) }));
        return row(question, [{ name: base }, { name: other }], [samples(base), samples(other)]);
      }),
    );
  },
};

/**
 * Returns the pairs of outages to compare: the first outage with each of the others or, if two
 * builds are compared, the same outage of both builds.
 */
function pairs(
  { subjects: [base, ours] }: Bench,
  outages: readonly Outage[],
): readonly (readonly [string, string])[] {
  if (base.kind === "broker")
    return outages.map((outage) => [title(base, outage), title(ours, outage)]);
  const [first, ...others] = outages.map((outage) => title(ours, outage));
  return others.map((other) => [first ?? "", other]);
}

function title(subject: Subject, outage: Outage): string {
  return `${subject.name}, ${outage.name}`;
}

/** Runs all outages, one after the other, with nodes of this build. */
async function runOutages(
  bench: Bench,
  {
    load,
    subject,
    outages,
  }: {
    readonly load: LoadClient;
    readonly subject: Extract<Subject, { kind: "broker" }>;
    readonly outages: readonly Outage[];
  },
): Promise<readonly (readonly [string, Recovery])[]> {
  const setup = await startSetup(bench, { load, subject });
  const results: [string, Recovery][] = [];
  for (const outage of outages) {
    const name = title(subject, outage);
    const recovery = await runOutage(setup, outage);
    process.stdout.write(summary(name, recovery, setup));
    results.push([name, recovery]);
  }
  await setup.connections.release();
  await Promise.all(setup.servers.map((server) => server.stop()));
  await setup.redis.stop();
  return results;
}

async function startSetup(
  bench: Bench,
  {
    load,
    subject,
  }: {
    readonly load: LoadClient;
    readonly subject: Extract<Subject, { kind: "broker" }>;
  },
): Promise<Setup> {
  const { workbench, plan } = bench;
  const place = await chooseRedisLocation(bench);
  const redis = spawnRedis(bench, place);
  await waitForRedis(redis);
  const redisOptions = { url: `redis://${HOST}:${place.port}`, prefix: "jd" };
  const servers = await Promise.all(
    Array.from({ length: NODES }, () => startBroker(workbench, subject, redisOptions)),
  );
  const uids = Array.from({ length: plan.sessions }, (_, at) =>
    USER.replace(CONNECTION_NUMBER, connectionNumber(at)),
  );
  const groups = new Map<string, string>();
  const backend = new Backend(servers[0]?.apiPort ?? 0);
  await backend.registerUsers(uids);
  for (const [id, members] of divideIntoGroups(uids)) {
    await backend.createGroup(id, members);
    groups.set(id, members[0] ?? "");
  }
  backend.close();
  const channel = { id: "a0", type: 2 } as const;
  const push = sampleMessage({ channel, fromUid: "", clientMsgNo: "" });
  const connections = await load.hold({
    port: servers.map(({ clientPort }) => clientPort),
    connections: plan.sessions,
    opening: { upgrade: NATIVE_UPGRADE, open: connectFrame(USER, TOKEN) },
    replyStart: frameStart(push),
  });
  const idleS = plan.isQuick ? 0.5 : IDLE_S;
  await pause(idleS * 1000); // until the nodes have finished the connects
  const client = new Redis(place.port, HOST);
  const idle = await idleRate(client, { pid: redis.pid, seconds: idleS });
  client.disconnect(); // the server is stopped next
  const base = { bench, place, redis, servers, connections };
  return { ...base, uids, groups, idle, sentCount: 0 };
}

/** Measures the commands per second while the sessions are idle. */
async function idleRate(
  client: Redis,
  { pid, seconds }: { readonly pid: number; readonly seconds: number },
): Promise<number> {
  const watch = await RedisWatch.fromNow(client, pid);
  await pause(seconds * 1000);
  const watched = await watch.end();
  return total(watched.commands) / watched.seconds;
}

/**
 * Puts each user into two groups that share few members. Users are connected to the nodes in turn,
 * so every group has members on both nodes.
 */
function divideIntoGroups(uids: readonly string[]): ReadonlyMap<string, string[]> {
  const half = Math.ceil(uids.length / GROUP_SIZE);
  const groups = new Map<string, string[]>();
  for (const [at, uid] of uids.entries())
    for (const id of [`a${Math.floor(at / NODES) % half}`, `b${Math.floor(at / GROUP_SIZE)}`]) {
      const members = groups.get(id) ?? [];
      members.push(uid);
      groups.set(id, members);
    }
  return groups;
}

async function runOutage(setup: Setup, outage: Outage): Promise<Recovery> {
  const before = await setup.connections.status();
  const alone = await measureAlone(setup, outage);
  const queried = await measureQueried(setup, outage);
  const after = await setup.connections.status();
  return {
    ...{ ...alone, ...queried },
    closedSessions: before.open - after.open,
    sessions: setup.uids.length,
  };
}

/** Stops and restarts Redis. Starts to measure its resource usage when it accepts commands again. */
async function causeOutage(setup: Setup, outage: Outage) {
  const { bench, place, redis } = setup;
  await (outage.signal === "SIGTERM" ? redis.finish() : redis.stop());
  await pause(outage.downMs);
  setup.redis = spawnRedis(bench, place);
  await waitForRedis(setup.redis);
  const client = new Redis(place.port, HOST);
  const watch = RedisWatch.fromStart(client, setup.redis.pid);
  return { client, watch };
}

async function measureAlone(setup: Setup, outage: Outage) {
  const { client, watch } = await causeOutage(setup, outage);
  const restS = await watch.untilRest(setup.idle, TIMEOUT_S);
  const alone = await watch.end();
  const topics = (await client.call("PUBSUB", "SHARDCHANNELS")) as string[];
  client.disconnect();
  return { restS, alone, topics: topics.length };
}

async function measureQueried(setup: Setup, outage: Outage) {
  const { client, watch } = await causeOutage(setup, outage);
  const seconds = () => watch.seconds;
  const [presenceS, messagesS] = await Promise.all([
    waitForPresence(setup, seconds),
    waitForMessages(setup, seconds),
  ]);
  const queried = await watch.end();
  await pause(REPEAT_WAIT_MS);
  await waitForMessages(setup, seconds, { isSent: true });
  if ((await offlineCount(setup)) > 0) throw new Error("a session was closed after the recovery");
  client.disconnect();
  return { presenceS, messagesS, queried };
}

async function waitForPresence(setup: Setup, seconds: () => number): Promise<number> {
  for (;;) {
    const missing = await offlineCount(setup).catch(() => Number.POSITIVE_INFINITY);
    if (missing === 0) return seconds();
    if (seconds() > TIMEOUT_S)
      throw new Error(`the nodes still report ${missing} users as offline`);
    await pause(RETRY_MS);
  }
}

/**
 * Returns the number of users that the nodes report as offline, summed over the nodes. Rejects if a
 * node cannot report.
 */
async function offlineCount({ servers, uids }: Setup): Promise<number> {
  let missing = 0;
  for (const { apiPort } of servers) {
    const backend = new Backend(apiPort);
    try {
      const answer = await backend.post("/user/onlinestatus", uids);
      const records = JSON.parse(answer) as readonly { online: number }[];
      missing += records.filter(({ online }) => online !== 1).length;
    } finally {
      backend.close();
    }
  }
  return missing;
}

/**
 * Sends one message to each group, through the nodes in turn, unless `isSent` is true. Returns the
 * time until every open session has the messages of its two groups.
 */
async function waitForMessages(
  setup: Setup,
  seconds: () => number,
  { isSent = false } = {},
): Promise<number> {
  if (!isSent) {
    setup.sentCount += 2;
    await sendToAll(setup);
  }
  for (;;) {
    const { least, most } = await setup.connections.status();
    if (most > setup.sentCount) throw new Error("a message was delivered twice");
    if (least === setup.sentCount) return seconds();
    if (seconds() > TIMEOUT_S)
      throw new Error(`a session has ${least} of ${setup.sentCount} messages`);
    await pause(POLL_MS);
  }
}

async function sendToAll({ servers, groups, sentCount }: Setup): Promise<void> {
  const backends = servers.map(({ apiPort }) => new Backend(apiPort));
  const waiting = [...groups].entries();
  const work = async () => {
    for (const [at, [id, fromUid]] of waiting) {
      const backend = backends[at % backends.length];
      const clientMsgNo = `${id}-${sentCount}`;
      const channel = { id, type: 2 } as const;
      const body = JSON.parse(sendBody({ channel, fromUid, clientMsgNo }));
      while (!(await isAccepted(backend?.post("/message/send", body)))) await pause(RETRY_MS);
    }
  };
  await Promise.all(Array.from({ length: SENDERS }, work));
  for (const backend of backends) backend.close();
}

/** Returns false if the node responds with 503 or not at all. Rejects after any other error. */
async function isAccepted(call: Promise<string> | undefined): Promise<boolean> {
  try {
    await call;
    return true;
  } catch (error) {
    if (/ answered (?!503)/.test(`${error}`)) throw error;
    return false;
  }
}

/** Returns a report of the recovery, with the commands sorted by frequency. */
function summary(name: string, recovery: Recovery, setup: Setup): string {
  const { alone, queried, sessions, topics } = recovery;
  const groups = setup.groups.size;
  const commandList = ({ commands }: RedisUsage) =>
    [...commands]
      .sort(([, a], [, b]) => b - a)
      .map(([command, count]) => {
        const each = (count / sessions).toFixed(2);
        return `    ${command.padEnd(18)}${count} (${each} per session, ${(count / topics).toFixed(2)} per topic)`;
      })
      .join("\n");
  const usage = ({ seconds, cpuSeconds, peakShare }: RedisUsage) =>
    `${cpuSeconds.toFixed(2)} s of Redis' processor time in ${seconds.toFixed(1)} s, peak ${(peakShare * 100).toFixed(0)} %`;
  return `
${name}: ${sessions} sessions, ${groups} groups, ${topics} topics, ${recovery.closedSessions} sessions closed; ${setup.idle.toFixed(0)} commands/s when idle
  left alone: idle again after ${recovery.restS.toFixed(1)} s; ${usage(alone)}
${commandList(alone)}
  queried: presence after ${recovery.presenceS.toFixed(2)} s, messages after ${recovery.messagesS.toFixed(2)} s; ${usage(queried)}
${commandList(queried)}
`;
}
