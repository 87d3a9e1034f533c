// The WAL frame of the batch under way: records with their lengths, behind room for the frame's header. Owns the reused buffer. Hot.

import { FRAME_HEADER_BYTES } from "./engine/segment.ts";
import { encodeRecord, maxRecordBytes, type StoredRecord } from "./record.ts";
import {
  type EncodedEvent,
  encodeStreamRecord,
  maxStreamRecordBytes,
  type StreamEvent,
  type StreamName,
} from "./stream-record.ts";

const FRAME_BYTES = 64 * 1024;
/** A buffer that grew beyond is not kept. */
const MAX_KEPT_BYTES = 8 * 1024 * 1024;
const LENGTH_BYTES = 4;

export class Frame {
  #bytes = Buffer.allocUnsafe(FRAME_BYTES);
  #end = FRAME_HEADER_BYTES;

  /** What it stands in; another one after some calls. */
  get bytes(): Buffer {
    return this.#bytes;
  }

  /** Where the next record begins. */
  get next(): number {
    return this.#end + LENGTH_BYTES;
  }

  /** Empties it. */
  begin(): void {
    if (this.#bytes.length > MAX_KEPT_BYTES)
      this.#bytes = Buffer.allocUnsafe(FRAME_BYTES);
    this.#end = FRAME_HEADER_BYTES;
  }

  /** Encodes a record at `next`; returns its end. */
  add(record: StoredRecord): number {
    const start = this.next;
    this.#reserve(start + maxRecordBytes(record.message));
    const end = encodeRecord(this.#bytes, start, record);
    this.#finish(start, end);
    return end;
  }

  /** Encodes an event of a stream. Its `bytes` are the frame's until the frame is written. */
  addEvent(stream: StreamName, event: StreamEvent): EncodedEvent {
    const start = this.next;
    this.#reserve(start + maxStreamRecordBytes(stream, event));
    const record = { stream, event };
    const { body, end } = encodeStreamRecord(this.#bytes, start, record);
    this.#finish(start, end);
    return { bytes: this.#bytes, start, body, end };
  }

  /** All of it, the header left to fill in; undefined when nothing was added. Valid until the next `begin`. */
  written(): Buffer | undefined {
    return this.#end === FRAME_HEADER_BYTES
      ? undefined
      : this.#bytes.subarray(0, this.#end);
  }

  #finish(start: number, end: number): void {
    this.#bytes.writeUInt32LE(end - start, this.#end);
    this.#end = end;
  }

  #reserve(size: number): void {
    if (size <= this.#bytes.length) return;
    const grown = Buffer.allocUnsafe(Math.max(size, this.#bytes.length * 2));
    this.#bytes.copy(grown, 0, 0, this.#end);
    this.#bytes = grown;
  }
}
