// The calls about a user's conversations, for backends that answer their clients' lists. State: none. Shapes are WuKongIM's.

import type { Conversations } from "../broker/conversations.ts";
import type { ConversationHead } from "../broker/model.ts";
import { createPageWriter } from "./conversation-page.ts";
import { readLastSeqs } from "./last-seqs.ts";
import { jsonReply, okReply } from "./reply.ts";
import type { Outcome } from "./route.ts";
import type { Body } from "./schemas.ts";

export interface ConversationParts {
  readonly conversations: Conversations;
  readonly messages: Parameters<typeof createPageWriter>[0];
}

export interface ConversationCalls {
  sync(body: Body<"conversationSync">): Outcome;
  clearUnread(body: Body<"conversationTarget">): Outcome;
  setUnread(body: Body<"unread">): Outcome;
  remove(body: Body<"conversationTarget">): Outcome;
}

const PAGE_SIZE = 100;
/** Beyond every sequence number: clipped to the newest there is. */
const NEWEST = Number.MAX_SAFE_INTEGER;

type Change = Parameters<Conversations["change"]>[2];

export function createConversationCalls({
  conversations,
  messages,
}: ConversationParts): ConversationCalls {
  const writePage = createPageWriter(messages);

  function change(
    { uid, channel_id: id, channel_type: type }: Body<"conversationTarget">,
    wish: Change,
  ): Outcome {
    const by = { uid, origin: undefined };
    return conversations.change(by, { id, type }, wish).then(okReply);
  }

  return {
    async sync(body) {
      const { uid, page_size: size = PAGE_SIZE, msg_count: recents = 0 } = body;
      const all = await conversations.heads(uid);
      const from = ((body.page || 1) - 1) * size;
      const page = all.filter(wantedBy(body)).slice(from, from + size);
      const channels = all.map(({ channel }) => channel);
      const lastSeqs = readLastSeqs(body.last_msg_seqs ?? "", channels);
      return jsonReply(await writePage(page, { uid, recents, lastSeqs }));
    },

    clearUnread: (body) => change(body, { kind: "read", seq: NEWEST }),
    setUnread: (body) => change(body, { kind: "unread", unread: body.unread }),
    remove: (body) => change(body, { kind: "delete" }),
  };
}

/** What changed in the very millisecond of `version` comes again: more may have happened in it. */
function wantedBy({
  version = 0,
  only_unread,
  exclude_channel_types: excluded = [],
}: Body<"conversationSync">): (one: ConversationHead) => boolean {
  return ({ changedAtMs, unread, channel }) =>
    changedAtMs >= version &&
    (only_unread !== 1 || unread > 0) &&
    !excluded.includes(channel.type);
}
