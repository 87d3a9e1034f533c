// Copies of short byte runs, cut from a shared slab: a typed array with memory of its own costs the platform the better part of a
// microsecond. State: the slab. Its bytes are written once and never again, so each copy belongs to whoever asked for it. Browser-safe.

/** Small, because the last copy alive keeps the whole slab. */
const SLAB_BYTES = 8 * 1024;
/** Longer runs get memory of their own. */
const MAX_SHARED = 1024;
/** Up to here the engine keeps the bytes in its own heap, which is cheap. */
const MAX_ON_HEAP = 64;

export class Copies {
  #slab = new Uint8Array(0);
  #at = 0;

  /** A copy of `bytes`; always a plain Uint8Array. */
  of(bytes: Uint8Array): Uint8Array {
    const length = bytes.length;
    if (length > MAX_SHARED || length <= MAX_ON_HEAP)
      return new Uint8Array(bytes);
    if (length > this.#slab.length - this.#at) {
      this.#slab = new Uint8Array(SLAB_BYTES);
      this.#at = 0;
    }
    const start = this.#at;
    this.#at += length;
    const copy = this.#slab.subarray(start, this.#at);
    copy.set(bytes);
    return copy;
  }
}
