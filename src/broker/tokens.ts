// Secrets are kept and compared as hashes only, here.

import { createHash, timingSafeEqual } from "node:crypto";

/** SHA-256 of a secret: what is stored in its place. */
export function hashToken(token: string): Uint8Array {
  return createHash("sha256").update(token).digest();
}

/** Tells tokens apart where nothing secret may be kept: the beginning of the hash. */
export function tokenTag(hash: Uint8Array): string {
  return Buffer.from(hash).toString("base64url", 0, 12);
}

/** Compares in time that does not depend on where they differ. An empty hash equals nothing. */
export function hashesEqual(a: Uint8Array, b: Uint8Array): boolean {
  return a.length > 0 && a.length === b.length && timingSafeEqual(a, b);
}
