// Reads the fields of a client's packets. Checks only the layout, not the meaning of the fields.
// Throws fatal FrameErrors. docs/compat/wkproto.md describes the layouts.

import { isAscii } from "node:buffer";
import { FrameError } from "../../../protocol/protocol.ts";
import { EVENT_VERSION, EXPIRE_VERSION, SETTINGS } from "./packets.ts";

/** Maximum size of a string. WuKongIM reads the length as a signed 16-bit number. */
const MAX_TEXT_BYTES = 32_767;
const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export interface ConnectPacket {
  readonly version: number;
  readonly deviceFlag: number;
  readonly deviceId: string;
  readonly uid: string;
  readonly token: string;
  readonly clientTimestamp: bigint;
  readonly clientKey: string;
}

export interface SendPacket {
  readonly setting: number;
  readonly clientSeq: number;
  readonly clientMsgNo: string;
  readonly streamNo: string;
  readonly channelId: string;
  readonly channelType: number;
  readonly expireS: number;
  readonly msgKey: string;
  readonly topic: string;
  /** View into the packet's memory. */
  readonly payload: Buffer;
}

interface RecvackPacket {
  readonly messageId: bigint;
  readonly messageSeq: number;
}

export function readConnect(body: Buffer): ConnectPacket {
  const reader = new BodyReader(body);
  const packet = {
    version: reader.u8(),
    deviceFlag: reader.u8(),
    deviceId: reader.text(),
    uid: reader.text(),
    token: reader.text(),
    clientTimestamp: reader.i64(),
    clientKey: reader.text(),
  };
  reader.finish();
  return packet;
}

export function readSend(body: Buffer, version: number): SendPacket {
  const reader = new BodyReader(body);
  const setting = reader.u8();
  const hasStream = (setting & SETTINGS.stream) !== 0;
  return {
    setting,
    clientSeq: reader.u32(),
    clientMsgNo: reader.text(),
    streamNo: hasStream && version > 1 && version < EVENT_VERSION ? reader.text() : "",
    channelId: reader.text(),
    channelType: reader.u8(),
    expireS: version >= EXPIRE_VERSION ? reader.u32() : 0,
    msgKey: reader.text(),
    topic: (setting & SETTINGS.topic) !== 0 ? reader.text() : "",
    payload: reader.rest(),
  };
}

export function readClientSeq(body: Buffer): number {
  const reader = new BodyReader(body);
  reader.u8();
  return reader.u32();
}

export function readRecvack(body: Buffer): RecvackPacket {
  const reader = new BodyReader(body);
  const packet = { messageId: reader.i64(), messageSeq: reader.u32() };
  reader.finish();
  return packet;
}

class BodyReader {
  readonly #body: Buffer;
  #offset = 0;

  constructor(body: Buffer) {
    this.#body = body;
  }

  u8(): number {
    return this.#body.readUInt8(this.#skip(1));
  }

  u32(): number {
    return this.#body.readUInt32BE(this.#skip(4));
  }

  i64(): bigint {
    return this.#body.readBigInt64BE(this.#skip(8));
  }

  text(): string {
    const length = this.#body.readUInt16BE(this.#skip(2));
    if (length > MAX_TEXT_BYTES) throw malformed(`A text field exceeds ${MAX_TEXT_BYTES} bytes`);
    const start = this.#skip(length);
    const bytes = this.#body.subarray(start, start + length);
    if (isAscii(bytes)) return bytes.toString("latin1");
    try {
      return UTF8.decode(bytes);
    } catch {
      throw malformed("A text field is not valid UTF-8");
    }
  }

  rest(): Buffer {
    return this.#body.subarray(this.#offset);
  }

  finish(): void {
    if (this.#offset < this.#body.length)
      throw malformed("The packet has bytes after its last field");
  }

  #skip(bytes: number): number {
    const start = this.#offset;
    if (start + bytes > this.#body.length) throw malformed("The packet ends inside a field");
    this.#offset += bytes;
    return start;
  }
}

function malformed(problem: string): FrameError {
  return new FrameError("malformed_frame", 0, problem, true);
}
