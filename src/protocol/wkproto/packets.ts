// Numbers of WKProto, and how its packets are cut out of the bytes that a connection's messages
// form. State: per connection, the start of a packet whose end has not come.

import { FrameError } from "../protocol.ts";

/** A later client is answered in this version. */
export const NEWEST_VERSION = 5;
/** From here on SEND and RECV have an expiry. */
export const EXPIRE_VERSION = 3;
/** From here on CONNACK names the server's version and node. */
export const SERVER_VERSION = 4;
/** From here on clients know EVENT, and no packet has stream fields. */
export const EVENT_VERSION = 5;

export const PACKETS = {
  connect: 1,
  connack: 2,
  send: 3,
  sendack: 4,
  recv: 5,
  recvack: 6,
  ping: 7,
  pong: 8,
  disconnect: 9,
  event: 12,
} as const;

/** Low half of the first byte of SEND, SENDACK, RECV and RECVACK. */
export const FLAGS = { noPersist: 1, redDot: 2, syncOnce: 4 } as const;
/** The same place in CONNACK: the server's version follows. */
export const HAS_SERVER_VERSION = 1;

/** Bits of the setting byte of SEND and RECV. */
export const SETTINGS = { topic: 0x08, stream: 0x02 } as const;

/** Longest length of a body that is read, in bytes. */
const MAX_LENGTH_BYTES = 4;
/** A CONNECT comes from an unknown peer; the longest ids and token that are accepted fit. */
const MAX_CONNECT_BYTES = 32 * 1024;
const LEAST_HELD_BYTES = 64;
const NOTHING = Buffer.alloc(0);

export interface Packet {
  readonly type: number;
  readonly flags: number;
  /** Valid during the call only. */
  readonly body: Buffer;
}

export class PacketStream {
  readonly #maxPacketBytes: number;
  /** Memory of a packet whose end has not come; grows with what comes, not with what it says. */
  #held = NOTHING;
  #heldBytes = 0;

  /** A longer packet is refused by its length, before its bytes come. */
  constructor(maxPacketBytes: number) {
    this.#maxPacketBytes = maxPacketBytes;
  }

  /** Gives `use` each packet that ends in these bytes. Throws FrameError: framing is lost. */
  take(data: Uint8Array, use: (packet: Packet) => void): void {
    let rest = Buffer.from(data.buffer, data.byteOffset, data.length);
    while (rest.length > 0) {
      if (this.#heldBytes > 0) {
        rest = this.#continue(rest, use);
        continue;
      }
      const end = this.#endOf(rest);
      if (end === undefined || end > rest.length) return this.#hold(rest, end ?? rest.length);
      use(packetOf(rest.subarray(0, end)));
      rest = rest.subarray(end);
    }
  }

  /** Adds to the packet that is held, byte by byte until its length is known; returns the rest. */
  #continue(data: Buffer, use: (packet: Packet) => void): Buffer {
    const known = this.#endOf(this.#held.subarray(0, this.#heldBytes));
    const end = known ?? this.#heldBytes + 1;
    const taken = Math.min(end - this.#heldBytes, data.length);
    this.#hold(data.subarray(0, taken), end);
    if (this.#heldBytes === known) {
      const packet = packetOf(this.#held.subarray(0, end));
      this.#held = NOTHING;
      this.#heldBytes = 0;
      use(packet);
    }
    return data.subarray(taken);
  }

  #hold(data: Buffer, end: number): void {
    const bytes = this.#heldBytes + data.length;
    if (bytes > this.#held.length) {
      const twice = Math.max(2 * this.#held.length, LEAST_HELD_BYTES);
      const grown = Buffer.allocUnsafeSlow(Math.max(bytes, Math.min(end, twice)));
      this.#held.copy(grown, 0, 0, this.#heldBytes);
      this.#held = grown;
    }
    data.copy(this.#held, this.#heldBytes);
    this.#heldBytes = bytes;
  }

  /** Where the first packet ends; undefined: its length is not complete. Throws FrameError. */
  #endOf(data: Buffer): number | undefined {
    const type = data.readUInt8(0) >> 4;
    if (type === PACKETS.ping || type === PACKETS.pong) return 1;
    if (type === 0 || type > PACKETS.event) throw lost(`There is no packet of type ${type}`);
    const length = lengthOf(data);
    if (length === undefined) return undefined;
    const end = length.at + length.bytes;
    const most = type === PACKETS.connect ? MAX_CONNECT_BYTES : Infinity;
    if (end > Math.min(this.#maxPacketBytes, most))
      throw new FrameError("too_large", 0, "The packet is too long", true);
    return end;
  }
}

function packetOf(bytes: Buffer): Packet {
  const first = bytes.readUInt8(0);
  const body = bytes.length === 1 ? NOTHING : bytes.subarray(lengthOf(bytes)?.at);
  return { type: first >> 4, flags: first & 15, body };
}

/** Length of the body, and where the body begins; undefined: not complete. Throws FrameError. */
function lengthOf(data: Buffer): { at: number; bytes: number } | undefined {
  let bytes = 0;
  for (let i = 0; i < MAX_LENGTH_BYTES; i++) {
    const byte = data[1 + i];
    if (byte === undefined) return undefined;
    bytes += (byte & 127) * 128 ** i;
    if (byte > 127) continue;
    if (bytes === 0) throw lost("The packet is empty");
    return { at: 2 + i, bytes };
  }
  throw lost("The length of the packet does not end");
}

function lost(problem: string): FrameError {
  return new FrameError("malformed_frame", 0, problem, true);
}
