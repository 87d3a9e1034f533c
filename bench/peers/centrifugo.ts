// Centrifugo with its memory engine and without history: messages are forwarded and not stored.
// Several messages may be in one frame.

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { clientFrame, httpRequest, upgradeRequest } from "../support/frames.ts";
import { type Contender, FORWARDS_ONLY, type Peer } from "./peer.ts";
import { findProgram, startProgram } from "./program.ts";

const upgrade = upgradeRequest("/connection/websocket");
const SUBSCRIBE = '{"id":1,"connect":{}}\n{"id":2,"subscribe":{"channel":"all"}}';

export const centrifugo: Peer = {
  name: "centrifugo",
  title: "Centrifugo 6",
  lacks: FORWARDS_ONLY,
  missing: () =>
    findProgram("centrifugo") === undefined
      ? "Install it with go install github.com/centrifugal/centrifugo/v6@latest."
      : undefined,

  async start({ workbench, payload }, work): Promise<Contender> {
    const server = await startProgram(workbench, "centrifugo", {
      mark: "serving websocket",
      configure: (folder, port) => {
        const path = join(folder, "config.json");
        writeFileSync(path, JSON.stringify(configuration(port)));
        return ["--config", path];
      },
    });
    const data = JSON.parse(Buffer.from(payload).toString()) as object;
    const isHttp = work.kind === "post" || (work.kind === "fanout" && work.via === "http");
    const isReceiver = work.kind === "fanout" || work.kind === "connect";
    const command = JSON.stringify({ id: 9, publish: { channel: "all", data } });
    return {
      ...{ servers: [server], isPacked: true },
      opening: {
        upgrade,
        open: clientFrame(isReceiver ? SUBSCRIBE : '{"id":1,"connect":{}}'),
        opened: Buffer.from(isReceiver ? '"id":2' : '"id":1'),
      },
      message: () =>
        isHttp
          ? httpRequest("/api/publish", JSON.stringify({ channel: "all", data }))
          : clientFrame(command),
      replyStart: Buffer.from(work.kind === "send" ? '{"id":9' : '{"push":'),
      publishOpening: {
        upgrade,
        open: clientFrame('{"id":1,"connect":{}}'),
        opened: Buffer.from('"id":1'),
      },
    };
  },
};

function configuration(port: number): object {
  return {
    http_server: { address: "127.0.0.1", port: `${port}` },
    http_api: { insecure: true },
    client: { insecure: true, allowed_origins: ["*"] },
    channel: {
      without_namespace: { allow_subscribe_for_anonymous: true, allow_publish_for_anonymous: true },
    },
    log: { level: "info" },
  };
}
