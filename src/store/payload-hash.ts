// Hashes payloads. The embedded store and the Redis store keep a payload's hash with the
// `clientMsgNo`, to distinguish a retry from a different message with the same `clientMsgNo`
// [decisions: Same client_msg_no, another payload].

import { HASH_BYTES, writeHash } from "../lib/byte-hash.ts";

export const PAYLOAD_HASH_BYTES = HASH_BYTES;

/** Hash that is kept for the message of a stream. No payload has this hash. */
export const STREAM_HASH: Buffer = Buffer.alloc(HASH_BYTES);

export function payloadHash(payload: Uint8Array): Buffer {
  const hash = Buffer.allocUnsafe(HASH_BYTES);
  writeHash(hash, 0, payload);
  return hash;
}

/**
 * Returns true if the payload differs from the payload that was sent first, whose hash is
 * `remembered`. If this hash is `undefined`, the payloads count as equal.
 */
export function isOtherPayload(remembered: Buffer | undefined, payload: Uint8Array): boolean {
  return remembered !== undefined && !remembered.equals(payloadHash(payload));
}
