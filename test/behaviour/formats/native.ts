// The native format behind the verbs of the format scenarios.

import { reasonOf } from "../../../src/protocol/reason-codes.ts";
import { openNative } from "../../support/native-client.ts";
import { type NativeClient, NativeClientError } from "../../support/native-session.ts";
import { PATIENCE_MS } from "../world.ts";
import { type Format, FormatRefusal, textOfPayload } from "./format.ts";

export const NATIVE: Format = {
  name: "native",

  async connect(t, options) {
    const client = await openNative(t, { ...options, timeoutMs: PATIENCE_MS });
    try {
      await client.connect();
    } catch (error) {
      throw await refusal(error, client);
    }
    return {
      async send(channel, text, sendOptions) {
        try {
          return (await client.send(channel, text, sendOptions)).messageSeq;
        } catch (error) {
          throw await refusal(error);
        }
      },
      async nextMessage() {
        const push = await client.nextPush(({ kind }) => kind === "message");
        if (push.kind !== "message") throw new Error("filtered");
        const { fromUid, messageSeq, payload } = push.message;
        const text = textOfPayload(payload);
        return { channel: push.channel, fromUid, messageSeq, text };
      },
      async nextEvent() {
        const push = await client.nextPush(({ kind }) => kind === "event");
        if (push.kind !== "event") throw new Error("filtered");
        const { type, data, eventId, clientMsgNo } = push.event;
        const id = type.startsWith("___TextMessage") ? clientMsgNo : eventId;
        return { id, type, data };
      },
      async nextCommand() {
        const push = await client.nextPush(({ kind }) => kind === "command");
        if (push.kind !== "command") throw new Error("filtered");
        await client.acknowledge([push.inboxSeq]);
        return textOfPayload(push.message.payload);
      },
      async ping() {
        await client.ping();
      },
      sendBlindly(channel, text) {
        client.send(channel, text).catch(() => undefined); // nobody waits
      },
      isKicked: () => client.pushesOf("disconnect").some(({ reason }) => reason === "kicked"),
      closed: client.closed,
      pause: () => client.pause(),
      resume: () => client.resume(),
      kill: () => client.kill(),
    };
  },
};

async function refusal(error: unknown, client?: NativeClient): Promise<unknown> {
  if (!(error instanceof NativeClientError)) return error;
  const code = client && (await client.closed).code;
  const told = client?.errors.at(-1)?.code ?? error.code;
  return new FormatRefusal(reasonOf(told as Parameters<typeof reasonOf>[0]), code); // a code of the table
}
