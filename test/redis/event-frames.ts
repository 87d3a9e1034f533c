// Encodes stream events as they are stored in Redis and published on topics, for tests of readers.
// Nodes encode them in parts, which Lua joins.

import type { StreamState } from "../../src/broker/model.ts";
import {
  EVENT_FRAME,
  packr,
  REMOVAL_FRAME,
  type RecordedEvent,
  STREAM_STATES,
  WIRE_VERSION,
} from "../../src/redis/wire.ts";

/** Offset of the record in an EVENT frame. */
const BODY_AT = 35;

/** Encodes the record of an event. */
export function encodeEvent(event: RecordedEvent): Buffer {
  return packr.pack([
    WIRE_VERSION,
    event.channel.type,
    event.channel.id,
    event.fromUid,
    event.clientMsgNo,
    event.eventId,
    event.type,
    event.data,
    event.timestampMs,
  ]);
}

/** Encodes an EVENT frame. */
export function eventFrame(event: {
  readonly publicationSeq: number;
  readonly messageSeq: number;
  readonly index: number;
  readonly textOffset: number;
  readonly state: StreamState;
  readonly record: Uint8Array;
}): Buffer {
  const head = Buffer.alloc(BODY_AT);
  head[0] = WIRE_VERSION;
  head[1] = EVENT_FRAME;
  head.writeDoubleBE(event.publicationSeq, 2);
  head.writeDoubleBE(event.messageSeq, 10);
  head.writeDoubleBE(event.index, 18);
  head.writeDoubleBE(event.textOffset, 26);
  head[34] = STREAM_STATES.indexOf(event.state);
  return Buffer.concat([head, event.record]);
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
