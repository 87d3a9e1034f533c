// Detects lagging and slow readers. Between two checks, a connection's buffer grows by at most the
// number of published bytes, because frames that are sent directly are checked when they are
// written. All connections are checked each time the published bytes reach half of the lag limit
// or, summed over receivers, a quarter of the node's limit on unread bytes. Therefore, a
// publication needs no check of each receiver. The driver's own limit is so high that the broker's
// frames never reach it. At its limit, the driver could drop a frame and then send a later frame.

const FRAME_HEADER_BYTES = 10;

/** Maximum number of a subscriber's published bytes that are not yet in its socket's buffer. */
const MAX_BATCHED_BYTES = 32 * 16 * 1024;

/**
 * Returns a limit for the driver that the broker's frames never reach, because a check closes the
 * connection earlier.
 */
export function driverLimit(maxBufferedBytes: number): number {
  return 2 * (maxBufferedBytes + MAX_BATCHED_BYTES);
}

export interface Reader {
  /** Checks the unread bytes. Must not call `published`. */
  checkBuffer(): void;
}

interface SlowReaderLimits {
  readonly lagBytes: number;
  readonly totalBytes: number;
  subscribersOf(topic: string): number;
}

/** Fraction of `totalBytes` that may be published between two checks, summed over receivers. */
const TOTAL_SHARE = 1 / 4;

export class SlowReaders {
  readonly #readers: ReadonlySet<Reader>;
  readonly #limits: SlowReaderLimits;
  readonly #bytesPerCheck: number;
  readonly #totalPerCheck: number;
  #bytes = 0;
  #totalBytes = 0;

  constructor(readers: ReadonlySet<Reader>, limits: SlowReaderLimits) {
    this.#readers = readers;
    this.#limits = limits;
    this.#bytesPerCheck = limits.lagBytes / 2;
    this.#totalPerCheck = limits.totalBytes * TOTAL_SHARE;
  }

  published(topic: string, frame: Uint8Array | string): void {
    const bytes = frameBytes(frame) + FRAME_HEADER_BYTES;
    this.#bytes += bytes;
    // If this condition is false, `#bytesPerCheck` is always reached before `#totalPerCheck`.
    if (this.#readers.size * this.#bytesPerCheck > this.#totalPerCheck)
      this.#totalBytes += bytes * this.#limits.subscribersOf(topic);
    if (this.#bytes < this.#bytesPerCheck && this.#totalBytes < this.#totalPerCheck) return;
    this.#bytes = 0;
    this.#totalBytes = 0;
    for (const reader of this.#readers) reader.checkBuffer();
  }
}

export function frameBytes(frame: Uint8Array | string): number {
  return typeof frame === "string" ? Buffer.byteLength(frame) : frame.length;
}
