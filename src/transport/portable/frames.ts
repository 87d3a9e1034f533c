// Encodes the WebSocket frames that a server sends, which are not masked [RFC 6455 5.2]. Pure.

const FINAL = 0x80;
const TEXT = 0x1;
const BINARY = 0x2;
const PING = 0x9;
const PONG = 0xa;

const SMALL = 126;
const MEDIUM = 65_536;

export const PING_FRAME: Buffer = Buffer.from([FINAL | PING, 0]);

export function encodeFrame(data: Uint8Array | string, isBinary: boolean): Buffer {
  const length = typeof data === "string" ? Buffer.byteLength(data) : data.length;
  const header = headerBytes(length);
  const frame = Buffer.allocUnsafe(header + length);
  frame[0] = FINAL | (isBinary ? BINARY : TEXT);
  if (length < SMALL) frame[1] = length;
  else if (length < MEDIUM) {
    frame[1] = 126;
    frame.writeUInt16BE(length, 2);
  } else {
    frame[1] = 127;
    frame.writeUInt32BE(0, 2); // a frame is always smaller than 4 GiB
    frame.writeUInt32BE(length, 6);
  }
  if (typeof data === "string") frame.write(data, header);
  else frame.set(data, header);
  return frame;
}

/** Encodes a pong. `data` has at most 125 bytes. */
export function encodePong(data: Uint8Array): Buffer {
  return Buffer.concat([Buffer.from([FINAL | PONG, data.length]), data]);
}

function headerBytes(length: number): number {
  if (length < SMALL) return 2;
  return length < MEDIUM ? 4 : 10;
}
