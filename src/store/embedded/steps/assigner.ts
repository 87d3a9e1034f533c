// Assigns seqs and ids to drafts, and encodes their records into the frame of the current batch. An
// assigned seq is not final: `Memtable.rollBack` frees it if the batch fails.

import { BrokerError } from "../../../broker/errors.ts";
import {
  type ChannelKey,
  clientMsgNoOf,
  firstMessageId,
  MAX_MESSAGE_ID,
  type Message,
  type MessageHeader,
  messageTimeMs,
} from "../../../broker/model.ts";
import type { MessageDraft, StreamDraft } from "../../../broker/ports.ts";
import { payloadHash } from "../../payload-hash.ts";
import { type EventRecord, encodeEventRecord, maxEventBytes } from "../engine/event-record.ts";
import type { Frame } from "../engine/frame.ts";
import type { DedupeKey, Memtable, MemtableChannel, MemtableRecord } from "../engine/memtable.ts";
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
import {
  type DedupeIndex,
  firstMessage,
  hasOtherPayload,
  type PendingCommand,
  type RememberedMessage,
} from "./dedupe.ts";

/** Number of ids that a reservation in the WAL covers, enough for about one second. */
const IDS_PER_RESERVATION = 4_096_000;
const NO_PAYLOAD = new Uint8Array(0);
const STREAM_HEADER: MessageHeader = { noPersist: false, redDot: true };

interface AssignerPorts {
  readonly memtable: Memtable;
  readonly rows: {
    get(key: ChannelKey): { readonly number: number } | undefined;
  };
  readonly dedupe: DedupeIndex;
  readonly ids: MessageIds;
  readonly frame: Frame;
  readonly events: {
    /** True if the event feed gets an event for each stored message. */
    readonly isOn: boolean;
  };
}

export type RepeatableDraft = Pick<
  MessageDraft,
  "key" | "fromUid" | "clientMsgNo" | "payload" | "sentPayload" | "allowsReuse"
>;

interface AssignedMessage {
  readonly message: Message;
  readonly record: MemtableRecord | undefined;
}

export interface AssignedStream {
  readonly message: Message;
  readonly record: MemtableRecord;
}

type StreamMessageDraft = Pick<
  StreamDraft,
  "key" | "channel" | "fromUid" | "clientMsgNo" | "payload" | "expireS"
>;

export class Assigner {
  readonly #ports: AssignerPorts;
  /** Newest message without a record in the current batch. A reservation must cover its id. */
  #lastUnstored: Message | undefined;

  constructor(ports: AssignerPorts) {
    this.#ports = ports;
  }

  begin(aboutBytes: number): void {
    this.#ports.frame.begin(aboutBytes);
    this.#lastUnstored = undefined;
  }

  batchFailed(): void {
    this.#ports.ids.invalidateReservation();
  }

  /** Returns the message or command that has the draft's `clientMsgNo`, committed or not. */
  findFirst(draft: DedupeKey, nowMs: number): RememberedMessage | undefined {
    const { dedupe } = this.#ports;
    if (draft.clientMsgNo === "" || !dedupe.mayContain(draft)) return undefined;
    const message = this.#findMessage(draft, nowMs);
    const command = dedupe.findCommand(draft, nowMs);
    if (message === undefined || command === undefined) return message ?? command;
    // The sender used the clientMsgNo for a message and for a command. The newer use takes
    // precedence.
    const isCommandNewer =
      "outcome" in command || command.messageId > firstMessage(message).messageId;
    return isCommandNewer ? command : message;
  }

  #findMessage(
    draft: DedupeKey,
    nowMs: number,
  ): Exclude<RememberedMessage, PendingCommand> | undefined {
    const { memtable, rows, dedupe } = this.#ports;
    const recent = memtable.find(draft);
    if (recent !== undefined) {
      const times = peekTimes(recent.bytes, recent.start);
      if (dedupe.isInWindow(times, nowMs)) return recent;
    }
    const number = (memtable.peek(draft.key) ?? rows.get(draft.key))?.number ?? 0;
    return number === 0 ? undefined : dedupe.find(number, draft, nowMs);
  }

  /**
   * Does the same as `findFirst`, but returns `undefined` if the draft allows reuse of the
   * `clientMsgNo` and has a different payload.
   */
  findRepeated(draft: RepeatableDraft, nowMs: number): RememberedMessage | undefined {
    const first = this.findFirst(draft, nowMs);
    if (first === undefined || !draft.allowsReuse) return first;
    return hasOtherPayload(first, draft) ? undefined : first;
  }

  assign(draft: MessageDraft, nowMs: number): AssignedMessage {
    const { key, header } = draft;
    const { memtable, ids } = this.#ports;
    const isStored = !header.noPersist;
    const hasClientMsgNo = draft.clientMsgNo !== "";
    const hasRecord = isStored || hasClientMsgNo;
    const channel = hasRecord ? memtable.channel(key) : undefined;
    const messageId = ids.next(nowMs);
    const message: Message = {
      messageId,
      messageSeq: isStored && channel !== undefined ? channel.assigned + 1 : 0,
      key,
      channel: draft.channel,
      fromUid: draft.fromUid,
      clientMsgNo: hasClientMsgNo ? draft.clientMsgNo : clientMsgNoOf(messageId),
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
      this.#lastUnstored = message;
      return { message, record: undefined };
    }
    const counts = isStored && countsPermanently(header.redDot, draft);
    const { sentPayload } = draft;
    const sentHash = sentPayload === undefined ? undefined : payloadHash(sentPayload);
    const record = this.#addRecord(channel, {
      kind: isStored ? MESSAGE_RECORD : DEDUPE_RECORD,
      message: isStored ? message : { ...message, payload: sentHash ?? payloadHash(draft.payload) },
      dedupe: hasClientMsgNo,
      counted: isStored ? channel.counted + (counts ? 1 : 0) : 0,
      isStream: false,
      hasEvent: isStored && this.#ports.events.isOn,
      sentHash: isStored ? sentHash : undefined,
    });
    return { message, record };
  }

  /**
   * Assigns a seq and an id to the message of a stream. If the producer chose no payload, the
   * payload is empty, because the events contain the text.
   */
  assignStream(draft: StreamMessageDraft, nowMs: number): AssignedStream {
    const { memtable, ids } = this.#ports;
    const { key, channel: ref, fromUid, clientMsgNo } = draft;
    const { payload = NO_PAYLOAD, expireS = 0 } = draft;
    const channel = memtable.channel(key);
    const counts = countsPermanently(STREAM_HEADER.redDot, { expireS });
    const message: Message = {
      messageId: ids.next(nowMs),
      messageSeq: channel.assigned + 1,
      key,
      channel: ref,
      fromUid,
      clientMsgNo,
      timestampMs: nowMs,
      header: STREAM_HEADER,
      expireS,
      streamNo: undefined,
      tagKey: undefined,
      payload,
      stream: undefined,
    };
    const record = this.#addRecord(channel, {
      kind: MESSAGE_RECORD,
      message,
      dedupe: true,
      counted: channel.counted + (counts ? 1 : 0),
      isStream: true,
      hasEvent: this.#ports.events.isOn,
    });
    return { message, record };
  }

  /** Assigns an id to an event that has a separate record, and encodes the record. */
  assignEvent(event: Omit<EventRecord, "id">, nowMs: number): EventRecord {
    const { frame, ids } = this.#ports;
    const assigned = { ...event, id: ids.next(nowMs) };
    const start = frame.reserve(maxEventBytes(assigned));
    frame.add(encodeEventRecord(frame.bytes, start, assigned));
    return assigned;
  }

  /** Returns `nowMs`, or the time in the newest message id if that time is later. */
  timeAfterAll(nowMs: number): number {
    return Math.max(nowMs, messageTimeMs(this.#ports.ids.newest));
  }

  #addRecord(channel: MemtableChannel, stored: StoredRecord): MemtableRecord {
    const { message, dedupe } = stored;
    const { frame } = this.#ports;
    const start = frame.reserve(maxRecordBytes(message));
    const { bytes } = frame;
    const end = encodeRecord(bytes, start, stored);
    frame.add(end);
    if (dedupe) this.#ports.dedupe.addToFilter(message);
    return this.#ports.memtable.assign(channel, stored, { bytes, start, end });
  }

  frame(): Buffer | undefined {
    if (this.#lastUnstored !== undefined) this.#addReservation(this.#lastUnstored);
    return this.#ports.frame.finish();
  }

  /**
   * Reserves the id of a message without a record. Otherwise, the id could be reused after a
   * restart.
   */
  #addReservation(message: Message): void {
    const { ids } = this.#ports;
    const reservation = ids.reservationFor(message.messageId);
    if (reservation === undefined) return;
    ids.markReserved(reservation);
    const reservationMessage = { ...message, messageId: reservation, payload: NO_PAYLOAD };
    const { frame } = this.#ports;
    const start = frame.reserve(maxRecordBytes(reservationMessage));
    frame.add(
      encodeRecord(frame.bytes, start, {
        ...{ kind: ID_RESERVATION_RECORD, message: reservationMessage },
        ...{ dedupe: false, counted: 0, isStream: false },
      }),
    );
  }
}

/** Assigns message ids. Every id must be higher than all previous ids. */
export class MessageIds {
  #last: number;
  #reserved: number;

  constructor(last: number) {
    this.#last = last;
    this.#reserved = last;
  }

  /** Highest id assigned so far. */
  get newest(): number {
    return this.#last;
  }

  get floor(): number {
    return Math.max(this.#last, this.#reserved);
  }

  next(nowMs: number): number {
    const fresh = firstMessageId(nowMs);
    const id = fresh > this.#last ? fresh : this.#last + 1;
    if (id > MAX_MESSAGE_ID)
      throw new BrokerError("internal", { message: "No message id is left. Check the clock." });
    this.#last = id;
    return id;
  }

  /**
   * Returns the id up to which ids must be reserved, or `undefined` if a reservation already covers
   * `id`.
   */
  reservationFor(id: number): number | undefined {
    if (id <= this.#reserved) return undefined;
    return Math.min(id + IDS_PER_RESERVATION, MAX_MESSAGE_ID);
  }

  markReserved(reservation: number): void {
    this.#reserved = reservation;
  }

  /** Forgets the reservation of a failed batch, so that the next batch writes it again. */
  invalidateReservation(): void {
    this.#reserved = 0;
  }
}
