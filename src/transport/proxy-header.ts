// Parses a PROXY protocol header at the beginning of a connection. Pure functions.

import { addressBytes } from "./address-bytes.ts";

const SIGNATURE = Buffer.from("\r\n\r\n\0\r\nQUIT\n", "latin1");
const FIXED_BYTES = 16;
/** Maximum size of a version 2 header. A larger header contains extensions of unreasonable size. */
const MAX_BYTES = 4096;

const TEXT_SIGNATURE = Buffer.from("PROXY ", "latin1");
const TEXT_END = Buffer.from("\r\n", "latin1");
/** Maximum size of a version 1 header, including its end. */
const MAX_TEXT_BYTES = 107;

const VERSION_2 = 0x20;
const LOCAL = 0;
const PROXY = 1;
const IPV4 = 1;
const IPV6 = 2;

export type ProxyHeader =
  | { readonly kind: "absent" | "incomplete" | "malformed" }
  | {
      readonly kind: "header";
      readonly bytes: number;
      /** Address of the client (4 or 16 bytes). Empty if the proxy reports no address. */
      readonly address: ArrayBuffer;
    };

/** Parses a version 1 or 2 header in the first bytes of a connection. */
export function parseAnyProxyHeader(bytes: Buffer): ProxyHeader {
  return isStartOf(TEXT_SIGNATURE, bytes) ? parseTextHeader(bytes) : parseProxyHeader(bytes);
}

/** Parses a version 2 header in the first bytes of a connection. */
export function parseProxyHeader(bytes: Buffer): ProxyHeader {
  if (!isStartOf(SIGNATURE, bytes)) return { kind: "absent" };
  if (bytes.length < FIXED_BYTES) return { kind: "incomplete" };
  const size = FIXED_BYTES + bytes.readUInt16BE(14);
  if (size > MAX_BYTES) return { kind: "malformed" };
  if (bytes.length < size) return { kind: "incomplete" };
  const command = bytes.readUInt8(12) - VERSION_2;
  if (command !== LOCAL && command !== PROXY) return { kind: "malformed" };
  const addressBytes = command === PROXY ? addressLength(bytes.readUInt8(13) >> 4) : 0;
  if (FIXED_BYTES + 2 * addressBytes > size) return { kind: "malformed" };
  const address = Uint8Array.from(bytes.subarray(FIXED_BYTES, FIXED_BYTES + addressBytes)).buffer;
  return { kind: "header", bytes: size, address };
}

function addressLength(family: number): number {
  if (family === IPV4) return 4;
  return family === IPV6 ? 16 : 0;
}

/** Parses a version 1 header: `PROXY TCP4 <source> <destination> <ports>` or `PROXY UNKNOWN`. */
function parseTextHeader(bytes: Buffer): ProxyHeader {
  const end = bytes.indexOf(TEXT_END);
  const size = end + TEXT_END.length;
  if (end < 0) return { kind: bytes.length < MAX_TEXT_BYTES ? "incomplete" : "malformed" };
  if (size > MAX_TEXT_BYTES) return { kind: "malformed" };
  const [, family, source = "", , ...ports] = bytes.toString("latin1", 0, end).split(" ");
  if (family === "UNKNOWN") return { kind: "header", bytes: size, address: new ArrayBuffer(0) };
  const length = family === "TCP4" ? 4 : 16;
  const isKnown = family === "TCP4" || family === "TCP6";
  const address = addressBytes(source);
  if (!isKnown || ports.length !== 2 || address.byteLength !== length) return { kind: "malformed" };
  return { kind: "header", bytes: size, address };
}

/** Returns true if the bytes begin with the signature, or are the beginning of the signature. */
function isStartOf(signature: Buffer, bytes: Buffer): boolean {
  const length = Math.min(bytes.length, signature.length);
  return bytes.compare(signature, 0, length, 0, length) === 0;
}
