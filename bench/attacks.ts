// How long do well-behaved users wait during an attack? For each attack in docs/SECURITY.md, users
// are measured alternately without an attack, during the attack on another node of the same
// machine, and during the attack on their node. The second measurement shows how much of the delay
// is caused by the processors that users, attackers and nodes share here. Real attackers use other
// machines, so the attackers here get only processor time that no other process needs. All limits
// have their defaults.

import { setTimeout } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import type { AttackCounts } from "./support/attackers.ts";
import {
  ARCHIVE,
  ATTACKER_UIDS,
  ATTACKS,
  CROWD,
  SHOW,
  TALK,
  TALKS,
  VICTIM,
} from "./support/attacks.ts";
import { Backend, TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Row, Sample, Subject } from "./support/benchmark.ts";
import { startRedis } from "./support/clusters.ts";
import { inParallel, processorMs } from "./support/cost.ts";
import {
  CONNECTION_NUMBER,
  connectFrame,
  connectionNumber,
  NATIVE_UPGRADE,
  upgradeRequest,
  wkprotoConnect,
} from "./support/frames.ts";
import { GOOD_GROUP, GoodUsers, RECEIVER, SENDER, VISITORS } from "./support/good-users.ts";
import { compileLoad, type HeldConnections, type Latency, LoadClient } from "./support/load.ts";
import { useIdleTimeOnly } from "./support/proc.ts";
import { type Server, startBroker } from "./support/servers.ts";
import { row } from "./support/stats.ts";
import type { Child } from "./support/workbench.ts";

type Build = Extract<Subject, { kind: "broker" }>;
const STORES = ["embedded", "Redis"] as const;
type Store = (typeof STORES)[number];

/** Maximum factor by which an attack may slow down a user's messages and connects. */
const MAX_SLOWDOWN = 3;
const MEMBERS = 2000;
const QUICK_MEMBERS = 20;
const ARCHIVED = 1000;
const QUICK_ARCHIVED = 10;
const ARCHIVED_BYTES = 1000;
const STREAM_BYTES = 60_000;
const CONCURRENCY = 32;
/** Share of a core during `IDLE_CHECK_MS` below which the nodes count as idle. */
const IDLE_SHARE = 0.05;
const IDLE_CHECK_MS = 200;
const MAX_IDLE_CHECKS = 50;

/** Defaults of the limits that `startBroker` removes. */
const DEFAULT_LIMITS = {
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "500",
  JINDOU_CLIENT_MAX_STORED_BYTES_PER_SECOND: "1048576",
  JINDOU_SOCKETS_MAX_UNAUTHENTICATED_PER_ADDRESS: "256",
};

const PROCESS = fileURLToPath(new URL("./support/attack-process.ts", import.meta.url));

interface World {
  readonly servers: readonly Server[];
  readonly load: LoadClient;
  readonly attackers: Child;
  readonly users: GoodUsers;
}

interface Measured {
  readonly messages: Sample;
  readonly connects: Sample;
}

/**
 * A measurement of the users of `world`: without an attack, or during an attack on the nodes of
 * `attacked`.
 */
interface Case {
  readonly name: string;
  readonly world: World;
  /** `undefined` if there is no attack. */
  readonly attacked: World | undefined;
}

interface Attack {
  readonly store: Store;
  readonly name: string;
}

export const attacks: Benchmark = {
  name: "attacks",
  question: "messages and connects of other users during each attack",

  async run(bench) {
    const load = new LoadClient(bench.workbench, await compileLoad());
    const [base, ours] = bench.subjects;
    if (ours.kind === "raw") throw new Error("the bench measures builds only");
    const rows: Row[] = [];
    for (const store of STORES) {
      const world = await createWorld(bench, ours, { load, store });
      const build = base.kind === "raw" ? ours : base;
      const other = await createWorld(bench, build, { load, store });
      const cases: readonly Case[] =
        base.kind === "raw"
          ? [
              { name: "no attack", world, attacked: undefined },
              { name: "attack on another node", world, attacked: other },
              { name: "attack on this node", world, attacked: world },
            ]
          : [
              { name: base.name, world: other, attacked: other },
              { name: ours.name, world, attacked: world },
            ];
      for (const [name, { stores }] of Object.entries(ATTACKS))
        if (stores.includes(store) && isSelected(name))
          rows.push(...(await rowsOf(bench, cases, { store, name })));
      for (const server of [...world.servers, ...other.servers]) await server.stop();
    }
    return rows;
  },
};

/** Returns true if BENCH_ATTACKS (names separated by commas) is empty or contains `name`. */
function isSelected(name: string): boolean {
  const { BENCH_ATTACKS: names = "" } = process.env;
  return names === "" || names.split(",").includes(name);
}

/** Measures all cases in turn, and compares the last one with each of the others. */
async function rowsOf(
  bench: Bench,
  cases: readonly Case[],
  { store, name }: Attack,
): Promise<readonly Row[]> {
  const { title } = ATTACKS[name] ?? { title: name };
  const measured = new Map<Case, Measured[]>();
  for (let round = 0; round < bench.plan.rounds; round++)
    for (const each of cases) {
      const result = await measureCase(bench, each, name);
      measured.set(each, [...(measured.get(each) ?? []), result]);
    }
  const samplesOf = (each: Case, kind: keyof Measured) =>
    (measured.get(each) ?? []).map((all) => all[kind]);
  const last = cases.at(-1);
  if (last === undefined) return [];
  return cases.slice(0, -1).flatMap((baseline) =>
    (["messages", "connects"] as const).map((kind) =>
      row(
        {
          title: `${store}: ${title}: ${kind}, p99`,
          unit: "ms",
          target: { kind: "slowdown", atMost: MAX_SLOWDOWN },
        },
        [baseline, last],
        [samplesOf(baseline, kind), samplesOf(last, kind)],
      ),
    ),
  );
}

/** Measures a case. The members of the attacked group are connected even if there is no attack. */
async function measureCase(
  bench: Bench,
  { world, attacked }: Case,
  name: string,
): Promise<Measured> {
  const { crowd } = ATTACKS[name] ?? {};
  const members = crowd && (await holdCrowd(bench, attacked ?? world, crowd));
  try {
    const result = await measure(bench, world, attacked && { name, ...attacked });
    const open = (await members?.status())?.open;
    if (open !== undefined && attacked !== undefined)
      process.stdout.write(`${name}: ${open} members of the group were connected at the end\n`);
    return result;
  } finally {
    await members?.release();
  }
}

let measurements = 0;

async function measure(
  { plan }: Bench,
  { servers, users }: World,
  attack: ({ readonly name: string } & Pick<World, "attackers" | "servers">) | undefined,
): Promise<Measured> {
  if (!plan.isQuick) await waitUntilIdle([...servers, ...(attack?.servers ?? [])]);
  const number = measurements++;
  if (attack !== undefined) {
    attack.attackers.write(`start ${number} ${attack.name}\n`);
    await attack.attackers.line(`${number} at work`);
    await setTimeout(plan.warmupS * 1000);
  }
  const startMs = performance.now();
  const startCpuMs = cpuMs(servers);
  const { messages, connects, count, refusals } = await users.measure(plan.seconds);
  const usedMs = cpuMs(servers) - startCpuMs;
  const cores = usedMs / (performance.now() - startMs);
  if (attack !== undefined) {
    const { name, attackers } = attack;
    attackers.write(`stop ${number}\n`);
    const line = await attackers.line(`${number} {`);
    if (refusals.length > 0)
      process.stdout.write(
        `${name}: ${refusals.length} messages of other users were rejected, the first with ${refusals[0]}\n`,
      );
    print(name, cores, JSON.parse(line.slice(line.indexOf("{"))) as AttackCounts);
  }
  const cpuUs = (usedMs * 1000) / count;
  return { messages: sampleOf(messages, cpuUs), connects: sampleOf(connects, cpuUs) };
}

function sampleOf(latency: Latency, cpuUs: number): Sample {
  return { value: latency.p99 / 1000, latency, cpuUs };
}

function cpuMs(servers: readonly Server[]): number {
  return servers.reduce((sum, { pid }) => sum + processorMs(pid), 0);
}

function print(name: string, cores: number, counts: AttackCounts): void {
  const { connections, sentBytes, receivedBytes } = counts;
  const megabytes = (bytes: number) => (bytes / 1e6).toFixed(1);
  process.stdout.write(
    `${name}: ${connections} connections, ${megabytes(sentBytes)} MB sent, ${megabytes(receivedBytes)} MB received, the users' nodes used ${(cores * 100).toFixed(0)} % of a core\n`,
  );
}

async function waitUntilIdle(servers: readonly Server[]): Promise<void> {
  for (let check = 0; check < MAX_IDLE_CHECKS; check++) {
    const before = cpuMs(servers);
    await setTimeout(IDLE_CHECK_MS);
    if (cpuMs(servers) - before < IDLE_CHECK_MS * IDLE_SHARE) return;
  }
}

const memberName = (at: number) => `member-${connectionNumber(at)}`;

async function holdCrowd(
  { plan }: Bench,
  { load, servers }: World,
  format: "native" | "wkproto",
): Promise<HeldConnections> {
  const uid = `member-${CONNECTION_NUMBER}`;
  const opening =
    format === "native"
      ? { upgrade: NATIVE_UPGRADE, open: connectFrame(uid, TOKEN) }
      : { upgrade: upgradeRequest(), open: wkprotoConnect(uid, TOKEN) };
  const members = await load.hold({
    port: servers.map(({ clientPort }) => clientPort),
    connections: plan.isQuick ? QUICK_MEMBERS : MEMBERS,
    opening,
  });
  useIdleTimeOnly(members.pid);
  return members;
}

async function createWorld(
  bench: Bench,
  build: Build,
  { load, store }: { readonly load: LoadClient; readonly store: Store },
): Promise<World> {
  const { workbench } = bench;
  const redis = store === "Redis" ? await startRedis(bench) : undefined;
  const start = () =>
    startBroker(workbench, build, redis && { url: redis.url, prefix: "attacks" }, DEFAULT_LIMITS);
  const servers = redis === undefined ? [await start()] : [await start(), await start()];
  const clientPorts = servers.map(({ clientPort }) => clientPort);
  const apiPort = servers[0]?.apiPort ?? 0;
  await fill(bench, apiPort);
  const attackers = workbench.spawn({
    name: "The attackers",
    command: process.execPath,
    args: [...process.execArgv, PROCESS, ...[apiPort, ...clientPorts].map(String)],
  });
  useIdleTimeOnly(attackers.pid);
  return { servers, load, attackers, users: await GoodUsers.connect(clientPorts) };
}

/** Creates the users, groups and messages that the attacks and the measurements need. */
async function fill({ plan }: Bench, apiPort: number): Promise<void> {
  const backend = new Backend(apiPort);
  const members = Array.from({ length: plan.isQuick ? QUICK_MEMBERS : MEMBERS }, (_, at) =>
    memberName(at),
  );
  const good = [SENDER, RECEIVER];
  await backend.registerUsers([...ATTACKER_UIDS, VICTIM, ...good, ...VISITORS, ...members]);
  await backend.createGroup(GOOD_GROUP, good);
  await backend.createGroup(CROWD, [...ATTACKER_UIDS, ...members]);
  await backend.createGroup(ARCHIVE, ATTACKER_UIDS);
  await backend.createGroup(SHOW.group, ATTACKER_UIDS);
  const [sender = ""] = ATTACKER_UIDS;
  const send = (group: string, bytes: number) =>
    backend.post("/message/send", {
      ...{ channel_id: group, channel_type: 2, from_uid: sender },
      payload: Buffer.from(JSON.stringify({ type: 1, content: "x".repeat(bytes) })).toString(
        "base64",
      ),
    });
  const numbers = (count: number) => Array.from({ length: count }, (_, at) => at);
  await inParallel(numbers(plan.isQuick ? QUICK_ARCHIVED : ARCHIVED), CONCURRENCY, () =>
    send(ARCHIVE, ARCHIVED_BYTES),
  );
  await inParallel(numbers(plan.isQuick ? QUICK_ARCHIVED : TALKS), CONCURRENCY, async (at) => {
    await backend.createGroup(`${TALK}${at}`, ATTACKER_UIDS);
    await send(`${TALK}${at}`, 100);
  });
  const event = (type: string, data: string) =>
    backend.post("/event", {
      ...{ channel_id: SHOW.group, channel_type: 2, client_msg_no: SHOW.stream },
      event: { type, data },
    });
  await event("___TextMessageStart", "");
  await event("___TextMessageContent", "x".repeat(STREAM_BYTES));
  backend.close();
}
