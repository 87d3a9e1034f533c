// Mosquitto: MQTT 3.1.1 on WebSockets, with QoS 0 for a fan-out and QoS 1 when an acknowledgement
// is measured. It has no HTTP call that publishes.

import { writeFileSync } from "node:fs";
import { userInfo } from "node:os";
import { join } from "node:path";
import { CONNECTION_NUMBER, clientFrame, upgradeRequest } from "../support/frames.ts";
import { type Contender, FORWARDS_ONLY, type Peer } from "./peer.ts";
import { findProgram, startProgram } from "./program.ts";

const upgrade = upgradeRequest("/mqtt", "mqtt");
const TOPIC = string("all");

export const mosquitto: Peer = {
  name: "mosquitto",
  title: "Mosquitto",
  lacks: FORWARDS_ONLY,
  missing: () =>
    findProgram("mosquitto") === undefined
      ? "Install it with apt-get install mosquitto (Debian, Ubuntu)."
      : undefined,

  async start({ workbench, payload }, work): Promise<Contender | undefined> {
    if (work.kind === "post" || (work.kind === "fanout" && work.via === "http")) return undefined;
    const server = await startProgram(workbench, "mosquitto", {
      mark: "running",
      configure: (folder, port) => {
        const path = join(folder, "mosquitto.conf");
        const lines = [
          `user ${userInfo().username}`, // otherwise root switches to a user that may not exist
          `listener 0 ${join(folder, "mqtt.sock")}`, // 2.0.11 does not start with WebSockets alone
          `listener ${port} 127.0.0.1`,
          "protocol websockets",
          "allow_anonymous true",
          "max_queued_messages 0",
        ];
        writeFileSync(path, `${lines.join("\n")}\n`);
        return ["-v", "-c", path];
      },
    });
    const isSend = work.kind === "send";
    const subscribe = packet(0x82, [Uint8Array.of(0, 1), TOPIC, Uint8Array.of(0)]);
    const connect = connectPacket(`client${CONNECTION_NUMBER}`);
    const isReceiver = work.kind === "fanout" || work.kind === "connect";
    const publish = isSend
      ? packet(0x32, [TOPIC, Uint8Array.of(0, 1), payload])
      : packet(0x30, [TOPIC, payload]);
    return {
      servers: [server],
      opening: {
        upgrade,
        open: clientFrame(isReceiver ? Buffer.concat([connect, subscribe]) : connect),
        opened: Uint8Array.of(...(isReceiver ? [0x90, 3] : [0x20, 2])), // SUBACK, CONNACK
      },
      message: () => clientFrame(publish),
      replyStart: Uint8Array.of(...(isSend ? [0x40, 2] : [0x30])), // PUBACK, PUBLISH
      publishOpening: {
        upgrade,
        open: clientFrame(connectPacket("publisher")),
        opened: Uint8Array.of(0x20, 2),
      },
    };
  },
};

function connectPacket(clientId: string): Uint8Array {
  const cleanSession = Uint8Array.of(4, 2, 0, 60); // protocol level, flags, keep-alive
  return packet(0x10, [string("MQTT"), cleanSession, string(clientId)]);
}

function packet(type: number, fields: readonly Uint8Array[]): Uint8Array {
  const body = Buffer.concat(fields);
  const size: number[] = [];
  for (let rest = body.length; size.length === 0 || rest > 0; rest >>= 7)
    size.push((rest & 127) | (rest > 127 ? 128 : 0));
  return Buffer.concat([Uint8Array.of(type, ...size), body]);
}

function string(text: string): Uint8Array {
  return Buffer.concat([Uint8Array.of(0, text.length), Buffer.from(text)]);
}
