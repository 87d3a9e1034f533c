// NATS on WebSockets, without JetStream: messages are forwarded but not stored. It has no HTTP call
// that publishes. A frame may contain several messages.

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { clientFrame, upgradeRequest } from "../support/frames.ts";
import { type Contender, FORWARDS_ONLY, type Peer } from "./peer.ts";
import { findProgram, startProgram } from "./program.ts";

const upgrade = upgradeRequest();
/** Returns a binary frame with protocol text, as NATS clients send it. */
const frame = (text: string) => clientFrame(Buffer.from(text));
const SUBSCRIBE = 'CONNECT {"verbose":false,"pedantic":false}\r\nSUB all 1\r\nPING\r\n';

export const nats: Peer = {
  name: "nats",
  title: "NATS",
  lacks: FORWARDS_ONLY,
  missing: () =>
    findProgram("nats-server") === undefined
      ? "Install it with apt-get install nats-server (Debian, Ubuntu)."
      : undefined,

  async start({ workbench, payload }, work): Promise<Contender | undefined> {
    if (work.kind === "post" || (work.kind === "fanout" && work.via === "http")) return undefined;
    const server = await startProgram(workbench, "nats-server", {
      mark: "Server is ready",
      configure: (folder, port) => {
        const path = join(folder, "nats.conf");
        const listener = `host: "127.0.0.1", port: ${port}, no_tls: true`;
        writeFileSync(path, `listen: "127.0.0.1:-1"\nwebsocket { ${listener} }\n`);
        return ["-c", path];
      },
    });
    const publish = `PUB all ${payload.length}\r\n${Buffer.from(payload).toString()}\r\n`;
    // With `verbose`, the server acknowledges each message with +OK.
    const isSend = work.kind === "send";
    const opening = {
      upgrade,
      open: frame(isSend ? 'CONNECT {"verbose":true,"pedantic":false}\r\n' : SUBSCRIBE),
      opened: Buffer.from(isSend ? "+OK" : "PONG"),
    };
    return {
      ...{ servers: [server], opening, isPacked: true },
      message: () => frame(publish),
      replyStart: Buffer.from(isSend ? "+OK\r\n" : "MSG all 1 "),
      publishOpening: {
        upgrade,
        open: frame('CONNECT {"verbose":false,"pedantic":false}\r\nPING\r\n'),
        opened: Buffer.from("PONG"),
      },
    };
  },
};
