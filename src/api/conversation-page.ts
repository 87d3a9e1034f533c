// A page of a user's conversations as JSON, each with its newest messages. State: none. Reads no more than a bound in all, and never for long
// without letting everything else have its turn.

import type { Messages } from "../broker/messages.ts";
import type { ConversationHead, Message } from "../broker/model.ts";
import type { LastSeqs } from "./last-seqs.ts";
import { messageJson } from "./message-json.ts";

/** Characters of all recents in one reply; conversations beyond come without recents. */
const RECENTS_LENGTH = 8 * 1024 * 1024;
/** Written before others get a turn. */
const STRETCH_LENGTH = 256 * 1024;

export interface PageWish {
  readonly uid: string;
  /** Most messages of each. */
  readonly recents: number;
  /** What the caller has: recents hold what lies behind. */
  readonly lastSeqs: LastSeqs;
}

/** The whole reply, as JSON text. */
export type WritePage = (
  page: readonly ConversationHead[],
  wish: PageWish,
) => Promise<string>;

interface Range {
  readonly uid: string;
  readonly fromSeq: number;
  readonly limit: number;
  readonly maxBytes: number;
}

export function createPageWriter(
  messages: Pick<Messages, "history">,
): WritePage {
  /** Newest first, as JSON text. */
  async function recentsOf(
    { channel, last }: ConversationHead,
    { uid, fromSeq, limit, maxBytes }: Range,
  ): Promise<string> {
    if (limit === 0 || maxBytes <= 0 || last.messageSeq < fromSeq) return "[]";
    const toSeq = Number.MAX_SAFE_INTEGER;
    const range = { fromSeq, toSeq, limit, maxBytes, reverse: true };
    const page = await messages.history({ channel, uid }, range);
    const ofUser = (message: Message) => messageJson(message, uid);
    return JSON.stringify(page.messages.map(ofUser));
  }

  return async (page, { uid, recents: limit, lastSeqs }) => {
    const written: string[] = [];
    let maxBytes = RECENTS_LENGTH;
    let stretch = 0;
    for (const one of page) {
      const fromSeq = Math.max(one.deletedSeq, lastSeqs(one.channel)) + 1;
      const recents = await recentsOf(one, { uid, fromSeq, limit, maxBytes });
      maxBytes -= recents.length;
      written.push(conversationJson(one, recents));
      stretch += recents.length;
      if (stretch < STRETCH_LENGTH) continue;
      stretch = 0;
      await new Promise((next) => setImmediate(next));
    }
    return `[${written.join()}]`;
  };
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
