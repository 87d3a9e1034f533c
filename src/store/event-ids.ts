// Recognises the retry of a stream's event by its id [decisions: Event id]. The embedded store and
// the Redis store keep the same mark for each id that a producer set (`givenEventId`). `is_retry`
// in `redis/library/streams.lua` compares marks in the same way as `isRetry`.

import { createHash } from "node:crypto";
import {
  isCustomType,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  TOOL_CALL_EVENTS,
} from "../broker/model.ts";
import type { StreamDraft } from "../broker/ports.ts";
import { givenEventId } from "../broker/stream-event.ts";

/**
 * Mark of an id that several different events used. Events with such an id are never treated as
 * retries.
 */
export const SHARED_ID = "";

const TYPES = [STREAM_START, STREAM_CONTENT, STREAM_END, ...TOOL_CALL_EVENTS];
/** First digit of a custom event's mark. The type of a custom event is part of the hash. */
const CUSTOM = TYPES.length;
const HASH_BYTES = 8;
/**
 * Length of a mark without a timestamp: one digit for the type, and the 8 bytes of the hash in
 * base64.
 */
const UNTIMED_LENGTH = 12;

/**
 * Returns the mark to store for the id that the producer set, or `undefined` if no mark must be
 * stored. An event without an id gets no mark, and neither does an id that equals the stream's
 * `clientMsgNo`, because every event of the stream may have this id. `/message/event` puts further
 * fields in front of the producer's id. The hash covers these fields, because a delta and a
 * snapshot are both content, and only these fields distinguish them.
 */
export function eventMark({
  clientMsgNo,
  eventId,
  type,
  data,
  timestampMs,
}: Pick<StreamDraft, "clientMsgNo" | "eventId" | "type" | "data" | "timestampMs">):
  | string
  | undefined {
  if (eventId === undefined) return undefined;
  const givenId = givenEventId(eventId);
  if (givenId === clientMsgNo) return undefined;
  const isCustom = isCustomType(type);
  const hash = createHash("sha1");
  if (isCustom) hash.update(`${type}\n`);
  if (givenId !== eventId) hash.update(eventId.slice(0, -givenId.length));
  const text = hash.update(data).digest().toString("base64url", 0, HASH_BYTES);
  return `${isCustom ? CUSTOM : TYPES.indexOf(type)}${text}${timestampMs ?? ""}`;
}

export function isRetry(remembered: string, mark: string): boolean {
  if (remembered === SHARED_ID) return false;
  if (remembered.length > UNTIMED_LENGTH && mark.length > UNTIMED_LENGTH)
    return remembered === mark;
  return remembered.slice(0, UNTIMED_LENGTH) === mark.slice(0, UNTIMED_LENGTH);
}
