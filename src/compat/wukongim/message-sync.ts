// Calls for backends whose clients fetch messages and commands from the backend: ranges of history,
// single messages and unread commands, in WuKongIM's format.

import { type Static, Type } from "typebox";
import {
  channelId,
  channelType,
  id,
  LOBBY,
  OPTIONAL_ID_PATTERN,
  WELL_FORMED_PATTERN,
} from "../../api/fields.ts";
import type { MessagePages } from "../../api/message-pages.ts";
import { messageJson } from "../../api/messages.ts";
import { jsonReply, okReply } from "../../api/reply.ts";
import { BrokerError } from "../../broker/errors.ts";
import type { Inboxes } from "../../broker/inboxes.ts";
import {
  isSourceId,
  MAX_SEARCHED_BYTES,
  MAX_SEARCHED_MESSAGES,
} from "../../broker/message-lookup.ts";
import type { Messages } from "../../broker/messages.ts";
import {
  type Message,
  PERSON_CHANNEL,
  type StreamSnapshot,
  type StreamState,
} from "../../broker/model.ts";
import type { HttpRequest } from "../../transport/types.ts";
import { importedStream, isMessageStream, laneEnding, laneMeta } from "./stream-lane.ts";
import { SETTINGS } from "./wkproto/packets.ts";

const MAX_SEQ = Number.MAX_SAFE_INTEGER;
const PAGE_SIZE = 100;
/** Highest accepted `limit`. A reply may be shorter because of the limits on history. */
const MAX_PAGE_SIZE = 10_000;
const COMMANDS = 200;
const MAX_COMMANDS = 1000;
const MAX_LOOKUPS = 100;
export const MAX_PAGE_BYTES = 8 * 1024 * 1024;
/** Value of `pull_mode` that selects older messages. */
const OLDER = 0;

const loginUid = Type.Optional(
  Type.String({
    pattern: OPTIONAL_ID_PATTERN,
    description: "User whose conversation with channel_id is read; required if channel_id is a uid",
  }),
);
const seq = (description: string) => Type.Integer({ minimum: 0, maximum: MAX_SEQ, description });

/** Schema of an id or a sequence number. Impossible values are accepted but match no message. */
export const digits = (description: string) =>
  Type.Unsafe<number | string>({ type: ["number", "string"], description });

function possibleNumbers(values: readonly (number | string)[] = []): readonly number[] {
  const numbers = values.map((value) =>
    typeof value === "string" && !/^\d{1,16}$/.test(value) ? Number.NaN : Number(value),
  );
  return numbers.filter((number) => Number.isSafeInteger(number) && number >= 0);
}

/** Returns the values that can be ids, as strings. An id has up to 20 digits. */
export function possibleIds(values: readonly (number | string)[] = []): readonly string[] {
  return values.map(String).filter(isSourceId);
}

export const syncBodies = {
  messages: Type.Object(
    {
      login_uid: loginUid,
      channel_id: channelId,
      channel_type: channelType,
      start_message_seq: Type.Optional(
        seq(
          "Sequence number to begin with, inclusive. If this and end_message_seq are 0, the newest messages are returned",
        ),
      ),
      end_message_seq: Type.Optional(seq("Sequence number to end at, exclusive. 0 means no end")),
      limit: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: MAX_PAGE_SIZE,
          description: `Maximum number of messages to return. 0 or absent means ${PAGE_SIZE}`,
        }),
      ),
      event_summary_mode: Type.Optional(
        Type.String({
          pattern: WELL_FORMED_PATTERN,
          description: "basic: event_meta does not contain the text of streams",
        }),
      ),
      pull_mode: Type.Optional(
        Type.Enum([OLDER, 1], {
          type: "integer",
          description:
            "Direction of the read. 0 or absent: towards older messages. 1: towards newer messages",
        }),
      ),
    },
    {
      title: "MessageSyncRequest",
      description: "Range of messages to return",
      examples: [{ ...LOBBY, login_uid: "alice", limit: 10 }],
    },
  ),
  find: Type.Object(
    {
      login_uid: loginUid,
      channel_id: channelId,
      channel_type: channelType,
      message_seqs: Type.Optional(
        Type.Array(digits("Sequence number of a message"), {
          maxItems: MAX_LOOKUPS,
          description: "Sequence numbers of the messages to return",
        }),
      ),
      message_ids: Type.Optional(
        Type.Array(digits("Id of a message, as a number or a string of digits"), {
          maxItems: MAX_LOOKUPS,
          description: "Ids of the messages to return",
        }),
      ),
      from_uid: Type.Optional(
        id(
          "Sender of the messages in client_msg_nos. The messages that this sender sent within the last store.dedupeWindowS seconds are found even if the search does not cover them",
        ),
      ),
      client_msg_nos: Type.Optional(
        Type.Array(Type.String({ pattern: WELL_FORMED_PATTERN }), {
          maxItems: MAX_LOOKUPS,
          description: `Values of client_msg_no of the messages to return. The search covers the newest ${MAX_SEARCHED_MESSAGES} messages, up to ${MAX_SEARCHED_BYTES / 1024 ** 2} MiB`,
        }),
      ),
    },
    {
      title: "MessagesRequest",
      description: "Messages to return",
      examples: [{ ...LOBBY, message_seqs: [1, 2] }],
    },
  ),
  commands: Type.Object(
    {
      uid: id("User who received the commands"),
      limit: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: MAX_COMMANDS,
          description: `Maximum number of commands to return. 0 or absent means ${COMMANDS}`,
        }),
      ),
    },
    {
      title: "CommandSyncRequest",
      description: "Commands to list",
      examples: [{ uid: "alice", limit: 100 }],
    },
  ),
  commandsRead: Type.Object(
    {
      uid: id("User who received the commands"),
      last_message_seq: Type.Integer({
        minimum: 1,
        maximum: MAX_SEQ,
        description: "message_seq of the last command that the client has processed",
      }),
    },
    {
      title: "CommandSyncAckRequest",
      description: "Commands to acknowledge",
      examples: [{ uid: "alice", last_message_seq: 1 }],
    },
  ),
};

export const maxSeqQuery = Type.Object({
  login_uid: loginUid,
  channel_id: channelId,
  channel_type: channelType,
});

type Body<Name extends keyof typeof syncBodies> = Static<(typeof syncBodies)[Name]>;

interface SyncPorts {
  readonly messages: Messages;
  readonly inboxes: Inboxes;
  readonly pages: MessagePages;
}

export function createSyncCalls({ messages, inboxes, pages }: SyncPorts, toJson: SyncedJson) {
  const toBasicJson = (message: Message) => toJson(message, false);

  function pageReply(
    json: string,
    bounds: { readonly start: number; readonly end: number; readonly more: boolean },
  ) {
    const { start, end } = bounds;
    const more = bounds.more ? 1 : 0;
    return jsonReply(
      `{"start_message_seq":${start},"end_message_seq":${end},"more":${more},"messages":${json}}`,
    );
  }

  return {
    async messages(body: Body<"messages">, request: HttpRequest) {
      const { start_message_seq: start = 0, end_message_seq: end = 0 } = body;
      const limit = body.limit || PAGE_SIZE;
      const range = rangeOf(start, end, body.pull_mode ?? OLDER);
      const view = viewOf(body);
      if (range.fromSeq > range.toSeq) return pageReply("[]", { start, end, more: false });
      const { page, json } = await pages.read(
        request,
        async () => {
          const history = await messages.history(view, {
            ...range,
            limit,
            maxBytes: MAX_PAGE_BYTES,
          });
          const ascending = range.reverse ? history.messages.toReversed() : history.messages;
          return { messages: ascending, more: history.more };
        },
        body.event_summary_mode === "basic" ? toBasicJson : toJson,
      );
      return pageReply(json, { start, end, more: page.more });
    },

    async maxSeq(query: Static<typeof maxSeqQuery>) {
      const seq = await messages.headSeq(viewOf(query));
      return jsonReply(JSON.stringify({ message_seq: seq }));
    },

    async find(body: Body<"find">, request: HttpRequest) {
      const view = viewOf(body);
      const query = {
        seqs: possibleNumbers(body.message_seqs),
        ids: possibleIds(body.message_ids),
        clientMsgNos: body.client_msg_nos ?? [],
        fromUid: body.from_uid,
        maxBytes: MAX_PAGE_BYTES,
      };
      const { page, json } = await pages.read(request, () => messages.find(view, query), toJson);
      const start = page.messages[0]?.messageSeq ?? 0;
      const end = page.messages.at(-1)?.messageSeq ?? 0;
      return pageReply(json, { start, end, more: page.more });
    },

    async commands({ uid, limit }: Body<"commands">) {
      const unread = await inboxes.unread(uid, limit || COMMANDS);
      const commands = unread.map(({ message, inboxSeq }) => {
        const json = toJson(message);
        const header = { ...json.header, sync_once: 1 };
        return { ...json, header, message_seq: inboxSeq };
      });
      return jsonReply(JSON.stringify(commands));
    },

    commandsRead: ({ uid, last_message_seq: last }: Body<"commandsRead">) =>
      inboxes.acknowledgeThrough(uid, last).then(okReply),
  };
}

/**
 * Returns the inclusive bounds of a page that begins at `start` and ends before `end`, in the
 * direction of `mode`.
 */
function rangeOf(start: number, end: number, mode: 0 | 1) {
  if (start === 0 && end === 0) return { fromSeq: 1, toSeq: MAX_SEQ, reverse: true };
  return mode === OLDER
    ? { fromSeq: end + 1, toSeq: start || MAX_SEQ, reverse: true }
    : {
        fromSeq: Math.max(1, start),
        toSeq: end === 0 ? MAX_SEQ : end - 1,
        reverse: false,
      };
}

export function viewOf(body: Static<typeof maxSeqQuery>) {
  const { channel_id: id, channel_type: type, login_uid: uid = "" } = body;
  if (type === PERSON_CHANNEL && uid === "")
    throw new BrokerError("bad_request", {
      message: "login_uid is required for a personal channel",
      details: [{ path: "login_uid", message: "is required" }],
    });
  return { channel: { id, type }, uid };
}

interface StreamEnding {
  readonly end_reason: number;
  readonly error: string;
}
const ENDINGS: Partial<Record<StreamState, StreamEnding>> = {
  interrupted: { end_reason: 1, error: "interrupted" },
  cancelled: { end_reason: 3, error: "cancelled" },
};
const FAILED = 2;

/**
 * Function that returns a message in WuKongIM's format. The channel id of a personal message is the
 * recipient's uid. `event_meta` contains the text of a stream unless `hasText` is false.
 */
export type SyncedJson = (message: Message, hasText?: boolean) => ReturnType<typeof syncedJson>;

export function syncedJsonWith(isWukongim: boolean): SyncedJson {
  return (message, hasText = true) => syncedJson(message, { isWukongim, hasText });
}

interface StreamView {
  /**
   * True if the message is read in the `wukongim` dialect. A stream that was closed with end data
   * then has this data as its `error`, and an imported message has its source id as `message_id`.
   */
  readonly isWukongim: boolean;
  readonly hasText: boolean;
}

function syncedJson(message: Message, view: StreamView) {
  const { topic, ...json } = messageJson(message, undefined);
  const stream = message.stream ?? importedStream(message);
  const setting =
    (json.setting ?? 0) |
    (topic ? SETTINGS.topic : 0) |
    (stream === undefined ? 0 : SETTINGS.stream);
  return {
    ...(view.isWukongim ? dialectJson(json) : json),
    setting,
    ...(topic ? { topic } : {}),
    ...streamFields(stream, view),
  };
}

type MessageJson = ReturnType<typeof messageJson>;

/**
 * Returns a message's JSON in the `wukongim` dialect. The `stream` field contains the path of the
 * stream's log only if the stream is truncated. The id of an imported message is its source id, as
 * a string. `withNumericIds` later removes the quotes.
 */
function dialectJson({ source_id: sourceId, ...json }: MessageJson) {
  const { stream } = json;
  return {
    ...json,
    ...(stream && !stream.truncated && { stream: { ...stream, log: undefined } }),
    // JavaScript cannot represent all source ids as numbers.
    ...(sourceId !== undefined && { message_id: sourceId, message_idstr: sourceId }),
  };
}

const QUOTED_ID = /"message_id":"(\d{1,20})"/g;

/**
 * Returns JSON with the ids of all messages as numbers. The pattern cannot match inside a string,
 * where quotes are escaped.
 */
export function withNumericIds(json: string): string {
  return json.replace(QUOTED_ID, '"message_id":$1');
}

function streamFields(stream: StreamSnapshot | undefined, { isWukongim, hasText }: StreamView) {
  if (stream === undefined) return {};
  const { state, text, endData } = stream;
  const stream_data = Buffer.from(text).toString("base64");
  if (isMessageStream(stream))
    return { ...laneEnding(stream), stream_data, ...laneMeta(stream, hasText) };
  const isFailed = isWukongim && state === "closed" && endData;
  return {
    ...(state === "active" ? {} : { end: 1 }),
    ...(isFailed ? { end_reason: FAILED, error: endData } : ENDINGS[state]),
    stream_data,
  };
}
