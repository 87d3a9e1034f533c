// Looks for connections whose peers lag or read too slowly. State: how many bytes were published since the last look.
// No connection's buffer grows by more than was published since the last look (what is sent directly is checked when it is written), so after
// each half of the lower limit one pass notes who lags and stops those over the upper one with the slow reader's code: they get all that
// came before, and then the close frame. No JavaScript runs per receiver and publish; a pass costs one cheap native call per connection.
// The native limit is only a backstop far above, because it is not sound for our own frames: what does not fit is left out, and in a burst
// of publishes a later frame may fit again before the connection is cut off, so that one in the middle is missing.

import { frameBytes } from "./frame-bytes.ts";

/** The longest frame header a server writes. */
const FRAME_HEADER_BYTES = 10;

/** Published frames the native side may hold back per subscriber, outside the buffer: 32, none of which is longer than 16 KiB. */
const MAX_HELD_BACK_BYTES = 32 * 16 * 1024;

/** A limit for the native side that our own frames do not reach: a look comes first. */
export function nativeLimit(maxBufferedBytes: number): number {
  return 2 * (maxBufferedBytes + MAX_HELD_BACK_BYTES);
}

/** What may be reading slowly. */
export interface Reader {
  /** Notes that its peer lags, stops it when that leaves too much unread; must not call back. */
  look(): void;
}

export class SlowReaders {
  readonly #readers: Iterable<Reader>;
  readonly #bytesPerLook: number;
  #bytes = 0;

  constructor(readers: Iterable<Reader>, lagBytes: number) {
    this.#readers = readers;
    this.#bytesPerLook = lagBytes / 2;
  }

  /** Counts a frame that went to some or all of the readers, and looks when it is time. */
  published(frame: Uint8Array | string): void {
    this.#bytes += frameBytes(frame) + FRAME_HEADER_BYTES;
    if (this.#bytes < this.#bytesPerLook) return;
    this.#bytes = 0;
    for (const reader of this.#readers) reader.look();
  }
}
