// The native protocol as a test format.

import { reasonOf } from "../../../src/compat/wukongim/reason-codes.ts";
import { openNative } from "../../support/native-client.ts";
import { type NativeClient, NativeClientError } from "../../support/native-session.ts";
import { TIMEOUT_MS } from "../world.ts";
import { type Format, FormatRefusal, textOfPayload } from "./format.ts";

export const NATIVE: Format = {
  name: "the native protocol",
  hasCloseFrames: true,
  portOf: ({ clientPort }) => clientPort,

  async connect(t, options) {
    const client = await openNative(t, { ...options, timeoutMs: TIMEOUT_MS });
    try {
      await client.connect();
    } catch (error) {
      throw await refusalOf(error, client);
    }
    return {
      async send(channel, text, sendOptions) {
        try {
          return (await client.send(channel, text, sendOptions)).messageSeq;
        } catch (error) {
          throw await refusalOf(error);
        }
      },
      async nextMessage() {
        const push = await client.nextPush(({ kind }) => kind === "message");
        if (push.kind !== "message") throw new Error("expected a message");
        const { fromUid, messageSeq, payload } = push.message;
        const text = textOfPayload(payload);
        return { channel: push.channel, fromUid, messageSeq, text };
      },
      async nextEvent() {
        const push = await client.nextPush(({ kind }) => kind === "event");
        if (push.kind !== "event") throw new Error("expected an event");
        const { type, data, eventId, clientMsgNo } = push.event;
        const id = type.startsWith("___TextMessage") ? clientMsgNo : eventId;
        return { id, type, data };
      },
      async nextCommand() {
        const push = await client.nextPush(({ kind }) => kind === "command");
        if (push.kind !== "command") throw new Error("expected a command");
        await client.acknowledge([push.inboxSeq]);
        return textOfPayload(push.message.payload);
      },
      async ping() {
        await client.ping();
      },
      sendWithoutReply(channel, text) {
        client.send(channel, text).catch(() => undefined); // the result is not needed
      },
      isKicked: () => client.pushesOf("disconnect").some(({ reason }) => reason === "kicked"),
      closed: client.closed,
      pause: () => client.pause(),
      resume: () => client.resume(),
      kill: () => client.kill(),
    };
  },
};

async function refusalOf(error: unknown, client?: NativeClient): Promise<unknown> {
  if (!(error instanceof NativeClientError)) return error;
  const code = client && (await client.closed).code;
  const errorCode = client?.errors.at(-1)?.code ?? error.code;
  return new FormatRefusal(reasonOf(errorCode as Parameters<typeof reasonOf>[0]), code); // one of the broker's error codes
}
