// Operation → bytes, for clients (SDK, tests); the server does not load it. No state. Values are not judged here, the server does;
// only numbers that have no encoding throw (RangeError). Browser-safe.

import type { ChannelRef } from "../../broker/model.ts";
import type { Operation } from "../protocol.ts";
import { CLIENT_OPS, FLAG_BITS } from "./ops.ts";
import { FrameWriter, textBytes } from "./writer.ts";

type OperationOf<K extends Operation["kind"]> = Extract<Operation, { kind: K }>;

/** Bytes that cover the numbers and headers of any frame or nested entry. */
const FIXED_BYTES = 80;

/** One frame for `operation`; its bytes are the caller's. */
export function encodeOperation(operation: Operation): Uint8Array {
  const writer = new FrameWriter();
  writer.begin(maxBytes(operation));
  writeOperation(writer, operation);
  return writer.end().slice();
}

function maxBytes(operation: Operation): number {
  switch (operation.kind) {
    case "connect": {
      const { uid, token, deviceId, resume } = operation;
      let bytes =
        FIXED_BYTES + textBytes(uid) + textBytes(token) + textBytes(deviceId);
      for (const { channel } of resume)
        bytes += FIXED_BYTES + textBytes(channel.id);
      return bytes;
    }
    case "send":
      return (
        FIXED_BYTES +
        textBytes(operation.channel.id) +
        textBytes(operation.clientMsgNo) +
        textBytes(operation.streamNo ?? "") +
        textBytes(operation.tagKey ?? "") +
        operation.payload.length
      );
    case "recvack":
    case "history":
      return FIXED_BYTES + textBytes(operation.channel.id);
    case "presence":
      return operation.uids.reduce(
        (bytes, uid) => bytes + textBytes(uid),
        FIXED_BYTES,
      );
    case "ping":
    case "disconnect":
      return FIXED_BYTES;
  }
}

function writeOperation(writer: FrameWriter, operation: Operation): void {
  const { kind, ref } = operation;
  writer.array(FIELD_COUNTS[kind] + 2);
  writer.uint(CLIENT_OPS[kind]);
  writer.uint(ref);
  switch (kind) {
    case "connect":
      return writeConnect(writer, operation);
    case "send":
      return writeSend(writer, operation);
    case "recvack":
      writeChannel(writer, operation.channel);
      writer.uint(operation.messageSeq);
      return writer.uint(operation.messageId);
    case "history":
      writeChannel(writer, operation.channel);
      writer.uint(operation.fromSeq);
      writer.uint(operation.toSeq);
      writer.uint(operation.limit);
      return writer.bool(operation.reverse);
    case "presence":
      writer.array(operation.uids.length);
      for (const uid of operation.uids) writer.text(uid);
      return;
    case "ping":
    case "disconnect":
      return;
  }
}

/** Fields after op and ref. */
const FIELD_COUNTS = {
  connect: 7,
  send: 8,
  recvack: 4,
  history: 6,
  presence: 1,
  ping: 0,
  disconnect: 0,
} as const satisfies Record<Operation["kind"], number>;

function writeConnect(
  writer: FrameWriter,
  operation: OperationOf<"connect">,
): void {
  writer.uint(operation.version);
  writer.text(operation.uid);
  writer.text(operation.token);
  writer.uint(operation.flag);
  writer.text(operation.deviceId);
  if (operation.level === undefined) writer.nil();
  else writer.uint(operation.level);
  writer.array(operation.resume.length);
  for (const { channel, lastSeq } of operation.resume) {
    writer.array(3);
    writeChannel(writer, channel);
    writer.uint(lastSeq);
  }
}

function writeSend(writer: FrameWriter, operation: OperationOf<"send">): void {
  const { noPersist, redDot, syncOnce } = operation.header;
  writeChannel(writer, operation.channel);
  writer.text(operation.clientMsgNo);
  writer.bin(operation.payload);
  writer.uint(
    (noPersist ? FLAG_BITS.noPersist : 0) |
      (redDot ? FLAG_BITS.redDot : 0) |
      (syncOnce ? FLAG_BITS.syncOnce : 0),
  );
  writer.uint(operation.expireS);
  writer.optionalText(operation.streamNo);
  writer.optionalText(operation.tagKey);
}

function writeChannel(writer: FrameWriter, channel: ChannelRef): void {
  writer.uint(channel.type);
  writer.text(channel.id);
}
