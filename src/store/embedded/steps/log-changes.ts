// The changes that one call makes to logs. The changes are applied in memory and written to the
// frame of the batch. Once the frame is durable, they become visible and are published. If the
// batch fails, they are rolled back.

import { type LogName, logNameText, type OpenFrame, sealFrame } from "../../../broker/log-frame.ts";
import { type LogEvent, MAX_LOG_EVENT_BYTES } from "../../../broker/log-ports.ts";
import type { ClusterEvent } from "../../../broker/ports.ts";
import { withItem } from "../../../lib/short-list.ts";
import type { Frame } from "../engine/frame.ts";
import {
  type AppendRecord,
  checkBeforeNext,
  encodeState,
  incarnationOf,
  type LogProducerChange,
  type LogState,
  type LogTime,
  maxAppendBytes,
  maxStateBytes,
  type ProducerState,
  stateAfter,
  tailOf,
  writeAppendRecord,
  writeStateRecord,
} from "./log-state.ts";
import { OpenLog, type OpenLogs, producerState } from "./open-logs.ts";
import type { FrameRun } from "./pending-frames.ts";
import type { StoredLogs } from "./stored-logs.ts";

export interface LogCallPorts {
  readonly logs: OpenLogs;
  readonly storedLogs: StoredLogs;
  readonly frame: Frame;
}

const NO_FRAME = new Uint8Array(0);
const NO_PRODUCERS: readonly AssignedProducer[] = [];
const NO_CHANGES: readonly AssignedChange[] = [];

interface AssignedProducer {
  readonly id: string;
  readonly before: ProducerState | undefined;
}

interface AssignedChange {
  readonly log: OpenLog;
  /** `undefined` if the change created the log. */
  readonly before: LogState | undefined;
  readonly after: LogState;
  readonly frame: FrameRun | undefined;
  /** Size of the WAL record. */
  readonly bytes: number;
  readonly producers: readonly AssignedProducer[];
  /** Log that had the name before. Set only for a change that creates a log. */
  readonly previous: OpenLog | undefined;
}

export class LogChanges implements LogTime {
  readonly #ports: LogCallPorts;
  readonly wallMs: number;
  readonly idleMs: number;
  #changes = NO_CHANGES;

  constructor(ports: LogCallPorts, wallMs: number, idleMs: number) {
    this.#ports = ports;
    this.wallMs = wallMs;
    this.idleMs = idleMs;
  }

  get isEmpty(): boolean {
    return this.#changes.length === 0;
  }

  create(name: LogName, state: LogState): OpenLog {
    const { logs, storedLogs } = this.#ports;
    const number = storedLogs.nextNumber();
    const log = new OpenLog(number, logNameText(name), { assigned: state, stored: undefined });
    const bytes = this.#writeState(log, state);
    const previous = logs.add(log);
    const nothing = { before: undefined, frame: undefined, producers: NO_PRODUCERS };
    this.#changes = withItem(this.#changes, { log, after: state, bytes, previous, ...nothing });
    return log;
  }

  change(log: OpenLog, fields: Partial<LogState>): void {
    const before = log.assigned;
    const after = { ...before, ...fields, version: before.version + 1 };
    const bytes = this.#writeState(log, after);
    log.assigned = after;
    const nothing = { frame: undefined, producers: NO_PRODUCERS, previous: undefined };
    this.#changes = withItem(this.#changes, { log, before, after, bytes, ...nothing });
  }

  /** Appends a frame, closes the log, or both. */
  append(
    log: OpenLog,
    open: OpenFrame | undefined,
    { producer, order, close }: Pick<AppendRecord, "producer" | "order" | "close">,
  ): void {
    const { logs, frame: batch } = this.#ports;
    const before = log.assigned;
    const { position, records: first } = before;
    const checkBefore = checkBeforeNext(before);
    const frame = open && {
      start: position,
      checkBefore,
      bytes: open.bytes,
      first,
      check: sealFrame(open, { first, checkBefore }),
    };
    // Objects are written field by field, because a spread would cost a microsecond per append.
    const record = {
      number: log.number,
      version: before.version + 1,
      timeMs: this.idleMs,
      producer,
      order,
      close,
      frame: open?.bytes ?? NO_FRAME,
    };
    const start = batch.reserve(maxAppendBytes(record));
    const { bytes } = batch;
    const end = writeAppendRecord(bytes, start, record);
    batch.add(end);
    const size = end - start;
    logs.retain(log, size);
    const after = stateAfter(before, frame, record);
    log.assigned = after;
    this.#changes = withItem(this.#changes, {
      log,
      before,
      after,
      frame,
      bytes: size,
      producers: producer === undefined ? NO_PRODUCERS : this.#assignProducer(log, producer),
      previous: undefined,
    });
  }

  #assignProducer(log: OpenLog, change: LogProducerChange): readonly AssignedProducer[] {
    const { logs } = this.#ports;
    const { id, forgotten } = change;
    const before = logs.assignProducer(log, id, producerState(change));
    if (forgotten === undefined) return [{ id, before }];
    const dropped = logs.assignProducer(log, forgotten, undefined);
    return [
      { id, before },
      { id: forgotten, before: dropped },
    ];
  }

  /** Returns the size of the WAL record. */
  #writeState(log: OpenLog, state: LogState): number {
    const { logs, frame } = this.#ports;
    const fields = encodeState(log.text, state);
    const start = frame.reserve(maxStateBytes(fields));
    const { number } = log;
    const end = writeStateRecord(frame.bytes, start, { number, version: state.version, fields });
    frame.add(end);
    logs.retain(log, end - start);
    return end - start;
  }

  commit(publish: (event: ClusterEvent) => void): void {
    const { logs } = this.#ports;
    for (const { log, after, frame, bytes, producers } of this.#changes) {
      log.show(after, frame, bytes);
      for (const { id } of producers) logs.commitProducer(log, id);
    }
    for (const change of this.#changes) {
      const event = eventOf(change);
      if (event !== undefined) publish(event);
    }
  }

  rollBack(): void {
    const { logs } = this.#ports;
    for (const { log, before, bytes, producers, previous } of this.#changes.toReversed()) {
      for (const { id, before: state } of producers) logs.assignProducer(log, id, state);
      logs.release(log, bytes);
      if (before === undefined) logs.remove(log, previous);
      else log.assigned = before;
    }
  }
}

/** Returns the event for a change that readers can see: an append, a close or a deletion. */
function eventOf({ log, before, after, frame }: AssignedChange): LogEvent | undefined {
  if (before === undefined) return undefined; // nobody can read the log yet
  const isDeleted = after.status !== "live" && before.status === "live";
  if (!isDeleted && frame === undefined && before.closed === after.closed) return undefined;
  return {
    kind: "log",
    nameText: log.text,
    incarnation: incarnationOf(after),
    change: isDeleted ? "deleted" : "appended",
    from: tailOf(before),
    tail: tailOf(after),
    closed: after.closed,
    frame:
      frame !== undefined && frame.bytes.length <= MAX_LOG_EVENT_BYTES ? frame.bytes : undefined,
  };
}
