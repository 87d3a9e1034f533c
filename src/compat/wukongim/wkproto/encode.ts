// Writes the server's packets. Each packet is a separate WebSocket message, because some
// clients lose packets that share a message. Owns the memory in which packets are written.
// docs/compat/wkproto.md describes the layouts.

import { type PayloadCipher, pad } from "./crypto.ts";
import {
  EXPIRE_VERSION,
  HAS_SERVER_VERSION,
  PACKETS,
  SERVER_VERSION,
  SETTINGS,
} from "./packets.ts";

interface ConnackPacket {
  readonly version: number;
  readonly timeDiff: bigint;
  readonly reasonCode: number;
  readonly serverKey: string;
  readonly salt: string;
  readonly nodeId: bigint;
}

interface SendackPacket {
  readonly flags: number;
  readonly messageId: bigint;
  readonly clientSeq: number;
  readonly messageSeq: number;
  readonly reasonCode: number;
}

export interface RecvPacket {
  readonly flags: number;
  readonly setting: number;
  readonly fromUid: string;
  readonly channelId: string;
  readonly channelType: number;
  readonly expireS: number;
  readonly clientMsgNo: string;
  readonly messageId: bigint;
  readonly messageSeq: number;
  readonly timestampS: number;
  readonly topic: string;
  readonly payload: Uint8Array;
}

interface EventPacket {
  readonly id: string;
  readonly type: string;
  readonly timestampMs: bigint;
  readonly data: string;
}

export const PONG: Uint8Array = Uint8Array.of(PACKETS.pong << 4);

export function writeConnack(packet: ConnackPacket): Uint8Array {
  const { version, reasonCode, serverKey, salt } = packet;
  const isNew = version >= SERVER_VERSION;
  const writer = new PacketWriter();
  if (isNew) writer.u8(version);
  writer.i64(packet.timeDiff);
  writer.u8(reasonCode);
  writer.text(serverKey);
  writer.text(salt);
  if (isNew) writer.i64(packet.nodeId);
  return writer.end(PACKETS.connack, isNew ? HAS_SERVER_VERSION : 0);
}

export function writeSendack(packet: SendackPacket): Uint8Array {
  const writer = new PacketWriter();
  writer.i64(packet.messageId);
  writer.u32(packet.clientSeq);
  writer.u32(packet.messageSeq);
  writer.u8(packet.reasonCode);
  return writer.end(PACKETS.sendack, packet.flags);
}

export function writeDisconnect(reasonCode: number, text: string): Uint8Array {
  const writer = new PacketWriter();
  writer.u8(reasonCode);
  writer.text(text);
  return writer.end(PACKETS.disconnect);
}

export function writeEvent(packet: EventPacket): Uint8Array {
  const writer = new PacketWriter();
  writer.text(packet.id);
  writer.text(packet.type);
  writer.i64(packet.timestampMs);
  writer.bytes(Buffer.from(packet.data));
  return writer.end(PACKETS.event);
}

export function writeRecv(packet: RecvPacket, version: number): Uint8Array {
  return recvFrame(packet, version, { msgKey: "", payload: packet.payload });
}

/** A RECV for several clients. The parts that are the same for all of them are written once. */
export class EncryptedRecv {
  /** The packet, with zeros in place of the msgKey and the encrypted payload. */
  readonly #frame: Buffer;
  readonly #msgKeyOffset: number;
  readonly #payloadOffset: number;
  readonly #payload: Buffer;
  readonly #signed: Buffer;
  readonly #signedOffset: number;

  constructor(packet: RecvPacket, version: number) {
    this.#payload = pad("", packet.payload);
    const placeholder = Buffer.alloc(base64Bytes(this.#payload.length));
    const { messageId, messageSeq, clientMsgNo, timestampS } = packet;
    const { fromUid, channelId, channelType } = packet;
    const signed = `${messageId}${messageSeq}${clientMsgNo}${timestampS}${fromUid}${channelId}${channelType}`;
    this.#signed = pad(signed, placeholder);
    this.#signedOffset = Buffer.byteLength(signed);
    const placeholders = { msgKey: NO_KEY, payload: placeholder };
    this.#frame = recvFrame(packet, version, placeholders);
    this.#msgKeyOffset = this.#frame.indexOf(NO_KEY, 0, "latin1");
    this.#payloadOffset = this.#frame.length - placeholder.length;
  }

  encryptFor(cipher: PayloadCipher): Uint8Array {
    const payload = cipher.encrypt(this.#payload);
    this.#signed.write(payload, this.#signedOffset, "latin1");
    const frame = Buffer.allocUnsafe(this.#frame.length);
    frame.set(this.#frame);
    frame.write(cipher.sign(this.#signed), this.#msgKeyOffset, "latin1");
    frame.write(payload, this.#payloadOffset, "latin1");
    return frame;
  }
}

/**
 * Placeholder for the msgKey. A search in the packet finds its offset, because no earlier field
 * contains 32 zero bytes in a row.
 */
const NO_KEY = "\0".repeat(32);

function base64Bytes(bytes: number): number {
  return 4 * Math.ceil(bytes / 3);
}

function recvFrame(
  packet: RecvPacket,
  version: number,
  { msgKey, payload }: { msgKey: string; payload: Uint8Array },
): Buffer {
  const writer = new PacketWriter();
  writer.u8(packet.setting);
  writer.text(msgKey);
  writer.text(packet.fromUid);
  writer.text(packet.channelId);
  writer.u8(packet.channelType);
  if (version >= EXPIRE_VERSION) writer.u32(packet.expireS);
  writer.text(packet.clientMsgNo);
  writer.i64(packet.messageId);
  writer.u32(packet.messageSeq);
  writer.u32(packet.timestampS);
  if ((packet.setting & SETTINGS.topic) !== 0) writer.text(packet.topic);
  writer.bytes(payload);
  return writer.end(PACKETS.recv, packet.flags);
}

const HEAD_BYTES = 5;

/** Writes one packet into memory that all writers share. `end` returns a copy. */
class PacketWriter {
  static #shared = Buffer.alloc(4096);
  #offset = HEAD_BYTES;

  u8(value: number): void {
    const start = this.#reserve(1);
    PacketWriter.#shared.writeUInt8(value, start);
  }

  u32(value: number): void {
    const start = this.#reserve(4);
    PacketWriter.#shared.writeUInt32BE(value, start);
  }

  i64(value: bigint): void {
    const start = this.#reserve(8);
    PacketWriter.#shared.writeBigInt64BE(value, start);
  }

  text(value: string): void {
    const bytes = Buffer.byteLength(value);
    const start = this.#reserve(2 + bytes);
    PacketWriter.#shared.writeUInt16BE(bytes, start);
    PacketWriter.#shared.write(value, start + 2);
  }

  bytes(value: Uint8Array): void {
    const start = this.#reserve(value.length);
    PacketWriter.#shared.set(value, start);
  }

  end(type: number, flags = 0): Buffer {
    const shared = PacketWriter.#shared;
    let length = this.#offset - HEAD_BYTES;
    let lengthBytes = 1;
    for (let remainder = length; remainder > 127; remainder >>= 7) lengthBytes += 1;
    const start = HEAD_BYTES - 1 - lengthBytes;
    shared[start] = (type << 4) | flags;
    for (let i = 1; i <= lengthBytes; i++) {
      shared[start + i] = (length & 127) | (i < lengthBytes ? 128 : 0);
      length >>= 7;
    }
    return Buffer.from(shared.subarray(start, this.#offset));
  }

  #reserve(bytes: number): number {
    const start = this.#offset;
    this.#offset += bytes;
    if (this.#offset <= PacketWriter.#shared.length) return start;
    const grown = Buffer.alloc(2 * this.#offset);
    grown.set(PacketWriter.#shared);
    PacketWriter.#shared = grown;
    return start;
  }
}
