// Calls that send messages and read history. Sending is the hot path of the control plane.

import { type Static, Type } from "typebox";
import type { Messages, SendInput, SendResult } from "../broker/messages.ts";
import {
  channelSeenBy,
  historyRange,
  MAX_EXPIRE_S,
  type Message,
  PERSON_CHANNEL,
} from "../broker/model.ts";
import type { HttpReply, HttpRequest } from "../transport/types.ts";
import { errorReply, uidRequired } from "./errors.ts";
import {
  channelId,
  channelType,
  flag,
  id,
  LOBBY,
  OPTIONAL_LABEL_PATTERN,
  personUid,
  uids,
} from "./fields.ts";
import type { MessagePages } from "./message-pages.ts";
import { jsonReply } from "./reply.ts";
import type { Outcome } from "./route.ts";
import type { ExplainRefusal } from "./send-refusals.ts";
import { streamJson } from "./streams.ts";

const MAX_SEQ = Number.MAX_SAFE_INTEGER;
const MAX_HISTORY = 500;
const HISTORY_LIMIT = 50;
/** Maximum number of payload bytes in one page of history. It limits the memory of one call. */
const MAX_HISTORY_BYTES = 8 * 1024 * 1024;

export const header = Type.Object(
  {
    no_persist: Type.Optional(flag("1: the message is not stored")),
    red_dot: Type.Optional(flag("1: the message counts as unread")),
    sync_once: Type.Optional(
      flag("1: the message is a command; each recipient gets a copy in their inbox"),
    ),
  },
  { description: "Flags of the message. Absent flags are 0" },
);

export const sendBody = (maxSubscribers: number) =>
  Type.Object(
    {
      payload: Type.String({
        minLength: 1,
        contentEncoding: "base64",
        description: "Standard base64 of the JSON content",
      }),
      from_uid: id("Sender"),
      channel_id: channelId,
      channel_type: channelType,
      header: Type.Optional(header),
      client_msg_no: Type.Optional(
        Type.String({
          pattern: OPTIONAL_LABEL_PATTERN,
          description:
            "Identifies the message for deduplication: a retry must have the same payload. If empty or absent, the server creates a value",
        }),
      ),
      stream_no: Type.Optional(
        Type.String({
          pattern: OPTIONAL_LABEL_PATTERN,
          description: "client_msg_no of the stream to which the message belongs",
        }),
      ),
      expire: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: MAX_EXPIRE_S,
          description:
            "Seconds until the message expires. 0 or absent means that the message never expires",
        }),
      ),
      subscribers: Type.Optional(
        uids(
          "Restricts the recipients to these users. Only for commands. An empty list means no restriction",
          maxSubscribers,
        ),
      ),
      tag_key: Type.Optional(
        Type.String({
          pattern: OPTIONAL_LABEL_PATTERN,
          description: "Label stored with the message",
        }),
      ),
    },
    {
      title: "SendRequest",
      description: "Message to send",
      examples: [
        {
          from_uid: "bob",
          ...LOBBY,
          client_msg_no: "first",
          payload: "eyJ0eXBlIjoxLCJjb250ZW50IjoiaGVsbG8ifQ==",
        },
      ],
    },
  );

export const historyQuery = Type.Object({
  channel_id: channelId,
  channel_type: channelType,
  uid: Type.Optional(personUid),
  from_seq: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: MAX_SEQ,
      description: "First sequence number, inclusive. Absent means 1",
    }),
  ),
  to_seq: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: MAX_SEQ,
      description: "Last sequence number, inclusive. 0 or absent means the newest",
    }),
  ),
  before: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: MAX_SEQ,
      description:
        "Only messages before this sequence number, newest first unless `after` or `order` is set",
    }),
  ),
  after: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: MAX_SEQ,
      description: "Only messages after this sequence number, oldest first unless `order` is set",
    }),
  ),
  limit: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: MAX_HISTORY,
      description: `Maximum number of messages to return. Absent means ${HISTORY_LIMIT}`,
    }),
  ),
  order: Type.Optional(
    Type.Enum(["asc", "desc"], {
      type: "string",
      description:
        "Order of the messages. asc: oldest first. desc: newest first, so that the limit selects the newest messages. Absent means desc if `before` is given without `after`, otherwise asc",
    }),
  ),
});

type SendBody = Static<ReturnType<typeof sendBody>>;
type HistoryQuery = Static<typeof historyQuery>;

export function createSend(messages: Pick<Messages, "send">, explain: ExplainRefusal) {
  return (body: SendBody): Outcome => {
    const payload = decodeBase64(body.payload);
    if (payload === undefined) return notBase64();
    const input = toInput(body, payload);
    return messages.send(input).then(sentReply, (error) => explain(error, input.channel));
  };
}

export function createHistory(messages: Pick<Messages, "history">, pages: MessagePages) {
  return async (query: HistoryQuery, request: HttpRequest): Promise<HttpReply> => {
    const uid = query.uid || undefined;
    const channel = { id: query.channel_id, type: query.channel_type };
    if (channel.type === PERSON_CHANNEL && uid === undefined) return uidRequired();
    const { page, json } = await pages.read(
      request,
      () => messages.history({ channel, uid }, toRange(query)),
      (message) => messageJson(message, uid),
    );
    const more = page.more ? 1 : 0;
    return jsonReply(`{"messages":${json},"head_seq":${page.headSeq},"more":${more}}`);
  };
}

function toInput(body: SendBody, payload: Uint8Array): SendInput {
  const { header } = body;
  return {
    fromUid: body.from_uid,
    channel: { id: body.channel_id, type: body.channel_type },
    clientMsgNo: body.client_msg_no || undefined,
    header: toHeader(header),
    expireS: body.expire ?? 0,
    streamNo: body.stream_no || undefined,
    tagKey: body.tag_key || undefined,
    payload,
    subscribers: body.subscribers?.length ? body.subscribers : undefined,
    origin: undefined,
  };
}

export function toHeader(flags: Static<typeof header> | undefined) {
  return {
    noPersist: flags?.no_persist === 1,
    redDot: flags?.red_dot === 1,
    syncOnce: flags?.sync_once === 1,
  };
}

function toRange(query: HistoryQuery): Parameters<Messages["history"]>[1] {
  const { before, after, from_seq: fromSeq, to_seq: toSeq, order } = query;
  const range = historyRange({ before, after, fromSeq, toSeq });
  return {
    fromSeq: range.fromSeq,
    toSeq: range.toSeq || Number.MAX_SAFE_INTEGER,
    limit: query.limit ?? HISTORY_LIMIT,
    reverse: order === undefined ? range.reverse : order === "desc",
    maxBytes: MAX_HISTORY_BYTES,
  };
}

/** Returns the reply to a send. It contains `repeated` only if the send was a retry. */
function sentReply({ messageId, messageSeq, clientMsgNo, repeated }: SendResult) {
  const retry = repeated ? ',"repeated":1' : "";
  return jsonReply(
    `{"message_id":${messageId},"message_seq":${messageSeq},"client_msg_no":${JSON.stringify(clientMsgNo)}${retry}}`,
  );
}

export function notBase64(): HttpReply {
  return errorReply("bad_payload", {
    message: "payload must be standard base64 with padding",
    details: [{ path: "payload", message: "is not base64" }],
  });
}

/** Decodes standard base64 with padding. Returns `undefined` for any other string. */
export function decodeBase64(text: string): Uint8Array | undefined {
  const bytes = Buffer.from(text, "base64");
  return bytes.toString("base64") === text ? bytes : undefined;
}

/**
 * Returns a message as JSON. The channel id is the id that `uid` sees. If `uid` is `undefined`, it
 * is the id that the sender sees.
 */
export function messageJson(message: Message, uid: string | undefined) {
  const channel = uid === undefined ? message.channel : channelSeenBy(uid, message);
  const { payload } = message;
  const bytes = Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength);
  return {
    message_id: message.messageId,
    message_idstr: String(message.messageId),
    ...(message.sourceId === undefined ? {} : { source_id: message.sourceId }),
    message_seq: message.messageSeq,
    client_msg_no: message.clientMsgNo,
    from_uid: message.fromUid,
    channel_id: channel.id,
    channel_type: channel.type,
    timestamp: Math.floor(message.timestampMs / 1000),
    timestamp_ms: message.timestampMs,
    header: {
      no_persist: message.header.noPersist ? 1 : 0,
      red_dot: message.header.redDot ? 1 : 0,
      sync_once: 0, // history contains no commands
    },
    expire: message.expireS,
    stream_no: message.streamNo ?? "",
    tag_key: message.tagKey ?? "",
    ...message.passthrough,
    payload: bytes.toString("base64"),
    ...(message.stream === undefined ? {} : { stream: streamJson(message.stream) }),
  };
}
