// Ids of the events that `/message/event` adds to a stream. The broker stores such an event as
// content or as the end of a stream. The event's id in the broker encodes those fields of
// WuKongIM's event for which the broker has no field:
//
//     <event_type>/<visibility>/<message id>/<occurred_at>/<event_id>
//
// The message id and the time are in base 36, and each of them may be empty. The stores recognise
// retries by the last part (`givenEventId`). Contains only pure functions.

import { COMPOSED_EVENT_ID } from "../../broker/stream-event.ts";

/** Start id of a stream whose message was sent with `is_stream`. */
export const MESSAGE_START_ID = "stream.open////";

/**
 * Maximum length of `event_id`. The id that the broker stores is longer, because it also contains
 * the type, the visibility, the message id and the time: at most 125 characters, of 128 allowed.
 */
export const MAX_EVENT_ID_LENGTH = 80;

const BASE = 36;

export interface EventFields {
  /** Type of the event as its producer wrote it. */
  readonly type: string;
  readonly visibility: "" | "public";
  /** Id of the message, or 0 if unknown. */
  readonly messageId: number;
  /** Time of the event in Unix milliseconds, or 0 if the producer sent no time. */
  readonly occurredAtMs: number;
  /** `event_id` that the producer sent. */
  readonly id: string;
}

export function writeEventId({
  type,
  visibility,
  messageId,
  occurredAtMs,
  id,
}: EventFields): string {
  return [type, visibility, numberText(messageId), numberText(occurredAtMs), id].join("/");
}

/** Parses an id that `writeEventId` built. Returns `undefined` for any other id. */
export function readEventId(eventId: string): EventFields | undefined {
  const [, type, visibility = "", messageId = "", occurredAt = "", id = ""] =
    COMPOSED_EVENT_ID.exec(eventId) ?? [];
  if (type === undefined) return undefined;
  return {
    type,
    visibility: visibility === "" ? "" : "public",
    messageId: numberOf(messageId),
    occurredAtMs: numberOf(occurredAt),
    id,
  };
}

function numberText(number: number): string {
  return number === 0 ? "" : number.toString(BASE);
}

function numberOf(text: string): number {
  const number = text === "" ? 0 : Number.parseInt(text, BASE);
  return Number.isSafeInteger(number) ? number : 0;
}
