// Does a send or a start cost more when more data is stored? Each row compares a small and a large
// number of messages in the channel, members of the group, channels in the store, or messages in
// the store. With `--against`, compares the builds with the large number.

import { Backend } from "./support/backend.ts";
import type { Bench, Benchmark, Row, Sample, Subject } from "./support/benchmark.ts";
import { type Redis, startRedis } from "./support/clusters.ts";
import { type Cost, costOf, inParallel, processorMs } from "./support/cost.ts";
import { freshMessageNumber, httpRequest, PAYLOAD, sendBody } from "./support/frames.ts";
import { compileLoad, LoadClient } from "./support/load.ts";
import { type Server, startBroker } from "./support/servers.ts";
import { row } from "./support/stats.ts";

interface Sizes {
  readonly messages: number;
  readonly members: number;
  readonly channels: number;
  /** Number of sends in one measurement. */
  readonly sends: number;
  /** Duration of the runs that store the messages, in seconds. */
  readonly fillSeconds: number;
}

const SIZES: Sizes = {
  ...{ messages: 100_000, members: 10_000, channels: 20_000 },
  ...{ sends: 2000, fillSeconds: 1 },
};
const QUICK_SIZES: Sizes = {
  ...{ messages: 100, members: 20, channels: 20 },
  ...{ sends: 10, fillSeconds: 0.05 },
};
const FEW_MEMBERS = 10;
/**
 * Number of sends before the measurements, as a multiple of `sends`, so that V8 compiles the code.
 */
const WARM_UPS = 8;
const CONNECTIONS = 64;
const CONCURRENCY = 32;
const CHANNELS_PER_CALL = 1000;
const SENDER = "member-0";
const GROUP_WITH_MANY_MESSAGES = "old";
const GROUP_WITH_MANY_MEMBERS = "large";
const TEXT = Buffer.from(PAYLOAD).toString("base64");

/** A store and the node that currently uses it. */
class World {
  readonly redis: Redis | undefined;
  readonly #start: () => Promise<Server>;
  #server: Server | undefined;

  constructor(redis: Redis | undefined, start: () => Promise<Server>) {
    this.redis = redis;
    this.#start = start;
  }

  get server(): Server {
    if (this.#server === undefined) throw new Error("the node has not been started");
    return this.#server;
  }

  /** Kills the node and starts it again. */
  async restart(): Promise<void> {
    await this.stop();
    this.#server = await this.#start();
  }

  async stop(): Promise<void> {
    await this.#server?.stop();
  }
}

/** The two stores of a build: one with little data and one with much data. */
interface Worlds {
  readonly little: World;
  readonly much: World;
}

/** Costs by the name of the row. */
type Costs = ReadonlyMap<string, { readonly little: Cost; readonly much: Cost }>;

export const growth: Benchmark = {
  name: "growth",
  question: "a send and a start, with little and with much data in the store",

  async run(bench) {
    const load = new LoadClient(bench.workbench, await compileLoad());
    const [base, ours] = bench.subjects;
    const builds = base.kind === "raw" ? [ours] : [base, ours];
    const rows: Row[] = [];
    for (const store of ["embedded", "Redis"] as const) {
      const worlds: Worlds[] = [];
      for (const build of builds) worlds.push(await createWorlds(bench, build, { load, store }));
      const samples = await measure(worlds, sizesOf(bench), bench.plan.rounds);
      for (const { little, much } of worlds) await Promise.all([little.stop(), much.stop()]);
      for (const part of store === "Redis" ? (["node", "redis"] as const) : (["node"] as const))
        rows.push(...rowsOf(bench, { store, part }, samples));
    }
    return rows;
  },
};

const sizesOf = ({ plan }: Bench): Sizes => (plan.isQuick ? QUICK_SIZES : SIZES);

/**
 * Returns one row for each name in the costs. With only one build, the baseline is the cost with
 * little data, so that the ratio is the growth.
 */
function rowsOf(
  { subjects }: Bench,
  { store, part }: { readonly store: string; readonly part: keyof Cost },
  samples: readonly (readonly Costs[])[],
): Row[] {
  const [first = [], last = first] = samples;
  const isGrowth = samples.length === 1;
  const names = [...(first[0]?.keys() ?? [])];
  return names.map((name) => {
    const [unit, perMs] = name.startsWith("a start") ? ["ms", 1] : ["µs", 1000];
    const of = (costs: readonly Costs[], amount: keyof Worlds): Sample[] =>
      costs.map((cost) => ({ value: (cost.get(name)?.[amount][part] ?? Number.NaN) * perMs }));
    const title = `${store}: ${name}, processor time of ${part === "node" ? "the node" : "Redis"}`;
    return row({ title, unit }, isGrowth ? [{ name: "little" }, { name: "much" }] : subjects, [
      of(first, isGrowth ? "little" : "much"),
      of(last, "much"),
    ]);
  });
}

async function createWorlds(
  bench: Bench,
  subject: Subject,
  { load, store }: { readonly load: LoadClient; readonly store: "embedded" | "Redis" },
): Promise<Worlds> {
  if (subject.kind === "raw") throw new Error("the bench measures builds only");
  const { workbench } = bench;
  const createWorld = async (): Promise<World> => {
    const redis = store === "Redis" ? await startRedis(bench) : undefined;
    const link = redis && { url: redis.url, prefix: "growth" };
    const settings = redis ? {} : { JINDOU_STORE_PATH: workbench.folder("growth") };
    const world = new World(redis, () => startBroker(workbench, subject, link, settings));
    await world.restart();
    return world;
  };
  const worlds = { little: await createWorld(), much: await createWorld() };
  await fill(worlds.much.server, load, sizesOf(bench));
  return worlds;
}

async function fill({ apiPort: port, pid }: Server, load: LoadClient, sizes: Sizes): Promise<void> {
  const backend = new Backend(port);
  await createGroup(backend, GROUP_WITH_MANY_MESSAGES, FEW_MEMBERS);
  await createGroup(backend, GROUP_WITH_MANY_MEMBERS, sizes.members);
  for (let at = 0; at < sizes.channels; at += CHANNELS_PER_CALL) {
    const length = Math.min(CHANNELS_PER_CALL, sizes.channels - at);
    const subscribers = Array.from({ length }, (_, index) => `reader-${at + index}`);
    await backend.post("/message/sendbatch", { from_uid: SENDER, payload: TEXT, subscribers });
  }
  backend.close();
  const body = sendBody({
    channel: { id: GROUP_WITH_MANY_MESSAGES, type: 2 },
    fromUid: SENDER,
    clientMsgNo: freshMessageNumber(),
  });
  const { fillSeconds: seconds } = sizes;
  for (let sent = 0; sent < sizes.messages; ) {
    const { value: perSecond } = await load.request({
      ...{ kind: "http", port, pid, connections: CONNECTIONS, depth: 1 },
      message: httpRequest("/message/send", body),
      plan: { warmupS: 0, seconds },
    });
    sent += perSecond * seconds;
  }
}

/** Returns the costs in each round, by build. All starts are measured before the sends. */
async function measure(
  builds: readonly Worlds[],
  sizes: Sizes,
  rounds: number,
): Promise<readonly Costs[][]> {
  const samples = builds.map((): Map<string, { little: Cost; much: Cost }>[] => []);
  for (let round = 0; round < rounds; round++)
    for (const [at, { little, much }] of builds.entries()) {
      const costs = { little: await costOfStart(little), much: await costOfStart(much) };
      samples[at]?.push(new Map([[`a start with ${sizes.messages} messages`, costs]]));
    }
  for (const { little, much } of builds)
    for (const { server } of [little, much])
      await sendToNew(server, "warm-up", WARM_UPS * sizes.sends);
  for (let round = 0; round < rounds; round++)
    for (const [at, worlds] of builds.entries())
      for (const [name, costs] of await measureSends(worlds, sizes, `new-${round}`))
        samples[at]?.[round]?.set(name, costs);
  return samples;
}

async function measureSends(
  { little, much }: Worlds,
  { members, messages, channels, sends }: Sizes,
  newGroup: string,
): Promise<Costs> {
  for (const { server } of [little, much]) await sendToNew(server, newGroup, 0);
  const toNew = {
    little: await costOfSend(little, newGroup, sends),
    much: await costOfSend(much, newGroup, sends),
  };
  const toOld = await costOfSend(much, GROUP_WITH_MANY_MESSAGES, sends);
  const toLarge = await costOfSend(much, GROUP_WITH_MANY_MEMBERS, sends);
  return new Map([
    [`a send to a channel with ${messages} messages`, { little: toNew.much, much: toOld }],
    [`a send to a group of ${members} members`, { little: toNew.much, much: toLarge }],
    [`a send in a store of ${channels} channels`, toNew],
  ]);
}

async function costOfStart(world: World): Promise<Cost> {
  const redisMs = () => processorMs(world.redis?.processes[0]?.pid);
  const before = redisMs();
  await world.restart();
  return { node: processorMs(world.server.pid), redis: redisMs() - before };
}

async function sendToNew({ apiPort }: Server, group: string, sends: number): Promise<void> {
  const backend = new Backend(apiPort);
  await createGroup(backend, group, FEW_MEMBERS);
  await sendMany(backend, group, sends);
  backend.close();
}

async function costOfSend(world: World, group: string, sends: number): Promise<Cost> {
  const backend = new Backend(world.server.apiPort);
  const cost = await costOf(world, sends, () => sendMany(backend, group, sends));
  backend.close();
  return cost;
}

async function sendMany(backend: Backend, group: string, sends: number): Promise<void> {
  const body = { channel_id: group, channel_type: 2, from_uid: SENDER, payload: TEXT };
  await inParallel(Array.from({ length: sends }), CONCURRENCY, () =>
    backend.post("/message/send", body),
  );
}

async function createGroup(backend: Backend, id: string, members: number): Promise<void> {
  const uids = Array.from({ length: members }, (_, at) => `member-${at}`);
  await backend.createGroup(id, uids);
}
