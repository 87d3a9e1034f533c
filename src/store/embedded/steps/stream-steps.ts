// The changes that one call makes to streams: to their messages, and to the events in their logs.
// The changes are applied in memory and written to the frame of the batch. Once the frame is
// durable, they become visible and are published. If the batch fails, they are rolled back.

import {
  isJsonLog,
  type LogName,
  type OpenFrame,
  openEventFrame,
} from "../../../broker/log-frame.ts";
import { STREAM_END, STREAM_START } from "../../../broker/model.ts";
import type { ClusterEvent } from "../../../broker/ports.ts";
import type { StreamEvent } from "../../../broker/stream-event.ts";
import { stateAfter } from "../../../broker/stream-fold.ts";
import { eventOfRecord } from "../../../broker/stream-record.ts";
import { withItem } from "../../../lib/short-list.ts";
import type { EventLog } from "../engine/event-log.ts";
import type { EventRecord } from "../engine/event-record.ts";
import type { Memtable } from "../engine/memtable.ts";
import type { AssignedStream, Assigner } from "./assigner.ts";
import { type LiveStream, type PlacedEvent, withStream } from "./live-stream.ts";
import type { LiveStreams } from "./live-streams.ts";
import { type LogCallPorts, LogChanges } from "./log-changes.ts";
import { type AppendRecord, emptyState, newIncarnation } from "./log-state.ts";
import type { OpenLog } from "./open-logs.ts";
import type { StreamEnds } from "./stream-ends.ts";

export interface StreamCallPorts extends LogCallPorts {
  readonly memtable: Memtable;
  readonly live: LiveStreams;
  readonly assigner: Assigner;
  readonly streamEnds: StreamEnds;
  readonly events: EventLog;
}

type NewEvent = Pick<StreamEvent, "type" | "data" | "eventId" | "isHidden"> &
  Pick<PlacedEvent, "ending"> & {
    /** `undefined` means the current time. */
    readonly timestampMs: number | undefined;
  };

interface AssignedEvent {
  readonly stream: LiveStream;
  readonly event: PlacedEvent;
  readonly previousEventMs: number;
  /** Event for the feed. Set if `event` ends the stream and the feed is on. */
  readonly end: EventRecord | undefined;
}

const NO_EVENTS: readonly AssignedEvent[] = [];

export type AppendTerms = Pick<AppendRecord, "producer" | "order">;

export class StreamChanges {
  readonly #ports: StreamCallPorts;
  readonly nowMs: number;
  readonly #logs: LogChanges;
  #events = NO_EVENTS;
  #started: (AssignedStream & { readonly stream: LiveStream }) | undefined;

  constructor(ports: StreamCallPorts, nowMs: number, idleMs: number) {
    this.#ports = ports;
    this.nowMs = nowMs;
    this.#logs = new LogChanges(ports, nowMs, idleMs);
  }

  begin(
    draft: Parameters<Assigner["assignStream"]>[0],
    contentType: string = EVENTS_TYPE,
  ): LiveStream {
    const { assigner, live } = this.#ports;
    const assigned = assigner.assignStream(draft, this.nowMs);
    const { record, message } = assigned;
    const terms = { contentType, ttlS: undefined, expiresAtMs: undefined, origin: undefined };
    const log = this.#logs.create(logNameOf(message), emptyState(terms, newIncarnation()));
    const stream = live.add(record.channel, message, log);
    this.#started = { ...assigned, stream };
    return stream;
  }

  /** Adds an event. An event is one frame of the log. */
  add(stream: LiveStream, newEvent: NewEvent, terms: AppendTerms = NO_TERMS): void {
    const timestampMs = newEvent.timestampMs ?? this.nowMs;
    const isTimed = newEvent.timestampMs !== undefined;
    const { type, data, eventId, ending, isHidden } = newEvent;
    const index = stream.assigned;
    const detail = this.#detailOf(type, stream);
    const state = stateAfter(ending);
    // Objects are written field by field, because a spread would cost a microsecond per object.
    const event = {
      index,
      type,
      data,
      eventId,
      timestampMs,
      isTimed,
      detail,
      ending,
      state,
      isHidden,
    };
    const { producer, order } = terms;
    this.#logs.append(this.logOf(stream), openEventFrame(event), {
      producer,
      order,
      close: ending,
    });
    this.#assign(stream, event);
  }

  /** Adds the records in `frame`. Each record is an event. */
  addRecords(
    stream: LiveStream,
    records: readonly Uint8Array[],
    frame: OpenFrame,
    terms: AppendTerms,
  ): void {
    const log = this.logOf(stream);
    const isJson = isJsonLog(log.assigned.terms.contentType);
    this.#logs.append(log, frame, { ...terms, close: undefined });
    for (const record of records) {
      const event = eventOfRecord(record, this.nowMs, isJson);
      this.#assign(stream, { ...event, index: stream.assigned, ending: undefined });
    }
  }

  #assign(stream: LiveStream, event: PlacedEvent): void {
    const { live } = this.#ports;
    const previousEventMs = stream.lastEventMs;
    live.change(stream, () => stream.assign(event));
    stream.lastEventMs = live.now();
    const end = event.ending === undefined ? undefined : this.#assignEnd(stream, event.state);
    this.#events = withItem(this.#events, { stream, event, previousEventMs, end });
  }

  #assignEnd({ head }: LiveStream, state: string): EventRecord | undefined {
    const { assigner, events } = this.#ports;
    if (!events.isOn) return undefined;
    const { key, messageSeq, clientMsgNo } = head;
    const fields = JSON.stringify({ client_msg_no: clientMsgNo, state });
    const draft = { type: "stream.ended", key, messageSeq, fields, outboxKey: 0 } as const;
    return assigner.assignEvent(draft, this.nowMs);
  }

  /** Returns the value of `StreamEvent.detail` for a new event. */
  #detailOf(type: string, { head }: LiveStream): number {
    if (type === STREAM_START) return head.messageSeq;
    return type === STREAM_END ? this.#ports.assigner.timeAfterAll(this.nowMs) : 0;
  }

  logOf({ log: { text } }: LiveStream): OpenLog {
    const log = this.#ports.logs.findText(text);
    if (log === undefined) throw new Error("The log of an active stream is missing");
    return log;
  }

  get isEmpty(): boolean {
    return this.#logs.isEmpty && this.#started === undefined && this.#events.length === 0;
  }

  get logs(): LogChanges {
    return this.#logs;
  }

  commit(publish: (event: ClusterEvent) => void): void {
    const { live } = this.#ports;
    this.#logs.commit(publish);
    for (const { stream, event, end } of this.#events) {
      if (event.index === 0) this.#commitMessage(publish);
      live.show(stream, event);
      live.markDirty(stream);
      if (event.ending !== undefined) this.#ports.streamEnds.add(stream);
      if (end !== undefined) this.#ports.events.add(end);
      const published = stream.toPublished(event);
      if (published !== undefined) publish({ kind: "event", event: published });
    }
  }

  #commitMessage(publish: (event: ClusterEvent) => void): void {
    if (this.#started === undefined) return;
    const { stream, record, message } = this.#started;
    this.#ports.memtable.commit(record);
    stream.showMessage();
    publish({
      kind: "message",
      message: withStream(message, stream.snapshot()),
      origin: undefined,
      recipients: undefined,
    });
  }

  rollBack(): void {
    const { memtable, live } = this.#ports;
    for (const { stream, event, previousEventMs } of this.#events.toReversed()) {
      live.change(stream, () => stream.rollBack(event));
      stream.lastEventMs = previousEventMs;
    }
    this.#logs.rollBack();
    if (this.#started === undefined) return;
    live.remove(this.#started.stream);
    memtable.rollBack(this.#started.record);
  }
}

/** Content type of the log of a stream that `POST /event` starts. */
const EVENTS_TYPE = "application/json";
export const NO_TERMS: AppendTerms = { producer: undefined, order: undefined };

function logNameOf({ key, clientMsgNo }: LiveStream["head"]): LogName {
  return { kind: "channel", key, clientMsgNo };
}
