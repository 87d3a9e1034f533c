// Reads a channel's complete history over HTTP and passes it to the history checker.

import type { Broker } from "../support/broker.ts";
import type {
  HistoryChecker,
  ObservedMessage,
  ObservedRange,
  Reader,
} from "../support/history-checker.ts";
import { STATIC_TOKEN } from "./crash-names.ts";

const PAGE = 500;

/**
 * Reads a channel over HTTP from the reader's cursor to its end, oldest or newest message first,
 * and passes it to the checker. Returns the channel's head.
 */
export async function checkHistory(
  broker: Pick<Broker, "call">,
  { checker, reader }: { checker: HistoryChecker; reader: Reader },
  order: "asc" | "desc" = "asc",
): Promise<number> {
  const { key, cursor } = reader;
  const range = await readHistory(broker, { key, afterSeq: cursor }, order);
  checker.checkRange(reader, range);
  checker.checkEnd(reader);
  return range.throughSeq;
}

/** Reads a channel over HTTP from `afterSeq` (exclusive) to its end. */
export async function readHistory(
  broker: Pick<Broker, "call">,
  { key, afterSeq }: { readonly key: string; readonly afterSeq: number },
  order: "asc" | "desc" = "asc",
): Promise<ObservedRange> {
  const readStartedAtMs = Date.now();
  const messages: ObservedMessage[] = [];
  let range = { from: afterSeq + 1, to: 0 };
  let page = await historyPage(broker, key, { ...range, order });
  const throughSeq = Math.max(page.headSeq, afterSeq);
  messages.push(...page.messages);
  while (page.more) {
    const lastSeq = messages.at(-1)?.messageSeq ?? 0;
    if (order === "asc") range = { ...range, from: lastSeq + 1 };
    else range = { ...range, to: lastSeq - 1 };
    page = await historyPage(broker, key, { ...range, order });
    messages.push(...page.messages);
  }
  if (order === "desc") messages.reverse();
  const readEndedAtMs = Date.now();
  return { afterSeq, throughSeq, messages, readStartedAtMs, readEndedAtMs };
}

async function historyPage(
  broker: Pick<Broker, "call">,
  key: string,
  range: { readonly from: number; readonly to: number; readonly order: string },
): Promise<{ messages: ObservedMessage[]; headSeq: number; more: boolean }> {
  const isGroup = key.startsWith("2:");
  const [id = "", uid = ""] = key.slice(2).split("@");
  const query = new URLSearchParams({
    channel_id: id,
    channel_type: isGroup ? "2" : "1",
    ...(isGroup ? {} : { uid }),
    from_seq: String(range.from),
    to_seq: String(range.to),
    limit: String(PAGE),
    order: range.order,
  });
  const path = `/channel/messages?${query}`;
  const headers = { token: STATIC_TOKEN };
  const { status, body } = await broker.call(path, undefined, headers);
  if (status !== 200) throw new Error(`the history call responded with ${status} ${body.code}`);
  const more = body.more === 1;
  return { messages: body.messages.map(toShown), headSeq: body.head_seq, more };
}

function toShown(wire: Record<string, string | number>): ObservedMessage {
  const payload = Buffer.from(String(wire.payload), "base64").toString();
  return {
    messageId: Number(wire.message_id),
    messageSeq: Number(wire.message_seq),
    fromUid: String(wire.from_uid),
    clientMsgNo: String(wire.client_msg_no),
    text: JSON.parse(payload).content,
  };
}
