// How fast does one message reach a group of 1000 members who are all online? The bare server publishes a frame of the same size to 1000
// sockets. One publisher, on a socket or over HTTP, keeps 4 or 16 messages on their way; a message has arrived when all members have it.

import { Backend, TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Row, Subject } from "./support/benchmark.ts";
import {
  CONNECTION_NUMBER,
  connectFrame,
  connectionNumber,
  frameStart,
  freshMessageNumber,
  httpRequest,
  NATIVE_UPGRADE,
  sampleMessage,
  sendBody,
  sendFrame,
  upgradeRequest,
} from "./support/frames.ts";
import { compileLoad, LoadClient, type Opening } from "./support/load.ts";
import { compare, startBoth } from "./support/rounds.ts";
import { type Server, startBroker, startRaw } from "./support/servers.ts";

const MEMBER = `member${CONNECTION_NUMBER}`;
const GROUP = { id: "everyone", type: 2 } as const;

interface Contender {
  readonly server: Server;
  readonly opening: Opening;
  /** Of the publisher's socket. */
  readonly publishOpening: Opening;
}

interface Setting {
  readonly load: LoadClient;
  readonly contenders: readonly [Contender, Contender];
  readonly members: number;
}

export const fanout: Benchmark = {
  name: "fanout",
  question: "one group, 1000 members online, one publisher",

  async run(bench) {
    const members = bench.plan.isQuick ? 50 : 1000;
    const load = new LoadClient(bench.workbench, await compileLoad());
    const contenders = await startBoth(bench, (subject) =>
      start(bench, subject, members),
    );
    const setting = { load, contenders, members };
    const rows: Row[] = [];
    for (const publisher of ["socket", "http"] as const)
      for (const inFlight of [4, 16])
        rows.push(await measure(bench, setting, { publisher, inFlight }));
    for (const { server } of contenders) await server.stop();
    return rows;
  },
};

/** The publisher is the member after the receivers. */
function memberName(index: number): string {
  return MEMBER.replace(CONNECTION_NUMBER, connectionNumber(index));
}

function push(members: number): Uint8Array {
  const clientMsgNo = freshMessageNumber();
  return sampleMessage({
    channel: GROUP,
    fromUid: memberName(members),
    clientMsgNo,
  });
}

async function start(
  { workbench }: Bench,
  subject: Subject,
  members: number,
): Promise<Contender> {
  if (subject.kind === "raw") {
    const server = await startRaw(workbench, "fanout", push(members));
    return {
      server,
      opening: { upgrade: NATIVE_UPGRADE },
      publishOpening: { upgrade: upgradeRequest("/publish") },
    };
  }
  const server = await startBroker(workbench, subject);
  const uids = Array.from({ length: members + 1 }, (_, at) => memberName(at));
  const backend = new Backend(server.apiPort);
  await backend.registerUsers(uids);
  await backend.createGroup(GROUP.id, uids);
  backend.close();
  const opening = {
    upgrade: NATIVE_UPGRADE,
    open: connectFrame(MEMBER, TOKEN),
  };
  return { server, opening, publishOpening: opening };
}

function measure(
  bench: Bench,
  { load, contenders, members }: Setting,
  {
    publisher,
    inFlight,
  }: { readonly publisher: "socket" | "http"; readonly inFlight: number },
): Promise<Row> {
  const isSocket = publisher === "socket";
  const message = () => {
    const clientMsgNo = freshMessageNumber();
    if (isSocket) return sendFrame(GROUP, clientMsgNo);
    const fromUid = memberName(members);
    return httpRequest(
      "/message/send",
      sendBody({ channel: GROUP, fromUid, clientMsgNo }),
    );
  };
  return compare(bench, contenders, {
    title: `published over ${publisher}, ${inFlight} in flight`,
    unit: "deliveries/s",
    target: { kind: "ratio", atLeast: 0.8 },
    measure: ({ server, opening, publishOpening }) =>
      load.fanout({
        port: server.clientPort,
        pid: server.pid,
        connections: members,
        depth: inFlight,
        opening,
        replyStart: frameStart(push(members)),
        message: message(),
        publishPort: isSocket ? server.clientPort : server.apiPort,
        publishOpening: isSocket ? publishOpening : undefined,
        plan: bench.plan,
      }),
  });
}
