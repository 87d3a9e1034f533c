// Events of streams as they stand in Redis and come on topics, for tests of who reads them. Nodes
// write them in parts, which Lua puts together.

import type { StreamState } from "../../src/broker/model.ts";
import {
  EVENT_FRAME,
  packr,
  REMOVAL_FRAME,
  type RecordedEvent,
  STREAM_STATES,
  WIRE_VERSION,
} from "../../src/redis/wire.ts";

const BODY_AT = 35;

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

export function eventFrame(parts: {
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
  head.writeDoubleBE(parts.publicationSeq, 2);
  head.writeDoubleBE(parts.messageSeq, 10);
  head.writeDoubleBE(parts.index, 18);
  head.writeDoubleBE(parts.textOffset, 26);
  head[34] = STREAM_STATES.indexOf(parts.state);
  return Buffer.concat([head, parts.record]);
}

/** Members of a group were removed; no uids: a list was replaced. */
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
