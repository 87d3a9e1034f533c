// Decodes publications of topics: one frame, or each message of a list. Pure.

import { decodeFrame, framesOf, isMessages, type Publication } from "../../../src/redis/wire.ts";

/** Decodes a publication. Throws if a frame is invalid. */
export function decodePublished(publication: Buffer): readonly Publication[] {
  if (!isMessages(publication)) return [decodeFrame(publication)];
  return framesOf(publication).frames.map(decodeFrame);
}
