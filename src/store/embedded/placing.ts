// Gives drafts their place: finds the first message a retry repeats, else takes seq and id and encodes the record into the frame of the
// batch under way. Owns the reused frame buffer. Places nothing for good: `Tail.unplace` takes back what was not written. Hot.

import type { Message } from "../../broker/model.ts";
import type { MessageDraft } from "../../broker/ports.ts";
import type { DedupeIndex, FirstMessage } from "./dedupe.ts";
import type { MessageIds } from "./message-ids.ts";
import {
  CEILING_RECORD,
  encodeRecord,
  MARK_RECORD,
  MESSAGE_RECORD,
  maxRecordBytes,
  type StoredRecord,
} from "./record.ts";
import { FRAME_HEADER_BYTES } from "./segment.ts";
import { type Tail, type TailRecord, tailRecord } from "./tail.ts";

const FRAME_BYTES = 64 * 1024;
/** A frame buffer that grew beyond is not kept. */
const MAX_KEPT_FRAME = 8 * 1024 * 1024;
const LENGTH_BYTES = 4;
const EMPTY = new Uint8Array(0);

export interface PlacingParts {
  readonly tail: Tail;
  readonly dedupe: DedupeIndex;
  readonly ids: MessageIds;
}

/** A draft with its place. */
export interface Placed {
  readonly message: Message;
  /** Undefined when nothing of it is kept. */
  readonly record: TailRecord | undefined;
}

export class Placing {
  readonly #parts: PlacingParts;
  #frame = Buffer.allocUnsafe(FRAME_BYTES);
  #end = FRAME_HEADER_BYTES;
  /** The last message of the batch that no record carries. */
  #unkept: Message | undefined;

  constructor(parts: PlacingParts) {
    this.#parts = parts;
  }

  /** Begins the frame of a new batch. */
  begin(): void {
    if (this.#frame.length > MAX_KEPT_FRAME)
      this.#frame = Buffer.allocUnsafe(FRAME_BYTES);
    this.#end = FRAME_HEADER_BYTES;
    this.#unkept = undefined;
  }

  /** The batch was not written. */
  failed(): void {
    this.#parts.ids.ceilingLost();
  }

  /** The message that `draft` repeats: a record that may not be settled yet, or what the database remembers. */
  firstOf(
    draft: Pick<MessageDraft, "key" | "fromUid" | "clientMsgNo">,
    nowMs: number,
  ): TailRecord | FirstMessage | undefined {
    const { tail, dedupe } = this.#parts;
    if (!dedupe.mayKnow(draft)) return undefined;
    const known = tail.seen(draft);
    if (known !== undefined && dedupe.isInWindow(known, nowMs)) return known;
    const { number } = tail.channel(draft.key);
    return number === 0 ? undefined : dedupe.find(number, draft, nowMs);
  }

  place(draft: MessageDraft, nowMs: number): Placed {
    const { tail, ids } = this.#parts;
    const { key, header } = draft;
    const keep = !header.noPersist;
    const isKept = keep || draft.dedupe;
    const channel = isKept ? tail.channel(key) : undefined;
    const message: Message = {
      messageId: ids.next(nowMs),
      messageSeq: keep && channel !== undefined ? channel.assigned + 1 : 0,
      key,
      channel: draft.channel,
      fromUid: draft.fromUid,
      clientMsgNo: draft.clientMsgNo,
      timestampMs: nowMs,
      header,
      expireS: draft.expireS,
      streamNo: draft.streamNo,
      tagKey: draft.tagKey,
      payload: draft.payload,
    };
    if (channel === undefined) {
      this.#unkept = message;
      return { message, record: undefined };
    }
    const start = this.#end + LENGTH_BYTES;
    const end = this.#add({
      kind: keep ? MESSAGE_RECORD : MARK_RECORD,
      message: keep ? message : { ...message, payload: EMPTY },
      dedupe: draft.dedupe,
    });
    const record = tailRecord(channel, message, {
      remembered: draft.dedupe,
      bytes: this.#frame,
      start,
      end,
    });
    if (draft.dedupe) this.#parts.dedupe.note(draft);
    tail.place(record);
    return { message, record };
  }

  /** The frame of the batch, its header left to fill in; undefined when there is nothing to write. Valid until the next `begin`. */
  frame(): Buffer | undefined {
    if (this.#unkept !== undefined) this.#keepCeiling(this.#unkept);
    return this.#end === FRAME_HEADER_BYTES
      ? undefined
      : this.#frame.subarray(0, this.#end);
  }

  /** Ids that no record carries must not come again after a restart. */
  #keepCeiling(message: Message): void {
    const { ids } = this.#parts;
    const ceiling = ids.ceilingFor(message.messageId);
    if (ceiling === undefined) return;
    ids.ceilingKept(ceiling);
    const promise = { ...message, messageId: ceiling, payload: EMPTY };
    this.#add({ kind: CEILING_RECORD, message: promise, dedupe: false });
  }

  /** Encodes a record with its length before it; returns its end. */
  #add(record: StoredRecord): number {
    const start = this.#end + LENGTH_BYTES;
    this.#reserve(start + maxRecordBytes(record.message));
    const end = encodeRecord(this.#frame, start, record);
    this.#frame.writeUInt32LE(end - start, this.#end);
    this.#end = end;
    return end;
  }

  #reserve(size: number): void {
    if (size <= this.#frame.length) return;
    const grown = Buffer.allocUnsafe(Math.max(size, this.#frame.length * 2));
    this.#frame.copy(grown, 0, 0, this.#end);
    this.#frame = grown;
  }
}
