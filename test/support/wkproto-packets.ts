// Encodes a client's WKProto packets, decodes a server's, and derives the client's keys. Written
// from the reference and not from our codec, so that tests compare two implementations. Fields have
// the names of the captured sessions (test/compat/wukongim/goldens), and 64-bit integers are
// strings.

import {
  createCipheriv,
  createDecipheriv,
  createHash,
  createPrivateKey,
  createPublicKey,
  diffieHellman,
  type KeyObject,
  randomBytes,
} from "node:crypto";

export type Fields = Readonly<Record<string, string | number>>;

export interface WkPacket {
  readonly packet: string;
  readonly flags: number;
  readonly fields: Fields;
}

/** AES key and initialisation vector of a session, each as a string of 16 characters. */
export interface WkKeys {
  readonly aesKey: string;
  readonly iv: string;
}

const NAMES = [
  ..."- CONNECT CONNACK SEND SENDACK RECV RECVACK PING PONG".split(" "),
  ..."DISCONNECT SUB SUBACK EVENT".split(" "),
];
const TOPIC = 8;
const STREAM = 2;

// --- Keys ---

/** Creates the key pair of a client. `clientKey` is the raw public key in Base64. */
export function newKeys(): {
  readonly privateKey: KeyObject;
  readonly clientKey: string;
} {
  // Not `generateKeyPairSync`, whose key may stop the process when it is exported (crypto.ts).
  const privateKey = privateKeyOf(randomBytes(32));
  const x = createPublicKey(privateKey).export({ format: "jwk" }).x ?? "";
  return {
    privateKey,
    clientKey: Buffer.from(x, "base64url").toString("base64"),
  };
}

/** Returns the private key with these 32 raw bytes. */
export function privateKeyOf(raw: Buffer): KeyObject {
  const prefix = Buffer.from("302e020100300506032b656e04220420", "hex");
  const key = Buffer.concat([prefix, raw]);
  return createPrivateKey({ key, format: "der", type: "pkcs8" });
}

/** Derives the keys of a session. `serverKey` is the server's raw public key in Base64. */
export function deriveKeys(privateKey: KeyObject, serverKey: string, iv: string): WkKeys {
  const x = Buffer.from(serverKey, "base64").toString("base64url");
  const jwk = { kty: "OKP", crv: "X25519", x };
  const publicKey = createPublicKey({ key: jwk, format: "jwk" });
  const secret = diffieHellman({ privateKey, publicKey });
  return { aesKey: md5(secret.toString("base64")).slice(0, 16), iv };
}

const md5 = (text: string) => createHash("md5").update(text).digest("hex");

/** Encrypts a string. Returns Base64. */
export function encrypt({ aesKey, iv }: WkKeys, text: string | Buffer): string {
  const cipher = createCipheriv("aes-128-cbc", aesKey, iv);
  const plain = Buffer.from(text);
  return Buffer.concat([cipher.update(plain), cipher.final()]).toString("base64");
}

export function decrypt({ aesKey, iv }: WkKeys, base64: string): Buffer {
  const decipher = createDecipheriv("aes-128-cbc", aesKey, iv);
  const encrypted = Buffer.from(base64, "base64");
  return Buffer.concat([decipher.update(encrypted), decipher.final()]);
}

/** Returns the msgKey (signature) of a string. */
export const msgKeyOf = (keys: WkKeys, text: string) => md5(encrypt(keys, text));

// --- Bytes of a client ---

const u8 = (value: unknown) => Buffer.from([Number(value)]);

function u32(value: unknown): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(Number(value ?? 0));
  return bytes;
}

function i64(value: unknown): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigInt64BE(BigInt(String(value ?? 0)));
  return bytes;
}

function text(value: unknown): Buffer {
  const bytes = Buffer.from(String(value ?? ""));
  const length = Buffer.alloc(2);
  length.writeUInt16BE(bytes.length);
  return Buffer.concat([length, bytes]);
}

/** Returns a packet: the fixed header with type, flags and length, then the body. */
export function encodePacket(type: number, flags: number, body: Buffer): Buffer {
  const header = [(type << 4) | flags];
  let remaining = body.length;
  do {
    header.push((remaining & 127) | (remaining > 127 ? 128 : 0));
    remaining >>= 7;
  } while (remaining > 0);
  return Buffer.concat([Buffer.from(header), body]);
}

/**
 * Encodes a packet. SEND accepts either `payload`, which is sent unchanged, or `plain`, which is
 * encrypted first. If `msgKey` is absent, the correct `msgKey` is computed.
 */
export function encodeClientPacket(
  { packet, flags, fields }: WkPacket,
  version: number,
  keys?: WkKeys,
): Buffer {
  const type = NAMES.indexOf(packet);
  const body = (...buffers: readonly Buffer[]) => encodePacket(type, flags, Buffer.concat(buffers));
  switch (packet) {
    case "CONNECT":
      return body(
        u8(fields.version),
        u8(fields.deviceFlag),
        ...[fields.deviceId, fields.uid, fields.token].map(text),
        i64(fields.clientTimestamp),
        text(fields.clientKey),
      );
    case "SEND":
      return body(...sendFields(fields, version, keys));
    case "RECVACK":
      return body(i64(fields.messageId), u32(fields.messageSeq));
    case "DISCONNECT":
      return body(u8(fields.reasonCode), text(fields.reason));
    case "SUB":
      return body(
        u8(0),
        ...[fields.subNo, fields.channelId].map(text),
        u8(fields.channelType),
        u8(fields.action),
        text(fields.param),
      );
    case "PING":
      return Buffer.from([0x70]);
    default:
      throw new Error(`${packet} is not a packet of a client`);
  }
}

function sendFields(fields: Fields, version: number, keys: WkKeys | undefined): readonly Buffer[] {
  const setting = Number(fields.setting ?? 0);
  const { clientSeq, clientMsgNo = "", channelId, channelType } = fields;
  const plain = String(fields.plain ?? "");
  const payload = String(fields.payload ?? (keys ? encrypt(keys, plain) : plain));
  const signed = `${clientSeq}${clientMsgNo}${channelId}${channelType}${payload}`;
  const hasStream = (setting & STREAM) !== 0 && version > 1 && version < 5;
  return [
    u8(setting),
    u32(clientSeq),
    text(clientMsgNo),
    ...(hasStream ? [text(fields.streamNo)] : []),
    text(channelId),
    u8(channelType),
    ...(version >= 3 ? [u32(fields.expire)] : []),
    text(fields.msgKey ?? (keys ? msgKeyOf(keys, signed) : "")),
    ...((setting & TOPIC) !== 0 ? [text(fields.topic)] : []),
    Buffer.from(payload),
  ];
}

// --- Bytes of a server ---

class Reader {
  readonly bytes: Buffer;
  at = 0;

  constructor(bytes: Buffer) {
    this.bytes = bytes;
  }

  u8 = () => this.bytes.readUInt8(this.#skip(1));
  u32 = () => this.bytes.readUInt32BE(this.#skip(4));
  i64 = () => String(this.bytes.readBigInt64BE(this.#skip(8)));

  text = () => {
    const length = this.bytes.readUInt16BE(this.#skip(2));
    const at = this.#skip(length);
    return this.bytes.toString("utf8", at, at + length);
  };

  remainingText = () => this.bytes.toString("utf8", this.#skip(this.remaining));

  get remaining(): number {
    return this.bytes.length - this.at;
  }

  #skip(bytes: number): number {
    const at = this.at;
    if (at + bytes > this.bytes.length) throw new Error("the packet ends in the middle of a field");
    this.at += bytes;
    return at;
  }
}

/** Decodes one complete packet, which must be the only one in its WebSocket message. */
export function decodeServerPacket(bytes: Buffer, version: number, keys?: WkKeys): WkPacket {
  const first = bytes.readUInt8(0);
  const packet = NAMES[first >> 4] ?? "";
  const flags = first & 15;
  if (packet === "PONG" && bytes.length === 1) return { packet, flags, fields: {} };
  let at = 1;
  let length = 0;
  for (let byte = 128; byte > 127; at++) {
    byte = bytes.readUInt8(at);
    length += (byte & 127) * 128 ** (at - 1);
  }
  const reader = new Reader(bytes.subarray(at));
  if (reader.remaining !== length)
    throw new Error(`the packet has ${reader.remaining} bytes, its header announces ${length}`);
  const fields = readFields(packet, flags, reader, version, keys);
  if (reader.remaining > 0)
    throw new Error(`${packet} has ${reader.remaining} bytes after its last field`);
  return { packet, flags, fields };
}

function readFields(
  packet: string,
  flags: number,
  reader: Reader,
  version: number,
  keys: WkKeys | undefined,
): Fields {
  switch (packet) {
    case "CONNACK":
      return {
        ...(flags === 1 && { serverVersion: reader.u8() }),
        timeDiff: reader.i64(),
        reasonCode: reader.u8(),
        serverKey: reader.text(),
        salt: reader.text(),
        ...(version >= 4 && { nodeId: reader.i64() }),
      };
    case "SENDACK":
      return {
        messageId: reader.i64(),
        clientSeq: reader.u32(),
        messageSeq: reader.u32(),
        reasonCode: reader.u8(),
      };
    case "RECV":
      return readRecv(reader, version, keys);
    case "DISCONNECT":
      return { reasonCode: reader.u8(), reason: reader.text() };
    case "EVENT":
      return {
        id: reader.text(),
        type: reader.text(),
        timestamp: reader.i64(),
        data: reader.remainingText(),
      };
    default:
      throw new Error(`${packet} is not a packet of a server`);
  }
}

function readRecv(reader: Reader, version: number, keys: WkKeys | undefined): Fields {
  const setting = reader.u8();
  const hasStream = (setting & STREAM) !== 0 && version > 1 && version < 5;
  const head = {
    setting,
    msgKey: reader.text(),
    fromUid: reader.text(),
    channelId: reader.text(),
    channelType: reader.u8(),
    ...(version >= 3 && { expire: reader.u32() }),
    clientMsgNo: reader.text(),
    ...(hasStream && {
      streamFlag: reader.u8(),
      streamNo: reader.text(),
      streamId: reader.i64(),
    }),
    messageId: reader.i64(),
    messageSeq: reader.u32(),
    timestamp: reader.u32(),
    ...((setting & TOPIC) !== 0 && { topic: reader.text() }),
  };
  const payload = reader.remainingText();
  if (keys === undefined) return { ...head, plain: payload };
  const { messageId, messageSeq, clientMsgNo, timestamp } = head;
  const { fromUid, channelId, channelType } = head;
  const signed = `${messageId}${messageSeq}${clientMsgNo}${timestamp}${fromUid}${channelId}${channelType}${payload}`;
  if (msgKeyOf(keys, signed) !== head.msgKey) throw new Error("the msgKey of the message is wrong");
  return { ...head, plain: decrypt(keys, payload).toString() };
}
