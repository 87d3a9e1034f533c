// Calls that return one message: the newest message of a channel, or the message with a given id or
// `client_msg_no`. For a missing message, the HTTP status is 200 and the status in the body is 404.

import { type Static, Type } from "typebox";
import { LABEL_PATTERN, LOBBY, OPTIONAL_LABEL_PATTERN } from "../../api/fields.ts";
import { jsonReply } from "../../api/reply.ts";
import { BrokerError } from "../../broker/errors.ts";
import type { ChannelView } from "../../broker/ids.ts";
import type { Messages } from "../../broker/messages.ts";
import { type Message, PERSON_CHANNEL } from "../../broker/model.ts";
import {
  digits,
  MAX_PAGE_BYTES,
  maxSeqQuery,
  possibleIds,
  type SyncedJson,
  viewOf,
} from "./message-sync.ts";
import { usersOf } from "./stored-id.ts";

const NOTHING = jsonReply('{"status":404}');

/** An id, or two ids joined by `@`. */
export const STORED_ID_PATTERN = "^[^@#&\\p{Cc}\\p{Cs}]{1,128}(@[^@#&\\p{Cc}\\p{Cs}]{1,128})?$";

const target = maxSeqQuery.properties;

export const singleMessageQueries = {
  newest: Type.Object(target),
  named: Type.Object({
    ...target,
    channel_id: Type.String({
      pattern: STORED_ID_PATTERN,
      description:
        "Channel id. For a personal channel, either the uid of the other user, together with login_uid, or both uids joined by @",
    }),
    client_msg_no: Type.String({
      pattern: LABEL_PATTERN,
      description: "client_msg_no of the message",
    }),
  }),
};

export const singleMessageBody = Type.Object(
  {
    ...target,
    message_id: Type.Optional(digits("Id of the message, as a number or a string of digits")),
    client_msg_no: Type.Optional(
      Type.String({
        pattern: OPTIONAL_LABEL_PATTERN,
        description: "client_msg_no of the message. Used if message_id is absent or 0",
      }),
    ),
  },
  {
    title: "MessageRequest",
    description: "Message to return",
    examples: [{ ...LOBBY, message_id: 4398046511105 }],
  },
);

type Names = { readonly ids?: readonly string[]; readonly clientMsgNos?: readonly string[] };

export function createSingleMessageCalls(messages: Messages, toJson: SyncedJson) {
  const reply = (message: Message | undefined) =>
    message === undefined ? NOTHING : jsonReply(JSON.stringify(toJson(message)));

  async function find(view: ChannelView, { ids = [], clientMsgNos = [] }: Names) {
    const query = { seqs: [], ids, clientMsgNos, maxBytes: MAX_PAGE_BYTES };
    return reply((await messages.find(view, query)).messages[0]);
  }

  return {
    async newest(query: Static<typeof singleMessageQueries.newest>) {
      const newest = { fromSeq: 1, toSeq: Number.MAX_SAFE_INTEGER, limit: 1, reverse: true };
      const page = await messages.history(viewOf(query), { ...newest, maxBytes: MAX_PAGE_BYTES });
      return reply(page.messages[0]);
    },

    async find(body: Static<typeof singleMessageBody>) {
      const { message_id: messageId = 0, client_msg_no: clientMsgNo = "" } = body;
      const view = viewOf(body);
      const hasId = Number(messageId) !== 0;
      if (!hasId && clientMsgNo === "") throw nothingNamed();
      return find(
        view,
        hasId ? { ids: possibleIds([messageId]) } : { clientMsgNos: [clientMsgNo] },
      );
    },

    async named(query: Static<typeof singleMessageQueries.named>) {
      return find(namedView(query), { clientMsgNos: [query.client_msg_no] });
    },
  };
}

function namedView(query: Static<typeof singleMessageQueries.named>): ChannelView {
  const { channel_id: id, channel_type: type } = query;
  const users = type === PERSON_CHANNEL ? usersOf(id) : undefined;
  if (users !== undefined) return { channel: { id: users.peer, type }, uid: users.uid };
  return viewOf(query);
}

function nothingNamed(): BrokerError {
  return new BrokerError("bad_request", {
    message: "message_id or client_msg_no is required",
    details: [{ path: "message_id", message: "is required if client_msg_no is absent" }],
  });
}
