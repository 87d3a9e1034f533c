// Encodes and decodes the heads of streams in Redis. The events of a stream are the records of a
// log. Pure.

import { BrokerError } from "../../../broker/errors.ts";
import { visitEvents } from "../../../broker/log-frame.ts";
import type { LogEnding } from "../../../broker/log-ports.ts";
import { STREAM_END, type StreamSnapshot, type StreamState } from "../../../broker/model.ts";
import type { StreamEvent } from "../../../broker/stream-event.ts";
import { StreamFold, type StreamHead, stateAfter } from "../../../broker/stream-fold.ts";
import { decodeStreamHead } from "../../../redis/wire.ts";
import { endingOf } from "./log-head.ts";

const MESSAGE_SEQ_AT = 8;
const CUT_AT_AT = 8;
const END_AT_AT = 16;
const MAX_DATA_AT = 24;
const VIEW_BYTES = 28;

/** The log of a stream as a script returns it. */
export interface StreamReply {
  readonly head: StreamHead;
  readonly incarnation: string;
  /** `undefined` while the stream is active. */
  readonly ending: LogEnding | undefined;
  /** Position of the first frame. */
  readonly from: number;
  readonly frames: Buffer;
  /** Limits on what viewers are shown. `undefined` if no limit applies to the stream. */
  readonly view: StreamViewField | undefined;
  /** Number of records of the log. */
  readonly records: number;
  /** Last frame of an ended stream if viewers are not shown all its frames. Otherwise empty. */
  readonly last: Buffer;
}

/** The field `v` of a log's head, see `library/logs.lua`. */
interface StreamViewField {
  /**
   * Index of the first event that viewers are not shown. `undefined` if they are shown all events.
   */
  readonly cutIndex: number | undefined;
  readonly maxDataBytes: number;
}

/** Decodes a reply of `stream_snapshot`. Throws `internal` if it has a newer format. */
export function decodeStreamReply(reply: unknown): StreamReply {
  // `stream_snapshot` specifies this reply.
  const [head, message, incarnation, index, from, frames, view, records, last] = reply as readonly [
    ...[Buffer, Buffer, Buffer, Buffer | null, Buffer, Buffer, Buffer | null, Buffer, Buffer],
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
    view: view === null ? undefined : decodeView(view),
    records: Number(records),
    last,
  };
}

function decodeView(view: Buffer): StreamViewField {
  const cutIndex = view.readDoubleBE(0);
  return {
    cutIndex: cutIndex < 0 ? undefined : cutIndex,
    maxDataBytes: view.readUInt32BE(MAX_DATA_AT),
  };
}

/** Returns a fold without events. */
export function newFold({ head, view }: Pick<StreamReply, "head" | "view">): StreamFold {
  // `maxBytes` is infinite, because the store decides which events viewers are shown.
  return new StreamFold(head, { maxBytes: Infinity, maxDataBytes: view?.maxDataBytes ?? Infinity });
}

/** Calls `visit` for each event in `frames`. `ending` is the stream's ending. */
export function visitStates(
  frames: Buffer,
  ending: LogEnding | undefined,
  visit: (event: StreamEvent, state: StreamState, index: number) => void,
): void {
  visitEvents(frames, (event, index) =>
    visit(event, stateAfter(event.type === STREAM_END ? ending : undefined), index),
  );
}

/**
 * Decodes a reply of `stream_snapshot` whose frames begin at the start of the log. Throws the same
 * errors as `decodeStreamReply`.
 */
export function decodeSnapshot(reply: unknown): StreamSnapshot {
  const shown = decodeStreamReply(reply);
  const { ending, frames, view, records, last } = shown;
  const fold = newFold(shown);
  if (view?.cutIndex !== undefined) fold.cutFrom(view.cutIndex);
  const add = fold.add.bind(fold);
  visitStates(frames, ending, add);
  if (fold.isCut) fold.skipTo(ending === undefined ? records : records - 1);
  visitStates(last, ending, add);
  return fold.snapshot();
}

/** Encodes the field `v` of a log's head. */
export function encodeView(view: {
  readonly cutIndex: number | undefined;
  readonly cutAt: number;
  readonly endAt: number;
  readonly maxDataBytes: number;
}): Buffer {
  const bytes = Buffer.allocUnsafe(VIEW_BYTES);
  bytes.writeDoubleBE(view.cutIndex ?? -1, 0);
  bytes.writeDoubleBE(view.cutAt, CUT_AT_AT);
  bytes.writeDoubleBE(view.endAt, END_AT_AT);
  bytes.writeUInt32BE(view.maxDataBytes, MAX_DATA_AT);
  return bytes;
}

/** Encodes the field `m` of a log's head. */
export function encodeMessage({
  messageId,
  messageSeq,
}: Pick<StreamHead, "messageId" | "messageSeq">): Buffer {
  const bytes = Buffer.allocUnsafe(MESSAGE_SEQ_AT + 8);
  bytes.writeDoubleBE(messageId, 0);
  bytes.writeDoubleBE(messageSeq, MESSAGE_SEQ_AT);
  return bytes;
}

/** Encodes the field `l` of a log's head. */
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
    message: `Redis holds a stream with ${problem}, which this build does not support. Start the newer build that wrote it`,
  });
}
