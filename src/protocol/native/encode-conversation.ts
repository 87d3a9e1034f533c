// CONVERSATION and CONVERSATIONS → bytes, for the server. No state. Field orders: docs/protocol/native.md.

import type { Conversation } from "../../broker/model.ts";
import type { Push, Reply } from "../protocol.ts";
import { messageBytes, writeMessageRecord } from "./encode-message.ts";
import { begin, FIXED_BYTES } from "./frame-head.ts";
import { CONVERSATION_CHANGES, PUSH_OPS, REPLY_OPS } from "./ops.ts";
import { type FrameWriter, textBytes } from "./writer.ts";

const FIELDS = 8;

export function writeConversationReply(
  writer: FrameWriter,
  reply: Extract<Reply, { kind: "conversation" }>,
): void {
  const { ref, conversation } = reply;
  const head = { op: REPLY_OPS.conversation, ref, fields: FIELDS };
  begin(writer, head, conversationBytes(conversation));
  writeConversation(writer, conversation);
}

export function writeConversationPush(
  writer: FrameWriter,
  push: Extract<Push, { kind: "conversation" }>,
): void {
  const { change, conversation } = push;
  const head = { op: PUSH_OPS.conversation, ref: 0, fields: FIELDS + 1 };
  begin(writer, head, conversationBytes(conversation));
  writer.uint(CONVERSATION_CHANGES[change]);
  writeConversation(writer, conversation);
}

export function writeConversations(
  writer: FrameWriter,
  reply: Extract<Reply, { kind: "conversations" }>,
): void {
  const { ref, conversations } = reply;
  let bytes = 0;
  for (const one of conversations) bytes += conversationBytes(one);
  begin(writer, { op: REPLY_OPS.conversations, ref, fields: 2 }, bytes);
  writer.bool(reply.more);
  writer.array(conversations.length);
  for (const one of conversations) {
    writer.array(FIELDS);
    writeConversation(writer, one);
  }
}

function conversationBytes({ channel, last }: Conversation): number {
  return (
    FIXED_BYTES +
    textBytes(channel.id) +
    (last === undefined ? 0 : messageBytes(channel, last))
  );
}

function writeConversation(
  writer: FrameWriter,
  conversation: Conversation,
): void {
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
}
