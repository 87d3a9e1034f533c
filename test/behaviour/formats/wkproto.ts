// WKProto behind the verbs of the format scenarios, in its newest version.

import { openWkproto, type WkprotoClient } from "../../support/wkproto-client.ts";
import type { WkPacket } from "../../support/wkproto-packets.ts";
import { type Format, FormatRefusal, textOfPayload } from "./format.ts";

const SUCCESS = 1;
const KICKED = 12;
const SYNC_ONCE = 4;

export const WKPROTO: Format = {
  name: "wkproto",

  async connect(t, { port, uid, token, flag = 0, deviceId }) {
    const client = await openWkproto(t, {
      ...{ port, uid, token, deviceFlag: flag, version: 5 },
      ...(deviceId === undefined ? {} : { deviceId }),
    });
    const { reasonCode } = await client.connect();
    if (reasonCode !== SUCCESS) throw new FormatRefusal(Number(reasonCode), await client.closed());
    const messages = inOrder(client, isRecv(false));
    const commands = inOrder(client, isRecv(true));
    const events = inOrder(client, ({ packet }) => packet === "EVENT");
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
      sendBlindly(channel, content) {
        client.send(channel, text(content)).catch(() => undefined); // nobody waits
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
  },
};

/** A function that waits for the next packet of the kind. */
function inOrder(
  client: WkprotoClient,
  isOne: (packet: WkPacket) => boolean,
): () => Promise<WkPacket> {
  let taken = 0;
  return async () => {
    taken += 1;
    return client.nth(taken, isOne);
  };
}

function isRecv(isCommand: boolean) {
  return ({ packet, flags }: WkPacket): boolean =>
    packet === "RECV" && ((flags & SYNC_ONCE) !== 0) === isCommand;
}

function contentOf({ fields }: WkPacket): string {
  return textOfPayload(Buffer.from(String(fields.plain)));
}
