// Assigns seqs and ids to drafts: finds the first message a retry repeats, else takes seq and id
// and encodes the record into the frame of the batch under way. Owns the last id given, the
// reservation below which ids do not come again after a restart, and which message no record
// carries. Assigns no seq permanently: `Memtable.rollBack` takes back what was not written. Hot.

import {
  type ChannelKey,
  clientMsgNoOf,
  firstMessageId,
  type Message,
  type MessageHeader,
} from "../../../broker/model.ts";
import type { MessageDraft } from "../../../broker/ports.ts";
import type { Frame } from "../engine/frame.ts";
import type { Memtable, MemtableChannel, MemtableRecord } from "../engine/memtable.ts";
import {
  countsPermanently,
  DEDUPE_RECORD,
  encodeRecord,
  ID_RESERVATION_RECORD,
  MESSAGE_RECORD,
  maxRecordBytes,
  peekTimes,
  type StoredRecord,
} from "../engine/record.ts";
import type { DedupeIndex, FirstMessage, FirstToCome } from "./dedupe.ts";

/**
 * How far a reservation is set ahead: a second's worth of ids that no stored message carries costs
 * one WAL record.
 */
const RESERVED_AHEAD = 4_096_000;
const EMPTY = new Uint8Array(0);
/** Of every stream's message. */
const STREAM_HEADER: MessageHeader = { noPersist: false, redDot: true };

interface AssignerParts {
  readonly memtable: Memtable;
  /** What the database has of channels. */
  readonly rows: {
    get(key: ChannelKey): { readonly number: number } | undefined;
  };
  readonly dedupe: DedupeIndex;
  readonly ids: MessageIds;
  readonly frame: Frame;
}

/** A draft with its seq and id. */
interface Assigned {
  readonly message: Message;
  /** Undefined when nothing of it is kept. */
  readonly record: MemtableRecord | undefined;
}

/** The message of a new stream with its seq and id. */
export interface AssignedStream {
  readonly message: Message;
  readonly record: MemtableRecord;
}

export class Assigner {
  readonly #parts: AssignerParts;
  /** The last message of the batch that no record carries. */
  #unkept: Message | undefined;

  constructor(parts: AssignerParts) {
    this.#parts = parts;
  }

  /** Begins the frame of a new batch, of about so many bytes. */
  begin(aboutBytes: number): void {
    this.#parts.frame.begin(aboutBytes);
    this.#unkept = undefined;
  }

  /** The batch was not written. */
  failed(): void {
    this.#parts.ids.reservationLost();
  }

  /**
   * The message or command that `draft` repeats: one that may not be committed yet, or what the
   * database remembers. Brings no channel into memory.
   */
  firstOf(
    draft: Pick<MessageDraft, "key" | "fromUid" | "clientMsgNo">,
    nowMs: number,
  ): MemtableRecord | FirstMessage | FirstToCome | undefined {
    const { memtable, rows, dedupe } = this.#parts;
    if (draft.clientMsgNo === "" || !dedupe.mayKnow(draft)) return undefined;
    const known = memtable.seen(draft);
    if (known !== undefined) {
      const times = peekTimes(known.bytes, known.start);
      if (dedupe.isInWindow(times, nowMs)) return known;
    }
    const number = (memtable.peek(draft.key) ?? rows.get(draft.key))?.number ?? 0;
    const first = number === 0 ? undefined : dedupe.find(number, draft, nowMs);
    return first ?? dedupe.findCommand(draft, nowMs);
  }

  assign(draft: MessageDraft, nowMs: number): Assigned {
    const { key, header } = draft;
    const { memtable, ids } = this.#parts;
    const keep = !header.noPersist;
    const hasOwn = draft.clientMsgNo !== "";
    const isKept = keep || hasOwn;
    const channel = isKept ? memtable.channel(key) : undefined;
    const messageId = ids.next(nowMs);
    const message: Message = {
      messageId,
      messageSeq: keep && channel !== undefined ? channel.assigned + 1 : 0,
      key,
      channel: draft.channel,
      fromUid: draft.fromUid,
      clientMsgNo: hasOwn ? draft.clientMsgNo : clientMsgNoOf(messageId),
      timestampMs: nowMs,
      header,
      expireS: draft.expireS,
      streamNo: draft.streamNo,
      tagKey: draft.tagKey,
      passthrough: draft.passthrough,
      payload: draft.payload,
      stream: undefined,
    };
    if (channel === undefined) {
      this.#unkept = message;
      return { message, record: undefined };
    }
    const counts = keep && countsPermanently(header.redDot, draft);
    const record = this.#keep(channel, {
      kind: keep ? MESSAGE_RECORD : DEDUPE_RECORD,
      message: keep ? message : { ...message, payload: EMPTY },
      dedupe: hasOwn,
      counted: keep ? channel.counted + (counts ? 1 : 0) : 0,
      isStream: false,
    });
    return { message, record };
  }

  /** Assigns seq and id to the message of a new stream: without a text, which grows elsewhere. */
  assignStream(
    draft: Pick<MessageDraft, "key" | "channel" | "fromUid" | "clientMsgNo">,
    nowMs: number,
  ): AssignedStream {
    const { memtable, ids } = this.#parts;
    const { key, channel: ref, fromUid, clientMsgNo } = draft;
    const channel = memtable.channel(key);
    const message: Message = {
      messageId: ids.next(nowMs),
      messageSeq: channel.assigned + 1,
      key,
      channel: ref,
      fromUid,
      clientMsgNo,
      timestampMs: nowMs,
      header: STREAM_HEADER,
      expireS: 0,
      streamNo: undefined,
      tagKey: undefined,
      payload: EMPTY,
      stream: undefined,
    };
    const record = this.#keep(channel, {
      kind: MESSAGE_RECORD,
      message,
      dedupe: true,
      counted: channel.counted + 1,
      isStream: true,
    });
    return { message, record };
  }

  /** Encodes a record, remembers its sender's number and gives it its place in the memtable. */
  #keep(channel: MemtableChannel, stored: StoredRecord): MemtableRecord {
    const { message, dedupe } = stored;
    const { frame } = this.#parts;
    const start = frame.reserve(maxRecordBytes(message));
    const { bytes } = frame;
    const end = encodeRecord(bytes, start, stored);
    frame.add(end);
    if (dedupe) this.#parts.dedupe.note(message);
    return this.#parts.memtable.assign(channel, stored, { bytes, start, end });
  }

  /**
   * The frame of the batch, its header left to fill in; undefined when there is nothing to write.
   */
  frame(): Buffer | undefined {
    if (this.#unkept !== undefined) this.#keepReservation(this.#unkept);
    return this.#parts.frame.written();
  }

  /** Ids that no record carries must not come again after a restart. */
  #keepReservation(message: Message): void {
    const { ids } = this.#parts;
    const reservation = ids.reservationFor(message.messageId);
    if (reservation === undefined) return;
    ids.reservationKept(reservation);
    const promise = { ...message, messageId: reservation, payload: EMPTY };
    const { frame } = this.#parts;
    const start = frame.reserve(maxRecordBytes(promise));
    frame.add(
      encodeRecord(frame.bytes, start, {
        ...{ kind: ID_RESERVATION_RECORD, message: promise },
        ...{ dedupe: false, counted: 0, isStream: false },
      }),
    );
  }
}

/**
 * Gives message ids: the first of the current millisecond, or the one after the last. Must never
 * give an id that is not greater than all before.
 */
export class MessageIds {
  #last: number;
  #reserved: number;

  /** `last`: no id up to here is given again. */
  constructor(last: number) {
    this.#last = last;
    this.#reserved = last;
  }

  /** The greatest id given, or promised not to be given again. */
  get floor(): number {
    return Math.max(this.#last, this.#reserved);
  }

  next(nowMs: number): number {
    const fresh = firstMessageId(nowMs);
    this.#last = fresh > this.#last ? fresh : this.#last + 1;
    return this.#last;
  }

  /**
   * A reservation to log before `id`, which no stored record carries, may be shown; undefined while
   * an earlier one covers it.
   */
  reservationFor(id: number): number | undefined {
    return id <= this.#reserved ? undefined : id + RESERVED_AHEAD;
  }

  /** The reservation goes into the WAL with the batch under way. */
  reservationKept(reservation: number): void {
    this.#reserved = reservation;
  }

  /** The batch under way failed: whatever reservation it held must be written again. */
  reservationLost(): void {
    this.#reserved = 0;
  }
}
