// Builds the operations of the native test client, with defaults for the fields that most tests do
// not set.

import type { ChannelRef, MessageHeader } from "../../src/broker/model.ts";
import type { Operation } from "../../src/protocol/protocol.ts";

/** Removes `ref` from each member of a union. `Omit` alone would merge the members. */
type WithoutRef<T> = T extends { readonly ref: number } ? Omit<T, "ref"> : T;
/** An operation without its `ref`, which the client assigns. */
export type Request = WithoutRef<Operation>;

export interface SendOptions extends Partial<MessageHeader> {
  /** Default: empty, so that the server generates one. */
  readonly clientMsgNo?: string;
  readonly syncOnce?: boolean;
  readonly expireS?: number;
  readonly streamNo?: string;
  readonly tagKey?: string;
}

export interface HistoryOptions {
  readonly fromSeq?: number;
  readonly toSeq?: number;
  readonly limit?: number;
  readonly reverse?: boolean;
}

/**
 * Payload of a message. A string is sent as `{type: 1, content}`, an object as its JSON, and bytes
 * unchanged.
 */
export type PayloadInput = string | Uint8Array | object;

export function sendRequest(
  channel: ChannelRef,
  payload: PayloadInput,
  options: SendOptions,
): Request {
  return {
    kind: "send",
    channel,
    clientMsgNo: options.clientMsgNo ?? "",
    header: {
      noPersist: options.noPersist ?? false,
      redDot: options.redDot ?? false,
      syncOnce: options.syncOnce ?? false,
    },
    expireS: options.expireS ?? 0,
    streamNo: options.streamNo,
    tagKey: options.tagKey,
    payload: payloadBytes(payload),
  };
}

/** Returns a request for history. Default: the oldest 100 messages of the channel. */
export function historyRequest(channel: ChannelRef, options: HistoryOptions): Request {
  const range = { fromSeq: 0, toSeq: 0, limit: 100, reverse: false };
  return { kind: "history", channel, ...range, ...options };
}

function payloadBytes(payload: PayloadInput): Uint8Array {
  if (payload instanceof Uint8Array) return payload;
  const body = typeof payload === "string" ? { type: 1, content: payload } : payload;
  return new TextEncoder().encode(JSON.stringify(body));
}
