// Detects lagging and slow readers. The buffer of a connection grows by at most the bytes published
// since the last check (frames sent directly are checked when they are written), so it is enough to
// check all connections each time these bytes reach half of the lag limit. No JavaScript runs per
// receiver and publication. The native limit is only a second line of defence: a frame that does
// not fit is dropped, and a smaller frame after it may fit.

/** Length of the longest frame header that a server writes. */
const FRAME_HEADER_BYTES = 10;

/** Maximum number of published bytes held per subscriber outside its buffer. */
const MAX_BATCHED_BYTES = 32 * 16 * 1024;

/** Returns a native limit that the broker's frames never reach, because a check runs earlier. */
export function nativeLimit(maxBufferedBytes: number): number {
  return 2 * (maxBufferedBytes + MAX_BATCHED_BYTES);
}

export interface Reader {
  /** Must not call `published`. */
  checkBuffer(): void;
}

export class SlowReaders {
  readonly #readers: Iterable<Reader>;
  readonly #bytesPerCheck: number;
  #bytes = 0;

  constructor(readers: Iterable<Reader>, lagBytes: number) {
    this.#readers = readers;
    this.#bytesPerCheck = lagBytes / 2;
  }

  published(frame: Uint8Array | string): void {
    this.#bytes += frameBytes(frame) + FRAME_HEADER_BYTES;
    if (this.#bytes < this.#bytesPerCheck) return;
    this.#bytes = 0;
    for (const reader of this.#readers) reader.checkBuffer();
  }
}

export function frameBytes(frame: Uint8Array | string): number {
  return typeof frame === "string" ? Buffer.byteLength(frame) : frame.length;
}
