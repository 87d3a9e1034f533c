// Does the cost of a list of conversations or of a connect grow with the number of the user's
// groups? Users are members of 10, 1,000 or 5,000 groups, each with one message. A measurement uses
// all users in turn, so that the server's caches do not contain just one user.

import { Backend, TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Row, Sample, Subject } from "./support/benchmark.ts";
import { type Redis, startRedis } from "./support/clusters.ts";
import { type Cost, costOf, inParallel, waitUntilIdle } from "./support/cost.ts";
import {
  CONNECTION_NUMBER,
  connectFrame,
  connectionNumber,
  NATIVE_UPGRADE,
  PAYLOAD,
} from "./support/frames.ts";
import { compileLoad, LoadClient } from "./support/load.ts";
import { type Server, startBroker } from "./support/servers.ts";
import { row } from "./support/stats.ts";

const GROUP_COUNTS = [10, 1000, 5000];
const QUICK_GROUP_COUNTS = [2, 20];
/** Number of users for each item of `GROUP_COUNTS`. */
const USERS = 20;
const LISTS_PER_USER = 5;
/** Number of the `USERS` users who have read all but `UNREAD_GROUPS` of their groups. */
const READERS = 4;
const UNREAD_GROUPS = 2;
const PAGE_SIZE = 100;
const CONCURRENCY = 32;
const STORES = ["embedded", "Redis"] as const;
type Store = (typeof STORES)[number];

interface World {
  readonly server: Server;
  readonly redis: Redis | undefined;
  readonly load: LoadClient;
  readonly groupCounts: readonly number[];
}

type Costs = ReadonlyMap<string, Cost>;

export const userGroups: Benchmark = {
  name: "user-groups",
  question: "a list of 100 conversations, and a connect, of a user in few or many groups",

  async run(bench) {
    const load = new LoadClient(bench.workbench, await compileLoad());
    const rows: Row[] = [];
    for (const store of STORES) {
      const redis = store === "Redis" ? await startRedis(bench) : undefined;
      const [base, ours] = bench.subjects;
      const baseline = base.kind === "raw" ? ours : base;
      const worlds = [
        await createWorld(bench, baseline, { load, redis, prefix: "base" }),
        ...(base.kind === "raw"
          ? []
          : [await createWorld(bench, ours, { load, redis, prefix: "ours" })]),
      ];
      const samples = worlds.map((): Costs[] => []);
      for (let round = 0; round < bench.plan.rounds; round++)
        for (const [at, world] of worlds.entries()) samples[at]?.push(await measure(world));
      for (const { server } of worlds) await server.stop();
      rows.push(...rowsOf(bench, store, samples));
    }
    return rows;
  },
};

/**
 * Returns the rows of a store. With one build, the baseline is the cost for the fewest groups, so
 * that the ratio is the growth.
 */
function rowsOf(bench: Bench, store: Store, samples: readonly (readonly Costs[])[]): Row[] {
  const [first = [], last = first] = samples;
  const [, ours] = bench.subjects;
  const names = [...(first[0]?.keys() ?? [])];
  const parts = store === "Redis" ? (["node", "redis"] as const) : (["node"] as const);
  const rows: Row[] = [];
  for (const part of parts)
    for (const name of names) {
      const of = (costs: readonly Costs[], key: string): Sample[] =>
        costs.map((cost) => ({ value: cost.get(key)?.[part] ?? Number.NaN }));
      const kind = name.split(" ")[0];
      const fewest = names.find((other) => other.startsWith(`${kind} `)) ?? name;
      const isGrowth = samples.length === 1;
      const baseline = isGrowth ? { name: fewest } : (bench.subjects[0] as Subject);
      const title = `${store}: ${name}, processor time of ${part === "node" ? "the node" : "Redis"}`;
      rows.push(
        row(
          { title, unit: "ms" },
          [baseline, ours],
          [of(first, isGrowth ? fewest : name), of(last, name)],
        ),
      );
    }
  return rows;
}

const userName = (groups: number, at: number | string) => `u${groups}-${at}`;

async function createWorld(
  bench: Bench,
  subject: Subject,
  { load, redis, prefix }: { load: LoadClient; redis: Redis | undefined; prefix: string },
): Promise<World> {
  if (subject.kind === "raw") throw new Error("the bench measures builds only");
  const server = await startBroker(bench.workbench, subject, redis && { url: redis.url, prefix });
  const groupCounts = bench.plan.isQuick ? QUICK_GROUP_COUNTS : GROUP_COUNTS;
  const backend = new Backend(server.apiPort);
  const uidsOf = (groups: number) =>
    Array.from({ length: USERS }, (_, at) => userName(groups, connectionNumber(at)));
  for (const groups of groupCounts) await backend.registerUsers(uidsOf(groups));
  const groups = Array.from({ length: Math.max(...groupCounts) }, (_, at) => at);
  await inParallel(groups, CONCURRENCY, async (at) => {
    const members = groupCounts.filter((count) => count > at).flatMap(uidsOf);
    await backend.createGroup(`g${at}`, members);
    const [sender = ""] = members;
    await backend.post("/message/send", {
      ...{ channel_id: `g${at}`, channel_type: 2, from_uid: sender },
      payload: Buffer.from(PAYLOAD).toString("base64"),
    });
  });
  for (const count of groupCounts)
    for (const uid of uidsOf(count).slice(-READERS))
      await inParallel(groups.slice(UNREAD_GROUPS, count), CONCURRENCY, (at) =>
        backend.post("/conversations/clearUnread", { uid, channel_id: `g${at}`, channel_type: 2 }),
      );
  backend.close();
  return { server, redis, load, groupCounts };
}

async function measure(world: World): Promise<Costs> {
  const costs = new Map<string, Cost>();
  await waitUntilIdle(world.server);
  for (const groups of world.groupCounts)
    costs.set(
      `list of ${groups} groups`,
      await costOf(world, USERS * LISTS_PER_USER, () => list(world, groups)),
    );
  for (const groups of world.groupCounts)
    costs.set(
      `unread list of ${groups} groups`,
      await costOf(world, READERS * LISTS_PER_USER, () =>
        list(world, groups, { users: READERS, onlyUnread: 1 }),
      ),
    );
  for (const groups of world.groupCounts)
    costs.set(
      `connect with ${groups} groups`,
      await costOf(world, USERS, () => connect(world, groups)),
    );
  return costs;
}

async function list(
  { server }: World,
  groups: number,
  { users = USERS, onlyUnread = 0 }: { users?: number; onlyUnread?: 0 | 1 } = {},
): Promise<void> {
  const backend = new Backend(server.apiPort);
  for (let round = 0; round < LISTS_PER_USER; round++)
    for (let at = USERS - users; at < USERS; at++)
      await backend.post("/conversation/sync", {
        ...{ uid: userName(groups, connectionNumber(at)), page: 1, page_size: PAGE_SIZE },
        only_unread: onlyUnread,
      });
  backend.close();
}

async function connect({ server, load }: World, groups: number): Promise<void> {
  const opening = {
    upgrade: NATIVE_UPGRADE,
    open: connectFrame(userName(groups, CONNECTION_NUMBER), TOKEN),
  };
  const held = await load.hold({ port: server.clientPort, connections: USERS, opening });
  await held.release();
}
