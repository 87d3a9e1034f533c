// Decodes publications of topics: one frame, or each message of a list. Pure.

import type { ClusterEvent } from "../../../src/broker/ports.ts";
import { decodeFrame, framesOf, isMessages, type Publication } from "../../../src/redis/wire.ts";

/** Decodes a publication. Throws if a frame is invalid. */
export function decodePublished(publication: Buffer): readonly Publication[] {
  if (!isMessages(publication)) return [decodeFrame(publication)];
  return framesOf(publication).frames.map(decodeFrame);
}

/** Returns the events of a publication. */
export function eventsIn({
  event,
}: Exclude<Publication, { kind: "mark" }>): readonly ClusterEvent[] {
  if (event.kind !== "events") return [event];
  return event.events.map((published) => ({ kind: "event", event: published }));
}
