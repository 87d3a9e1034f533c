// Messages → bytes, for the server: SENDACK, MESSAGE, and the frames that hold its fields. No state. On the message path: one pass, no
// array in between. Field orders: docs/protocol/native.md.

import type { ChannelRef, Message } from "../../broker/model.ts";
import type { Push, Reply } from "../protocol.ts";
import { recordBytes, writeRecord } from "./encode-stream.ts";
import { begin, FIXED_BYTES } from "./frame-head.ts";
import { FLAG_BITS, PUSH_OPS, REPLY_OPS } from "./ops.ts";
import { type FrameWriter, textBytes } from "./writer.ts";

const FIELDS = 12;

export function writeSendack(
  writer: FrameWriter,
  reply: Extract<Reply, { kind: "sendack" }>,
): void {
  const { ref, clientMsgNo } = reply;
  begin(
    writer,
    { op: REPLY_OPS.sendack, ref, fields: 3 },
    textBytes(clientMsgNo),
  );
  writer.uint(reply.messageId);
  writer.uint(reply.messageSeq);
  writer.text(clientMsgNo);
}

export function writeMessagePush(
  writer: FrameWriter,
  push: Extract<Push, { kind: "message" }>,
): void {
  const { channel, message } = push;
  begin(
    writer,
    { op: PUSH_OPS.message, ref: 0, fields: messageFields(message) },
    messageBytes(channel, message),
  );
  writeMessage(writer, channel, message);
}

export function writeMessages(
  writer: FrameWriter,
  push: Extract<Push, { kind: "messages" }>,
): void {
  const { channel, messages } = push;
  begin(
    writer,
    { op: PUSH_OPS.messages, ref: 0, fields: 5 },
    textBytes(channel.id) + listBytes(channel, messages),
  );
  writer.uint(channel.type);
  writer.text(channel.id);
  writer.uint(push.afterSeq);
  writer.uint(push.throughSeq);
  writeMessageList(writer, channel, messages);
}

export function writeCommand(
  writer: FrameWriter,
  push: Extract<Push, { kind: "command" }>,
): void {
  const { channel, message } = push;
  begin(
    writer,
    { op: PUSH_OPS.command, ref: 0, fields: messageFields(message) + 1 },
    messageBytes(channel, message),
  );
  writer.uint(push.inboxSeq);
  writeMessage(writer, channel, message);
}

export function writeHistory(
  writer: FrameWriter,
  reply: Extract<Reply, { kind: "history" }>,
): void {
  const { ref, channel, messages } = reply;
  begin(
    writer,
    { op: REPLY_OPS.history, ref, fields: 5 },
    textBytes(channel.id) + listBytes(channel, messages),
  );
  writer.uint(channel.type);
  writer.text(channel.id);
  writer.uint(reply.headSeq);
  writer.bool(reply.more);
  writeMessageList(writer, channel, messages);
}

/** How many fields `writeMessage` writes: a stream's message has one more. */
function messageFields(message: Message): number {
  return message.stream === undefined ? FIELDS : FIELDS + 1;
}

/** The most bytes a message takes, as a push or as a record. */
export function messageBytes(channel: ChannelRef, message: Message): number {
  const { fromUid, clientMsgNo, streamNo, tagKey, payload, stream } = message;
  return (
    FIXED_BYTES +
    textBytes(channel.id) +
    textBytes(fromUid) +
    textBytes(clientMsgNo) +
    (streamNo === undefined ? 0 : textBytes(streamNo)) +
    (tagKey === undefined ? 0 : textBytes(tagKey)) +
    payload.length +
    (stream === undefined ? 0 : recordBytes(stream))
  );
}

/** `channel`: as the receiver names it. */
function writeMessage(
  writer: FrameWriter,
  channel: ChannelRef,
  message: Message,
): void {
  const { noPersist, redDot } = message.header;
  writer.uint(channel.type);
  writer.text(channel.id);
  writer.uint(message.messageSeq);
  writer.uint(message.messageId);
  writer.text(message.fromUid);
  writer.text(message.clientMsgNo);
  writer.uint(message.timestampMs);
  writer.uint(
    (noPersist ? FLAG_BITS.noPersist : 0) | (redDot ? FLAG_BITS.redDot : 0),
  );
  writer.uint(message.expireS);
  writer.bin(message.payload);
  writer.optionalText(message.streamNo);
  writer.optionalText(message.tagKey);
  if (message.stream !== undefined) writeRecord(writer, message.stream);
}

/** The message as a record within another frame. */
export function writeMessageRecord(
  writer: FrameWriter,
  channel: ChannelRef,
  message: Message,
): void {
  writer.array(messageFields(message));
  writeMessage(writer, channel, message);
}

/** The most bytes `writeMessageList` takes. */
function listBytes(channel: ChannelRef, messages: readonly Message[]): number {
  let bytes = 0;
  for (const message of messages) bytes += messageBytes(channel, message);
  return bytes;
}

function writeMessageList(
  writer: FrameWriter,
  channel: ChannelRef,
  messages: readonly Message[],
): void {
  writer.array(messages.length);
  for (const message of messages) writeMessageRecord(writer, channel, message);
}
