// Rows of the route table for backends that fetch messages, commands and conversations for their
// clients, as WuKongIM's backends do. These rows exist in every dialect. Owns only the limit on
// concurrent reads of pages (`MessagePages`).

import { MessagePages } from "../../api/message-pages.ts";
import { type ApiRoute, DONE, postRoute, queryRoute, type RouteReply } from "../../api/route.ts";
import type { Conversations } from "../../broker/conversations.ts";
import type { Inboxes } from "../../broker/inboxes.ts";
import type { Messages } from "../../broker/messages.ts";
import { conversationBodies, createConversationCalls } from "./conversations.ts";
import {
  createSyncCalls,
  maxSeqQuery,
  type SyncedJson,
  syncBodies,
  syncedJsonWith,
  withNumericIds,
} from "./message-sync.ts";
import {
  createSingleMessageCalls,
  singleMessageBody,
  singleMessageQueries,
} from "./single-messages.ts";
import * as replies from "./sync-schemas.ts";

export interface SyncPorts {
  readonly messages: Messages;
  readonly inboxes: Inboxes;
  readonly conversations: Conversations;
}

/** Creates the rows. `isWukongim` is true for the rows of the `wukongim` dialect. */
export function createSyncRoutes(ports: SyncPorts, isWukongim: boolean): readonly ApiRoute[] {
  const toSyncedJson = syncedJsonWith(isWukongim);
  const rows = [
    ...messageRoutes(ports, toSyncedJson),
    ...singleMessageRoutes(ports, toSyncedJson),
    ...conversationRoutes(ports, toSyncedJson),
  ];
  return isWukongim ? rows.map(withLabelsAsNumbers) : rows;
}

function withLabelsAsNumbers(row: ApiRoute): ApiRoute {
  const convert = (reply: RouteReply) =>
    "opened" in reply || typeof reply.body !== "string"
      ? reply
      : { ...reply, body: withNumericIds(reply.body) };
  return {
    ...row,
    run(request, guard, adapt) {
      const outcome = row.run(request, guard, adapt);
      return outcome instanceof Promise ? outcome.then(convert) : convert(outcome);
    },
  };
}

function singleMessageRoutes(
  { messages }: SyncPorts,
  toSyncedJson: SyncedJson,
): readonly ApiRoute[] {
  const single = createSingleMessageCalls(messages, toSyncedJson);
  const common = {
    access: ["messages:write"],
    tag: "messages",
    errors: ["bad_id"],
    success: {
      description: 'The message, or the body `{"status":404}` if the message does not exist',
      body: replies.singleMessageBody,
    },
  } as const;
  return [
    queryRoute({
      ...common,
      path: "/channel/last_message",
      operation: "getLastMessage",
      summary: "Returns the newest message of a channel",
      query: singleMessageQueries.newest,
      handle: single.newest,
    }),
    postRoute({
      ...common,
      path: "/message",
      operation: "getMessage",
      summary: "Returns the message with the given id or client_msg_no",
      body: singleMessageBody,
      longIntegers: "message_id",
      handle: single.find,
    }),
    queryRoute({
      ...common,
      path: "/message/byclientmsgno",
      operation: "getMessageByClientMsgNo",
      summary: "Returns the message with the given client_msg_no",
      query: singleMessageQueries.named,
      handle: single.named,
    }),
  ];
}

function messageRoutes(
  { messages, inboxes }: SyncPorts,
  toSyncedJson: SyncedJson,
): readonly ApiRoute[] {
  const sync = createSyncCalls({ messages, inboxes, pages: new MessagePages() }, toSyncedJson);
  const common = {
    access: ["messages:write"],
    tag: "messages",
    errors: ["bad_id"],
  } as const;
  const page = { description: "Messages", body: replies.syncedPageBody };
  return [
    postRoute({
      ...common,
      path: "/channel/messagesync",
      operation: "syncMessages",
      summary: "Returns messages before or after a position in a channel's history",
      body: syncBodies.messages,
      success: page,
      handle: sync.messages,
    }),
    postRoute({
      ...common,
      path: "/messages",
      operation: "findMessages",
      summary:
        "Returns the messages of a channel that have the given sequence numbers, ids or client_msg_nos",
      body: syncBodies.find,
      longIntegers: "message_ids",
      success: page,
      handle: sync.find,
    }),
    queryRoute({
      ...common,
      path: "/channel/max_message_seq",
      operation: "getMaxMessageSeq",
      summary: "Returns the newest sequence number of a channel",
      query: maxSeqQuery,
      success: { description: "Sequence number of the newest message", body: replies.maxSeqBody },
      handle: sync.maxSeq,
    }),
    postRoute({
      ...common,
      path: "/message/sync",
      operation: "listCommands",
      summary: "Lists a user's commands that no device has acknowledged",
      body: syncBodies.commands,
      success: { description: "Commands", body: replies.commandsBody },
      handle: sync.commands,
    }),
    postRoute({
      ...common,
      path: "/message/syncack",
      operation: "acknowledgeCommands",
      summary: "Acknowledges a user's commands up to a sequence number",
      body: syncBodies.commandsRead,
      success: DONE,
      handle: sync.commandsRead,
    }),
  ];
}

function conversationRoutes(ports: SyncPorts, toSyncedJson: SyncedJson): readonly ApiRoute[] {
  const { messages } = ports;
  const conversations = createConversationCalls(ports.conversations, messages, toSyncedJson);
  const common = {
    access: ["messages:write"],
    tag: "conversations",
  } as const;
  return [
    postRoute({
      ...common,
      path: "/conversation/sync",
      operation: "listConversations",
      summary: "Lists a user's conversations, ordered by their newest message, newest first",
      body: conversationBodies.sync,
      success: {
        description:
          "Conversations. If more follow, the Jindou-Cursor header contains the cursor for the next call",
        body: replies.conversationsBody,
      },
      errors: ["bad_id", "bad_cursor"],
      handle: conversations.sync,
    }),
    postRoute({
      ...common,
      path: "/conversation/channels",
      operation: "listConversationChannels",
      summary:
        "Lists the channels of a user's newest conversations, with the ids under which WuKongIM stores them",
      body: conversationBodies.channels,
      success: { description: "Channels", body: replies.storedChannelsBody },
      errors: ["bad_id"],
      handle: conversations.channels,
    }),
    postRoute({
      ...common,
      path: "/conversation/syncByChannels",
      operation: "listConversationsByChannels",
      summary: "Returns a user's conversations in the given channels",
      body: conversationBodies.byChannels,
      success: {
        description: "Conversations. Channels without messages for the user are omitted",
        body: replies.conversationsBody,
      },
      errors: ["bad_id"],
      handle: conversations.syncByChannels,
    }),
    postRoute({
      ...common,
      path: "/conversations/clearUnread",
      operation: "clearUnread",
      summary: "Marks all messages of a conversation as read",
      body: conversationBodies.target,
      success: DONE,
      errors: ["bad_id", "not_in_channel"],
      handle: conversations.clearUnread,
    }),
    postRoute({
      ...common,
      path: "/conversations/setUnread",
      operation: "setUnread",
      summary: "Sets the number of unread messages of a conversation",
      body: conversationBodies.unread,
      success: DONE,
      errors: ["bad_id", "not_in_channel"],
      handle: conversations.setUnread,
    }),
    postRoute({
      ...common,
      path: "/conversations/delete",
      operation: "deleteConversation",
      summary:
        "Hides a conversation until a new message arrives, and hides its messages permanently",
      body: conversationBodies.removal,
      success: DONE,
      errors: ["bad_id", "not_in_channel"],
      handle: conversations.remove,
    }),
  ];
}
