// Builds the HTTP requests, WebSocket upgrades and frames that the load client sends, and samples
// of the broker's replies. Requests and frames contain placeholders for numbers. A placeholder is
// as long as the number that replaces it, so that no length in a frame changes.

import { generateKeyPairSync, randomBytes } from "node:crypto";
import { type ChannelRef, type Message, STREAM_CONTENT } from "../../src/broker/model.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { createNativeProtocol } from "../../src/protocol/native/native.ts";
import { NATIVE_SUBPROTOCOL, NATIVE_VERSION } from "../../src/protocol/native/ops.ts";
import type { ResumePoint } from "../../src/protocol/protocol.ts";

/** Placeholder for the 10-digit number of the message. */
export const MESSAGE_NUMBER = "{kkkkkkkk}";
/** Placeholder for the 6-digit number of the connection. */
export const CONNECTION_NUMBER = "{iiii}";

/** Returns the digits that replace CONNECTION_NUMBER on the connection with this index. */
export function connectionNumber(index: number): string {
  return String(index).padStart(6, "0");
}

/** Returns a template of a `clientMsgNo` that is different for each message and each run. */
export function freshMessageNumber(): string {
  return `${randomBytes(6).toString("hex")}-${MESSAGE_NUMBER}`;
}

/** Payload of all benches: a JSON text message of 200 bytes. */
export const PAYLOAD: Uint8Array = jsonPayload(200);

/** Values in sample frames. Only their encoded length matters. */
const SOME_ID = 2 ** 48;
const SOME_SEQ = 100_000;
const SOME_INDEX = 1000;

/** Fields that identify a stream, as its producer sends them. */
export interface StreamName {
  readonly channel: ChannelRef;
  readonly fromUid: string;
  readonly clientMsgNo: string;
}

export function httpRequest(path: string, body: string, apiToken = ""): Uint8Array {
  const head = [
    `POST ${path} HTTP/1.1`,
    "Host: 127.0.0.1",
    "Content-Type: application/json",
    `Content-Length: ${Buffer.byteLength(body)}`,
    ...(apiToken === "" ? [] : [`token: ${apiToken}`]),
  ];
  return Buffer.from(`${head.join("\r\n")}\r\n\r\n${body}`);
}

/** Returns the body of a `/message/send`. The default payload is that of all benches. */
export function sendBody({
  channel,
  fromUid,
  clientMsgNo,
  payload = PAYLOAD,
}: {
  readonly channel: ChannelRef;
  readonly fromUid: string;
  readonly clientMsgNo: string | undefined;
  readonly payload?: Uint8Array;
}): string {
  return JSON.stringify({
    channel_id: channel.id,
    channel_type: channel.type,
    from_uid: fromUid,
    client_msg_no: clientMsgNo,
    header: { no_persist: 0, red_dot: 1, sync_once: 0 },
    payload: Buffer.from(payload).toString("base64"),
  });
}

/** Text of one chunk of a stream, about the amount that a language model produces at once. */
export const CHUNK: string = `${MESSAGE_NUMBER} `;

/** Text of each chunk of a stream whose chunks are all equal. */
export const CHUNK_TEXT = "some words ";

/** Returns the body of a `POST /event` with an event of a stream. */
export function eventBody(
  { channel, fromUid, clientMsgNo }: StreamName,
  event: { readonly type: string; readonly data: string },
): object {
  return {
    client_msg_no: clientMsgNo,
    channel_id: channel.id,
    channel_type: channel.type,
    from_uid: fromUid,
    event,
  };
}

export function chunkBody(stream: StreamName): string {
  return JSON.stringify(eventBody(stream, { type: STREAM_CONTENT, data: CHUNK }));
}

/**
 * Returns an EVENT push of the same size as the broker's. `channel` is the channel as the viewer
 * names it.
 */
export function sampleChunk({ fromUid, clientMsgNo }: StreamName, channel: ChannelRef): Uint8Array {
  return bytes(
    codec().encodePush({
      kind: "event",
      channel,
      event: {
        key: `2:${channel.id}`,
        ...{ channel, fromUid, clientMsgNo, data: CHUNK },
        eventId: String(SOME_INDEX),
        type: STREAM_CONTENT,
        timestampMs: Date.UTC(2025, 0, 1),
        stream: {
          messageSeq: SOME_SEQ,
          index: SOME_INDEX,
          nextIndex: SOME_INDEX + 1,
          textOffset: SOME_INDEX * CHUNK.length,
          state: "active",
        },
      },
    }),
  );
}

export function upgradeRequest(path = "/", subprotocol?: string): Uint8Array {
  const head = [
    `GET ${path} HTTP/1.1`,
    "Host: 127.0.0.1",
    "Upgrade: websocket",
    "Connection: Upgrade",
    `Sec-WebSocket-Key: ${Buffer.alloc(16, "jindou").toString("base64")}`,
    "Sec-WebSocket-Version: 13",
  ];
  if (subprotocol !== undefined) head.push(`Sec-WebSocket-Protocol: ${subprotocol}`);
  return Buffer.from(`${head.join("\r\n")}\r\n\r\n`);
}

export const NATIVE_UPGRADE: Uint8Array = upgradeRequest("/", NATIVE_SUBPROTOCOL);

/**
 * Returns a client frame: a text frame for a string, otherwise a binary frame. The mask is zero,
 * which is legal and keeps the placeholders readable.
 */
export function clientFrame(content: Uint8Array | string): Uint8Array {
  const payload = bytes(content);
  const first = typeof content === "string" ? 0x81 : 0x82;
  const { length } = payload;
  const head =
    length < 126
      ? [0x80 | length]
      : length <= 0xffff
        ? [0x80 | 126, ...bigEndian(length, 2)]
        : [0x80 | 127, ...bigEndian(length, 8)];
  return Buffer.concat([Buffer.from([first, ...head, 0, 0, 0, 0]), payload]);
}

function bigEndian(value: number, size: 2 | 8): Uint8Array {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(BigInt(value));
  return bytes.subarray(-size);
}

export function connectFrame(
  uid: string,
  token: string,
  resume: readonly ResumePoint[] = [],
): Uint8Array {
  return clientFrame(
    encodeOperation({
      kind: "connect",
      sessionName: "",
      ref: 1,
      version: NATIVE_VERSION,
      uid,
      token,
      flag: 0,
      deviceId: "",
      level: undefined,
      resume,
    }),
  );
}

/** Returns a text frame with a JSON-RPC request. */
export function jsonRpcRequest(method: string, params: object): Uint8Array {
  return clientFrame(JSON.stringify({ jsonrpc: "2.0", method, id: "1", params }));
}

/** Returns the first bytes of the JSON-RPC notification, or of any reply if no name is given. */
export function jsonRpcStart(notification?: string): Uint8Array {
  const method = notification === undefined ? "" : `,"method":"${notification}"`;
  return Buffer.from(`{"jsonrpc":"2.0"${method}`);
}

/** Returns a CONNECT of WKProto version 5 in a WebSocket frame. `uid` may contain a placeholder. */
export function wkprotoConnect(uid: string, token: string): Uint8Array {
  return clientFrame(wkprotoPacket(uid, token));
}

/** Returns the same CONNECT without the WebSocket frame. */
export function wkprotoPacket(uid: string, token: string): Uint8Array {
  const text = (value: string) =>
    Buffer.concat([Buffer.from([0, value.length]), Buffer.from(value)]);
  const { publicKey } = generateKeyPairSync("x25519");
  const key = publicKey.export({ format: "der", type: "spki" }).subarray(-32);
  const body = Buffer.concat([
    Buffer.from([5, 0]), // version, device flag
    ...["", uid, token].map(text),
    Buffer.alloc(8), // the client's time
    text(key.toString("base64")),
  ]);
  return Buffer.concat([Buffer.from([0x10, body.length]), body]);
}

export function sendFrame(channel: ChannelRef, clientMsgNo: string, payload = PAYLOAD): Uint8Array {
  return clientFrame(
    encodeOperation({
      kind: "send",
      ref: 2,
      channel,
      clientMsgNo,
      header: { noPersist: false, redDot: true, syncOnce: false },
      expireS: 0,
      streamNo: undefined,
      tagKey: undefined,
      payload,
    }),
  );
}

/** Returns a SENDACK of the same size as the broker's. */
export function sampleSendack(clientMsgNo: string): Uint8Array {
  return bytes(
    codec().encodeReply({
      kind: "sendack",
      ref: 2,
      messageId: SOME_ID,
      messageSeq: SOME_SEQ,
      clientMsgNo,
    }),
  );
}

/** Returns a MESSAGE push of the same size as the broker's. */
export function sampleMessage(
  message: Pick<Message, "channel" | "fromUid" | "clientMsgNo">,
  payload = PAYLOAD,
): Uint8Array {
  const { channel } = message;
  return bytes(
    codec().encodePush({
      kind: "message",
      channel,
      message: {
        ...message,
        messageId: SOME_ID,
        messageSeq: SOME_SEQ,
        key: `2:${channel.id}`,
        timestampMs: Date.UTC(2025, 0, 1),
        header: { noPersist: false, redDot: true },
        expireS: 0,
        streamNo: undefined,
        tagKey: undefined,
        payload,
        stream: undefined,
      },
    }),
  );
}

/** Returns a response body of `/message/send` of the same size as the broker's. */
export function sampleSendAnswer(clientMsgNo: string): string {
  return JSON.stringify({
    message_id: SOME_ID,
    message_seq: SOME_SEQ,
    client_msg_no: clientMsgNo,
  });
}

/** Returns the bytes that identify the kind of a frame: the array header and the operation. */
export function frameStart(frame: Uint8Array): Uint8Array {
  return frame.subarray(0, 2);
}

function codec() {
  return createNativeProtocol({
    maxIdLength: 128,
    maxPayloadBytes: 65_536,
    maxResumePoints: 1000,
    maxPresenceUids: 10_000,
    maxWatchedUids: 200,
    maxCommandAcks: 1000,
  }).open();
}

function bytes(frame: Uint8Array | string): Uint8Array {
  return typeof frame === "string" ? Buffer.from(frame) : frame;
}

/** Returns a text message as JSON with this number of bytes. Throws if the number is too small. */
export function jsonPayload(length: number): Uint8Array {
  const empty = JSON.stringify({ type: 1, content: "" });
  if (length < empty.length) throw new RangeError(`a message has at least ${empty.length} bytes`);
  return Buffer.from(JSON.stringify({ type: 1, content: "x".repeat(length - empty.length) }));
}
