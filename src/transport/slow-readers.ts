// Detects lagging and slow readers. State: bytes published since the last check.
// A connection's buffer grows at most by what was published since the last check (sent frames are
// checked when written), so one pass per half of the lag limit is enough: it marks the connections
// that lag and closes those over the upper limit, which first get all earlier frames. No JavaScript
// runs per receiver and publication; a pass costs one cheap native call per connection.
// The native limit is only a backstop: it drops the frame that does not fit, and a later frame of
// the same burst may fit again, so that one in the middle would be missing.

/** The longest frame header a server writes. */
const FRAME_HEADER_BYTES = 10;

/** Publications held per subscriber outside its buffer: at most 32 of 16 KiB. */
const MAX_BATCHED_BYTES = 32 * 16 * 1024;

/** A native limit that is never reached by our own frames: a check comes first. */
export function nativeLimit(maxBufferedBytes: number): number {
  return 2 * (maxBufferedBytes + MAX_BATCHED_BYTES);
}

export interface Reader {
  /** Marks the connection as lagging or closes it; must not call back. */
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

  /** Counts a frame published to some or all readers; checks them when due. */
  published(frame: Uint8Array | string): void {
    this.#bytes += frameBytes(frame) + FRAME_HEADER_BYTES;
    if (this.#bytes < this.#bytesPerCheck) return;
    this.#bytes = 0;
    for (const reader of this.#readers) reader.checkBuffer();
  }
}

/** Bytes of the frame's payload on the wire; text is counted as UTF-8. */
export function frameBytes(frame: Uint8Array | string): number {
  return typeof frame === "string" ? Buffer.byteLength(frame) : frame.length;
}
