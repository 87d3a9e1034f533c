// A user's conversations, for backends that answer their clients' lists; shapes are WuKongIM's.
// State: none. A page with recent messages yields to the event loop as it grows.

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
/** Checks the last entry only: ids may contain `|` and `:`, so the others have no visible end. */
const SEQS_PATTERN = "^(?:[^@#&\\p{Cc}\\p{Cs}]+:\\d{1,3}:\\d{1,16}\\|?)?$";

const target = {
  uid: id("Whose conversation"),
  channel_id: channelId,
  channel_type: channelType,
};

const TARGET_EXAMPLE = { uid: "alice", ...LOBBY };

export const conversationBodies = {
  sync: Type.Object(
    {
      uid: id("Whose conversations"),
      version: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: MAX_TIME_MS,
          default: 0,
          description:
            "The greatest `version` the caller has: conversations that did not change since are left out",
        }),
      ),
      last_msg_seqs: Type.Optional(
        Type.String({
          maxLength: MAX_SEQS_LENGTH,
          pattern: SEQS_PATTERN,
          default: "",
          description:
            "What the caller has of each: channel_id:channel_type:seq, joined by |; recents then hold only what lies behind",
        }),
      ),
      msg_count: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: MAX_RECENTS,
          default: 0,
          description: "Most messages in the recents of each",
        }),
      ),
      only_unread: Type.Optional(flag("1: those with unread messages")),
      exclude_channel_types: Type.Optional(
        Type.Array(Type.Integer(), {
          maxItems: 16,
          description: "Channel types to leave out",
        }),
      ),
      page: Type.Optional(
        Type.Integer({
          minimum: 0,
          maximum: MAX_PAGE,
          default: 1,
          description: "From 1; 0 is 1",
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
        description: "How many shall count as unread; as many as there are, at most",
      }),
    },
    {
      title: "SetUnreadRequest",
      examples: [{ ...TARGET_EXAMPLE, unread: 1 }],
    },
  ),
};

type Body<Name extends keyof typeof conversationBodies> = Static<(typeof conversationBodies)[Name]>;

/** Beyond every sequence number: clipped to the channel's newest. */
const NEWEST = Number.MAX_SAFE_INTEGER;

type Change = Parameters<Conversations["change"]>[2];

export function createConversationCalls(
  conversations: Conversations,
  messages: Pick<Messages, "history">,
) {
  function change(body: Body<"target">, wish: Change): Outcome {
    const { uid, channel_id: id, channel_type: type } = body;
    const by = { uid, origin: undefined };
    return conversations.change(by, { id, type }, wish).then(okReply);
  }

  return {
    async sync(body: Body<"sync">) {
      const { uid, page_size: size = PAGE_SIZE, msg_count: limit = 0 } = body;
      const all = await conversations.heads(uid);
      const from = ((body.page || 1) - 1) * size;
      const page = all.filter(wantedBy(body)).slice(from, from + size);
      const channels = all.map(({ channel }) => channel);
      const lastSeqs = readLastSeqs(body.last_msg_seqs ?? "", channels);
      const recents = { uid, limit, lastSeqs };
      return jsonReply(await pageJson(messages, page, recents));
    },

    clearUnread: (body: Body<"target">) => change(body, { kind: "read", seq: NEWEST }),
    setUnread: (body: Body<"unread">) => change(body, { kind: "unread", unread: body.unread }),
    remove: (body: Body<"target">) => change(body, { kind: "delete" }),
  };
}

/** Conversations changed in the millisecond of `version` are sent again: it may have held more. */
function wantedBy({
  version = 0,
  only_unread,
  exclude_channel_types: excluded = [],
}: Body<"sync">): (one: ConversationHead) => boolean {
  return ({ changedAtMs, unread, channel }) =>
    changedAtMs >= version && (only_unread !== 1 || unread > 0) && !excluded.includes(channel.type);
}

/** Characters of all recents in one reply; further conversations have empty recents. */
const RECENTS_LENGTH = 8 * 1024 * 1024;
/** Characters written before the event loop gets a turn. */
const STRETCH_LENGTH = 256 * 1024;

interface Recents {
  readonly uid: string;
  /** Most messages of each conversation. */
  readonly limit: number;
  /** What the caller has: recents begin after it. */
  readonly lastSeqs: LastSeqs;
}

/** The page as JSON text, each conversation with its newest messages. */
async function pageJson(
  messages: Pick<Messages, "history">,
  page: readonly ConversationHead[],
  { uid, limit, lastSeqs }: Recents,
): Promise<string> {
  /** Newest first, as JSON text. */
  async function recentsOf(one: ConversationHead, maxBytes: number) {
    const { channel, last } = one;
    const fromSeq = Math.max(one.deletedSeq, lastSeqs(channel)) + 1;
    if (limit === 0 || maxBytes <= 0 || last.messageSeq < fromSeq) return "[]";
    const toSeq = Number.MAX_SAFE_INTEGER;
    const range = { fromSeq, toSeq, limit, maxBytes, reverse: true };
    const found = await messages.history({ channel, uid }, range);
    const ofUser = (message: Message) => messageJson(message, uid);
    return JSON.stringify(found.messages.map(ofUser));
  }

  const written: string[] = [];
  let maxBytes = RECENTS_LENGTH;
  let stretch = 0;
  for (const one of page) {
    const recents = await recentsOf(one, maxBytes);
    maxBytes -= recents.length;
    written.push(conversationJson(one, recents));
    stretch += recents.length;
    if (stretch < STRETCH_LENGTH) continue;
    stretch = 0;
    await new Promise((next) => setImmediate(next));
  }
  return `[${written.join()}]`;
}

/** `recents`: JSON text. */
function conversationJson(one: ConversationHead, recents: string): string {
  const { channel, last } = one;
  const fields = JSON.stringify({
    channel_id: channel.id,
    channel_type: channel.type,
    unread: one.unread,
    timestamp: Math.floor(last.timestampMs / 1000),
    last_msg_seq: last.messageSeq,
    last_client_msg_no: last.clientMsgNo,
    offset_msg_seq: one.deletedSeq,
    readed_to_msg_seq: one.readSeq,
    version: one.changedAtMs,
  });
  return `${fields.slice(0, -1)},"recents":${recents}}`;
}
