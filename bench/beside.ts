// How much longer does a send take while users in 1,000 groups list their conversations or connect?
// One sender waits for each reply. The lists or connects run one after another.

import { Backend, TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Row, Sample, Subject } from "./support/benchmark.ts";
import { startRedis } from "./support/clusters.ts";
import { inParallel } from "./support/cost.ts";
import {
  connectFrame,
  connectionNumber,
  freshMessageNumber,
  httpRequest,
  NATIVE_UPGRADE,
  PAYLOAD,
  sendBody,
} from "./support/frames.ts";
import { compileLoad, LoadClient } from "./support/load.ts";
import { type Server, startBroker } from "./support/servers.ts";
import { row } from "./support/stats.ts";

const GROUPS = 1000;
const QUICK_GROUPS = 20;
const USERS = 20;
const CONCURRENCY = 32;
const WORKS = ["lists", "connects"] as const;
type Work = (typeof WORKS)[number];

interface World {
  readonly server: Server;
  readonly load: LoadClient;
}

/** 99th percentiles of the send times, by the work that ran at the same time. */
type Samples = Readonly<Record<Work | "alone", Sample[]>>;

export const beside: Benchmark = {
  name: "beside",
  question: "a send while users in many groups list their conversations or connect",

  async run(bench) {
    const load = new LoadClient(bench.workbench, await compileLoad());
    const [base, ours] = bench.subjects;
    const builds = base.kind === "raw" ? [ours] : [base, ours];
    const rows: Row[] = [];
    for (const store of ["embedded", "Redis"] as const) {
      const worlds: World[] = [];
      for (const build of builds) worlds.push(await createWorld(bench, build, { load, store }));
      const samples = worlds.map((): Samples => ({ alone: [], lists: [], connects: [] }));
      for (let round = 0; round < bench.plan.rounds; round++)
        for (const [at, world] of worlds.entries()) {
          samples[at]?.alone.push(await measure(bench, world, undefined));
          for (const work of WORKS) samples[at]?.[work].push(await measure(bench, world, work));
        }
      for (const { server } of worlds) await server.stop();
      rows.push(...WORKS.map((work) => rowOf(bench, { store, work }, samples)));
    }
    return rows;
  },
};

/**
 * Compares the times of sends to two builds during other work. If only one build is measured, the
 * baseline is its sends without other work.
 */
function rowOf(
  { subjects, plan }: Bench,
  { store, work }: { readonly store: string; readonly work: Work },
  [first, last]: readonly Samples[],
): Row {
  if (first === undefined) throw new Error("no build was measured");
  const groups = plan.isQuick ? QUICK_GROUPS : GROUPS;
  const title = `${store}: a send beside ${work} of users in ${groups} groups, p99`;
  return last === undefined
    ? row(
        { title, unit: "ms" },
        [{ name: "alone" }, { name: `beside ${work}` }],
        [first.alone, first[work]],
      )
    : row({ title, unit: "ms" }, subjects, [first[work], last[work]]);
}

const uidOf = (at: number): string => `user-${connectionNumber(at)}`;

async function createWorld(
  bench: Bench,
  subject: Subject,
  { load, store }: { readonly load: LoadClient; readonly store: "embedded" | "Redis" },
): Promise<World> {
  if (subject.kind === "raw") throw new Error("the bench measures builds only");
  const redis = store === "Redis" ? await startRedis(bench) : undefined;
  const link = redis && { url: redis.url, prefix: "beside" };
  const server = await startBroker(bench.workbench, subject, link);
  const backend = new Backend(server.apiPort);
  const uids = Array.from({ length: USERS }, (_, at) => uidOf(at));
  await backend.registerUsers(uids);
  const groups = Array.from({ length: bench.plan.isQuick ? QUICK_GROUPS : GROUPS }, (_, at) => at);
  await inParallel(groups, CONCURRENCY, async (at) => {
    await backend.createGroup(`g${at}`, uids);
    await backend.post("/message/send", {
      ...{ channel_id: `g${at}`, channel_type: 2, from_uid: uidOf(0) },
      payload: Buffer.from(PAYLOAD).toString("base64"),
    });
  });
  backend.close();
  return { server, load };
}

async function measure(
  { plan }: Bench,
  { server, load }: World,
  work: Work | undefined,
): Promise<Sample> {
  const channel = { id: "receiver", type: 1 } as const;
  const body = sendBody({ channel, fromUid: "sender", clientMsgNo: freshMessageNumber() });
  const sending = load.request({
    ...{ kind: "http", port: server.apiPort, pid: server.pid, connections: 1, depth: 1 },
    ...{ message: httpRequest("/message/send", body), plan },
  });
  let isOver = false;
  const over = sending.finally(() => {
    isOver = true;
  });
  const backend = new Backend(server.apiPort);
  for (let at = 0; work !== undefined && !isOver; at = (at + 1) % USERS)
    if (work === "lists")
      await backend.post("/conversation/sync", { uid: uidOf(at), page: 1, page_size: 100 });
    else await connect({ server, load }, uidOf(at));
  backend.close();
  const { latency } = await over;
  if (latency === undefined) throw new Error("the load client measured no latency");
  return { value: latency.p99 / 1000, latency };
}

async function connect({ server, load }: World, uid: string): Promise<void> {
  const opening = { upgrade: NATIVE_UPGRADE, open: connectFrame(uid, TOKEN) };
  const held = await load.hold({ port: server.clientPort, connections: 1, opening });
  await held.release();
}
