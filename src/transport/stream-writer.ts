// Writes the frames of one client socket to its stream. Frames are queued while the owner has set
// `isHeld` or while the peer reads slowly. Queued frames are written in pieces, so that the
// completion of each write shows that the peer is reading.

import type { Socket } from "node:net";

interface WriterOwner {
  /** True if frames may still be written. */
  readonly isWritable: boolean;
  /** Called when a write that was waiting for the peer is complete. */
  drained(): void;
}

/**
 * Maximum total size of the queued frames in one write. If more bytes are queued while `isHeld` is
 * set, the queue is flushed.
 */
const MAX_WRITE_BYTES = 64 * 1024;

export class StreamWriter {
  readonly #stream: Socket;
  readonly #owner: WriterOwner;
  #queue: Buffer[] = [];
  #queuedBytes = 0;
  /** True while a write waits for the peer. */
  #isBlocked = false;
  isHeld = false;

  constructor(stream: Socket, owner: WriterOwner) {
    this.#stream = stream;
    this.#owner = owner;
  }

  get isBlocked(): boolean {
    return this.#isBlocked;
  }

  get queuedBytes(): number {
    return this.#queuedBytes;
  }

  /** Number of bytes that are queued or that wait for the peer. */
  get unwrittenBytes(): number {
    return this.#queuedBytes + this.#stream.writableLength;
  }

  write(frames: Buffer): void {
    if (!this.isHeld && !this.#isBlocked) return this.#send(frames);
    this.#queue.push(frames);
    this.#queuedBytes += frames.length;
    if (this.#queuedBytes > MAX_WRITE_BYTES) this.flush();
  }

  flush(): void {
    while (!this.#isBlocked && this.#queue.length > 0) this.#send(this.#takePiece());
  }

  /** Passes all queued frames to the stream, even if the peer reads slowly. */
  finish(): void {
    for (const frame of this.#queue) this.#stream.write(frame);
    this.drop();
  }

  drop(): void {
    this.#queue = [];
    this.#queuedBytes = 0;
  }

  /**
   * Removes and returns the first frames, up to a total size of `MAX_WRITE_BYTES`. A larger first
   * frame is returned alone.
   */
  #takePiece(): Buffer {
    let bytes = 0;
    let count = 0;
    for (const frame of this.#queue) {
      if (count > 0 && bytes + frame.length > MAX_WRITE_BYTES) break;
      bytes += frame.length;
      count += 1;
    }
    const frames = this.#queue.splice(0, count);
    this.#queuedBytes -= bytes;
    const [first] = frames;
    return frames.length === 1 && first !== undefined ? first : Buffer.concat(frames, bytes);
  }

  #send(bytes: Buffer): void {
    if (!this.#owner.isWritable) return;
    this.#stream.write(bytes, this.#written);
    this.#isBlocked = this.#stream.writableLength > 0;
  }

  readonly #written = (): void => {
    if (!this.#isBlocked || !this.#owner.isWritable) return;
    this.#isBlocked = this.#stream.writableLength > 0;
    this.flush();
    this.#owner.drained();
  };
}
