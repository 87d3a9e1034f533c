// How many deliveries per second can a group with 1,000, 100 or 10 online members receive? The raw
// server publishes a frame of the same size to the same number of sockets. One publisher, on a
// socket or over HTTP, keeps 4 or 16 messages in flight. A message is in flight until all members
// have received it.

import { TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Row, Sample, Subject } from "./support/benchmark.ts";
import {
  connectFrame,
  frameStart,
  freshMessageNumber,
  NATIVE_UPGRADE,
  sampleMessage,
  sendFrame,
  upgradeRequest,
} from "./support/frames.ts";
import { compileLoad, LoadClient, type Opening } from "./support/load.ts";
import { createMembers, MEMBER, memberName, memberPost } from "./support/members.ts";
import { compare, startBoth } from "./support/rounds.ts";
import { type Server, startBroker, startRaw } from "./support/servers.ts";

const GROUP = { id: "everyone", type: 2 } as const;

interface FanoutLoad {
  readonly publisher: "socket" | "http";
  readonly inFlight: number;
  /** Target for the ratio to the raw server. */
  readonly atLeast: number;
}

const SMALL: readonly FanoutLoad[] = [{ publisher: "http", inFlight: 16, atLeast: 0.6 }];
const MIDDLE: readonly FanoutLoad[] = [{ publisher: "http", inFlight: 16, atLeast: 0.75 }];
const LARGE: readonly FanoutLoad[] = [
  { publisher: "socket", inFlight: 4, atLeast: 0.8 },
  { publisher: "socket", inFlight: 16, atLeast: 0.8 },
  { publisher: "http", inFlight: 4, atLeast: 0.8 },
  { publisher: "http", inFlight: 16, atLeast: 0.9 },
];
/** Loads by number of members. */
const GROUPS: ReadonlyMap<number, readonly FanoutLoad[]> = new Map([
  [1000, LARGE],
  [100, MIDDLE],
  [10, SMALL],
]);
const QUICK_GROUPS: typeof GROUPS = new Map([
  [50, LARGE],
  [10, SMALL],
]);

const MAX_WARM_UPS = 8;
const MAX_CHANGE = 0.05;

interface Contender {
  readonly server: Server;
  readonly opening: Opening;
  /** First bytes that the publisher's socket sends. */
  readonly publishOpening: Opening;
}

interface Setting {
  readonly load: LoadClient;
  readonly contenders: readonly [Contender, Contender];
  readonly members: number;
}

export const fanout: Benchmark = {
  name: "fanout",
  question: "one group, 10, 100 or 1000 members online, one publisher",
  isPinned: true,

  async run(bench) {
    const load = new LoadClient(bench.workbench, await compileLoad());
    const rows: Row[] = [];
    for (const [members, loads] of bench.plan.isQuick ? QUICK_GROUPS : GROUPS) {
      const contenders = await startBoth(bench, (subject) => start(bench, subject, members));
      const setting = { load, contenders, members };
      for (const fanoutLoad of loads) rows.push(await measure(bench, setting, fanoutLoad));
      for (const { server } of contenders) await server.stop();
    }
    return rows;
  },
};

/** Repeats the measurement until the value is stable, so that V8 has compiled the hot code. */
async function warmUp(measureOnce: () => Promise<Sample>): Promise<void> {
  let before = 0;
  for (let run = 0; run < MAX_WARM_UPS; run++) {
    const { value } = await measureOnce();
    if (Math.abs(value - before) < MAX_CHANGE * value) return;
    before = value;
  }
}

function pushFrame(members: number): Uint8Array {
  const clientMsgNo = freshMessageNumber();
  // The publisher is also a member. Its number follows those of the receivers.
  return sampleMessage({
    channel: GROUP,
    fromUid: memberName(members),
    clientMsgNo,
  });
}

async function start({ workbench }: Bench, subject: Subject, members: number): Promise<Contender> {
  if (subject.kind === "raw") {
    const server = await startRaw(workbench, "fanout", pushFrame(members));
    return {
      server,
      opening: { upgrade: NATIVE_UPGRADE },
      publishOpening: { upgrade: upgradeRequest("/publish") },
    };
  }
  const server = await startBroker(workbench, subject);
  await createMembers(server, GROUP.id, members + 1);
  const opening = {
    upgrade: NATIVE_UPGRADE,
    open: connectFrame(MEMBER, TOKEN),
  };
  return { server, opening, publishOpening: opening };
}

async function measure(
  bench: Bench,
  { load, contenders, members }: Setting,
  { publisher, inFlight, atLeast }: FanoutLoad,
): Promise<Row> {
  const isSocket = publisher === "socket";
  const run = ({ server, opening, publishOpening }: Contender) =>
    load.fanout({
      port: server.clientPort,
      pid: server.pid,
      connections: members,
      depth: inFlight,
      opening,
      replyStart: frameStart(pushFrame(members)),
      message: isSocket ? sendFrame(GROUP, freshMessageNumber()) : memberPost(GROUP, members),
      publishPort: isSocket ? server.clientPort : server.apiPort,
      publishOpening: isSocket ? publishOpening : undefined,
      plan: bench.plan,
    });
  if (!bench.plan.isQuick) for (const contender of contenders) await warmUp(() => run(contender));
  return compare(bench, contenders, {
    title: `${members} members, published over ${publisher}, ${inFlight} in flight`,
    unit: "deliveries/s",
    target: { kind: "ratio", atLeast },
    measure: run,
  });
}
