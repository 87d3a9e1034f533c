// What does a restart of Redis cost two nodes with 10,000 connected sessions in two groups each?
// Until presence is right for all of them and the first message to each group has reached every
// member, and what Redis does meanwhile: processor time and commands. It is ended in order, killed,
// and killed and kept away until the nodes count as dead. Each time twice: once left alone, so that
// the commands are those of the nodes, and once asked.

import { setTimeout as pause } from "node:timers/promises";
import { Redis } from "ioredis";
import { Backend, TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Question, Row, Sample, Subject } from "./support/benchmark.ts";
import { type RedisPlace, redisIsReady, redisPlace, spawnRedis } from "./support/clusters.ts";
import {
  CONNECTION_NUMBER,
  connectFrame,
  connectionNumber,
  frameStart,
  NATIVE_UPGRADE,
  sampleMessage,
  sendBody,
} from "./support/frames.ts";
import { compileLoad, type Held, LoadClient } from "./support/load.ts";
import { RedisWatch, total, type Watched } from "./support/redis-watch.ts";
import { type Server, startBroker } from "./support/servers.ts";
import { row } from "./support/stats.ts";
import type { Child } from "./support/workbench.ts";

const USER = `user${CONNECTION_NUMBER}`;
const HOST = "127.0.0.1";
const NODES = 2;
const GROUP_SIZE = 100;
const IDLE_S = 5;
const AGAIN_MS = 50;
const LOOK_MS = 20;
const MOST_S = 120;
const SENT_AT_ONCE = 16;
/** Behind the last of the messages: one that comes twice has come by then. */
const LATE_MS = 500;

/** How Redis goes away, and for how long it is kept away. */
interface Outage {
  readonly name: string;
  readonly signal: "SIGTERM" | "SIGKILL";
  readonly downMs: number;
}

const OUTAGES: readonly Outage[] = [
  { name: "restarted", signal: "SIGTERM", downMs: 0 },
  { name: "killed", signal: "SIGKILL", downMs: 0 },
  { name: "killed, 5 s away", signal: "SIGKILL", downMs: 5000 },
];

/** Seconds count from when Redis answers again. */
interface Recovery {
  readonly presenceS: number;
  readonly messagesS: number;
  readonly queried: Watched;
  /** Until the nodes have nothing more to do. */
  readonly restS: number;
  readonly alone: Watched;
  /** Connections that the nodes ended. */
  readonly closedSessions: number;
  readonly sessions: number;
  readonly topics: number;
}

interface World {
  readonly bench: Bench;
  readonly place: RedisPlace;
  redis: Child;
  readonly servers: readonly Server[];
  readonly connections: Held;
  readonly uids: readonly string[];
  /** A member of each by the group's id. */
  readonly groups: ReadonlyMap<string, string>;
  /** Commands a second while nothing happens. */
  readonly idle: number;
  /** Messages that each session was sent so far. */
  sentCount: number;
}

const QUESTIONS: readonly (Question & {
  readonly select: (recovery: Recovery) => number;
})[] = [
  {
    ...{ title: "presence is right at both nodes after", unit: "s" },
    select: ({ presenceS }) => presenceS,
  },
  {
    ...{ title: "the first message is everywhere after", unit: "s" },
    select: ({ messagesS }) => messagesS,
  },
  {
    ...{ title: "the nodes are at rest after, left alone", unit: "s" },
    select: ({ restS }) => restS,
  },
  {
    ...{ title: "Redis' processor time, left alone", unit: "s" },
    select: ({ alone }) => alone.cpuSeconds,
  },
  {
    ...{ title: "Redis' peak, left alone", unit: "% of a core" },
    select: ({ alone }) => alone.peakShare * 100,
  },
  {
    ...{ title: "Redis' peak, asked", unit: "% of a core" },
    select: ({ queried }) => queried.peakShare * 100,
  },
  {
    ...{ title: "commands for each session, left alone", unit: "commands" },
    select: ({ alone, sessions }) => total(alone.commands) / sessions,
  },
  {
    ...{ title: "sessions that stayed", unit: "sessions" },
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
        for (const [name, found] of await play(bench, {
          load,
          subject,
          outages,
        })) {
          const before = measured.get(name) ?? [];
          measured.set(name, [...before, found]);
        }
      }
    return pairs(bench, outages).flatMap(([base, other]) =>
      QUESTIONS.map(({ select, ...question }): Row => {
        const samples = (name: string): readonly Sample[] =>
          (measured.get(name) ?? []).map((one) => ({ value: select(one) }));
        return row(question, [{ name: base }, { name: other }], [samples(base), samples(other)]);
      }),
    );
  },
};

/**
 * The first outage with each of the others; with two builds, each outage of the one with that of
 * the other.
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

/** All outages, one after the other, of nodes of this build. */
async function play(
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
  const world = await open(bench, { load, subject });
  const found: [string, Recovery][] = [];
  for (const outage of outages) {
    const name = title(subject, outage);
    const recovery = await suffer(world, outage);
    process.stdout.write(told(name, recovery, world));
    found.push([name, recovery]);
  }
  await world.connections.release();
  await Promise.all(world.servers.map((server) => server.stop()));
  await world.redis.stop();
  return found;
}

async function open(
  bench: Bench,
  {
    load,
    subject,
  }: {
    readonly load: LoadClient;
    readonly subject: Extract<Subject, { kind: "broker" }>;
  },
): Promise<World> {
  const { workbench, plan } = bench;
  const place = await redisPlace(bench);
  const redis = spawnRedis(bench, place);
  await redisIsReady(redis);
  const where = { url: `redis://${HOST}:${place.port}`, prefix: "jd" };
  const servers = await Promise.all(
    Array.from({ length: NODES }, () => startBroker(workbench, subject, where)),
  );
  const uids = Array.from({ length: plan.sessions }, (_, at) =>
    USER.replace(CONNECTION_NUMBER, connectionNumber(at)),
  );
  const groups = new Map<string, string>();
  const backend = new Backend(servers[0]?.apiPort ?? 0);
  await backend.registerUsers(uids);
  for (const [id, members] of divided(uids)) {
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
  await pause(idleS * 1000); // the work of connecting is over
  const client = new Redis(place.port, HOST);
  const idle = await idleRate(client, { pid: redis.pid, seconds: idleS });
  client.disconnect(); // it would miss the server
  const own = { bench, place, redis, servers, connections };
  return { ...own, uids, groups, idle, sentCount: 0 };
}

/** Commands a second while nothing happens. */
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
 * Each user in two groups that share few members; the members of each are connected to both nodes,
 * which take the users in turn.
 */
function divided(uids: readonly string[]): ReadonlyMap<string, string[]> {
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

async function suffer(world: World, outage: Outage): Promise<Recovery> {
  const before = await world.connections.status();
  const alone = await leftAlone(world, outage);
  const queried = await whenAsked(world, outage);
  const after = await world.connections.status();
  return {
    ...{ ...alone, ...queried },
    closedSessions: before.open - after.open,
    sessions: world.uids.length,
  };
}

/** The server is watched from when it takes commands. */
async function goAway(world: World, outage: Outage) {
  const { bench, place, redis } = world;
  await (outage.signal === "SIGTERM" ? redis.finish() : redis.stop());
  await pause(outage.downMs);
  world.redis = spawnRedis(bench, place);
  await redisIsReady(world.redis);
  const client = new Redis(place.port, HOST);
  const watch = RedisWatch.fromStart(client, world.redis.pid);
  return { client, watch };
}

async function leftAlone(world: World, outage: Outage) {
  const { client, watch } = await goAway(world, outage);
  const restS = await watch.untilRest(world.idle, MOST_S);
  const alone = await watch.end();
  const topics = (await client.call("PUBSUB", "SHARDCHANNELS")) as string[];
  client.disconnect();
  return { restS, alone, topics: topics.length };
}

async function whenAsked(world: World, outage: Outage) {
  const { client, watch } = await goAway(world, outage);
  const seconds = () => watch.seconds;
  const [presenceS, messagesS] = await Promise.all([
    untilPresent(world, seconds),
    untilEverywhere(world, seconds),
  ]);
  const queried = await watch.end();
  await pause(LATE_MS);
  await untilEverywhere(world, seconds, { isSent: true });
  if ((await absent(world)) > 0) throw new Error("A session was lost later");
  client.disconnect();
  return { presenceS, messagesS, queried };
}

async function untilPresent(world: World, seconds: () => number): Promise<number> {
  for (;;) {
    const missing = await absent(world).catch(() => Number.POSITIVE_INFINITY);
    if (missing === 0) return seconds();
    if (seconds() > MOST_S) throw new Error(`${missing} users are offline by their nodes`);
    await pause(AGAIN_MS);
  }
}

/**
 * How many users a node says to be offline, of all nodes together. Rejects where a node cannot say.
 */
async function absent({ servers, uids }: World): Promise<number> {
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
 * Sends one message to each group, in turn at each node; seconds until every open session has one
 * of both its groups.
 */
async function untilEverywhere(
  world: World,
  seconds: () => number,
  { isSent = false } = {},
): Promise<number> {
  if (!isSent) {
    world.sentCount += 2;
    await sendToAll(world);
  }
  for (;;) {
    const { least, most } = await world.connections.status();
    if (most > world.sentCount) throw new Error("A message came twice");
    if (least === world.sentCount) return seconds();
    if (seconds() > MOST_S)
      throw new Error(`Of ${world.sentCount} messages a session has ${least}`);
    await pause(LOOK_MS);
  }
}

async function sendToAll({ servers, groups, sentCount }: World): Promise<void> {
  const backends = servers.map(({ apiPort }) => new Backend(apiPort));
  const waiting = [...groups].entries();
  const work = async () => {
    for (const [at, [id, fromUid]] of waiting) {
      const backend = backends[at % backends.length];
      const clientMsgNo = `${id}-${sentCount}`;
      const channel = { id, type: 2 } as const;
      const body = JSON.parse(sendBody({ channel, fromUid, clientMsgNo }));
      while (!(await isTaken(backend?.post("/message/send", body)))) await pause(AGAIN_MS);
    }
  };
  await Promise.all(Array.from({ length: SENT_AT_ONCE }, work));
  for (const backend of backends) backend.close();
}

/** False: the node has no Redis yet. */
async function isTaken(call: Promise<string> | undefined): Promise<boolean> {
  try {
    await call;
    return true;
  } catch (error) {
    if (/ answered (?!503)/.test(`${error}`)) throw error;
    return false;
  }
}

/** The commands by name, most frequent first. */
function told(name: string, recovery: Recovery, world: World): string {
  const { alone, queried, sessions, topics } = recovery;
  const groups = world.groups.size;
  const list = ({ commands }: Watched) =>
    [...commands]
      .sort(([, a], [, b]) => b - a)
      .map(([command, count]) => {
        const each = (count / sessions).toFixed(2);
        return `    ${command.padEnd(18)}${count} (${each} a session, ${(count / topics).toFixed(2)} a topic)`;
      })
      .join("\n");
  const spent = ({ seconds, cpuSeconds, peakShare }: Watched) =>
    `${cpuSeconds.toFixed(2)} s of Redis' processor in ${seconds.toFixed(1)} s, peak ${(peakShare * 100).toFixed(0)} %`;
  return `
${name}: ${sessions} sessions, ${groups} groups, ${topics} topics, ${recovery.closedSessions} cut; idle ${world.idle.toFixed(0)} commands/s
  left alone: at rest after ${recovery.restS.toFixed(1)} s; ${spent(alone)}
${list(alone)}
  asked: presence after ${recovery.presenceS.toFixed(2)} s, messages after ${recovery.messagesS.toFixed(2)} s; ${spent(queried)}
${list(queried)}
`;
}
