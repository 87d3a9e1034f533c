// How many messages per second are acknowledged on sockets? Measures SEND and SENDACK in the native
// protocol, with durable messages, 64 of them or only one in flight. The raw server replies to a
// frame as large as a SEND with a frame as large as a SENDACK.

import { Backend, TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Subject } from "./support/benchmark.ts";
import {
  CONNECTION_NUMBER,
  connectFrame,
  connectionNumber,
  frameStart,
  freshMessageNumber,
  NATIVE_UPGRADE,
  sampleSendack,
  sendFrame,
} from "./support/frames.ts";
import { compileLoad, LoadClient, type Opening } from "./support/load.ts";
import { compare } from "./support/rounds.ts";
import { type Server, startBroker, startRaw } from "./support/servers.ts";

const IN_FLIGHT = 64;
const SENDER = `sender${CONNECTION_NUMBER}`;
/** Uid of the receiver. Each connection sends to a different user, and none of them is online. */
const RECEIVER = `receiver${CONNECTION_NUMBER}`;
const SENDACK = sampleSendack(freshMessageNumber());

interface Contender {
  readonly server: Server;
  readonly opening: Opening;
}

export const socketSend: Benchmark = {
  name: "socket-send",
  question: "send to sendack on the native protocol, durable",
  isPinned: true,

  async run(bench) {
    const load = new LoadClient(bench.workbench, await compileLoad());
    return compare(bench, {
      start: (subject) => start(bench, subject),
      stop: ({ server }) => server.stop(),
      questions: [
        { ...question(bench, load, IN_FLIGHT), target: { kind: "ratio", atLeast: 0.3 } },
        question(bench, load, 1),
      ],
    });
  },
};

async function start({ workbench }: Bench, subject: Subject): Promise<Contender> {
  if (subject.kind === "raw") {
    const server = await startRaw(workbench, "echo", SENDACK);
    return { server, opening: { upgrade: NATIVE_UPGRADE } };
  }
  const server = await startBroker(workbench, subject);
  const backend = new Backend(server.apiPort);
  await backend.registerUsers(
    Array.from({ length: IN_FLIGHT }, (_, at) =>
      SENDER.replace(CONNECTION_NUMBER, connectionNumber(at)),
    ),
  );
  backend.close();
  return {
    server,
    opening: { upgrade: NATIVE_UPGRADE, open: connectFrame(SENDER, TOKEN) },
  };
}

function question({ plan }: Bench, load: LoadClient, connections: number) {
  const depth = IN_FLIGHT / connections;
  return {
    title: `${connections} connection${connections === 1 ? "" : "s"} × ${depth} in flight`,
    unit: "messages/s",
    measure: ({ server, opening }: Contender) =>
      load.request({
        kind: "ws",
        port: server.clientPort,
        pid: server.pid,
        connections,
        depth,
        opening,
        message: sendFrame({ id: RECEIVER, type: 1 }, freshMessageNumber()),
        replyStart: frameStart(SENDACK),
        plan,
      }),
  };
}
