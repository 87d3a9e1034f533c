// An event of a stream as the steps in Lua take it: what it counts, and the records it and the stream's message are kept and told as. Pure.

import { BrokerError } from "../../../../broker/errors.ts";
import {
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  streamPayload,
  TOOL_CALL_EVENTS,
} from "../../../../broker/model.ts";
import type { StreamDraft } from "../../../../broker/stream-ports.ts";
import { encodeExtra, encodeRecord } from "../../../../redis/wire.ts";
import { snapshotBytes } from "../../../held-bytes.ts";
import { eventHead, eventTail } from "./record.ts";

/** As `lua/stream_steps.lua` names them: start, content, note (a tool call), end. */
export type EventKind = "s" | "c" | "n" | "e";

const NO_TEXT = Buffer.from(streamPayload(""));

/** Throws `bad_request` for a type that no stream has and a time that is none, `too_large` for data no stream could hold. */
export function kindOf(
  { type, data, timestampMs }: StreamDraft,
  maxStreamBytes: number,
): EventKind {
  const kind = kindOfType(type);
  const isTime = timestampMs === undefined || Number.isFinite(timestampMs);
  if (kind === undefined || !isTime) throw new BrokerError("bad_request");
  if (data.length > maxStreamBytes) throw new BrokerError("too_large");
  return kind;
}

function kindOfType(type: string): EventKind | undefined {
  if (type === STREAM_CONTENT) return "c";
  if (type === STREAM_START) return "s";
  if (type === STREAM_END) return "e";
  return TOOL_CALL_EVENTS.has(type) ? "n" : undefined;
}

/** Bytes the event counts against the bound of its stream. */
export function countedBytes(draft: StreamDraft): number {
  return snapshotBytes(draft);
}

/** What the event's record ends with; it happened at `nowMs` if its producer did not say when. */
export function tailOf(
  { type, data, timestampMs }: StreamDraft,
  nowMs: number,
): Buffer {
  return eventTail({ type, data, timestampMs: timestampMs ?? nowMs });
}

/** What a start brings for the stream's message and all its events. */
export function beginning(
  draft: StreamDraft,
  nowMs: number,
): {
  readonly head: Buffer;
  readonly record: Buffer;
  readonly extra: Buffer;
} {
  const { channel, fromUid, clientMsgNo, data } = draft;
  const record = encodeRecord({
    ...{ channel, fromUid, clientMsgNo, timestampMs: nowMs },
    header: { noPersist: false, redDot: true },
    ...{ expireS: 0, streamNo: undefined, tagKey: undefined },
    payload: NO_TEXT,
  });
  const nobody = { origin: undefined, recipients: undefined };
  return {
    head: eventHead(draft),
    record,
    extra: encodeExtra({ ...nobody, startData: data }),
  };
}
