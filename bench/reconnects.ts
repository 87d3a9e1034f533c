// Are other clients delayed while 10,000 clients disconnect at once, or reconnect at once with 100
// resume points each? Meanwhile, a sender that stays connected sends at a fixed rate. Ten of a
// client's resume points are for groups, the others for personal channels. No client has missed a
// message.

import { setTimeout as pause } from "node:timers/promises";
import type { ChannelRef } from "../src/broker/model.ts";
import type { ResumePoint } from "../src/protocol/protocol.ts";
import { connectNative } from "../test/support/native-client.ts";
import type { NativeClient } from "../test/support/native-session.ts";
import { Backend, TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Row, Sample, Subject } from "./support/benchmark.ts";
import { type Redis, startRedis } from "./support/clusters.ts";
import { waitUntilIdle } from "./support/cost.ts";
import { connectFrame, NATIVE_UPGRADE, PAYLOAD } from "./support/frames.ts";
import { compileLoad, LoadClient } from "./support/load.ts";
import { MEMBER, memberName } from "./support/members.ts";
import { type Server, startBroker } from "./support/servers.ts";
import { row } from "./support/stats.ts";

const GROUPS = 10;
const POINTS = 100;
const SEND_INTERVAL_MS = 10;
/**
 * Maximum time for which a refused send is repeated. The measured time of a send begins with its
 * first attempt.
 */
const MAX_SEND_MS = 30_000;
const QUIET_MS = 3000;
const SHARE = 0.99;
const SENDER = "sender";

/** A measured build and the Redis it uses. */
interface World {
  readonly subject: Extract<Subject, { kind: "broker" }>;
  readonly redis: Redis | undefined;
  readonly load: LoadClient;
}

interface Figures {
  readonly servedSeconds: Sample;
  /** 99th percentiles of the send times in milliseconds. */
  readonly quietMs: Sample;
  readonly reconnectMs: Sample;
  readonly disconnectMs: Sample;
}

export const reconnects: Benchmark = {
  name: "reconnects",
  question: "clients that reconnect at once with 100 resume points each, 10,000 by default",
  isPinned: true,

  async run(bench) {
    const load = new LoadClient(bench.workbench, await compileLoad());
    const builds = bench.subjects.filter((subject) => subject.kind === "broker");
    const rows: Row[] = [];
    for (const store of ["embedded", "Redis"] as const) {
      const redis = store === "Redis" ? await startRedis(bench) : undefined;
      const figures = builds.map((): Figures[] => []);
      for (let round = 0; round < bench.plan.rounds; round++)
        for (const [at, subject] of builds.entries())
          figures[at]?.push(await measure(bench, { subject, redis, load }));
      rows.push(...rowsOf(bench, store, figures));
    }
    return rows;
  },
};

/**
 * Returns the rows. If there is only one build, the sends while clients reconnect or disconnect are
 * compared with a send while no client does, and the time until all clients are served is compared
 * with itself.
 */
function rowsOf(bench: Bench, store: string, samples: readonly (readonly Figures[])[]): Row[] {
  const [first = [], last = first] = samples;
  const [baseline, ours] = bench.subjects;
  const isAlone = samples.length === 1;
  const of = (figures: readonly Figures[], key: keyof Figures) => figures.map((all) => all[key]);
  const rowOf = (title: string, unit: string, key: keyof Figures, quiet: keyof Figures) =>
    row(
      {
        title: `${store}: ${title}`,
        unit,
        target: { kind: "value", atMost: unit === "s" ? 8 : 100 },
      },
      [isAlone ? { name: key === quiet ? ours.name : "alone" } : baseline, ours],
      [of(first, isAlone ? quiet : key), of(last, key)],
    );
  return [
    rowOf("time until all clients are served", "s", "servedSeconds", "servedSeconds"),
    rowOf("a send while they reconnect, p99", "ms", "reconnectMs", "quietMs"),
    rowOf("a send while they disconnect, p99", "ms", "disconnectMs", "quietMs"),
  ];
}

let starts = 0;

async function measure(bench: Bench, { subject, redis, load }: World): Promise<Figures> {
  starts += 1;
  const link = redis && { url: redis.url, prefix: `reconnects${starts}` };
  const server = await startBroker(bench.workbench, subject, link);
  const { sessions } = bench.plan;
  await createUsers(server, sessions);
  const sender = await connectNative(undefined, {
    ...{ port: server.clientPort, uid: SENDER, token: TOKEN },
  });
  await waitUntilIdle(server);
  const connect = () =>
    load.hold({
      port: server.clientPort,
      connections: sessions,
      opening: { upgrade: NATIVE_UPGRADE, open: connectFrame(MEMBER, TOKEN, pointsOf()) },
    });
  const quietMs = await sendDuring(sender, pause(bench.plan.isQuick ? 100 : QUIET_MS));
  const first = await connect();
  await first.release();
  await waitUntilIdle(server);
  const reconnecting = connect();
  const reconnectMs = await sendDuring(sender, reconnecting);
  const held = await reconnecting;
  const disconnectMs = await sendDuring(
    sender,
    held.release().then(() => waitUntilIdle(server)),
  );
  sender.kill();
  await server.stop();
  return { servedSeconds: { value: held.connectSeconds }, quietMs, reconnectMs, disconnectMs };
}

async function createUsers(server: Server, count: number): Promise<void> {
  const uids = Array.from({ length: count }, (_, at) => memberName(at));
  const backend = new Backend(server.apiPort);
  await backend.registerUsers([...uids, SENDER]);
  for (let at = 0; at < GROUPS; at++) await backend.createGroup(groupOf(at).id, uids);
  backend.close();
}

const groupOf = (at: number): ChannelRef => ({ id: `group${at}`, type: 2 });

function pointsOf(): readonly ResumePoint[] {
  return Array.from({ length: POINTS }, (_, at) => ({
    channel: at < GROUPS ? groupOf(at) : { id: `peer${at}`, type: 1 },
    lastSeq: 0,
  }));
}

/**
 * Sends at a fixed rate until `end` resolves. Returns the 99th percentile of the times until the
 * SENDACK.
 */
async function sendDuring(sender: NativeClient, end: Promise<unknown>): Promise<Sample> {
  const channel = { id: "receiver", type: 1 } as const;
  const times: Promise<number>[] = [];
  const send = async () => {
    const startMs = performance.now();
    for (;;)
      try {
        await sender.send(channel, PAYLOAD);
        return performance.now() - startMs;
      } catch (error) {
        if (performance.now() - startMs > MAX_SEND_MS) throw error;
        await pause(SEND_INTERVAL_MS);
      }
  };
  const timer = setInterval(() => {
    const sending = send();
    sending.catch(() => {}); // the error is thrown below
    times.push(sending);
  }, SEND_INTERVAL_MS);
  try {
    await end;
  } finally {
    clearInterval(timer);
  }
  const sorted = (await Promise.all(times)).sort((a, b) => a - b);
  return { value: sorted[Math.floor(sorted.length * SHARE)] ?? 0 };
}
