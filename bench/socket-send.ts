// How many messages per second are acknowledged on sockets? Measures SEND and SENDACK in the native
// protocol, with durable messages and 64 of them in flight. The raw server replies to a frame of
// the size of a SEND with one of the size of a SENDACK.

import { Backend, TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Row, Subject } from "./support/benchmark.ts";
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
import { compare, startBoth } from "./support/rounds.ts";
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
    const contenders = await startBoth(bench, (subject) => start(bench, subject));
    const rows = [
      await measure(bench, {
        load,
        contenders,
        connections: IN_FLIGHT,
        atLeast: 0.3,
      }),
      await measure(bench, { load, contenders, connections: 1 }),
    ];
    for (const { server } of contenders) await server.stop();
    return rows;
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

function measure(
  bench: Bench,
  {
    load,
    contenders,
    connections,
    atLeast,
  }: {
    readonly load: LoadClient;
    readonly contenders: readonly [Contender, Contender];
    readonly connections: number;
    /** Target of the ratio. Without it, the ratio is only reported. */
    readonly atLeast?: number;
  },
): Promise<Row> {
  const depth = IN_FLIGHT / connections;
  return compare(bench, contenders, {
    title: `${connections} connection${connections === 1 ? "" : "s"} × ${depth} in flight`,
    unit: "messages/s",
    ...(atLeast !== undefined && { target: { kind: "ratio", atLeast } }),
    measure: ({ server, opening }) =>
      load.request({
        kind: "ws",
        port: server.clientPort,
        pid: server.pid,
        connections,
        depth,
        opening,
        message: sendFrame({ id: RECEIVER, type: 1 }, freshMessageNumber()),
        replyStart: frameStart(SENDACK),
        plan: bench.plan,
      }),
  });
}
