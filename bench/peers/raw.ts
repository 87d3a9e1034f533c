// The baseline of all ratios: a few lines on uWebSockets.js that do the minimum of the same work.

import {
  freshMessageNumber,
  httpRequest,
  NATIVE_UPGRADE,
  sampleMessage,
  sampleSendAnswer,
  sampleSendack,
  sendBody,
  sendFrame,
  upgradeRequest,
} from "../support/frames.ts";
import { startRaw } from "../support/servers.ts";
import { type Contender, FORWARDS_ONLY, type Peer } from "./peer.ts";

const CHANNEL = { id: "everyone", type: 2 } as const;
const opening = { upgrade: NATIVE_UPGRADE };

export const raw: Peer = {
  name: "raw",
  title: "raw uWebSockets.js",
  lacks: FORWARDS_ONLY,
  missing: () => undefined,

  async start({ workbench, payload }, work): Promise<Contender | undefined> {
    const clientMsgNo = freshMessageNumber();
    const body = sendBody({ channel: CHANNEL, fromUid: "member000000", clientMsgNo, payload });
    const post = httpRequest("/message/send", body);
    switch (work.kind) {
      case "fanout": {
        const push = sampleMessage(
          { channel: CHANNEL, fromUid: "member000000", clientMsgNo },
          payload,
        );
        return {
          servers: [await startRaw(workbench, "fanout", push)],
          opening,
          message: () => (work.via === "http" ? post : sendFrame(CHANNEL, clientMsgNo, payload)),
          replyStart: push.subarray(0, 2),
          publishOpening: { upgrade: upgradeRequest("/publish") },
        };
      }
      case "post": {
        const answer = Buffer.from(sampleSendAnswer(clientMsgNo));
        const server = await startRaw(workbench, "http", answer);
        return {
          servers: [server],
          opening,
          message: () => post,
          replyStart: answer.subarray(0, 0),
        };
      }
      case "send": {
        const ack = sampleSendack(clientMsgNo);
        return {
          servers: [await startRaw(workbench, "echo", ack)],
          opening,
          message: () => sendFrame(CHANNEL, clientMsgNo, payload),
          replyStart: ack.subarray(0, 2),
        };
      }
      case "connect": {
        const nothing = new Uint8Array();
        const server = await startRaw(workbench, "topics", Uint8Array.of(0));
        return { servers: [server], opening, message: () => nothing, replyStart: nothing };
      }
      case "resume":
      case "late":
        return undefined;
    }
  },
};
