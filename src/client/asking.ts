// What an app asks the server for: history, conversations, presence. No state; every call may be repeated without harm.

import type { ChannelRef } from "../broker/model.ts";
import type { Client, ConversationView } from "./api.ts";
import { checkNames } from "./named.ts";
import type { Receiving } from "./received.ts";
import type { Ask, Request } from "./requests.ts";

type Asking = Pick<
  Client,
  | "history"
  | "conversations"
  | "markRead"
  | "setUnread"
  | "deleteConversation"
  | "presence"
>;

const HISTORY_OPTIONS = "fromSeq toSeq limit newestFirst";
const PAGE_OPTIONS = "limit offset";

const HISTORY_LIMIT = 50;
const CONVERSATION_LIMIT = 100;

export function createAsking(ask: Ask, receiving: Receiving): Asking {
  const change = async (
    channel: ChannelRef,
    what: Request<"conversation">["change"],
  ): Promise<ConversationView> => {
    const request = { kind: "conversation", channel, change: what } as const;
    const { conversation } = await ask(request);
    return receiving.conversation(conversation);
  };
  return {
    async history(channel, options = {}) {
      checkNames("history", options, HISTORY_OPTIONS);
      const { fromSeq, toSeq = 0, limit = HISTORY_LIMIT } = options;
      const { messages, headSeq, more } = await ask({
        kind: "history",
        channel,
        fromSeq: fromSeq ?? 1,
        toSeq,
        limit,
        reverse: options.newestFirst ?? fromSeq === undefined,
      });
      return { messages: messages.map(receiving.message), headSeq, more };
    },

    async conversations(options = {}) {
      checkNames("conversations", options, PAGE_OPTIONS);
      const { limit = CONVERSATION_LIMIT, offset = 0 } = options;
      const page = await ask({ kind: "conversations", limit, offset });
      const conversations = page.conversations.map(receiving.conversation);
      return { conversations, more: page.more };
    },

    markRead: (channel, seq) => change(channel, { kind: "read", seq }),
    setUnread: (channel, unread) => change(channel, { kind: "unread", unread }),
    deleteConversation: (channel) => change(channel, { kind: "delete" }),

    async presence(uids) {
      const { presence } = await ask({ kind: "presence", uids });
      return presence;
    },
  };
}
