// JSON-RPC as a test format, in both forms: as WuKongIM's clients use it, and extended.

import type { ChannelRef } from "../../../src/broker/model.ts";
import { type Json, JsonRpcError, openJsonRpc } from "../../support/jsonrpc-client.ts";
import { type Format, FormatRefusal, textOfPayload } from "./format.ts";

const SUCCESS = 1;
const KICKED = 12;

export const WUKONGIM_JSONRPC = jsonRpc("WuKongIM's JSON-RPC", false);
export const EXTENDED_JSONRPC = jsonRpc("extended JSON-RPC", true);

function jsonRpc(name: string, isExtended: boolean): Format {
  return {
    name,
    hasCloseFrames: true,
    portOf: ({ clientPort }) => clientPort,

    async connect(t, { port, uid, token, flag = 0, deviceId }) {
      const client = await openJsonRpc(t, { port });
      const device = { deviceFlag: flag, deviceId };
      try {
        const result = await client.request("connect", {
          ...{ uid, token, ...device },
          ...(isExtended ? { protocol: 1 } : { clientTimestamp: Date.now() }),
        });
        if (!isExtended && result.reasonCode !== SUCCESS)
          throw new Error("a refusal must be an error");
      } catch (error) {
        if (!(error instanceof JsonRpcError)) throw error;
        throw new FormatRefusal(error.code, (await client.closed).code);
      }
      const paramsOf = (channel: ChannelRef, text: string) => ({
        channelId: channel.id,
        channelType: channel.type,
        payload: base64({ type: 1, content: text }),
        header: { redDot: true },
      });
      let readCommands = 0;
      return {
        async send(channel, text, options = {}) {
          try {
            const result = await client.request("send", {
              ...options,
              ...paramsOf(channel, text),
            });
            if (!isExtended && result.reasonCode !== SUCCESS)
              throw new FormatRefusal(result.reasonCode);
            return result.messageSeq;
          } catch (error) {
            if (!(error instanceof JsonRpcError)) throw error;
            throw new FormatRefusal(error.code);
          }
        },
        async nextMessage() {
          let params: Json;
          do params = await client.next(isExtended ? "message" : "recv");
          while (params.header.syncOnce);
          const { channelId: id, channelType: type } = params;
          const { fromUid, messageSeq } = params;
          const text = contentOf(params);
          return { channel: { id, type }, fromUid, messageSeq, text };
        },
        async nextEvent() {
          const event = await client.next("event");
          const { type, data } = event;
          if (!isExtended) return { id: event.id, type, data };
          const isText = type.startsWith("___TextMessage");
          return { id: isText ? event.clientMsgNo : event.eventId, type, data };
        },
        async nextCommand() {
          const commands = () =>
            isExtended
              ? client.all("command")
              : client.all("recv").filter(({ header }) => header.syncOnce);
          await client.waitFor(() => commands().length > readCommands, "a command");
          const params = commands()[readCommands];
          readCommands += 1;
          if (isExtended)
            await client.request("commandack", {
              inboxSeqs: [params.inboxSeq],
            });
          else await client.request("ping"); // the response follows the handling of the recvack
          return contentOf(params);
        },
        async ping() {
          await client.request("ping");
        },
        sendWithoutReply(channel, text) {
          const params = paramsOf(channel, text);
          client.raw(JSON.stringify({ method: "send", params, id: "ignored" }));
        },
        isKicked: () =>
          client
            .all("disconnect")
            .some((push) => (isExtended ? push.name === "kicked" : push.reasonCode === KICKED)),
        closed: client.closed,
        pause: () => client.pause(),
        resume: () => client.resume(),
        kill: () => client.kill(),
      };
    },
  };
}

export function base64(content: object): string {
  return Buffer.from(JSON.stringify(content)).toString("base64");
}

function contentOf({ payload }: Json): string {
  return textOfPayload(Buffer.from(payload, "base64"));
}
