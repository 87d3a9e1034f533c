// What does WKProto over TCP cost, compared with WKProto over WebSocket on the same build? Measures
// the fan-out to one group with and without encryption, a connect, and the memory of a session.

import { TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Row, Sample, Target } from "./support/benchmark.ts";
import { waitUntilIdle } from "./support/cost.ts";
import { upgradeRequest, wkprotoConnect, wkprotoPacket } from "./support/frames.ts";
import { compileLoad, LoadClient, type Opening } from "./support/load.ts";
import { createMembers, MEMBER, memberPost } from "./support/members.ts";
import { residentBytes, threadSeconds } from "./support/proc.ts";
import { alternate } from "./support/rounds.ts";
import { type Server, startBroker } from "./support/servers.ts";
import { row } from "./support/stats.ts";

const GROUP = { id: "everyone", type: 2 } as const;
const MEMBERS = 1000;
const QUICK_MEMBERS = 50;
const IN_FLIGHT = 16;
const CLIENTS = 4000;
/** Number of times that all clients connect before the code counts as compiled. */
const WARMUPS = 2;
/** First byte of a RECV packet with the red dot flag. */
const RECV = Uint8Array.of(0x52);

interface Way {
  readonly name: string;
  readonly opening: Opening;
  portOf(server: Server): number;
}

const WEBSOCKET: Way = {
  name: "WebSocket",
  opening: { upgrade: upgradeRequest("/"), open: wkprotoConnect(MEMBER, TOKEN) },
  portOf: ({ clientPort }) => clientPort,
};

const TCP: Way = {
  name: "TCP",
  opening: { upgrade: undefined, open: wkprotoPacket(MEMBER, TOKEN) },
  portOf({ wkprotoPort }) {
    if (wkprotoPort === undefined) throw new Error("the build has no TCP listener for WKProto");
    return wkprotoPort;
  },
};

const WAYS = [WEBSOCKET, TCP] as const;

export const tcp: Benchmark = {
  name: "tcp",
  question: "WKProto over TCP, compared with WKProto over WebSocket",
  isPinned: true,

  async run(bench) {
    const load = new LoadClient(bench.workbench, await compileLoad());
    return [
      await fanout(bench, load, true),
      await fanout(bench, load, false),
      ...(await connects(bench, load)),
    ];
  },
};

function start({ workbench, subjects: [, ours] }: Bench, isEncrypted = true): Promise<Server> {
  if (ours.kind !== "broker") throw new Error("the second subject must be a build");
  return startBroker(workbench, ours, undefined, {
    JINDOU_PROTOCOL_WKPROTO_LISTEN: "127.0.0.1:0",
    JINDOU_PROTOCOL_WKPROTO_ENCRYPTION: `${isEncrypted}`,
  });
}

async function fanout(bench: Bench, load: LoadClient, isEncrypted: boolean): Promise<Row> {
  const { plan } = bench;
  const members = plan.isQuick ? QUICK_MEMBERS : MEMBERS;
  const server = await start(bench, isEncrypted);
  await createMembers(server, GROUP.id, members + 1);
  const run = ({ opening, portOf }: Way) =>
    load.fanout({
      port: portOf(server),
      pid: server.pid,
      connections: members,
      depth: IN_FLIGHT,
      opening,
      replyStart: RECV,
      message: memberPost(GROUP, members),
      publishPort: server.apiPort,
      publishOpening: undefined,
      plan,
    });
  for (const way of WAYS) await run(way); // warms up
  const samples = await alternate(bench, (_, at) => run(WAYS[at]));
  await server.stop();
  const title = `${isEncrypted ? "encrypted" : "not encrypted"}, ${members} members, ${IN_FLIGHT} in flight`;
  const target: Target = { kind: "ratio", atLeast: 0.6 };
  return row({ title, unit: "deliveries/s", ...(isEncrypted && { target }) }, WAYS, samples);
}

/**
 * Measures a connect and the memory of a session. Every measurement starts a new server, because a
 * process does not return all freed memory to the system.
 */
async function connects(bench: Bench, load: LoadClient): Promise<readonly Row[]> {
  const count = Math.min(bench.plan.sessions, CLIENTS);
  const [web, own] = await alternate(bench, async (_, at) => {
    const server = await start(bench);
    await createMembers(server, GROUP.id, count);
    const costs = await connectAll(server, load, { way: WAYS[at], count });
    await server.stop();
    return costs;
  });
  const rowOf = (title: string, unit: string, key: keyof Costs, target?: Target) =>
    row({ title, unit, ...(target && { target }) }, WAYS, [
      web.map((costs) => costs[key]),
      own.map((costs) => costs[key]),
    ]);
  return [
    rowOf("a connect when code is compiled", "µs", "connectUs", { kind: "slowdown", atMost: 1.5 }),
    rowOf(`memory of each of ${count} sessions`, "bytes", "bytes"),
  ];
}

interface Costs {
  readonly connectUs: Sample;
  readonly bytes: Sample;
}

async function connectAll(
  server: Server,
  load: LoadClient,
  { way, count }: { readonly way: Way; readonly count: number },
): Promise<Costs> {
  const { opening } = way;
  const hold = (connections = count) =>
    load.hold({ port: way.portOf(server), connections, opening });
  await (await hold(Math.ceil(count / 10))).release();
  await waitUntilIdle(server);
  const memory = residentBytes(server.pid);
  const first = await hold();
  await waitUntilIdle(server);
  const bytes = (residentBytes(server.pid) - memory) / count;
  await first.release();
  for (let round = 1; round < WARMUPS; round++) await (await hold()).release();
  await waitUntilIdle(server);
  const seconds = threadSeconds(server.pid);
  const held = await hold();
  await waitUntilIdle(server);
  const connectUs = ((threadSeconds(server.pid) - seconds) * 1e6) / count;
  await held.release();
  return { connectUs: { value: connectUs }, bytes: { value: bytes } };
}
