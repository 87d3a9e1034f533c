// Calls about the conversations of a user, for backends that serve conversation lists to their
// clients. Requests and replies have the format of WuKongIM. Building a long page yields to the
// event loop from time to time.

import { type Static, Type } from "typebox";
import type { Conversations } from "../broker/conversations.ts";
import type { Messages } from "../broker/messages.ts";
import type { ConversationHead, Message } from "../broker/model.ts";
import { channelId, channelType, flag, id, LOBBY, MAX_TIME_MS } from "./fields.ts";
import { type LastSeqs, readLastSeqs } from "./last-seqs.ts";
import { messageJson } from "./messages.ts";
import { jsonReply, okReply } from "./reply.ts";
import type { Outcome } from "./route.ts";

const MAX_PAGE = 1_000_000;
const PAGE_SIZE = 100;
const MAX_PAGE_SIZE = 500;
const MAX_RECENTS = 200;
const MAX_SEQS_LENGTH = 131_072;
/**
 * Pattern of `last_msg_seqs`. It checks only the last entry: ids may contain `|` and `:`, so a
 * pattern cannot find the ends of the other entries.
 */
const SEQS_PATTERN = "^(?:[^@#&\\p{Cc}\\p{Cs}]+:\\d{1,3}:\\d{1,16}\\|?)?$";

const target = {
  uid: id("User of the conversation"),
  channel_id: channelId,
  channel_type: channelType,
};

const TARGET_EXAMPLE = { uid: "alice", ...LOBBY };

export const conversationBodies = {
  sync: Type.Object(
    {
      uid: id("User of the conversations"),
      version: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: MAX_TIME_MS,
          default: 0,
          description:
            "Highest `version` that the caller has. Only conversations that changed since then are returned",
        }),
      ),
      last_msg_seqs: Type.Optional(
        Type.String({
          maxLength: MAX_SEQS_LENGTH,
          pattern: SEQS_PATTERN,
          default: "",
          description:
            "Last message that the caller has in each conversation: entries channel_id:channel_type:seq, joined by |. recents then contains only later messages",
        }),
      ),
      msg_count: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: MAX_RECENTS,
          default: 0,
          description: "Maximum number of messages in the recents of each conversation",
        }),
      ),
      only_unread: Type.Optional(flag("1: only conversations with unread messages")),
      exclude_channel_types: Type.Optional(
        Type.Array(Type.Integer(), {
          maxItems: 16,
          description: "Channel types to exclude",
        }),
      ),
      page: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: MAX_PAGE,
          default: 1,
          description: "Number of the page, beginning with 1; 0 means 1",
        }),
      ),
      page_size: Type.Optional(
        Type.Integer({
          minimum: 1,
          maximum: MAX_PAGE_SIZE,
          default: PAGE_SIZE,
        }),
      ),
    },
    {
      title: "ConversationSyncRequest",
      examples: [{ uid: "alice", version: 0, msg_count: 10 }],
    },
  ),
  target: Type.Object(target, {
    title: "ConversationRequest",
    examples: [TARGET_EXAMPLE],
  }),
  unread: Type.Object(
    {
      ...target,
      unread: Type.Integer({
        minimum: 0,
        maximum: Number.MAX_SAFE_INTEGER,
        description:
          "New number of unread messages, at most the number of messages in the conversation",
      }),
    },
    {
      title: "SetUnreadRequest",
      examples: [{ ...TARGET_EXAMPLE, unread: 1 }],
    },
  ),
};

type Body<Name extends keyof typeof conversationBodies> = Static<(typeof conversationBodies)[Name]>;

/** Seq that means the newest message of the channel. */
const NEWEST = Number.MAX_SAFE_INTEGER;

type Change = Parameters<Conversations["change"]>[2];

export function createConversationCalls(
  conversations: Conversations,
  messages: Pick<Messages, "history">,
) {
  function applyChange(body: Body<"target">, change: Change): Outcome {
    const { uid, channel_id: id, channel_type: type } = body;
    const by = { uid, origin: undefined };
    return conversations.change(by, { id, type }, change).then(okReply);
  }

  return {
    async sync(body: Body<"sync">) {
      const { uid, page_size: size = PAGE_SIZE, msg_count: limit = 0 } = body;
      const heads = await conversations.heads(uid);
      const from = ((body.page || 1) - 1) * size;
      const page = heads.filter(filterOf(body, conversations.lookBackMs)).slice(from, from + size);
      const channels = heads.map(({ channel }) => channel);
      const lastSeqs = readLastSeqs(body.last_msg_seqs ?? "", channels);
      const recents = { uid, limit, lastSeqs };
      return jsonReply(await pageJson(messages, page, recents));
    },

    clearUnread: (body: Body<"target">) => applyChange(body, { kind: "read", seq: NEWEST }),
    setUnread: (body: Body<"unread">) => applyChange(body, { kind: "unread", unread: body.unread }),
    remove: (body: Body<"target">) => applyChange(body, { kind: "delete" }),
  };
}

/**
 * Returns the filter that the request describes. It includes changes from the `lookBackMs`
 * milliseconds before `version`, because a change that is made after `version` may have a time in
 * that range.
 */
function filterOf(
  { version = 0, only_unread, exclude_channel_types: excluded = [] }: Body<"sync">,
  lookBackMs: number,
): (head: ConversationHead) => boolean {
  return ({ changedAtMs, unread, channel }) =>
    changedAtMs >= version - lookBackMs &&
    (only_unread !== 1 || unread > 0) &&
    !excluded.includes(channel.type);
}

/**
 * Budget for the characters of recent messages in a reply. Conversations that follow after it is
 * used up contain no messages.
 */
const MAX_RECENTS_LENGTH = 8 * 1024 * 1024;
/** Number of characters after which `pageJson` yields to the event loop. */
const STRETCH_LENGTH = 256 * 1024;

interface Recents {
  readonly uid: string;
  readonly limit: number;
  /** Last seq that the caller already has in each channel. Only later messages are returned. */
  readonly lastSeqs: LastSeqs;
}

async function pageJson(
  messages: Pick<Messages, "history">,
  page: readonly ConversationHead[],
  { uid, limit, lastSeqs }: Recents,
): Promise<string> {
  /** Returns the newest messages of a conversation as JSON text, newest first. */
  async function recentsOf(head: ConversationHead, maxBytes: number) {
    const { channel, last } = head;
    const fromSeq = Math.max(head.deletedSeq, lastSeqs(channel)) + 1;
    if (limit === 0 || maxBytes <= 0 || last.messageSeq < fromSeq) return "[]";
    const toSeq = Number.MAX_SAFE_INTEGER;
    const range = { fromSeq, toSeq, limit, maxBytes, reverse: true };
    const history = await messages.history({ channel, uid }, range);
    const toJson = (message: Message) => messageJson(message, uid);
    return JSON.stringify(history.messages.map(toJson));
  }

  const conversations: string[] = [];
  let maxBytes = MAX_RECENTS_LENGTH;
  let stretch = 0;
  for (const head of page) {
    const recents = await recentsOf(head, maxBytes);
    maxBytes -= recents.length;
    conversations.push(conversationJson(head, recents));
    stretch += recents.length;
    if (stretch < STRETCH_LENGTH) continue;
    stretch = 0;
    await new Promise((resolve) => setImmediate(resolve));
  }
  return `[${conversations.join()}]`;
}

/** Returns a conversation as JSON text. `recents` is also JSON text. */
function conversationJson(head: ConversationHead, recents: string): string {
  const { channel, last } = head;
  const fields = JSON.stringify({
    channel_id: channel.id,
    channel_type: channel.type,
    unread: head.unread,
    timestamp: Math.floor(last.timestampMs / 1000),
    last_msg_seq: last.messageSeq,
    last_client_msg_no: last.clientMsgNo,
    offset_msg_seq: head.deletedSeq,
    readed_to_msg_seq: head.readSeq,
    version: head.changedAtMs,
  });
  return `${fields.slice(0, -1)},"recents":${recents}}`;
}
