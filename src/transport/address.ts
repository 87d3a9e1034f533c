// Converts peer addresses from bytes to text. IPv4-mapped IPv6 addresses become IPv4, so that a
// peer always has the same address.

import { networkOf } from "../lib/network.ts";

const HEXTETS = 8;

/**
 * Returns the address as text, IPv6 in the form of RFC 5952. Returns `""` if the address has
 * neither 4 nor 16 bytes.
 */
export function addressText(bytes: ArrayBuffer): string {
  if (bytes.byteLength === 4) {
    const [a, b, c, d] = new Uint8Array(bytes);
    return `${a}.${b}.${c}.${d}`;
  }
  if (bytes.byteLength !== 16) return "";
  const view = new DataView(bytes);
  const hextets = Array.from({ length: HEXTETS }, (_, i) => view.getUint16(i * 2));
  if (isMapped(hextets)) return new Uint8Array(bytes, 12).join(".");
  return compressed(hextets);
}

export function networkText(bytes: ArrayBuffer): string {
  return networkOf(addressText(bytes));
}

function isMapped(hextets: readonly number[]): boolean {
  return hextets[5] === 0xffff && hextets.slice(0, 5).every((h) => h === 0);
}

function compressed(hextets: readonly number[]): string {
  const { start, length } = longestZeroRun(hextets);
  const text = hextets.map((hextet) => hextet.toString(16));
  if (length < 2) return text.join(":");
  const head = text.slice(0, start).join(":");
  return `${head}::${text.slice(start + length).join(":")}`;
}

function longestZeroRun(hextets: readonly number[]): {
  readonly start: number;
  readonly length: number;
} {
  let best = { start: 0, length: 0 };
  let start = 0;
  for (let i = 0; i <= HEXTETS; i++) {
    if (hextets[i] === 0) continue;
    if (i - start > best.length) best = { start, length: i - start };
    start = i + 1;
  }
  return best;
}
