// The size of a frame. Pure.

/** Bytes of the frame's payload on the wire; text is counted as UTF-8. */
export function frameBytes(frame: Uint8Array | string): number {
  return typeof frame === "string" ? Buffer.byteLength(frame) : frame.length;
}
