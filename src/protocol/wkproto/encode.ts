// Fields of a server's packets → bytes, each a packet and thus a WebSocket message of its own: some
// clients lose packets that share one. State: the memory that packets are written in. Layouts:
// docs/protocol/wkproto.md.

import { type PayloadCipher, pad } from "./crypto.ts";
import {
  EXPIRE_VERSION,
  HAS_SERVER_VERSION,
  PACKETS,
  SERVER_VERSION,
  SETTINGS,
} from "./packets.ts";

interface ConnackPacket {
  /** Of the protocol, as the client gets it. */
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
  /** Unix seconds. */
  readonly timestampS: number;
  readonly topic: string;
  /** Not encrypted. */
  readonly payload: Uint8Array;
}

interface EventPacket {
  readonly id: string;
  readonly type: string;
  /** Unix milliseconds. */
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

/** The same in all versions. */
export function writeSendack(packet: SendackPacket): Uint8Array {
  const writer = new PacketWriter();
  writer.i64(packet.messageId);
  writer.u32(packet.clientSeq);
  writer.u32(packet.messageSeq);
  writer.u8(packet.reasonCode);
  return writer.end(PACKETS.sendack, packet.flags);
}

/** The same in all versions. */
export function writeDisconnect(reasonCode: number, text: string): Uint8Array {
  const writer = new PacketWriter();
  writer.u8(reasonCode);
  writer.text(text);
  return writer.end(PACKETS.disconnect);
}

/** The same in all versions that have it. */
export function writeEvent(packet: EventPacket): Uint8Array {
  const writer = new PacketWriter();
  writer.text(packet.id);
  writer.text(packet.type);
  writer.i64(packet.timestampMs);
  writer.bytes(Buffer.from(packet.data));
  return writer.end(PACKETS.event);
}

/** A RECV that is not encrypted. */
export function writeRecv(packet: RecvPacket, version: number): Uint8Array {
  return recvFrame(packet, version, { msgKey: "", payload: packet.payload });
}

/** A RECV for several clients, each with keys of its own. */
export class EncryptedRecv {
  /** With room for the parts that differ. */
  readonly #frame: Buffer;
  readonly #keyAt: number;
  readonly #payloadAt: number;
  readonly #payload: Buffer;
  readonly #signed: Buffer;
  readonly #signedAt: number;

  constructor(packet: RecvPacket, version: number) {
    this.#payload = pad("", packet.payload);
    const room = Buffer.alloc(base64Bytes(this.#payload.length));
    const { messageId, messageSeq, clientMsgNo, timestampS } = packet;
    const { fromUid, channelId, channelType } = packet;
    const signed = `${messageId}${messageSeq}${clientMsgNo}${timestampS}${fromUid}${channelId}${channelType}`;
    this.#signed = pad(signed, room);
    this.#signedAt = Buffer.byteLength(signed);
    const parts = { msgKey: NO_KEY, payload: room };
    this.#frame = recvFrame(packet, version, parts);
    this.#keyAt = this.#frame.indexOf(NO_KEY, 0, "latin1");
    this.#payloadAt = this.#frame.length - room.length;
  }

  for(cipher: PayloadCipher): Uint8Array {
    const payload = cipher.encrypt(this.#payload);
    this.#signed.write(payload, this.#signedAt, "latin1");
    const frame = Buffer.allocUnsafe(this.#frame.length);
    frame.set(this.#frame);
    frame.write(cipher.sign(this.#signed), this.#keyAt, "latin1");
    frame.write(payload, this.#payloadAt, "latin1");
    return frame;
  }
}

/** As long as a msgKey, and the first field with more than one byte. */
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

/** Bytes before the body: type and flags, and the longest length. */
const HEAD_BYTES = 5;

/** Writes one packet into memory that all share; `end` copies it out. */
class PacketWriter {
  static #shared = Buffer.alloc(4096);
  #at = HEAD_BYTES;

  u8(value: number): void {
    const at = this.#take(1);
    PacketWriter.#shared.writeUInt8(value, at);
  }

  u32(value: number): void {
    const at = this.#take(4);
    PacketWriter.#shared.writeUInt32BE(value, at);
  }

  i64(value: bigint): void {
    const at = this.#take(8);
    PacketWriter.#shared.writeBigInt64BE(value, at);
  }

  text(value: string): void {
    const bytes = Buffer.byteLength(value);
    const at = this.#take(2 + bytes);
    PacketWriter.#shared.writeUInt16BE(bytes, at);
    PacketWriter.#shared.write(value, at + 2);
  }

  bytes(value: Uint8Array): void {
    const at = this.#take(value.length);
    PacketWriter.#shared.set(value, at);
  }

  end(type: number, flags = 0): Buffer {
    const shared = PacketWriter.#shared;
    let length = this.#at - HEAD_BYTES;
    let lengthBytes = 1;
    for (let rest = length; rest > 127; rest >>= 7) lengthBytes += 1;
    const start = HEAD_BYTES - 1 - lengthBytes;
    shared[start] = (type << 4) | flags;
    for (let i = 1; i <= lengthBytes; i++) {
      shared[start + i] = (length & 127) | (i < lengthBytes ? 128 : 0);
      length >>= 7;
    }
    return Buffer.from(shared.subarray(start, this.#at));
  }

  /** Makes room for so many bytes and returns where they go. */
  #take(bytes: number): number {
    const at = this.#at;
    this.#at += bytes;
    if (this.#at <= PacketWriter.#shared.length) return at;
    const grown = Buffer.alloc(2 * this.#at);
    grown.set(PacketWriter.#shared);
    PacketWriter.#shared = grown;
    return at;
  }
}
