// One call that changes streams, on its way through the queue: gives events their places in memory
// and in the frame, shows and publishes them once they are durable, or takes them back. Owns the
// list of them and the call's answer. Must never show, publish or answer what is not committed.

import { BrokerError } from "../../../broker/errors.ts";
import type { ClusterEvent } from "../../../broker/ports.ts";
import type { Frame } from "../engine/frame.ts";
import type { Memtable } from "../engine/memtable.ts";
import type { QueuedStep } from "./append.ts";
import type { AssignedStream, Assigner } from "./assigner.ts";
import { type LiveStream, withStream } from "./live-stream.ts";
import type { LiveStreams } from "./live-streams.ts";
import {
  type EncodedEvent,
  encodeStreamRecord,
  maxStreamRecordBytes,
  type StreamEvent,
  type StreamName,
} from "./stream-record.ts";

/** What a call assigns with. */
export interface StreamCallParts {
  readonly memtable: Memtable;
  readonly live: LiveStreams;
  readonly assigner: Assigner;
  readonly frame: Frame;
}

/**
 * Decides what to do and returns the answer. Throws BrokerError when it is refused, having assigned
 * nothing.
 */
export type Decision<Answer> = (assignments: StreamAssignments) => Answer;

export class StreamCall<Answer> implements QueuedStep {
  readonly #parts: StreamCallParts;
  readonly #decide: Decision<Answer>;
  readonly #resolve: (answer: Answer) => void;
  readonly reject: (error: BrokerError) => void;
  #assigned: StreamAssignments | undefined;
  #answer: { readonly value: Answer } | undefined;

  constructor(
    parts: StreamCallParts,
    decide: Decision<Answer>,
    done: {
      readonly resolve: (answer: Answer) => void;
      readonly reject: (error: BrokerError) => void;
    },
  ) {
    this.#parts = parts;
    this.#decide = decide;
    this.#resolve = done.resolve;
    this.reject = done.reject;
  }

  assign(nowMs: number): void {
    this.#assigned = new StreamAssignments(this.#parts, nowMs);
    try {
      this.#answer = { value: this.#decide(this.#assigned) };
    } catch (error) {
      if (!(error instanceof BrokerError)) throw error;
      this.reject(error);
    }
  }

  commit(publish: (event: ClusterEvent) => void): void {
    this.#assigned?.commit(publish);
    if (this.#answer !== undefined) this.#resolve(this.#answer.value);
  }

  rollBack(): void {
    this.#assigned?.rollBack();
  }
}

/** An event that has no place yet. */
type NewEvent = Omit<StreamEvent, "index" | "timestampMs"> & {
  /** Undefined: now. */
  readonly timestampMs: number | undefined;
};

interface AssignedEvent {
  readonly stream: LiveStream;
  readonly event: StreamEvent;
  readonly encoded: EncodedEvent;
  /** `lastMs` before it. */
  readonly previousMs: number;
}

export class StreamAssignments {
  readonly #parts: StreamCallParts;
  readonly nowMs: number;
  readonly #events: AssignedEvent[] = [];
  /** The stream that was begun. */
  #begun: (AssignedStream & { readonly stream: LiveStream }) | undefined;

  constructor(parts: StreamCallParts, nowMs: number) {
    this.#parts = parts;
    this.nowMs = nowMs;
  }

  /** Gives a new stream's message its seq. */
  begin(draft: Parameters<Assigner["assignStream"]>[0]): LiveStream {
    const { assigner, live } = this.#parts;
    const assigned = assigner.assignStream(draft, this.nowMs);
    const { record, message } = assigned;
    const stream = live.begin(record.channel, message, this.nowMs);
    this.#begun = { ...assigned, stream };
    return stream;
  }

  /** Gives a stream its next event. */
  add(stream: LiveStream, added: NewEvent): void {
    const { frame, live, memtable } = this.#parts;
    const timestampMs = added.timestampMs ?? this.nowMs;
    const { type, data, eventId, ending } = added;
    const index = stream.assigned;
    const event = { index, type, data, eventId, timestampMs, ending }; // no spread: it costs a microsecond
    const encoded = encodeInto(frame, stream.head, event);
    memtable.hold(encoded.end - encoded.start);
    const previousMs = stream.lastMs;
    live.change(stream, () => stream.assign(event));
    stream.lastMs = this.nowMs;
    this.#events.push({ stream, event, encoded, previousMs });
  }

  commit(publish: (event: ClusterEvent) => void): void {
    const { live } = this.#parts;
    for (const { stream, event, encoded } of this.#events) {
      if (event.index === 0) this.#commitMessage(publish);
      stream.pending.push(encoded);
      stream.show(event.index + 1);
      live.touch(stream);
      publish({ kind: "event", event: stream.published(event) });
    }
  }

  #commitMessage(publish: (event: ClusterEvent) => void): void {
    if (this.#begun === undefined) return;
    const { stream, record, message } = this.#begun;
    this.#parts.memtable.commit(record);
    stream.show(0);
    publish({
      kind: "message",
      message: withStream(message, stream.snapshot()),
      origin: undefined,
      recipients: undefined,
    });
  }

  /** Takes all back, newest first. */
  rollBack(): void {
    const { memtable, live } = this.#parts;
    for (const assigned of this.#events.toReversed()) {
      const { stream, event, encoded, previousMs } = assigned;
      live.change(stream, () => stream.rollBack(event));
      stream.lastMs = previousMs;
      memtable.letGo(encoded.end - encoded.start);
    }
    if (this.#begun === undefined) return;
    live.remove(this.#begun.stream);
    memtable.rollBack(this.#begun.record);
  }
}

function encodeInto(frame: Frame, stream: StreamName, event: StreamEvent): EncodedEvent {
  const start = frame.reserve(maxStreamRecordBytes(stream, event));
  const { bytes } = frame;
  const { body, end } = encodeStreamRecord(bytes, start, { stream, event });
  frame.add(end);
  return { bytes, start, body, end };
}
