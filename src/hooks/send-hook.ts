// The hook that is called before a client's message is stored. It can refuse the message or replace
// its payload.

import { matchesAny, parseChannelPattern } from "../broker/channel-patterns.ts";
import type { HookedMessage, SendHook } from "../broker/hooks.ts";
import { type HookCaller, UnusablePayload } from "./hook-caller.ts";

/** Maximum size of a reply without its payload. */
const ANSWER_BYTES = 65_536;

/**
 * Returns the maximum size of a reply with a payload of `maxPayloadBytes`, which is sent in Base64.
 */
export function maxSendAnswerBytes(maxPayloadBytes: number): number {
  return ANSWER_BYTES + Math.ceil((maxPayloadBytes * 4) / 3);
}

export function createSendHook(
  caller: Pick<HookCaller, "ask">,
  channels: readonly string[],
): SendHook {
  const patterns = channels.flatMap((text) => parseChannelPattern(text) ?? []);
  return {
    covers: (channel) => matchesAny(patterns, channel),
    ask: (message, faultOf) =>
      caller.ask(message.fromUid, { type: "send", data: dataOf(message) }, ({ payload = null }) => {
        if (payload === null) return undefined;
        const replacement = payloadOf(payload);
        const fault = faultOf(replacement);
        if (fault !== undefined) throw new UnusablePayload(fault);
        return replacement;
      }),
  };
}

function dataOf({ fromUid, channel, clientMsgNo, payload }: HookedMessage): object {
  return {
    ...{ from_uid: fromUid, channel_id: channel.id, channel_type: channel.type },
    ...{ client_msg_no: clientMsgNo ?? "" },
    payload: Buffer.from(payload.buffer, payload.byteOffset, payload.length).toString("base64"),
  };
}

function payloadOf(value: unknown): Uint8Array {
  const bytes = Buffer.from(typeof value === "string" ? value : "", "base64");
  if (bytes.toString("base64") !== value)
    throw new Error("payload in the response must be a string in standard Base64 with padding");
  return new Uint8Array(bytes);
}
