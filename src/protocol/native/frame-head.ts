// What every frame begins with, and the room it needs. No state. Browser-safe.

import type { FrameWriter } from "./writer.ts";

/** Bytes that cover the numbers and headers of any frame or nested entry; texts, payloads and lists come on top. */
export const FIXED_BYTES = 80;

export interface Head {
  readonly op: number;
  readonly ref: number;
  /** Fields that follow op and ref. */
  readonly fields: number;
}

/** Begins a frame. `bytes`: the most that texts, payloads and lists take. */
export function begin(writer: FrameWriter, head: Head, bytes = 0): void {
  writer.begin(FIXED_BYTES + bytes);
  writer.array(head.fields + 2);
  writer.uint(head.op);
  writer.uint(head.ref);
}
