// Endpoints for a user's conversations, for backends that serve conversation lists to their
// clients. Requests and replies have WuKongIM's format.

import { type Static, Type } from "typebox";
import { errorReply } from "../../api/errors.ts";
import { channelId, channelType, flag, id, LOBBY } from "../../api/fields.ts";
import { jsonReply, okReply } from "../../api/reply.ts";
import type { Outcome } from "../../api/route.ts";
import type { ConversationFilter, Conversations } from "../../broker/conversations.ts";
import type { Messages } from "../../broker/messages.ts";
import { type ConversationHead, messageTimeMs } from "../../broker/model.ts";
import { TimeSlice } from "../../lib/time-slice.ts";
import { type LastSeqs, readLastSeqs } from "./last-seqs.ts";
import type { SyncedJson } from "./message-sync.ts";
import { storedId } from "./stored-id.ts";

const MAX_PAGE = 1_000_000;
const PAGE_SIZE = 100;
const MAX_PAGE_SIZE = 500;
const MAX_CONVERSATIONS = 10_000;
const CURSOR_HEADER = "jindou-cursor";
const MAX_RECENTS = 200;
/** Number of messages per conversation that `/conversation/syncByChannels` returns by default. */
const RECENTS = 15;
const MAX_CHANNELS = 500;
const MAX_STORED_CHANNELS = 1000;

const target = {
  uid: id("User to whom the conversation belongs"),
  channel_id: channelId,
  channel_type: channelType,
};

const TARGET_EXAMPLE = { uid: "alice", ...LOBBY };

export const conversationBodies = {
  sync: Type.Object(
    {
      uid: id("User whose conversations are listed"),
      version: Type.Optional(
        Type.Integer({
          minimum: 0,
          description:
            "Highest `version` that the caller has. Only conversations that changed since this version are returned. 0 or absent means all conversations. A version more than a day ahead of both the current time and the newest change counts as 0",
        }),
      ),
      last_msg_seqs: Type.Optional(
        Type.String({
          description:
            "Last message that the caller has in each conversation: entries channel_id:channel_type:seq, joined by |. recents then contains only later messages, and messages whose streams may have changed since `version`. An entry that cannot be read is skipped",
        }),
      ),
      msg_count: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: MAX_RECENTS,
          description:
            "Maximum number of messages in the recents of each conversation. Absent means 0",
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
          description:
            "Page number, starting at 1. A conversation that moves between two calls may be missing or returned twice; use `cursor` to avoid this. 0 or absent means that the result is not paginated",
        }),
      ),
      page_size: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: MAX_PAGE_SIZE,
          description: `With \`page\`, the number of conversations per page; 0 or absent means ${PAGE_SIZE}. Without \`page\`, the same as \`limit\`. Ignored if \`limit\` is set`,
        }),
      ),
      limit: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: MAX_PAGE_SIZE,
          description: `Maximum number of conversations to return. 0 or absent means \`page_size\`, or ${MAX_CONVERSATIONS} if neither \`page\` nor \`page_size\` is set`,
        }),
      ),
      cursor: Type.Optional(
        Type.String({
          description:
            "Value of the Jindou-Cursor header in the previous reply. The reply continues after it, and selects conversations by the `version` of the first call. Cannot be combined with `page`",
        }),
      ),
    },
    {
      title: "ConversationSyncRequest",
      description: "Conversations to list",
      examples: [{ uid: "alice", version: 0, msg_count: 10 }],
    },
  ),
  channels: Type.Object(
    { uid: id("User whose channels are listed") },
    {
      title: "ConversationChannelsRequest",
      description: "User whose channels are listed",
      examples: [{ uid: "alice" }],
    },
  ),
  byChannels: Type.Object(
    {
      uid: id("User whose conversations are returned"),
      channels: Type.Array(Type.Object({ channel_id: channelId, channel_type: channelType }), {
        maxItems: MAX_CHANNELS,
        description: "Channels whose conversations are returned",
      }),
      msg_count: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: MAX_RECENTS,
          description: `Maximum number of messages in the recents of each conversation. 0 or absent means ${RECENTS}`,
        }),
      ),
    },
    {
      title: "ConversationsByChannelsRequest",
      description: "Conversations to return",
      examples: [{ uid: "alice", channels: [LOBBY] }],
    },
  ),
  target: Type.Object(target, {
    title: "ConversationRequest",
    description: "A conversation of a user",
    examples: [TARGET_EXAMPLE],
  }),
  removal: Type.Object(
    {
      ...target,
      message_seq: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: Number.MAX_SAFE_INTEGER,
          description:
            "Hides only messages up to this message_seq, so that a retry does not hide a message that arrived after the first call. 0 or absent means all messages",
        }),
      ),
    },
    {
      title: "DeleteConversationRequest",
      description: "A conversation of a user, and the last message to hide",
      examples: [TARGET_EXAMPLE],
    },
  ),
  unread: Type.Object(
    {
      ...target,
      unread: Type.Integer({
        minimum: 0,
        maximum: Number.MAX_SAFE_INTEGER,
        description:
          "New number of unread messages. If the conversation has fewer messages, all of them become unread",
      }),
    },
    {
      title: "SetUnreadRequest",
      description: "New number of unread messages",
      examples: [{ ...TARGET_EXAMPLE, unread: 1 }],
    },
  ),
};

type Body<Name extends keyof typeof conversationBodies> = Static<(typeof conversationBodies)[Name]>;

const NEWEST = Number.MAX_SAFE_INTEGER;

type Change = Parameters<Conversations["change"]>[2];

export function createConversationCalls(
  conversations: Conversations,
  messages: Pick<Messages, "history">,
  toJson: SyncedJson,
) {
  function applyChange(body: Body<"target">, change: Change): Outcome {
    const { uid, channel_id: id, channel_type: type } = body;
    const by = { uid, origin: undefined };
    return conversations.change(by, { id, type }, change).then(okReply);
  }

  return {
    async sync(body: Body<"sync">) {
      const { uid, page = 0, page_size: size = 0, cursor = "", msg_count: limit = 0 } = body;
      if (page > 0 && cursor !== "") return errorReply("bad_request", PAGE_WITH_CURSOR);
      const pageSize = body.limit || size || (page > 0 ? PAGE_SIZE : MAX_CONVERSATIONS);
      const from = Math.max(0, page - 1) * pageSize;
      const range = { cursor: cursor || undefined, limit: from + pageSize };
      const selection = await conversations.select(uid, filterOf(body), range);
      const { last_msg_seqs: seqs = "", version = 0 } = body;
      const lastSeqs = await readLastSeqs(seqs, seqs === "" ? [] : selection.channels());
      const list = await writeList(messages, selection.heads.slice(from), {
        ...{ uid, limit, lastSeqs, version, toJson },
        isWhole: page > 0,
        maxVersion: selection.upToMs,
      });
      const reply = jsonReply(list.json);
      const next = page > 0 ? undefined : selection.cursorAfter(list.count);
      if (next === undefined) return reply;
      return { ...reply, headers: { ...reply.headers, [CURSOR_HEADER]: next } };
    },

    async channels({ uid }: Body<"channels">) {
      const range = { cursor: undefined, limit: MAX_STORED_CHANNELS };
      const { heads } = await conversations.select(uid, EVERYTHING, range);
      const channels = heads.map(({ channel }) => ({
        channel_id: storedId(uid, channel),
        channel_type: channel.type,
      }));
      return jsonReply(JSON.stringify(channels));
    },

    async syncByChannels({ uid, channels, msg_count: count }: Body<"byChannels">) {
      const refs = channels.map(({ channel_id: id, channel_type: type }) => ({ id, type }));
      const heads = await conversations.among(uid, refs);
      const list = await writeList(messages, heads, {
        ...{ uid, limit: count || RECENTS, lastSeqs: () => 0, version: 0, toJson },
        isWhole: true,
      });
      return jsonReply(list.json);
    },

    clearUnread: (body: Body<"target">) => applyChange(body, { kind: "read", seq: NEWEST }),
    setUnread: (body: Body<"unread">) => applyChange(body, { kind: "unread", unread: body.unread }),
    remove: (body: Body<"removal">) =>
      applyChange(body, { kind: "delete", seq: body.message_seq || undefined }),
  };
}

const EVERYTHING: ConversationFilter = { version: 0, onlyUnread: false, excludedTypes: [] };

const PAGE_WITH_CURSOR = {
  message: "page and cursor cannot be combined",
  details: [{ path: "cursor", message: "cannot be combined with page" }],
};

function filterOf(body: Body<"sync">): ConversationFilter {
  const { version = 0, only_unread, exclude_channel_types: excludedTypes = [] } = body;
  return { version, onlyUnread: only_unread === 1, excludedTypes };
}

/** Approximate maximum length of all recent messages in a reply, in characters. */
const MAX_RECENTS_LENGTH = 8 * 1024 * 1024;

interface ListContent {
  readonly uid: string;
  readonly limit: number;
  /**
   * Last seq that the caller has in each channel. The reply contains later messages, and also
   * messages whose streams may have changed since `version`.
   */
  readonly lastSeqs: LastSeqs;
  readonly version: number;
  readonly toJson: SyncedJson;
  /**
   * True if the list continues, without messages, after `MAX_RECENTS_LENGTH` is reached. If false,
   * the list ends at that point.
   */
  readonly isWhole: boolean;
  /**
   * Upper bound of the versions in the reply. If a version were higher, the next call could miss a
   * change that this list lacks.
   */
  readonly maxVersion?: number | undefined;
}

/**
 * Returns conversations as JSON. While a stream is active, no version in the reply is higher than
 * the time of the stream's message, so that the next call returns the stream with the text that was
 * added between the two calls.
 */
async function writeList(
  messages: Pick<Messages, "history">,
  heads: readonly ConversationHead[],
  { uid, limit, lastSeqs, version, toJson, isWhole, ...content }: ListContent,
): Promise<{ readonly json: string; readonly count: number }> {
  const slice = new TimeSlice();
  let { maxVersion = Number.MAX_SAFE_INTEGER } = content;

  async function recentsOf({ channel, deletedSeq, last }: ConversationHead, maxBytes: number) {
    const lastSeq = lastSeqs(channel);
    const mayHaveStreams = version > 0 && messageTimeMs(last.messageId) >= version;
    const fromSeq = Math.max(deletedSeq, mayHaveStreams ? 0 : lastSeq) + 1;
    if (limit === 0 || maxBytes <= 0 || last.messageSeq < fromSeq) return "[]";
    const toSeq = Number.MAX_SAFE_INTEGER;
    const range = { fromSeq, toSeq, limit, maxBytes, reverse: true };
    const history = await messages.history({ channel, uid }, range);
    const texts: string[] = [];
    for (const message of history.messages) {
      if (slice.shouldYield()) await slice.yield();
      const { messageSeq, messageId, stream } = message;
      const timeMs = messageTimeMs(messageId);
      if (messageSeq <= lastSeq && (stream === undefined || timeMs < version)) continue;
      if (stream?.state === "active") maxVersion = Math.min(maxVersion, timeMs);
      texts.push(JSON.stringify(toJson(message)));
    }
    return `[${texts.join()}]`;
  }

  const recentsOfHeads: string[] = [];
  let room = MAX_RECENTS_LENGTH;
  for (const head of heads) {
    if (slice.shouldYield()) await slice.yield();
    const recents = await recentsOf(head, isWhole ? room : MAX_RECENTS_LENGTH);
    room -= recents.length;
    if (room < 0 && !isWhole && recentsOfHeads.length > 0) break;
    recentsOfHeads.push(recents);
  }
  const conversations: string[] = [];
  for (const [at, recents] of recentsOfHeads.entries()) {
    if (slice.shouldYield()) await slice.yield();
    const head = heads[at];
    if (head !== undefined) conversations.push(conversationJson(head, recents, maxVersion));
  }
  return { json: `[${conversations.join()}]`, count: conversations.length };
}

function conversationJson(head: ConversationHead, recents: string, maxVersion: number): string {
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
    version: Math.min(head.changedAtMs, maxVersion),
  });
  return `${fields.slice(0, -1)},"recents":${recents}}`;
}
