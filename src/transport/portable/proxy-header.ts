// Parses a header of the PROXY protocol, version 2, at the beginning of a connection. Pure.

const SIGNATURE = Buffer.from("\r\n\r\n\0\r\nQUIT\n", "latin1");
const FIXED_BYTES = 16;
/** Maximum size of a header. Larger ones contain extensions of unreasonable size. */
const MAX_BYTES = 4096;

const VERSION_2 = 0x20;
const LOCAL = 0;
const PROXY = 1;
const IPV4 = 1;
const IPV6 = 2;

type ProxyHeader =
  | { readonly kind: "absent" | "incomplete" | "malformed" }
  | {
      readonly kind: "header";
      readonly bytes: number;
      /** Address of the client: 4 or 16 bytes, or no bytes if the proxy reports none. */
      readonly address: ArrayBuffer;
    };

export function parseProxyHeader(bytes: Buffer): ProxyHeader {
  const length = Math.min(bytes.length, SIGNATURE.length);
  if (bytes.compare(SIGNATURE, 0, length, 0, length) !== 0) return { kind: "absent" };
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
