// Bodies of a client's packets → their fields. Pure. Checks the layout only, not what the fields
// mean; throws fatal FrameErrors. Layouts: docs/protocol/wkproto.md.

import { isAscii } from "node:buffer";
import { FrameError } from "../protocol.ts";
import { EVENT_VERSION, EXPIRE_VERSION, SETTINGS } from "./packets.ts";

/** Longest text; the reference reads its length as a signed number. */
const MAX_TEXT_BYTES = 32_767;
const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export interface ConnectPacket {
  readonly version: number;
  readonly deviceFlag: number;
  readonly deviceId: string;
  readonly uid: string;
  readonly token: string;
  /** Unix milliseconds. */
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
  /** In the packet's memory. */
  readonly payload: Buffer;
}

interface RecvackPacket {
  readonly messageId: bigint;
  readonly messageSeq: number;
}

/** The same in all versions. */
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

/** Of a SEND whose other fields are not read. */
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
  #at = 0;

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
    if (length > MAX_TEXT_BYTES) throw malformed("A text is too long");
    const at = this.#skip(length);
    const bytes = this.#body.subarray(at, at + length);
    if (isAscii(bytes)) return bytes.toString("latin1");
    try {
      return UTF8.decode(bytes);
    } catch {
      throw malformed("A text is not UTF-8");
    }
  }

  rest(): Buffer {
    return this.#body.subarray(this.#at);
  }

  finish(): void {
    if (this.#at < this.#body.length) throw malformed("The packet is too long");
  }

  /** Returns where the next field begins. */
  #skip(bytes: number): number {
    const at = this.#at;
    if (at + bytes > this.#body.length) throw malformed("The packet is cut");
    this.#at += bytes;
    return at;
  }
}

function malformed(problem: string): FrameError {
  return new FrameError("malformed_frame", 0, problem, true);
}
