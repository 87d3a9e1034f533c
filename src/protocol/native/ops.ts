// Numbers of the native protocol: operations, flag bits and version. A number is never reused,
// because deployed clients keep its old meaning. docs/protocol/native.md describes the fields of
// each operation. Every frame is one MessagePack array with these fields:
//
//   op      uint            number of the operation, reply or push
//   ref     uint or nil     number that the client chose for the request; nil or 0 if there is none
//   ...     fields          in the order of the operation; later versions add fields at the end

import type { StreamState } from "../../broker/model.ts";

/** Subprotocol name. A client may omit it, because the native protocol is the default. */
export const NATIVE_SUBPROTOCOL = "jindou.native.v1";

export const NATIVE_VERSION = 1;

/** Operation numbers. The numbers 17 to 27 and 29 to 63 are unused. */
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
  state: 14,
  emit: 15,
  refresh: 16,
  members: 28,
} as const;

/**
 * Numbers of replies. A reply has the number of its request plus 64, with two exceptions: the reply
 * to refresh is a connack, and the reply to a failed request is an error.
 */
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
  state: 78,
  emit: 79,
  members: 92,
  error: 91,
} as const;

/** Numbers of pushes. The numbers 87 to 89 and 93 to 127 are unused. */
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

/** Bits of the field `flags`. A server rejects unknown bits. A client ignores them. */
export const FLAG_BITS = { noPersist: 1, redDot: 2, syncOnce: 4 } as const;
export const KNOWN_FLAGS = FLAG_BITS.noPersist | FLAG_BITS.redDot | FLAG_BITS.syncOnce;

export const RESUME_STATUS = { ok: 0, denied: 1 } as const;

/** States of a stream. The field `state` contains an index into this list. */
export const STREAM_STATES = [
  "active",
  "closed",
  "cancelled",
  "interrupted",
] as const satisfies readonly StreamState[];

export const CONVERSATION_CHANGES = { read: 0, unread: 1, delete: 2 } as const;

/** Maximum value of refs and counts, which have 32 bits. */
export const MAX_UINT32 = 0xffff_ffff;
