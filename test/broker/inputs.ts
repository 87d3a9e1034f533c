// Inputs for sending messages and events, with defaults for the fields that a test does not set.

import type { SendInput } from "../../src/broker/messages.ts";
import { STREAM_CONTENT } from "../../src/broker/model.ts";
import type { EventInput } from "../../src/broker/streams.ts";
import { group, person } from "./node-names.ts";

export const json = (value: unknown): Uint8Array => new TextEncoder().encode(JSON.stringify(value));

export const TEXT = json({ type: 1, content: "hi" });
export const COMMAND = json({ type: 99, cmd: "unreadClear", param: {} });
export const HEADER = { noPersist: false, redDot: true, syncOnce: false };

/**
 * Returns a text message from alice to bob with a red dot, sent over HTTP, with the given changes.
 */
export function textMessage(changes: Partial<SendInput> = {}): SendInput {
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
    ...changes,
  };
}

/** Returns a content event of alice's stream `n1` in the group g, with the given changes. */
export function streamEvent(changes: Partial<EventInput> = {}): EventInput {
  return {
    channel: group("g"),
    fromUid: "alice",
    clientMsgNo: "n1",
    eventId: undefined,
    type: STREAM_CONTENT,
    data: "",
    timestampMs: undefined,
    force: false,
    ...changes,
  };
}
