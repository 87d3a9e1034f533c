// Reads streams: active and recently ended streams from memory, other streams from the database.
// Must never return uncommitted events, or an ended stream whose message has expired or is older
// than the retention time.

import type { ChannelKey, Message } from "../../../broker/model.ts";
import type { StreamStore } from "../../../broker/ports.ts";
import { cutIndexOf } from "../../../broker/stream-fold.ts";
import { decodeRecord, peekTimes } from "../engine/record.ts";
import { type LiveStream, withStream } from "./live-stream.ts";
import type { LiveStreams } from "./live-streams.ts";
import type { StreamEnds } from "./stream-ends.ts";
import type { EndedStream, StreamRows } from "./stream-rows.ts";

type StreamReads = Pick<
  StreamStore,
  | "stream"
  | "activeStreams"
  | "personalStreamsOf"
  | "streamEnds"
  | "personalStreamEnds"
  | "streamTextOffset"
>;

export interface StreamReadsPorts {
  readonly live: LiveStreams;
  readonly streamRows: StreamRows;
  readonly streamEnds: StreamEnds;
  readonly clock: () => number;
  readonly retentionMs: number;
}

export function createStreamReads(ports: StreamReadsPorts): StreamReads {
  const { live, streamRows: rows, streamEnds } = ports;

  function findEnded(
    key: ChannelKey,
    clientMsgNo: string,
  ): (EndedStream & { readonly record: Buffer }) | undefined {
    const ended = rows.find({ key, clientMsgNo });
    if (ended === undefined) return undefined;
    const record = rows.recordOf(ended.log);
    return record === undefined || !isShown(record) ? undefined : { ...ended, record };
  }

  const isShown = (record: Buffer) => isMessageShown(record, ports);

  function isShownLive(stream: LiveStream): boolean {
    if (stream.shown < 0 || stream.isShownActive) return stream.shown >= 0;
    const record = rows.recordAt(stream.head);
    return record !== undefined && isShown(record);
  }

  return {
    stream(key, clientMsgNo) {
      const stream = live.find(key, clientMsgNo);
      if (stream !== undefined) return isShownLive(stream) ? stream.snapshot() : undefined;
      const ended = findEnded(key, clientMsgNo);
      if (ended === undefined) return undefined;
      return rows.snapshot(decodeRecord(ended.record).message, ended);
    },

    activeStreams: (keys) =>
      keys.flatMap((key) => live.activeIn(key).map((stream) => stream.snapshot())),

    personalStreamsOf: (uid) =>
      [...live.personalOf(uid)]
        .filter((stream) => stream.isShownActive)
        .map((stream) => stream.snapshot()),

    streamEnds: (keys, sinceMs, limit) => streamEnds.ofChannels(keys, sinceMs, limit),

    personalStreamEnds: async (uid, sinceMs, limit) => streamEnds.ofUser(uid, sinceMs, limit),

    streamTextOffset(key, clientMsgNo, index) {
      const stream = live.find(key, clientMsgNo);
      if (stream !== undefined) return isShownLive(stream) ? stream.textOffset(index) : undefined;
      const ended = findEnded(key, clientMsgNo);
      if (ended === undefined) return undefined;
      const offset = rows.textOffset(ended, index);
      const snapshot = rows.snapshot(decodeRecord(ended.record).message, ended);
      const isAfterCut = index > ((snapshot && cutIndexOf(snapshot)) ?? index);
      return isAfterCut && offset !== undefined ? snapshot?.text.length : offset;
    },
  };
}

/** Returns false if a message has expired or is older than the retention time. */
export function isMessageShown(
  record: Buffer,
  { clock, retentionMs }: Pick<StreamReadsPorts, "clock" | "retentionMs">,
): boolean {
  const { acceptedMs, expiresAtMs } = peekTimes(record);
  const nowMs = clock();
  return nowMs < acceptedMs + retentionMs && nowMs < expiresAtMs;
}

type WithStream = (message: Message) => Message;

export function createWithStream({
  live,
  streamRows: rows,
}: Pick<StreamReadsPorts, "live" | "streamRows">): WithStream {
  return (message) => {
    const active = live.atSeq(message.key, message.messageSeq);
    return withStream(message, active?.snapshot() ?? rows.snapshot(message));
  };
}
