// WuKongIM 2 with its defaults: clients need no token, and messages are stored. Clients speak
// JSON-RPC. They acknowledge no messages: WuKongIM would send a message again only after a minute.

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import type { ChannelRef } from "../../src/broker/model.ts";
import { freePort } from "../../test/support/redis.ts";
import { TOKEN } from "../support/backend.ts";
import {
  CONNECTION_NUMBER,
  freshMessageNumber,
  httpRequest,
  jsonRpcRequest,
  jsonRpcStart,
  sendBody,
  upgradeRequest,
} from "../support/frames.ts";
import { createMembers, MEMBER, memberName } from "../support/members.ts";
import type { Server } from "../support/servers.ts";
import { type Contender, needsHistory, type Peer } from "./peer.ts";
import { findProgram, startProgram } from "./program.ts";

export const wukongim: Peer = {
  name: "wukongim",
  title: "WuKongIM 2",
  lacks: [
    "resume",
    "tokens and permissions",
    "an HTTP reply that waits for permissions and storage",
  ],
  missing: () =>
    findProgram("wukongim") === undefined
      ? "Set BENCH_WUKONGIM to the path of the WuKongIM 2 program."
      : undefined,

  async start({ workbench, payload }, work): Promise<Contender | undefined> {
    if (needsHistory(work)) return undefined;
    const clientPort = await freePort();
    const settings = await configuration(clientPort);
    const server = await startProgram(workbench, "wukongim", {
      clientPort,
      configure: (folder, port) => {
        const path = join(folder, "wk.yaml");
        const own = { httpAddr: `127.0.0.1:${port}`, rootDir: join(folder, "data") };
        writeFileSync(path, JSON.stringify({ ...settings, ...own })); // JSON is also YAML
        return ["--config", path];
      },
    });
    await untilHealthy(server);
    // The publisher is also a member. Its number follows those of the receivers.
    const isFanout = work.kind === "fanout";
    const channel: ChannelRef = isFanout
      ? { id: "all", type: 2 }
      : { id: `receiver${CONNECTION_NUMBER}`, type: 1 };
    const fromUid = isFanout ? memberName(work.members) : MEMBER;
    if (isFanout) await createMembers(server, channel.id, work.members + 1);
    const isHttp = work.kind === "post" || (isFanout && work.via === "http");
    const opening = {
      upgrade: upgradeRequest(),
      open: jsonRpcRequest("connect", { uid: MEMBER, token: TOKEN, deviceFlag: 0 }),
    };
    return {
      servers: [server],
      opening,
      message() {
        const clientMsgNo = freshMessageNumber();
        if (isHttp)
          return httpRequest("/message/send", sendBody({ channel, fromUid, clientMsgNo, payload }));
        return jsonRpcRequest("send", {
          ...{ channelType: channel.type, channelId: channel.id, clientMsgNo },
          payload: Buffer.from(payload).toString("base64"),
        });
      },
      replyStart: isFanout ? jsonRpcStart("recv") : jsonRpcStart(),
      publishOpening: opening,
    };
  },
};

/** Interval between health checks. The ports listen before the storage is ready. */
const HEALTH_CHECK_MS = 50;
const MAX_START_MS = 30_000;

async function untilHealthy({ apiPort }: Server): Promise<void> {
  const deadlineMs = performance.now() + MAX_START_MS;
  for (;;) {
    const { ok } = await fetch(`http://127.0.0.1:${apiPort}/health`);
    if (ok) return;
    if (performance.now() > deadlineMs)
      throw new Error(`WuKongIM was not healthy after ${MAX_START_MS / 1000} s.`);
    await pause(HEALTH_CHECK_MS);
  }
}

/** Returns the settings. The bench uses only `clientPort`; the other ports must be free. */
async function configuration(clientPort: number): Promise<object> {
  const free = async () => `127.0.0.1:${await freePort()}`;
  return {
    mode: "release",
    wsAddr: `ws://127.0.0.1:${clientPort}`,
    addr: `tcp://${await free()}`,
    cluster: { addr: `tcp://${await free()}` },
    manager: { addr: await free() },
    demo: { addr: await free() },
  };
}
