// How many deliveries per second can a group with 1,000, 100 or 10 online members receive? The raw
// server publishes a frame of the same size to the same number of sockets. One publisher, on a
// socket or over HTTP, keeps 4 or 16 messages in flight. A message is in flight until all members
// have received it.

import { TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Question, Row, Sample, Subject } from "./support/benchmark.ts";
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
import { compare } from "./support/rounds.ts";
import { type Server, startBroker, startRaw } from "./support/servers.ts";

const GROUP = { id: "everyone", type: 2 } as const;

interface FanoutLoad {
  readonly publisher: "socket" | "http";
  readonly inFlight: number;
  /** Minimum ratio to the raw server (the target of the row). */
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

interface Contender {
  readonly server: Server;
  readonly opening: Opening;
  /** First bytes that the publisher's socket sends. */
  readonly publishOpening: Opening;
}

export const fanout: Benchmark = {
  name: "fanout",
  question: "one group, 10, 100 or 1000 members online, one publisher",
  isPinned: true,

  async run(bench) {
    const load = new LoadClient(bench.workbench, await compileLoad());
    const rows: Row[] = [];
    for (const [members, loads] of bench.plan.isQuick ? QUICK_GROUPS : GROUPS) {
      const groupRows = await compare(bench, {
        start: (subject) => start(bench, subject, members),
        stop: ({ server }) => server.stop(),
        questions: loads.map((fanoutLoad) => question(bench, load, { ...fanoutLoad, members })),
      });
      rows.push(...groupRows);
    }
    return rows;
  },
};

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

function question(
  { plan }: Bench,
  load: LoadClient,
  { members, publisher, inFlight, atLeast }: FanoutLoad & { readonly members: number },
): Question & { measure(contender: Contender): Promise<Sample> } {
  const isSocket = publisher === "socket";
  return {
    title: `${members} members, published over ${publisher}, ${inFlight} in flight`,
    unit: "deliveries/s",
    target: { kind: "ratio", atLeast },
    measure: ({ server, opening, publishOpening }) =>
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
        plan,
      }),
  };
}
