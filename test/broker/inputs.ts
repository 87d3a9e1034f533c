// Messages and events as edges hand them in, with defaults for what a test does not care about.

import type { SendInput } from "../../src/broker/messages.ts";
import { STREAM_CONTENT } from "../../src/broker/model.ts";
import type { EventInput } from "../../src/broker/streams.ts";
import { group, person } from "./node-names.ts";

export const json = (value: unknown): Uint8Array => new TextEncoder().encode(JSON.stringify(value));

export const TEXT = json({ type: 1, content: "hi" });
export const COMMAND = json({ type: 99, cmd: "unreadClear", param: {} });
export const HEADER = { noPersist: false, redDot: true, syncOnce: false };

/** A text with a red dot from alice to bob by HTTP, unless told otherwise. */
export function textMessage(given: Partial<SendInput> = {}): SendInput {
  return {
    fromUid: "alice",
    channel: person("bob"),
    clientMsgNo: undefined,
    header: HEADER,
    expireS: 0,
    streamNo: undefined,
    tagKey: undefined,
    payload: TEXT,
    subscribers: undefined,
    origin: undefined,
    ...given,
  };
}

/** Content of alice's stream `n1` in the group g, unless told otherwise. */
export function streamEvent(given: Partial<EventInput> = {}): EventInput {
  return {
    channel: group("g"),
    fromUid: "alice",
    clientMsgNo: "n1",
    eventId: undefined,
    type: STREAM_CONTENT,
    data: "",
    timestampMs: undefined,
    force: false,
    ...given,
  };
}
