// Centrifugo with its memory engine. Messages are forwarded but not stored, except in the workloads
// `resume` and `late`, in which the channel keeps the newest messages in memory. A frame may
// contain several messages.

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { Backend } from "../support/backend.ts";
import { CHUNK_TEXT, clientFrame, httpRequest, upgradeRequest } from "../support/frames.ts";
import type { Server } from "../support/servers.ts";
import { type Contender, needsHistory, type Peer } from "./peer.ts";
import { findProgram, startProgram } from "./program.ts";

const upgrade = upgradeRequest("/connection/websocket");
const SUBSCRIBE = '{"id":1,"connect":{}}\n{"id":2,"subscribe":{"channel":"all"}}';

export const centrifugo: Peer = {
  name: "centrifugo",
  title: "Centrifugo 6",
  lacks: [
    "durability",
    "permissions",
    "order and resume after a reconnect, except in the rows about them",
  ],
  keepsHistory: true,
  missing: () =>
    findProgram("centrifugo") === undefined
      ? "Install it with go install github.com/centrifugal/centrifugo/v6@latest."
      : undefined,

  async start({ workbench, payload }, work): Promise<Contender> {
    const server = await startProgram(workbench, "centrifugo", {
      mark: "serving websocket",
      configure: (folder, port) => {
        const path = join(folder, "config.json");
        writeFileSync(path, JSON.stringify(configuration(port, needsHistory(work))));
        return ["--config", path];
      },
    });
    const data = JSON.parse(Buffer.from(payload).toString()) as object;
    if (work.kind === "resume") return resumed(server, data, work.missed);
    if (work.kind === "late") return resumed(server, { text: CHUNK_TEXT }, work.chunks);
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

/**
 * Publishes the messages that all clients miss. The clients then recover from the position before
 * these messages.
 */
async function resumed(server: Server, data: object, missed: number): Promise<Contender> {
  const backend = new Backend(server.apiPort);
  for (let at = 0; at < missed; at++) await backend.post("/api/publish", { channel: "all", data });
  const history = await backend.post("/api/history", { channel: "all", limit: 0 });
  backend.close();
  const { epoch } = (JSON.parse(history) as { readonly result: { readonly epoch: string } }).result;
  const position = { recover: true, epoch, offset: 0 };
  const subscribe = JSON.stringify({ id: 2, subscribe: { channel: "all", ...position } });
  const nothing = new Uint8Array();
  return {
    ...{ servers: [server], isPacked: true },
    opening: {
      upgrade,
      open: clientFrame(`{"id":1,"connect":{}}\n${subscribe}`),
      opened: Buffer.from('"recovered":true'),
    },
    message: () => nothing,
    replyStart: nothing,
  };
}

function configuration(port: number, keepsHistory: boolean): object {
  return {
    http_server: { address: "127.0.0.1", port: `${port}` },
    http_api: { insecure: true },
    client: { insecure: true, allowed_origins: ["*"] },
    channel: {
      without_namespace: {
        ...{ allow_subscribe_for_anonymous: true, allow_publish_for_anonymous: true },
        ...(keepsHistory && { history_size: 1000, history_ttl: "600s", force_recovery: true }),
      },
    },
    log: { level: "info" },
  };
}
