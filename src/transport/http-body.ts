// Collects the body of one HTTP request, up to a limit. State: the chunks so far of a body that did not come in one piece.
// Copies every byte once more than the kernel did when it comes in one piece, twice else; never buffers beyond the limit.

import type { HttpResponse } from "uWebSockets.js";

/**
 * Calls `done` once, with the whole body or, as soon as it is longer than `maxBytes`, with undefined. Not at all when the peer goes away.
 * `done` runs in a native callback.
 */
export function collectBody(
  res: HttpResponse,
  maxBytes: number,
  done: (body: Uint8Array | undefined) => void,
): void {
  let chunks: Uint8Array[] | undefined;
  let size = 0;
  res.onData((chunk, isLast) => {
    if (size > maxBytes) return; // refused; the peer has not noticed yet
    size += chunk.byteLength;
    if (size > maxBytes) {
      chunks = undefined;
      return done(undefined);
    }
    const copy = Buffer.from(new Uint8Array(chunk));
    if (isLast && chunks === undefined) return done(copy);
    chunks ??= [];
    chunks.push(copy);
    if (isLast) done(Buffer.concat(chunks, size));
  });
}
