// Socket.IO: one room, and events with acknowledgements, as in its documentation. In its protocol,
// the server first sends `0…`, the client joins with `40`, and the server confirms with `40…`. Then
// `42[…]` is an event, `421[…]` is an event that requests an acknowledgement, and `431[…]` is the
// acknowledgement.

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import {
  clientFrame,
  freshMessageNumber,
  httpRequest,
  sendBody,
  upgradeRequest,
} from "../support/frames.ts";
import { startScript } from "../support/servers.ts";
import { type Contender, FORWARDS_ONLY, type Peer } from "./peer.ts";

const SERVER = fileURLToPath(new URL("./socket-io-server.ts", import.meta.url));
const PACKAGE = new URL("../../node_modules/socket.io/package.json", import.meta.url);
const opening = {
  upgrade: upgradeRequest("/socket.io/?EIO=4&transport=websocket"),
  open: clientFrame("40"),
  replies: 2,
};

export const socketIo: Peer = {
  name: "socket.io",
  title: `Socket.IO ${JSON.parse(readFileSync(PACKAGE, "utf8")).version}`,
  lacks: FORWARDS_ONLY,
  missing: () => undefined,

  async start({ workbench, payload }, work): Promise<Contender> {
    const clientMsgNo = freshMessageNumber();
    const body = sendBody({
      ...{ channel: { id: "everyone", type: 2 }, fromUid: "member000000" },
      ...{ clientMsgNo, payload },
    });
    const server = await startScript(workbench, "The Socket.IO server", [SERVER]);
    const isHttp = work.kind === "post" || (work.kind === "fanout" && work.via === "http");
    const event = work.kind === "fanout" ? "42" : "421";
    const name = work.kind === "fanout" ? "publish" : "send";
    return {
      servers: [server],
      opening,
      message: () =>
        isHttp
          ? httpRequest(work.kind === "post" ? "/answer" : "/publish", body)
          : clientFrame(`${event}${JSON.stringify([name, JSON.parse(body)])}`),
      replyStart: Buffer.from(work.kind === "fanout" ? '42["message",' : "431["),
      publishOpening: opening,
    };
  },
};
