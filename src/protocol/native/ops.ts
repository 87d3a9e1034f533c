// The numbers of the native protocol, each said once: operations, flag bits, version. No state, no code.
// A number is never reused: clients in the field keep its old meaning. docs/protocol/native.md tells what each frame holds.

/** Name in Sec-WebSocket-Protocol. Optional: a socket without a subprotocol speaks the native protocol too. */
export const NATIVE_SUBPROTOCOL = "jindou.native.v1";

/** The version a client states in CONNECT. */
export const NATIVE_VERSION = 1;

/** What a client sends. Free: 8 to 63. */
export const CLIENT_OPS = {
  connect: 1,
  send: 2,
  recvack: 3,
  history: 4,
  presence: 5,
  ping: 6,
  disconnect: 7,
} as const;

/** What a server answers: the request's number + 64. Free: 71 to 79. */
export const REPLY_OPS = {
  connack: 65,
  sendack: 66,
  history: 68,
  presence: 69,
  pong: 70,
  error: 91,
} as const;

/** What a server says on its own. Free: 82 to 89, 92 to 127. */
export const PUSH_OPS = {
  message: 80,
  messages: 81,
  disconnect: 90,
} as const;

/** Bits of the `flags` field. A server refuses bits it does not know, a client ignores them. */
export const FLAG_BITS = { noPersist: 1, redDot: 2, syncOnce: 4 } as const;
export const KNOWN_FLAGS =
  FLAG_BITS.noPersist | FLAG_BITS.redDot | FLAG_BITS.syncOnce;

/** `status` in a CONNACK's resume results. */
export const RESUME_STATUS = { ok: 0, denied: 1 } as const;

/** References and other counts are 32-bit on the wire. */
export const MAX_UINT32 = 0xffff_ffff;
