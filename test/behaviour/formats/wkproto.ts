// The newest version of WKProto as a test format, over WebSocket and over TCP.

import {
  openWkprotoSocket,
  openWkprotoTcp,
  tcpPortOf,
  type WkprotoClient,
  type WkprotoOptions,
} from "../../support/wkproto-client.ts";
import type { WkPacket } from "../../support/wkproto-packets.ts";
import {
  type Format,
  type FormatClient,
  type FormatConnect,
  FormatRefusal,
  textOfPayload,
} from "./format.ts";

const SUCCESS = 1;
const KICKED = 12;
const SYNC_ONCE = 4;

export const WKPROTO: Format = {
  name: "WKProto",
  hasCloseFrames: true,
  portOf: ({ clientPort }) => clientPort,
  connect: async (t, options) => connected(await openWkprotoSocket(t, clientOptions(options))),
};

export const WKPROTO_TCP: Format = {
  name: "WKProto over TCP",
  hasCloseFrames: false,
  portOf: tcpPortOf,
  connect: async (t, options) => connected(await openWkprotoTcp(t, clientOptions(options))),
};

function clientOptions({ port, uid, token, flag = 0, deviceId }: FormatConnect): WkprotoOptions {
  return {
    ...{ port, uid, token, deviceFlag: flag, version: 5 },
    ...(deviceId === undefined ? {} : { deviceId }),
  };
}

async function connected(client: WkprotoClient): Promise<FormatClient> {
  const { reasonCode } = await client.connect();
  if (reasonCode !== SUCCESS) throw new FormatRefusal(Number(reasonCode), await client.closed());
  const messages = packetReader(client, isRecv(false));
  const commands = packetReader(client, isRecv(true));
  const events = packetReader(client, ({ packet }) => packet === "EVENT");
  const text = (content: string) => ({ type: 1, content });
  return {
    async send(channel, content, options = {}) {
      const ack = await client.send(channel, text(content), options);
      if (ack.reasonCode !== SUCCESS) throw new FormatRefusal(Number(ack.reasonCode));
      return Number(ack.messageSeq);
    },
    async nextMessage() {
      const packet = await messages();
      client.recvack(packet);
      const { channelId, channelType, fromUid, messageSeq } = packet.fields;
      return {
        channel: { id: String(channelId), type: channelType === 1 ? 1 : 2 },
        fromUid: String(fromUid),
        messageSeq: Number(messageSeq),
        text: contentOf(packet),
      };
    },
    async nextEvent() {
      const { id, type, data } = (await events()).fields;
      return { id: String(id), type: String(type), data: String(data) };
    },
    async nextCommand() {
      const packet = await commands();
      client.recvack(packet);
      await client.ping();
      return contentOf(packet);
    },
    ping: () => client.ping(),
    sendWithoutReply(channel, content) {
      client.send(channel, text(content)).catch(() => undefined); // the result is not needed
    },
    isKicked: () =>
      client.received.some(
        ({ packet, fields }) => packet === "DISCONNECT" && fields.reasonCode === KICKED,
      ),
    closed: client.closed().then((code) => ({ code })),
    pause: () => client.pause(),
    resume: () => client.resume(),
    kill: () => client.kill(),
  };
}

/** Returns a function that waits for the next packet that matches. */
function packetReader(
  client: WkprotoClient,
  matches: (packet: WkPacket) => boolean,
): () => Promise<WkPacket> {
  let count = 0;
  return async () => {
    count += 1;
    return client.nth(count, matches);
  };
}

function isRecv(isCommand: boolean) {
  return ({ packet, flags }: WkPacket): boolean =>
    packet === "RECV" && ((flags & SYNC_ONCE) !== 0) === isCommand;
}

function contentOf({ fields }: WkPacket): string {
  return textOfPayload(Buffer.from(String(fields.plain)));
}
