// What the calls about conversations may send. State: none.

import { Type } from "typebox";
import { channelId, channelType, flag, id } from "./fields.ts";

const MAX_TIME_MS = 8_640_000_000_000_000;
const MAX_PAGE = 1_000_000;
const MAX_PAGE_SIZE = 500;
const MAX_RECENTS = 200;
const MAX_SEQS_LENGTH = 131_072;
/** What holds for each list: ids may contain `|` and `:`, so only the last entry's end can be told. */
const SEQS_PATTERN = "^(?:[^@#&\\p{Cc}\\p{Cs}]+:\\d{1,3}:\\d{1,16}\\|?)?$";

const target = {
  uid: id("Whose conversation"),
  channel_id: channelId,
  channel_type: channelType,
};

const TARGET_EXAMPLE = { uid: "alice", channel_id: "lobby", channel_type: 2 };

export const conversationBodies = {
  conversationSync: Type.Object(
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
        Type.Integer({ minimum: 1, maximum: MAX_PAGE_SIZE, default: 100 }),
      ),
    },
    {
      title: "ConversationSyncRequest",
      examples: [{ uid: "alice", version: 0, msg_count: 10 }],
    },
  ),
  conversationTarget: Type.Object(target, {
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
          "How many shall count as unread; as many as there are, at most",
      }),
    },
    {
      title: "SetUnreadRequest",
      examples: [{ ...TARGET_EXAMPLE, unread: 1 }],
    },
  ),
};
