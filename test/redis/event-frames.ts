// Encodes the frames of stream events and of removals as Lua does, for tests of readers.

import { openEventFrame, sealFrame } from "../../src/broker/log-frame.ts";
import type { StreamState } from "../../src/broker/model.ts";
import type { StreamEvent } from "../../src/broker/stream-event.ts";
import {
  EVENT_FRAME,
  encodeStreamHead,
  packr,
  REMOVAL_FRAME,
  STREAM_STATES,
  WIRE_VERSION,
} from "../../src/redis/wire.ts";

/** Offset of the stream's head in an EVENT frame. */
const HEAD_AT = 37;

/** Encodes an EVENT frame. Its log has no other frames. */
export function eventFrame(event: {
  readonly publicationSeq: number;
  readonly messageSeq: number;
  readonly index: number;
  readonly textOffset: number;
  readonly state: StreamState;
  readonly source: Parameters<typeof encodeStreamHead>[0];
  readonly event: Pick<StreamEvent, "type" | "data" | "eventId">;
}): Buffer {
  const streamHead = encodeStreamHead(event.source);
  const head = Buffer.alloc(HEAD_AT);
  head[0] = WIRE_VERSION;
  head[1] = EVENT_FRAME;
  head.writeDoubleBE(event.publicationSeq, 2);
  head.writeDoubleBE(event.messageSeq, 10);
  head.writeDoubleBE(event.index, 18);
  head.writeDoubleBE(event.textOffset, 26);
  head[34] = STREAM_STATES.indexOf(event.state);
  head.writeUInt16BE(streamHead.length, HEAD_AT - 2);
  const { state } = event;
  const place = { timestampMs: 0, isTimed: true, detail: 0, state, isHidden: false };
  const frame = openEventFrame({ ...event.event, ...place });
  sealFrame(frame, { first: event.index, checkBefore: 0 });
  return Buffer.concat([head, streamHead, frame.bytes]);
}

/** Encodes a REMOVAL frame. Without `uids` any member may have been removed. */
export function removalFrame(
  publicationSeq: number,
  channelId: string,
  uids: readonly string[] | undefined,
): Buffer {
  const head = Buffer.alloc(10);
  head[0] = WIRE_VERSION;
  head[1] = REMOVAL_FRAME;
  head.writeDoubleBE(publicationSeq, 2);
  return Buffer.concat([head, packr.pack([channelId, uids ?? false])]);
}
