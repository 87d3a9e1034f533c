// The changes of a call that changes streams: their messages, and the events in their logs. They are
// assigned in memory and in the frame of the batch. Once they are durable, they become visible and
// are published. If the write fails, they are rolled back.

import { openEventFrame } from "../../../broker/log-frame.ts";
import { messageTimeMs, STREAM_END, STREAM_START } from "../../../broker/model.ts";
import type { ClusterEvent } from "../../../broker/ports.ts";
import type { StreamEvent } from "../../../broker/stream-event.ts";
import { stateAfter } from "../../../broker/stream-fold.ts";
import type { EventLog } from "../engine/event-log.ts";
import type { EventRecord } from "../engine/event-record.ts";
import type { Memtable } from "../engine/memtable.ts";
import type { AssignedStream, Assigner } from "./assigner.ts";
import { type LiveStream, type PlacedEvent, withStream } from "./live-stream.ts";
import type { LiveStreams } from "./live-streams.ts";
import { type LogCallPorts, LogChanges } from "./log-changes.ts";
import { emptyState, newIncarnation } from "./log-state.ts";
import type { StreamEnds } from "./stream-ends.ts";

export interface StreamCallPorts extends LogCallPorts {
  readonly memtable: Memtable;
  readonly live: LiveStreams;
  readonly assigner: Assigner;
  readonly streamEnds: StreamEnds;
  readonly events: EventLog;
}

type NewEvent = Pick<StreamEvent, "type" | "data" | "eventId"> &
  Pick<PlacedEvent, "ending"> & {
    /** `undefined` means the current time. */
    readonly timestampMs: number | undefined;
  };

interface AssignedEvent {
  readonly stream: LiveStream;
  readonly event: PlacedEvent;
  readonly previousEventMs: number;
  /** Event of the feed, if the stream ends and the feed is on. */
  readonly end: EventRecord | undefined;
}

/** The stream's own events are published, and not the changes of its log. */
const publishNothing = () => {};

export class StreamChanges {
  readonly #ports: StreamCallPorts;
  readonly nowMs: number;
  readonly #logs: LogChanges;
  readonly #events: AssignedEvent[] = [];
  #started: (AssignedStream & { readonly stream: LiveStream }) | undefined;

  constructor(ports: StreamCallPorts, nowMs: number) {
    this.#ports = ports;
    this.nowMs = nowMs;
    this.#logs = new LogChanges(ports, nowMs);
  }

  begin(draft: Parameters<Assigner["assignStream"]>[0]): LiveStream {
    const { assigner, live } = this.#ports;
    const assigned = assigner.assignStream(draft, this.nowMs);
    const { record, message } = assigned;
    const { key, clientMsgNo } = message;
    const state = emptyState(STREAM_TERMS, newIncarnation());
    const log = this.#logs.create({ kind: "channel", key, clientMsgNo }, state);
    const stream = live.add(record.channel, message, log.number);
    this.#started = { ...assigned, stream };
    return stream;
  }

  add(stream: LiveStream, newEvent: NewEvent): void {
    const { logs, live } = this.#ports;
    const { key, clientMsgNo } = stream.head;
    const log = logs.find({ kind: "channel", key, clientMsgNo });
    if (log === undefined) throw new Error("The log of an active stream is missing");
    const timestampMs = newEvent.timestampMs ?? this.nowMs;
    const isTimed = newEvent.timestampMs !== undefined;
    const { type, data, eventId, ending } = newEvent;
    const index = stream.assigned;
    const detail = detailOf(type, stream, this.nowMs);
    // A spread would cost a microsecond.
    const event = { index, type, data, eventId, timestampMs, isTimed, detail, ending };
    const append = ending === undefined ? OPEN : { ...OPEN, close: ending };
    this.#logs.append(log, openEventFrame(event), append);
    const previousEventMs = stream.lastEventMs;
    live.change(stream, () => stream.assign(event));
    stream.lastEventMs = live.now();
    const end = ending === undefined ? undefined : this.#assignEnd(stream, stateAfter(ending));
    this.#events.push({ stream, event, previousEventMs, end });
  }

  #assignEnd({ head }: LiveStream, state: string): EventRecord | undefined {
    const { assigner, events } = this.#ports;
    if (!events.isOn) return undefined;
    const { key, messageSeq, clientMsgNo } = head;
    const fields = JSON.stringify({ client_msg_no: clientMsgNo, state });
    const draft = { type: "stream.ended", key, messageSeq, fields, outboxKey: 0 } as const;
    return assigner.assignEvent(draft, this.nowMs);
  }

  commit(publish: (event: ClusterEvent) => void): void {
    const { live } = this.#ports;
    this.#logs.commit(publishNothing);
    for (const { stream, event, end } of this.#events) {
      if (event.index === 0) this.#commitMessage(publish);
      stream.showEvent();
      live.markDirty(stream);
      if (event.ending !== undefined) this.#ports.streamEnds.add(stream);
      if (end !== undefined) this.#ports.events.add(end);
      publish({ kind: "event", event: stream.toPublished(event) });
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

const OPEN = { producer: undefined, order: undefined, close: undefined };
const STREAM_TERMS = {
  contentType: "application/json",
  ...{ ttlS: undefined, expiresAtMs: undefined, origin: undefined },
};

function detailOf(type: string, { head }: LiveStream, nowMs: number): number {
  if (type === STREAM_START) return head.messageSeq;
  return type === STREAM_END ? Math.max(nowMs, messageTimeMs(head.messageId)) : 0;
}
