// What does a wire format cost when messages are delivered to a group of 1,000 members? Compares
// sessions of each format with native sessions, on the same build and with the same group. The load
// client acknowledges nothing, so each session whose format resends messages keeps the maximum
// number of unacknowledged messages.

import { TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Row } from "./support/benchmark.ts";
import {
  clientFrame,
  connectFrame,
  frameStart,
  NATIVE_UPGRADE,
  sampleMessage,
  upgradeRequest,
  wkprotoConnect,
} from "./support/frames.ts";
import { compileLoad, LoadClient, type Opening } from "./support/load.ts";
import { createMembers, MEMBER, memberPost } from "./support/members.ts";
import { alternate } from "./support/rounds.ts";
import { startBroker } from "./support/servers.ts";
import { row } from "./support/stats.ts";

const GROUP = { id: "everyone", type: 2 } as const;
const MEMBERS = 1000;
const QUICK_MEMBERS = 50;
const IN_FLIGHT = [4, 16];
const AT_LEAST = 0.8;

interface Format {
  readonly name: string;
  readonly settings: Readonly<Record<string, string>>;
  readonly opening: Opening;
  /** First bytes of a pushed message. */
  readonly replyStart: Uint8Array;
  /** Minimum ratio to the native format (the target). If absent, the ratio is only reported. */
  readonly atLeast?: number;
}

const NATIVE: Format = {
  name: "native",
  settings: {},
  opening: { upgrade: NATIVE_UPGRADE, open: connectFrame(MEMBER, TOKEN) },
  replyStart: frameStart(sampleMessage({ channel: GROUP, fromUid: "u", clientMsgNo: "c" })),
};

const jsonConnect = (params: object) =>
  clientFrame(
    JSON.stringify({
      ...{ jsonrpc: "2.0", method: "connect", id: "1" },
      params: { uid: MEMBER, token: TOKEN, deviceFlag: 0, ...params },
    }),
  );
const plainUpgrade = upgradeRequest("/");
/** First byte of a RECV packet with the red dot flag. */
const RECV = Uint8Array.of(0x52);

const FORMATS: readonly Format[] = [
  {
    name: "JSON-RPC",
    settings: {},
    opening: { upgrade: plainUpgrade, open: jsonConnect({ protocol: 1 }) },
    replyStart: Buffer.from('{"jsonrpc":"2.0","method":"message"'),
    atLeast: AT_LEAST,
  },
  {
    name: "JSON-RPC as WuKongIM's clients speak it",
    settings: {},
    opening: { upgrade: plainUpgrade, open: jsonConnect({}) },
    replyStart: Buffer.from('{"jsonrpc":"2.0","method":"recv"'),
    atLeast: AT_LEAST,
  },
  {
    name: "WKProto, not encrypted",
    settings: { JINDOU_PROTOCOL_WKPROTO_ENCRYPTION: "false" },
    opening: { upgrade: plainUpgrade, open: wkprotoConnect(MEMBER, TOKEN) },
    replyStart: RECV,
    atLeast: AT_LEAST,
  },
  {
    name: "WKProto, encrypted",
    settings: {},
    opening: { upgrade: plainUpgrade, open: wkprotoConnect(MEMBER, TOKEN) },
    replyStart: RECV,
  },
];

export const formats: Benchmark = {
  name: "formats",
  question: "one group, 1000 members online, each format against native",
  isPinned: true,

  async run(bench) {
    const load = new LoadClient(bench.workbench, await compileLoad());
    const rows: Row[] = [];
    const depths = bench.plan.isQuick ? IN_FLIGHT.slice(0, 1) : IN_FLIGHT;
    for (const format of FORMATS)
      for (const inFlight of depths) rows.push(await measure(bench, load, format, inFlight));
    return rows;
  },
};

async function measure(
  bench: Bench,
  load: LoadClient,
  format: Format,
  inFlight: number,
): Promise<Row> {
  const { plan, subjects } = bench;
  const [, ours] = subjects;
  if (ours.kind !== "broker") throw new Error("the second subject must be a build");
  const members = plan.isQuick ? QUICK_MEMBERS : MEMBERS;
  const { workbench } = bench;
  const { settings } = format;
  const server = await startBroker(workbench, ours, undefined, settings);
  await createMembers(server, GROUP.id, members + 1);
  const run = ({ opening, replyStart }: Format) =>
    load.fanout({
      port: server.clientPort,
      pid: server.pid,
      connections: members,
      depth: inFlight,
      opening,
      replyStart,
      message: memberPost(GROUP, members),
      publishPort: server.apiPort,
      publishOpening: undefined,
      plan,
    });
  const both = [NATIVE, format] as const;
  for (const format of both) await run(format); // warms up
  const samples = await alternate(bench, (_, at) => run(both[at]));
  await server.stop();
  const { atLeast } = format;
  return row(
    {
      title: `${format.name}, ${members} members, published over http, ${inFlight} in flight`,
      unit: "deliveries/s",
      ...(atLeast !== undefined && { target: { kind: "ratio", atLeast } }),
    },
    both,
    samples,
  );
}
