// Looks for connections whose peers read too slowly. State: how much was published since the last look, and whether one is due.
// Softly: no connection's buffer grows by more than was published since the last look (what is sent directly is checked when it is sent),
// so after each half of the limit one pass at the turn's end ends those over the limit with the slow reader's code.
// Hard: what takes a connection over twice the limit within one turn gets it cut off without a close frame (the native limit).
// Nothing is ever left out in the middle. No JavaScript runs per receiver; a pass costs one cheap native call per connection.

import { frameBytes } from "./frame-bytes.ts";
import type { TurnEnd, TurnTask } from "./turn-end.ts";

/** The longest frame header a server writes. */
const FRAME_HEADER_BYTES = 10;

/** What may be reading slowly. */
export interface Reader {
  /** Ends it when its peer leaves too much unread. */
  endIfSlow(): void;
}

export class SlowReaders implements TurnTask {
  readonly #readers: Iterable<Reader>;
  readonly #bytesPerLook: number;
  readonly #turnEnd: TurnEnd;
  #bytes = 0;
  #isLookDue = false;

  constructor(
    readers: Iterable<Reader>,
    maxBufferedBytes: number,
    turnEnd: TurnEnd,
  ) {
    this.#readers = readers;
    this.#bytesPerLook = maxBufferedBytes / 2;
    this.#turnEnd = turnEnd;
  }

  /** Counts a frame that goes to some or all of the readers. */
  published(frame: Uint8Array | string): void {
    this.#bytes += frameBytes(frame) + FRAME_HEADER_BYTES;
    if (this.#isLookDue || this.#bytes < this.#bytesPerLook) return;
    this.#isLookDue = true;
    this.#turnEnd.add(this);
  }

  turnEnded(): void {
    this.#isLookDue = false;
    this.#bytes = 0;
    for (const reader of this.#readers) reader.endIfSlow();
  }
}
