// The changes of a call that changes streams. They are assigned in memory and in the frame. Once
// they are durable, they become visible and are published. If the write fails, they are rolled back.

import type { ClusterEvent } from "../../../broker/ports.ts";
import type { Frame } from "../engine/frame.ts";
import type { Memtable } from "../engine/memtable.ts";
import type { AssignedStream, Assigner } from "./assigner.ts";
import { type LiveStream, withStream } from "./live-stream.ts";
import type { LiveStreams } from "./live-streams.ts";
import type { StreamEnds } from "./stream-ends.ts";
import {
  type EncodedEvent,
  encodeStreamRecord,
  maxStreamRecordBytes,
  type StreamEvent,
  type StreamName,
} from "./stream-record.ts";

export interface StreamCallPorts {
  readonly memtable: Memtable;
  readonly live: LiveStreams;
  readonly assigner: Assigner;
  readonly frame: Frame;
  readonly streamEnds: StreamEnds;
}

type NewEvent = Omit<StreamEvent, "index" | "timestampMs" | "isTimed"> & {
  /** `undefined` means the current time. */
  readonly timestampMs: number | undefined;
};

interface AssignedEvent {
  readonly stream: LiveStream;
  readonly event: StreamEvent;
  readonly encoded: EncodedEvent;
  readonly previousEventMs: number;
}

export class StreamAssignments {
  readonly #ports: StreamCallPorts;
  readonly nowMs: number;
  readonly #events: AssignedEvent[] = [];
  #started: (AssignedStream & { readonly stream: LiveStream }) | undefined;

  constructor(ports: StreamCallPorts, nowMs: number) {
    this.#ports = ports;
    this.nowMs = nowMs;
  }

  begin(draft: Parameters<Assigner["assignStream"]>[0]): LiveStream {
    const { assigner, live } = this.#ports;
    const assigned = assigner.assignStream(draft, this.nowMs);
    const { record, message } = assigned;
    const stream = live.add(record.channel, message);
    this.#started = { ...assigned, stream };
    return stream;
  }

  add(stream: LiveStream, newEvent: NewEvent): void {
    const { frame, live, memtable } = this.#ports;
    const timestampMs = newEvent.timestampMs ?? this.nowMs;
    const isTimed = newEvent.timestampMs !== undefined;
    const { type, data, eventId, ending } = newEvent;
    const index = stream.assigned;
    // A spread would cost a microsecond.
    const event = { index, type, data, eventId, timestampMs, isTimed, ending };
    const encoded = encodeInto(frame, stream.head, event);
    memtable.retain(encoded.end - encoded.start);
    const previousEventMs = stream.lastEventMs;
    live.change(stream, () => stream.assign(event, this.nowMs));
    stream.lastEventMs = live.now();
    this.#events.push({ stream, event, encoded, previousEventMs });
  }

  commit(publish: (event: ClusterEvent) => void): void {
    const { live } = this.#ports;
    for (const { stream, event, encoded } of this.#events) {
      if (event.index === 0) this.#commitMessage(publish);
      stream.pending.push(encoded);
      stream.showEvent();
      live.markDirty(stream);
      if (event.ending !== undefined) this.#ports.streamEnds.add(stream);
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
    for (const assigned of this.#events.toReversed()) {
      const { stream, event, encoded, previousEventMs } = assigned;
      live.change(stream, () => stream.rollBack(event));
      stream.lastEventMs = previousEventMs;
      memtable.release(encoded.end - encoded.start);
    }
    if (this.#started === undefined) return;
    live.remove(this.#started.stream);
    memtable.rollBack(this.#started.record);
  }
}

function encodeInto(frame: Frame, stream: StreamName, event: StreamEvent): EncodedEvent {
  const start = frame.reserve(maxStreamRecordBytes(stream, event));
  const { bytes } = frame;
  const { body, end } = encodeStreamRecord(bytes, start, { stream, event });
  frame.add(end);
  return { bytes, start, body, end };
}
