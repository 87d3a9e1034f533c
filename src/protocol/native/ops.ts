// The numbers of the native protocol: operations, flag bits, version. No state, no code. A number
// is never reused: deployed clients keep its old meaning. Fields: docs/protocol/native.md.

import type { StreamState } from "../../broker/model.ts";

/** Name in Sec-WebSocket-Protocol. Optional: the native protocol is the default. */
export const NATIVE_SUBPROTOCOL = "jindou.native.v1";

/** The version in CONNECT. */
export const NATIVE_VERSION = 1;

/** Operations. Free: 14 to 63. */
export const CLIENT_OPS = {
  connect: 1,
  send: 2,
  recvack: 3,
  history: 4,
  presence: 5,
  ping: 6,
  disconnect: 7,
  stream: 8,
  cancel: 9,
  conversations: 10,
  conversation: 11,
  commandack: 12,
  watch: 13,
} as const;

/** Replies: the request's number + 64. Free: 78, 79. */
export const REPLY_OPS = {
  connack: 65,
  sendack: 66,
  history: 68,
  presence: 69,
  pong: 70,
  stream: 72,
  cancel: 73,
  conversations: 74,
  conversation: 75,
  commandack: 76,
  watch: 77,
  error: 91,
} as const;

/** Pushes. Free: 87 to 89, 92 to 127. */
export const PUSH_OPS = {
  message: 80,
  messages: 81,
  event: 82,
  stream: 83,
  command: 84,
  conversation: 85,
  presence: 86,
  disconnect: 90,
} as const;

/** Bits of the `flags` field. A server refuses unknown bits, a client ignores them. */
export const FLAG_BITS = { noPersist: 1, redDot: 2, syncOnce: 4 } as const;
export const KNOWN_FLAGS = FLAG_BITS.noPersist | FLAG_BITS.redDot | FLAG_BITS.syncOnce;

/** `status` in a CONNACK's resume results. */
export const RESUME_STATUS = { ok: 0, denied: 1 } as const;

/** `state` of a stream is its index in this list. */
export const STREAM_STATES = [
  "active",
  "closed",
  "cancelled",
  "interrupted",
] as const satisfies readonly StreamState[];

/** `change` of a conversation. */
export const CONVERSATION_CHANGES = { read: 0, unread: 1, delete: 2 } as const;

/** Refs and counts are 32-bit on the wire. */
export const MAX_UINT32 = 0xffff_ffff;
