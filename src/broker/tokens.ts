// Hashes and compares tokens. A token must never be stored or compared in any other form.

import { hash, timingSafeEqual } from "node:crypto";

export function hashToken(token: string): Uint8Array {
  return hash("sha256", token, "buffer");
}

/** Returns the beginning of the hash. It identifies the token and need not be kept secret. */
export function tokenTag(hash: Uint8Array): string {
  return Buffer.from(hash).toString("base64url", 0, 12);
}

/** Returns true if the hashes are equal and not empty. The comparison takes constant time. */
export function hashesEqual(a: Uint8Array, b: Uint8Array): boolean {
  return a.length > 0 && a.length === b.length && timingSafeEqual(a, b);
}
