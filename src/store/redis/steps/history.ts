// Reads a channel's messages. Combines the replies of several short scripts into one slice, because
// a single long script would delay other calls. Keeps no state.

import { type ChannelKey, type Message, streamPayload } from "../../../broker/model.ts";
import type { HistoryRange, HistorySlice } from "../../../broker/ports.ts";
import { loadScript } from "../../../redis/script.ts";
import { decodeRecord } from "../../../redis/wire.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { decodeSnapshot } from "./stream-record.ts";

const READ = loadScript(lua("read_messages"), lua("entry"), lua("snapshot"));

type HistoryPorts = Pick<RedisStorePorts, "link" | "clock" | "limits" | "unreadable">;

export async function readSlice(
  ports: HistoryPorts,
  key: ChannelKey,
  range: HistoryRange,
): Promise<HistorySlice> {
  const messages: Message[] = [];
  let { toSeq, maxBytes } = range;
  let fromSeq = Math.max(range.fromSeq, 1);
  for (;;) {
    const limit = range.limit - messages.length;
    const isFirst = messages.length === 0;
    const pieceRange = { ...range, fromSeq, toSeq, limit, maxBytes };
    const piece = await readPiece(ports, key, { ...pieceRange, isFirst });
    for (const message of piece.messages) messages.push(message);
    const { more, headSeq } = piece;
    let { nextSeq } = piece;
    if (nextSeq === 0 && more && messages.length === 0)
      // The loop continues if no message of the piece could be decoded, because a slice must not be
      // empty while the range has further messages.
      nextSeq = piece.lastSeq + (range.reverse ? -1 : 1);
    if (nextSeq === 0) return { messages, more };
    maxBytes -= piece.bytes;
    if (range.reverse) toSeq = nextSeq;
    else fromSeq = nextSeq;
    // Messages that arrived after the first piece are not part of the slice.
    toSeq = Math.min(toSeq, headSeq);
  }
}

interface Piece extends HistorySlice {
  readonly headSeq: number;
  /**
   * Seq at which the next piece starts. 0 if the range is complete, or if a limit of the range is
   * reached.
   */
  readonly nextSeq: number;
  /** Seq of the last message, even if it could not be decoded. 0 if the piece has no messages. */
  readonly lastSeq: number;
  readonly bytes: number;
}

async function readPiece(
  { link, clock, limits, unreadable }: HistoryPorts,
  key: ChannelKey,
  range: HistoryRange & { readonly isFirst: boolean },
): Promise<Piece> {
  const { fromSeq, toSeq, limit, maxBytes, reverse, isFirst } = range;
  const names = ["head", "log"].map((part) => link.keys.channel(part, key));
  const reply = await link.run(READ, names, [
    ...[fromSeq, toSeq, limit, maxBytes, reverse ? 1 : 0],
    ...[clock(), limits.retentionS * 1000, isFirst ? 1 : 0],
  ]);
  const [headSeq, more, nextSeq, bytes, rows] = reply as [
    ...[number, number, number, number, readonly MessageRow[]],
  ]; // see the header of `read_messages.lua`
  const messages = unreadable.decodeReadable(rows, messageOf);
  const lastSeq = Number(rows.at(-1)?.[1] ?? 0);
  const place = { headSeq, nextSeq, lastSeq, bytes };
  return { messages, more: more === 1, ...place };
}

export type MessageRow = readonly [
  id: unknown,
  seq: unknown,
  record: Buffer,
  stream: readonly unknown[] | null,
];

export function messageOf([id, seq, record, snapshot]: MessageRow): Message {
  const place = { messageId: Number(id), messageSeq: Number(seq) };
  if (snapshot === null) return decodeRecord(record, place);
  const stream = decodeSnapshot(snapshot);
  const payload = streamPayload(stream.text);
  return decodeRecord(record, { ...place, stream, payload });
}
