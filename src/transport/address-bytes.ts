// Converts a peer's address from text to bytes, the form in which every driver reports addresses to
// the transport. Pure functions.

import { isIPv4, isIPv6 } from "node:net";

const HEXTETS = 8;

export function addressBytes(text: string): ArrayBuffer {
  if (isIPv4(text)) return bufferOf(text.split(".").map(Number));
  if (!isIPv6(text)) return new ArrayBuffer(0);
  const [address = ""] = text.split("%"); // without the zone
  const [head = "", tail] = address.split("::");
  const left = hextets(head);
  const right = hextets(tail ?? "");
  const zeros = Array<number>(HEXTETS - left.length - right.length).fill(0);
  return bufferOf([...left, ...zeros, ...right].flatMap((hextet) => [hextet >> 8, hextet & 0xff]));
}

/**
 * Parses hextets (the 16-bit groups of an IPv6 address). The last two hextets may be written as an
 * IPv4 address.
 */
function hextets(text: string): readonly number[] {
  if (text === "") return [];
  return text.split(":").flatMap((part) => {
    if (!part.includes(".")) return [Number.parseInt(part, 16)];
    const [a = 0, b = 0, c = 0, d = 0] = part.split(".").map(Number);
    return [a * 256 + b, c * 256 + d];
  });
}

function bufferOf(bytes: readonly number[]): ArrayBuffer {
  return Uint8Array.from(bytes).buffer;
}
