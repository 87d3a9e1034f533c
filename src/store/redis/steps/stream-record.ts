// Encodes and decodes the heads of text streams in Redis, whose events are the frames of a log. Pure.

import { BrokerError } from "../../../broker/errors.ts";
import { visitEvents } from "../../../broker/log-frame.ts";
import type { LogEnding } from "../../../broker/log-ports.ts";
import { STREAM_END, type StreamSnapshot } from "../../../broker/model.ts";
import { StreamFold, type StreamHead, stateAfter } from "../../../broker/stream-fold.ts";
import { decodeStreamHead } from "../../../redis/wire.ts";
import { endingOf } from "./log-head.ts";

const MESSAGE_SEQ_AT = 8;

/** The log of a stream as a script returns it. */
export interface StreamReply {
  readonly head: StreamHead;
  readonly incarnation: string;
  /** `undefined` while the stream is active. */
  readonly ending: LogEnding | undefined;
  /** Position of the first frame. */
  readonly from: number;
  readonly frames: Buffer;
}

/** Decodes a reply of `stream_snapshot`. Throws `internal` if it has a newer format. */
export function decodeStreamReply(reply: unknown): StreamReply {
  // As `stream_snapshot` specifies.
  const [head, message, incarnation, index, from, frames] = reply as readonly [
    ...[Buffer, Buffer, Buffer, Buffer | null, Buffer, Buffer],
  ];
  const ending = endingOf(Number(index ?? 0));
  if (index !== null && ending === undefined) throw newer(`ending ${String(index)}`);
  return {
    head: {
      ...decodeStreamHead(head),
      messageId: message.readDoubleBE(0),
      messageSeq: message.readDoubleBE(MESSAGE_SEQ_AT),
    },
    incarnation: String(incarnation),
    ending,
    from: Number(from),
    frames,
  };
}

/** Decodes a reply of `stream_snapshot` with all frames. Throws like `decodeStreamReply`. */
export function decodeSnapshot(reply: unknown): StreamSnapshot {
  const { head, ending, frames } = decodeStreamReply(reply);
  const fold = new StreamFold(head);
  visitEvents(frames, (event) =>
    fold.add(event, stateAfter(event.type === STREAM_END ? ending : undefined)),
  );
  return fold.snapshot();
}

/** Encodes the field m of a log's head. */
export function encodeMessage({
  messageId,
  messageSeq,
}: Pick<StreamHead, "messageId" | "messageSeq">): Buffer {
  const bytes = Buffer.allocUnsafe(MESSAGE_SEQ_AT + 8);
  bytes.writeDoubleBE(messageId, 0);
  bytes.writeDoubleBE(messageSeq, MESSAGE_SEQ_AT);
  return bytes;
}

/** Encodes the field l of a log's head. */
export function encodeLengths(lengths: {
  readonly textUnits: number;
  readonly bytes: number;
  readonly lastMs: number;
}): Buffer {
  const bytes = Buffer.allocUnsafe(16);
  bytes.writeUInt32BE(lengths.textUnits, 0);
  bytes.writeUInt32BE(lengths.bytes, 4);
  bytes.writeDoubleBE(lengths.lastMs, 8);
  return bytes;
}

function newer(problem: string): BrokerError {
  return new BrokerError("internal", {
    message: `Redis holds a stream with ${problem}, which this build does not know. Start the newer build that wrote it`,
  });
}
