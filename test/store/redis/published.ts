// What came on a topic, decoded: one frame, or each of a list of messages. Pure.

import { decodeFrame, framesOf, isMessages, type Publication } from "../../../src/redis/wire.ts";

/** Throws where a frame cannot be read. */
export function decodePublished(publication: Buffer): readonly Publication[] {
  if (!isMessages(publication)) return [decodeFrame(publication)];
  return framesOf(publication).frames.map(decodeFrame);
}
