// Encodes the frames that contain messages or conversations, and SENDACK, on the server. Such
// frames are sent for every message, so they are written in one pass without intermediate arrays.

import {
  type ChannelRef,
  type Conversation,
  type Message,
  textPayload,
} from "../../broker/model.ts";
import type { Push, Reply } from "../protocol.ts";
import { recordBytes, writeRecord } from "./encode-stream.ts";
import { CONVERSATION_CHANGES, FLAG_BITS, PUSH_OPS, REPLY_OPS } from "./ops.ts";
import { begin, FIXED_BYTES, type FrameWriter, textBytes } from "./writer.ts";

const MESSAGE_FIELDS = 12;
const CONVERSATION_FIELDS = 8;
/** Maximum size of the payload of a stream's message, without the text. */
const STREAM_PAYLOAD_BYTES = 32;

export function writeSendack(
  writer: FrameWriter,
  reply: Extract<Reply, { kind: "sendack" }>,
): void {
  const { ref, clientMsgNo, repeated } = reply;
  const fields = repeated ? 4 : 3;
  begin(writer, { op: REPLY_OPS.sendack, ref, fields }, textBytes(clientMsgNo));
  writer.uint(reply.messageId);
  writer.uint(reply.messageSeq);
  writer.text(clientMsgNo);
  if (repeated) writer.bool(true);
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

export function writeCommand(writer: FrameWriter, push: Extract<Push, { kind: "command" }>): void {
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

function messageFields(message: Message): number {
  return message.stream === undefined ? MESSAGE_FIELDS : MESSAGE_FIELDS + 1;
}

function messageBytes(channel: ChannelRef, message: Message): number {
  const { fromUid, clientMsgNo, streamNo, tagKey, payload, stream } = message;
  return (
    FIXED_BYTES +
    textBytes(channel.id) +
    textBytes(fromUid) +
    textBytes(clientMsgNo) +
    (streamNo === undefined ? 0 : textBytes(streamNo)) +
    (tagKey === undefined ? 0 : textBytes(tagKey)) +
    (stream === undefined ? payload.length : textPayloadBytes(stream.text) + recordBytes(stream))
  );
}

/**
 * Returns the maximum size of the result of `textPayload` for this text. JSON may escape every
 * character.
 */
function textPayloadBytes({ length }: string): number {
  return 6 * length + STREAM_PAYLOAD_BYTES;
}

function writeMessage(writer: FrameWriter, channel: ChannelRef, message: Message): void {
  const { noPersist, redDot } = message.header;
  writer.uint(channel.type);
  writer.text(channel.id);
  writer.uint(message.messageSeq);
  writer.uint(message.messageId);
  writer.text(message.fromUid);
  writer.text(message.clientMsgNo);
  writer.uint(message.timestampMs);
  writer.uint((noPersist ? FLAG_BITS.noPersist : 0) | (redDot ? FLAG_BITS.redDot : 0));
  writer.uint(message.expireS);
  writer.bin(textPayload(message));
  writer.optionalText(message.streamNo);
  writer.optionalText(message.tagKey);
  if (message.stream !== undefined) writeRecord(writer, message.stream);
}

function writeMessageRecord(writer: FrameWriter, channel: ChannelRef, message: Message): void {
  writer.array(messageFields(message));
  writeMessage(writer, channel, message);
}

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

export function writeConversationReply(
  writer: FrameWriter,
  reply: Extract<Reply, { kind: "conversation" }>,
): void {
  const { ref, conversation } = reply;
  const head = { op: REPLY_OPS.conversation, ref, fields: fieldCount(conversation) };
  begin(writer, head, conversationBytes(conversation));
  writeConversation(writer, conversation);
}

export function writeConversationPush(
  writer: FrameWriter,
  push: Extract<Push, { kind: "conversation" }>,
): void {
  const { change, conversation } = push;
  const head = {
    op: PUSH_OPS.conversation,
    ref: 0,
    fields: fieldCount(conversation) + 1,
  };
  begin(writer, head, conversationBytes(conversation));
  writer.uint(CONVERSATION_CHANGES[change]);
  writeConversation(writer, conversation);
}

export function writeConversations(
  writer: FrameWriter,
  reply: Extract<Reply, { kind: "conversations" }>,
): void {
  const { ref, cursor, conversations } = reply;
  let bytes = textBytes(cursor ?? "");
  for (const conversation of conversations) bytes += conversationBytes(conversation);
  begin(writer, { op: REPLY_OPS.conversations, ref, fields: 2 }, bytes);
  if (cursor === undefined) writer.nil();
  else writer.text(cursor);
  writer.array(conversations.length);
  for (const conversation of conversations) {
    writer.array(fieldCount(conversation));
    writeConversation(writer, conversation);
  }
}

/** Returns the number of fields. The field `large` is written only if it is true. */
function fieldCount({ large }: Conversation): number {
  return large ? CONVERSATION_FIELDS + 1 : CONVERSATION_FIELDS;
}

function conversationBytes({ channel, last }: Conversation): number {
  return (
    FIXED_BYTES + textBytes(channel.id) + (last === undefined ? 0 : messageBytes(channel, last))
  );
}

function writeConversation(writer: FrameWriter, conversation: Conversation): void {
  const { channel, last } = conversation;
  writer.uint(channel.type);
  writer.text(channel.id);
  writer.uint(conversation.headSeq);
  writer.uint(conversation.readSeq);
  writer.uint(conversation.unread);
  writer.uint(conversation.deletedSeq);
  writer.uint(conversation.changedAtMs);
  if (last === undefined) writer.nil();
  else writeMessageRecord(writer, channel, last);
  if (conversation.large) writer.bool(true);
}
