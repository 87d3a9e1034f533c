// Constants of WKProto, and the splitting of a connection's bytes into packets. Each
// `PacketSplitter` owns the beginning of an incomplete packet. A packet has these fields:
//
//   type, flags   1 byte          type in the high half, flags in the low half
//   length        1 to 4 bytes    7 bits each, lowest first; 0x80 is set in all but the last
//   body          `length` bytes
//
// PING and PONG have only the first byte.

import { FrameError } from "../../../protocol/protocol.ts";

/** Newest supported version. Also used for clients with a later version. */
export const NEWEST_VERSION = 5;
/** First version in which SEND and RECV have an expiry. */
export const EXPIRE_VERSION = 3;
/** First version in which CONNACK contains the server's version and node. */
export const SERVER_VERSION = 4;
/** First version that has the packet EVENT, and no stream fields in other packets. */
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

/** Flags in the first byte of SEND, SENDACK, RECV and RECVACK. */
export const FLAGS = { noPersist: 1, redDot: 2, syncOnce: 4 } as const;
/** Flag in the first byte of a CONNACK that contains the server's version. */
export const HAS_SERVER_VERSION = 1;

export const SETTINGS = { topic: 0x08, stream: 0x02 } as const;

const MAX_LENGTH_BYTES = 4;
/** Maximum size of CONNECT. It is low, because the sender is not authenticated yet. */
const MAX_CONNECT_BYTES = 32 * 1024;
const MIN_PARTIAL_BYTES = 64;
const EMPTY = Buffer.alloc(0);

export interface Packet {
  readonly type: number;
  readonly flags: number;
  /** View into the packet's memory. */
  readonly body: Buffer;
}

export class PacketSplitter {
  readonly #maxPacketBytes: number;
  #refusedHead: Buffer = EMPTY;
  /** Incomplete packet. Its memory grows with the received bytes, not with the announced length. */
  #partial = EMPTY;
  #partialBytes = 0;

  constructor(maxPacketBytes: number) {
    this.#maxPacketBytes = maxPacketBytes;
  }

  /**
   * Yields the packets that are complete after this data. The caller must read all of them. Throws
   * a fatal FrameError if the data is not a packet or a packet is too large.
   */
  *split(data: Uint8Array): Generator<Buffer, void> {
    let unread: Buffer = Buffer.from(data.buffer, data.byteOffset, data.length);
    while (unread.length > 0) {
      if (this.#partialBytes > 0) {
        unread = yield* this.#continue(unread);
        continue;
      }
      const end = this.#endOf(unread);
      if (end === undefined || end > unread.length)
        return this.#append(unread, end ?? unread.length);
      yield unread.subarray(0, end);
      unread = unread.subarray(end);
    }
  }

  /**
   * Adds bytes to the incomplete packet. Adds one byte at a time until the length of the packet is
   * known.
   */
  *#continue(data: Buffer): Generator<Buffer, Buffer> {
    const packetEnd = this.#endOf(this.#partial.subarray(0, this.#partialBytes));
    const end = packetEnd ?? this.#partialBytes + 1;
    const byteCount = Math.min(end - this.#partialBytes, data.length);
    this.#append(data.subarray(0, byteCount), end);
    if (this.#partialBytes === packetEnd) {
      const packet = this.#partial.subarray(0, end);
      this.#partial = EMPTY;
      this.#partialBytes = 0;
      yield packet;
    }
    return data.subarray(byteCount);
  }

  #append(data: Buffer, end: number): void {
    const bytes = this.#partialBytes + data.length;
    if (bytes > this.#partial.length) {
      const doubled = Math.max(2 * this.#partial.length, MIN_PARTIAL_BYTES);
      const grown = Buffer.allocUnsafeSlow(Math.max(bytes, Math.min(end, doubled)));
      this.#partial.copy(grown, 0, 0, this.#partialBytes);
      this.#partial = grown;
    }
    data.copy(this.#partial, this.#partialBytes);
    this.#partialBytes = bytes;
  }

  /** True if the splitter holds no incomplete packet. */
  get isEmpty(): boolean {
    return this.#partialBytes === 0;
  }

  /** First bytes of the packet for which `split` threw an error. */
  get refusedHead(): Buffer {
    return this.#refusedHead;
  }

  #endOf(data: Buffer): number | undefined {
    try {
      return this.#check(data);
    } catch (error) {
      this.#refusedHead = data.subarray(0, 1 + MAX_LENGTH_BYTES);
      throw error;
    }
  }

  /** Returns the size of the packet, or `undefined` if its length field is incomplete. */
  #check(data: Buffer): number | undefined {
    const type = data.readUInt8(0) >> 4;
    if (type === PACKETS.ping || type === PACKETS.pong) return 1;
    if (type === 0 || type > PACKETS.event) throw framingError(`Unknown packet type ${type}`);
    const length = lengthOf(data);
    if (length === undefined) return undefined;
    const end = length.at + length.bytes;
    const typeMaxBytes = type === PACKETS.connect ? MAX_CONNECT_BYTES : Infinity;
    const maxBytes = Math.min(this.#maxPacketBytes, typeMaxBytes);
    if (end > maxBytes)
      throw new FrameError("too_large", 0, `The packet has more than ${maxBytes} bytes`, true);
    return end;
  }
}

/** Returns true if the bytes are empty or begin with the type of a CONNECT. */
export function startsWithConnect(bytes: Uint8Array): boolean {
  const first = bytes[0];
  return first === undefined || first >> 4 === PACKETS.connect;
}

export function packetOf(bytes: Buffer): Packet {
  const first = bytes.readUInt8(0);
  const body = bytes.length === 1 ? EMPTY : bytes.subarray(lengthOf(bytes)?.at);
  return { type: first >> 4, flags: first & 15, body };
}

function lengthOf(data: Buffer): { at: number; bytes: number } | undefined {
  let bytes = 0;
  for (let i = 0; i < MAX_LENGTH_BYTES; i++) {
    const byte = data[1 + i];
    if (byte === undefined) return undefined;
    bytes += (byte & 127) * 128 ** i;
    if (byte > 127) continue;
    if (bytes === 0) throw framingError("The packet has no body");
    return { at: 2 + i, bytes };
  }
  throw framingError("The packet's length field has more than 4 bytes");
}

function framingError(problem: string): FrameError {
  return new FrameError("malformed_frame", 0, problem, true);
}
