// The library `ws`. For each message, the server loops over all clients.

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import {
  clientFrame,
  freshMessageNumber,
  httpRequest,
  sampleMessage,
  sampleSendAnswer,
  sampleSendack,
  sendBody,
  upgradeRequest,
} from "../support/frames.ts";
import { startScript } from "../support/servers.ts";
import { type Contender, FORWARDS_ONLY, type Peer } from "./peer.ts";

const SERVER = fileURLToPath(new URL("./ws-server.ts", import.meta.url));
const PACKAGE = new URL("../../node_modules/ws/package.json", import.meta.url);
const CHANNEL = { id: "everyone", type: 2 } as const;
const opening = { upgrade: upgradeRequest() };

export const ws: Peer = {
  name: "ws",
  title: `ws ${JSON.parse(readFileSync(PACKAGE, "utf8")).version}`,
  lacks: FORWARDS_ONLY,
  missing: () => undefined,

  async start({ workbench, payload }, work): Promise<Contender> {
    const clientMsgNo = freshMessageNumber();
    const fromUid = "member000000";
    const body = sendBody({ channel: CHANNEL, fromUid, clientMsgNo, payload });
    const push = sampleMessage({ channel: CHANNEL, fromUid, clientMsgNo }, payload);
    const ack = sampleSendack(clientMsgNo);
    const answer = work.kind === "fanout" ? push : ack;
    const server = await startScript(workbench, "The ws server", [
      SERVER,
      work.kind === "fanout" ? "publish" : "answer",
      Buffer.from(answer).toString("hex"),
      sampleSendAnswer(clientMsgNo),
    ]);
    const isHttp = work.kind === "post" || (work.kind === "fanout" && work.via === "http");
    return {
      servers: [server],
      opening,
      message: () => (isHttp ? httpRequest("/", body) : clientFrame(payload)),
      replyStart: answer.subarray(0, 2),
      publishOpening: { upgrade: upgradeRequest("/publish") },
    };
  },
};
