// Headers of the PROXY protocol, version 2, as a proxy sends them in front of the first request.

const SIGNATURE = Buffer.from("0d0a0d0a000d0a515549540a", "hex");
const IPV4_TCP = 0x11;
const IPV6_TCP = 0x21;
const IPV6_BYTES = 16;
const PORTS = Buffer.from([0x30, 0x39, 0, 80]);

/** Returns the header of a connection from this IPv4 address. */
export function proxyHeader(address: string): Buffer {
  const source = Buffer.from(address.split(".").map(Number));
  return header(1, IPV4_TCP, Buffer.concat([source, Buffer.from([127, 0, 0, 1]), PORTS]));
}

/** Returns the header of a connection from an IPv6 address of 32 hexadecimal digits. */
export function proxyHeader6(hex: string): Buffer {
  const addresses = [Buffer.from(hex, "hex"), Buffer.alloc(IPV6_BYTES)];
  return header(1, IPV6_TCP, Buffer.concat([...addresses, PORTS]));
}

/** Returns the header of a connection of the proxy itself, as for a health check. */
export function localProxyHeader(): Buffer {
  return header(0, 0, Buffer.alloc(0));
}

function header(command: 0 | 1, family: number, body: Buffer): Buffer {
  const fixed = Buffer.from([0x20 | command, family, body.length >> 8, body.length & 0xff]);
  return Buffer.concat([SIGNATURE, fixed, body]);
}
