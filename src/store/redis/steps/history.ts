// A channel's messages as they are shown: steps that each hold up nobody, put together to the slice
// that was asked for. No state.

import { type ChannelKey, type Message, streamPayload } from "../../../broker/model.ts";
import type {
  HistoryRange,
  HistorySlice,
  MessageStore,
  ResumeSeqs,
} from "../../../broker/ports.ts";
import { loadScript } from "../../../redis/script.ts";
import { decodeRecord } from "../../../redis/wire.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { decodeSnapshot } from "./stream-record.ts";

const READ = loadScript(lua("read_messages"), lua("entry"), lua("snapshot"));
const RESUME_SEQS = loadScript(lua("resume_seqs"), lua("entry"));

type HistoryParts = Pick<RedisStorePorts, "link" | "clock" | "limits" | "unreadable">;

/** The port's `readMessages`. */
export async function readSlice(
  parts: HistoryParts,
  key: ChannelKey,
  range: HistoryRange,
): Promise<HistorySlice> {
  const messages: Message[] = [];
  let { toSeq, maxBytes } = range;
  let fromSeq = Math.max(range.fromSeq, 1);
  for (;;) {
    const limit = range.limit - messages.length;
    const isFirst = messages.length === 0;
    const rest = { ...range, fromSeq, toSeq, limit, maxBytes };
    const piece = await readPiece(parts, key, { ...rest, isFirst });
    for (const message of piece.messages) messages.push(message);
    const { more, headSeq } = piece;
    let { nextSeq } = piece;
    if (nextSeq === 0 && more && messages.length === 0)
      nextSeq = piece.lastSeq + (range.reverse ? -1 : 1); // all that was taken is unreadable: a slice holds at least one message if there is one
    if (nextSeq === 0) return { messages, more };
    maxBytes -= piece.bytes;
    if (range.reverse) toSeq = nextSeq;
    else fromSeq = nextSeq;
    toSeq = Math.min(toSeq, headSeq); // what came since the first piece is not of this slice
  }
}

/** The port's `resumeSeqs`. */
export async function readResumeSeqs(
  { link }: HistoryParts,
  ...[key, lastSeq, lastId]: Parameters<MessageStore["resumeSeqs"]>
): Promise<ResumeSeqs> {
  const names = ["head", "log"].map((part) => link.keys.channel(part, key));
  const reply = await link.run(RESUME_SEQS, names, [lastSeq, lastId]);
  const [headSeq, lastCommonSeq] = reply as [number, number]; // as its header says
  return { headSeq, lastCommonSeq };
}

interface Piece extends HistorySlice {
  readonly headSeq: number;
  /** Where to go on; 0: the range is read. */
  readonly nextSeq: number;
  /** The last one taken, readable or not; 0: none. */
  readonly lastSeq: number;
  readonly bytes: number;
}

async function readPiece(
  { link, clock, limits, unreadable }: HistoryParts,
  key: ChannelKey,
  range: HistoryRange & { readonly isFirst: boolean },
): Promise<Piece> {
  const { fromSeq, toSeq, limit, maxBytes, reverse, isFirst } = range;
  const names = ["head", "log"].map((part) => link.keys.channel(part, key));
  const reply = await link.run(READ, names, [
    ...[fromSeq, toSeq, limit, maxBytes, reverse ? 1 : 0],
    ...[clock(), limits.retentionS * 1000, isFirst ? 1 : 0],
  ]);
  const [headSeq, more, nextSeq, bytes, taken] = reply as [
    ...[number, number, number, number, readonly Taken[]],
  ]; // as its header says
  const messages = unreadable.leaveOut(taken, messageOf);
  const lastSeq = Number(taken.at(-1)?.[1] ?? 0);
  const place = { headSeq, nextSeq, lastSeq, bytes };
  return { messages, more: more === 1, ...place };
}

/** A message as scripts show it. */
export type Taken = readonly [
  id: unknown,
  seq: unknown,
  record: Buffer,
  stream: readonly unknown[] | null,
];

export function messageOf([id, seq, record, shown]: Taken): Message {
  const place = { messageId: Number(id), messageSeq: Number(seq) };
  if (shown === null) return decodeRecord(record, place);
  const stream = decodeSnapshot(shown);
  const payload = streamPayload(stream.text);
  return decodeRecord(record, { ...place, stream, payload });
}
