// Implements the log port: how an append, a close, a fork, a deletion and the passing of time
// change a log. The changes of a call are computed when the call reaches the front of the queue,
// from a state that includes uncommitted changes. Reads return only committed changes.

import { BrokerError } from "../../../broker/errors.ts";
import {
  cutRecords,
  framesIn,
  isJsonLog,
  isSameMediaType,
  isSameOffset,
  isWholeCut,
  LOG_START,
  type LogName,
  type LogOffset,
  type OpenFrame,
  openFrame,
  recordCount,
  reopenFrame,
} from "../../../broker/log-frame.ts";
import {
  type LogAppend,
  type LogAppendResult,
  type LogCreation,
  type LogDraft,
  type LogLimits,
  type LogOrigin,
  type LogProducer,
  type LogStore,
  MAX_FORK_DEPTH,
} from "../../../broker/log-ports.ts";
import type { Clock } from "../../../broker/ports.ts";
import { SweepFailures } from "../../sweep-failures.ts";
import type { Appends } from "./append.ts";
import { type LogCallPorts, LogChanges } from "./log-changes.ts";
import {
  COPIED,
  emptyState,
  type ForkPoint,
  headOf,
  incarnationOf,
  isExpired,
  type LogProducerChange,
  type LogState,
  type LogTerms,
  type LogTime,
  mustStoreUse,
  newIncarnation,
  tailOf,
} from "./log-state.ts";
import type { OpenLog, OpenLogs } from "./open-logs.ts";
import { createCalls } from "./queued-call.ts";
import { isMessageShown } from "./stream-reads.ts";
import type { StreamRows } from "./stream-rows.ts";

const SWEEP_PAGE = 200;

interface LogPorts extends LogCallPorts {
  readonly appends: Pick<Appends, "enqueue" | "lackOfRoom">;
  readonly streamRows: Pick<StreamRows, "recordOf">;
  readonly retentionMs: number;
  readonly clock: Clock;
  /**
   * Clock in Unix milliseconds that is not affected by adjustments of `clock`. It measures the idle
   * time of logs and producers.
   */
  readonly idleClock: Clock;
  readonly limits: LogLimits;
  readonly logRules: LogRules;
}

interface LogRulesPorts {
  readonly logs: OpenLogs;
  readonly limits: LogLimits;
  /** Time without a request after which a producer may be forgotten in favour of a new producer. */
  readonly producerIdleMs: number;
}

export interface EmbeddedLogs extends LogStore {
  sweep(isClosed: () => boolean): Promise<void>;
}

export function createEmbeddedLogs(ports: LogPorts): EmbeddedLogs {
  const { appends, logs, storedLogs, clock, idleClock, logRules: rules } = ports;
  const call = createCalls(appends, (nowMs) => new LogChanges(ports, nowMs, idleClock()));
  const time = (): LogTime => ({ wallMs: clock(), idleMs: idleClock() });

  function assertRoom(bytes: number): void {
    if (appends.lackOfRoom !== undefined) throw appends.lackOfRoom;
    if (logs.bytes + bytes > ports.limits.maxActiveBytes) throw new BrokerError("overloaded");
  }

  /**
   * Returns the committed state of a log, or the reason why the log does not exist. An ended stream
   * does not exist once its message has expired, even if no sweep has removed it.
   */
  function shownOf(log: OpenLog | undefined): LogState | "missing" | "deleted" {
    if (log?.shown === undefined) return "missing";
    const state = existing(log.shown, time());
    if (typeof state === "string" || state.closed === undefined) return state;
    return log.name.kind === "free" || isStreamShown(log) ? state : absenceOf(state);
  }

  function isStreamShown(log: OpenLog): boolean {
    const record = ports.streamRows.recordOf(log);
    return record !== undefined && isMessageShown(record, ports);
  }

  return {
    async createLog(name, draft) {
      const bytes = sizeOf(draft.records);
      assertRoom(bytes);
      return call((changes) => rules.create(name, draft, changes), bytes);
    },

    async appendLog(name, append) {
      const bytes = sizeOf(append.records);
      assertRoom(bytes);
      return call((changes) => rules.append(name, append, changes), bytes);
    },

    async logHead(name) {
      const state = shownOf(logs.find(name));
      return typeof state === "string" ? state : headOf(state);
    },

    async readLog(name, { from, maxBytes }) {
      let log = logs.find(name);
      let state = shownOf(log);
      if (typeof state !== "string" && mustStoreUse(state, time())) {
        // If the time of this read cannot be stored, for example on a full disk, the read must not fail. The next
        // read tries again.
        await call((changes) => rules.use(name, changes), 0).catch(() => undefined);
        log = logs.find(name);
        state = shownOf(log);
      }
      if (typeof state === "string") return { verdict: state };
      if (log === undefined) return { verdict: "missing" };
      const head = headOf(state);
      const start = from ?? head.tail;
      const frames = logs.read(log, start, maxBytes);
      return frames === undefined
        ? { verdict: "lost" }
        : { verdict: "read", head, start, ...frames };
    },

    async deleteLog(name) {
      return call((changes) => rules.delete(name, changes), 0);
    },

    async sweep(isClosed) {
      const dueMs = Math.max(clock(), idleClock());
      const failures = new SweepFailures();
      let page = storedLogs.due(dueMs, undefined, SWEEP_PAGE);
      while (page.length > 0 && !isClosed()) {
        const expire = (number: number) => call((changes) => rules.expire(number, changes), 0);
        await Promise.all(page.map(({ number }) => failures.attempt(() => expire(number))));
        page = storedLogs.due(dueMs, page.at(-1)?.key, SWEEP_PAGE);
      }
      failures.throwFirst();
    },
  };
}

export class LogRules {
  readonly #ports: LogRulesPorts;

  constructor(ports: LogRulesPorts) {
    this.#ports = ports;
  }

  create(name: LogName, draft: LogDraft, changes: LogChanges): LogCreation {
    const former = this.#ports.logs.find(name);
    if (former !== undefined) {
      const state = existing(former.assigned, changes);
      if (state === "deleted") return { verdict: "deleted" };
      if (state !== "missing")
        return isSame(state, draft)
          ? { verdict: "exists", head: headOf(state) }
          : { verdict: "conflict" };
    }
    const base = this.#baseOf(draft, changes);
    if ("verdict" in base) return base;
    const body = draft.records.length > 0 ? openFrame(draft.records) : undefined;
    const frames = [...base.copied, base.cut, body];
    const limit = this.limitOf(base.state, frames);
    if (limit !== undefined) return { verdict: "full", limit };
    this.#assertRoom(base.copied);
    if (former !== undefined && former.assigned.status !== "removed") this.#remove(former, changes);
    const { source } = base;
    if (source !== undefined) changes.change(source, { forks: source.assigned.forks + 1 });
    const log = changes.create(name, base.state);
    for (const frame of frames) if (frame !== undefined) changes.append(log, frame, NO_TERMS);
    return { verdict: "created", head: headOf(log.assigned) };
  }

  append(name: LogName, append: LogAppend, changes: LogChanges): LogAppendResult {
    const log = this.#ports.logs.find(name);
    if (log === undefined) return { verdict: "missing" };
    const state = existing(log.assigned, changes);
    if (typeof state === "string") return { verdict: state };
    const { records, order, close } = append;
    const frame = records.length > 0 ? openFrame(records) : undefined;
    const judgement = this.judge(log, append, frame, changes);
    if (judgement.verdict !== "accepted") return judgement;
    const { producer } = judgement;
    changes.append(log, frame, { producer, order, close });
    return appendedTo(log, producer);
  }

  /**
   * Decides whether an append to a live log is accepted. `frame` contains the records of the
   * append. A repeated append counts as a use of the log.
   */
  judge(
    log: OpenLog,
    append: LogAppend,
    frame: OpenFrame | undefined,
    changes: LogChanges,
  ): LogJudgement {
    const { assigned: state } = log;
    const { producer, records, order, contentType } = append;
    const newest = producer && this.#ports.logs.producer(log, producer.id);
    const isRepeated =
      newest !== undefined && newest.epoch === producer?.epoch && producer.number <= newest.number;
    if (state.closed !== undefined) {
      const closesAgain = producer === undefined && records.length === 0;
      if (!isRepeated && !closesAgain)
        return { verdict: "closed", tail: tailOf(state), closed: state.closed };
      return this.#repeated(log, newest, changes);
    }
    if (contentType !== undefined && !isSameMediaType(contentType, state.terms.contentType))
      return { verdict: "other_type" };
    if (isRepeated) return this.#repeated(log, newest, changes);
    const refusal = producer && producerRefusal(producer, newest);
    if (refusal !== undefined) return refusal;
    if (order !== undefined && !isLater(order, state.order)) return { verdict: "out_of_order" };
    // A log that exceeds a lowered limit can still be closed.
    const limit = frame === undefined ? undefined : this.limitOf(state, [frame]);
    if (limit !== undefined) return { verdict: "full", limit };
    const change = producer && this.#producerChange(log, producer, changes.idleMs);
    if (change === "full") return { verdict: "full", limit: "producers" };
    return { verdict: "accepted", producer: change };
  }

  /** Records a use of the log, which postpones the expiry of a log with a time to live. */
  use(name: LogName, changes: LogChanges): void {
    const log = this.#ports.logs.find(name);
    if (log === undefined || typeof existing(log.assigned, changes) === "string") return;
    this.#use(log, changes);
  }

  delete(name: LogName, changes: LogChanges): "done" | "missing" | "deleted" {
    const log = this.#ports.logs.find(name);
    if (log === undefined) return "missing";
    const state = existing(log.assigned, changes);
    if (typeof state === "string") return state;
    this.#drop(log, changes);
    return "done";
  }

  expire(number: number, changes: LogChanges): void {
    const log = this.#ports.logs.byNumber(number);
    if (log === undefined || log.assigned.status !== "live") return;
    if (isExpired(log.assigned, changes)) this.#drop(log, changes);
  }

  /**
   * Removes the log. If it has forks, only marks it as deleted, because the forks need its frames.
   */
  #drop(log: OpenLog, changes: LogChanges): void {
    if (log.assigned.forks > 0) changes.change(log, { status: "deleted" });
    else this.#remove(log, changes);
  }

  #repeated(
    log: OpenLog,
    newest: Pick<LogProducer, "epoch" | "number"> | undefined,
    changes: LogChanges,
  ): LogAppendResult {
    this.#use(log, changes);
    const { assigned } = log;
    const producer = newest && { epoch: newest.epoch, number: newest.number };
    return { verdict: "repeated", tail: tailOf(assigned), closed: assigned.closed, producer };
  }

  #use(log: OpenLog, changes: LogChanges): void {
    if (mustStoreUse(log.assigned, changes)) changes.change(log, { usedMs: changes.idleMs });
  }

  /**
   * Removes a log that has no forks. If its source is deleted and has no other forks, the source is
   * removed in the same way.
   */
  #remove(log: OpenLog, changes: LogChanges): void {
    // All logs are read before the first change. If a log cannot be read, nothing is changed.
    const removed: OpenLog[] = [];
    let kept: OpenLog | undefined;
    for (let next: OpenLog | undefined = log; next !== undefined; ) {
      removed.push(next);
      const origin: ForkPoint | undefined = next.assigned.terms.origin;
      const source: OpenLog | undefined = origin && this.#ports.logs.byNumber(origin.number);
      const isLastFork: boolean =
        source?.assigned.forks === 1 && source.assigned.status === "deleted";
      kept = isLastFork ? undefined : source;
      next = isLastFork ? source : undefined;
    }
    for (const each of removed) changes.change(each, { status: "removed" });
    if (kept !== undefined) changes.change(kept, { forks: kept.assigned.forks - 1 });
  }

  /** Returns the initial state of a log, or the reason why the log cannot be created. */
  #baseOf(draft: LogDraft, time: LogTime): Base | Exclude<LogCreation, { readonly head: unknown }> {
    const incarnation = newIncarnation();
    const { origin, ttlS, expiresAtMs } = draft;
    const stateWith = (terms: LogTerms): LogState => ({
      ...emptyState(terms, incarnation),
      ...{ usedMs: terms.ttlS === undefined ? 0 : time.idleMs, closed: draft.closed },
    });
    if (origin === undefined) {
      const contentType = draft.contentType ?? "application/octet-stream";
      const state = stateWith({ contentType, ttlS, expiresAtMs, origin: undefined });
      return { source: undefined, copied: [], cut: undefined, state };
    }
    const source = this.#ports.logs.find(origin.source);
    const state = source === undefined ? "missing" : existing(source.assigned, time);
    if (source === undefined || state === "missing") return { verdict: "source_missing" };
    if (state === "deleted") return { verdict: "source_deleted" };
    const contentType = draft.contentType ?? state.terms.contentType;
    if (!isSameMediaType(contentType, state.terms.contentType)) return { verdict: "source_type" };
    // A fork of a channel's stream copies the frames of the stream. Only committed frames can be
    // copied.
    const isCopied = origin.source.kind === "channel";
    const newest = isCopied && source.shown !== undefined ? tailOf(source.shown) : tailOf(state);
    const point = this.#forkPoint(source, origin.offset ?? newest, origin.subOffset);
    if ("verdict" in point) return point;
    if (this.#isDeepest(source)) return { verdict: "full", limit: "depth" };
    const { start, records, cut } = point;
    const hasOwnExpiry = ttlS !== undefined || expiresAtMs !== undefined;
    const sourceIncarnation = incarnationOf(source.assigned);
    const ownStart = isCopied ? LOG_START : start;
    const newSeed = isCopied ? sourceIncarnation : incarnation;
    const startCheck = ownStart.position === 0 ? newSeed : ownStart.check;
    const number = isCopied ? COPIED : source.number;
    const forkPoint: ForkPoint = {
      ...{ number, source: origin.source, offset: origin.offset, startCheck },
      ...{ subOffset: origin.subOffset, hasOwnExpiry, start: ownStart.position },
    };
    const expiry = hasOwnExpiry ? draft : state.terms;
    const terms = {
      ...{ contentType, origin: forkPoint },
      ...{ ttlS: expiry.ttlS, expiresAtMs: expiry.expiresAtMs },
    };
    const place = { position: ownStart.position, check: startCheck | 0 };
    if (!isCopied)
      return { source, copied: [], cut, state: { ...stateWith(terms), ...place, records } };
    // The fork has the incarnation of its source, so that the copied frames keep their checks and
    // offsets.
    const seeded = { ...stateWith(terms), ...place, incarnation: sourceIncarnation | 0 };
    return { source: undefined, copied: this.#framesBefore(source, start), cut, state: seeded };
  }

  /** Throws `overloaded` if there is no memory for a fork's copied frames. */
  #assertRoom(copied: readonly OpenFrame[]): void {
    const { logs, limits } = this.#ports;
    const bytes = sizeOf(copied.map((frame) => frame.bytes));
    if (bytes > 0 && logs.bytes + bytes > limits.maxActiveBytes)
      throw new BrokerError("overloaded");
  }

  #framesBefore(source: OpenLog, { position }: LogOffset): readonly OpenFrame[] {
    if (position === 0) return [];
    const { pieces = [] } = this.#ports.logs.read(source, LOG_START, position) ?? {};
    return pieces.flatMap((piece) => [...framesIn(piece)].map(reopenFrame));
  }

  /** Returns true if a fork of the log would exceed `MAX_FORK_DEPTH`. */
  #isDeepest(log: OpenLog): boolean {
    let source: OpenLog | undefined = log;
    for (let depth = 0; depth < MAX_FORK_DEPTH; depth++) {
      const origin: ForkPoint | undefined = source.assigned.terms.origin;
      source = origin && this.#ports.logs.byNumber(origin.number);
      if (source === undefined) return false;
    }
    return true;
  }

  #forkPoint(
    source: OpenLog,
    offset: LogOffset,
    subOffset: number,
  ): Fork | { readonly verdict: "bad_offset" | "bad_sub_offset" } {
    const { logs } = this.#ports;
    const { assigned } = source;
    if (isSameOffset(offset, tailOf(assigned)))
      return subOffset > 0
        ? { verdict: "bad_sub_offset" }
        : { start: offset, records: assigned.records, cut: undefined };
    if (!logs.hasOffset(source, offset)) return { verdict: "bad_offset" };
    const next = logs.frameAfter(source, offset);
    const [frame] = next === undefined ? [] : framesIn(next);
    if (frame === undefined && subOffset > 0) return { verdict: "bad_sub_offset" };
    // The offset is the tail of the committed frames. Later frames may be uncommitted.
    if (frame === undefined)
      return { start: offset, records: source.shown?.records ?? 0, cut: undefined };
    const { first: records } = frame;
    if (subOffset === 0) return { start: offset, records, cut: undefined };
    const isJson = isJsonLog(assigned.terms.contentType);
    const part = cutRecords(frame, subOffset, isJson);
    if (part === undefined) return { verdict: "bad_sub_offset" };
    if (!isWholeCut(frame, subOffset, isJson))
      return { start: offset, records, cut: openFrame(part) };
    const start = { position: offset.position + frame.bytes.length, check: frame.check };
    return { start, records: records + recordCount(frame), cut: undefined };
  }

  /**
   * Returns the limit that the log would exceed with these frames, or `undefined` if the log would
   * exceed no limit.
   */
  limitOf(
    { position, records }: Pick<LogState, "position" | "records">,
    frames: readonly (OpenFrame | undefined)[],
  ): "bytes" | "records" | undefined {
    const { maxBytes, maxRecords } = this.#ports.limits;
    let bytes = position;
    let count = records;
    for (const frame of frames) {
      bytes += frame?.bytes.length ?? 0;
      count += frame?.records ?? 0;
    }
    if (bytes > maxBytes) return "bytes";
    return count > maxRecords ? "records" : undefined;
  }

  /**
   * Returns the change to the producer's state. Returns "full" if a new producer would exceed
   * `maxProducers` and no other producer may be forgotten.
   */
  #producerChange(
    log: OpenLog,
    { id, epoch, number }: LogProducer,
    nowMs: number,
  ): LogProducerChange | "full" {
    const { logs, limits, producerIdleMs } = this.#ports;
    const change = { id, epoch, number, seenMs: nowMs, forgotten: undefined };
    if (logs.producer(log, id) !== undefined) return change;
    const producers = [...logs.producers(log)];
    if (producers.length < limits.maxProducers) return change;
    const [oldest] = producers.toSorted(([, a], [, b]) => a.seenMs - b.seenMs);
    if (oldest === undefined || nowMs - oldest[1].seenMs <= producerIdleMs) return "full";
    return { ...change, forgotten: oldest[0] };
  }
}

interface Base {
  readonly state: LogState;
  readonly source: OpenLog | undefined;
  /** Frames of the source that are copied into the log. */
  readonly copied: readonly OpenFrame[];
  /**
   * First own frame of a fork that begins inside a frame of its source. It contains the first
   * records of that source frame, or its first bytes if the log is not in JSON mode.
   */
  readonly cut: OpenFrame | undefined;
}

interface Fork {
  readonly start: LogOffset;
  readonly records: number;
  readonly cut: OpenFrame | undefined;
}

/**
 * Decision about an append. `accepted` means that the records may be appended. In that case,
 * `producer` is the change to the producer's state.
 */
type LogJudgement =
  | LogAppendResult
  | { readonly verdict: "accepted"; readonly producer: LogProducerChange | undefined };

/** Returns the result of an append that was accepted. */
export function appendedTo(log: OpenLog, producer: LogProducerChange | undefined): LogAppendResult {
  const { assigned } = log;
  return {
    verdict: "appended",
    tail: tailOf(assigned),
    closed: assigned.closed,
    producer: producer && { epoch: producer.epoch, number: producer.number },
  };
}

const NO_TERMS = { producer: undefined, order: undefined, close: undefined };

export function existing(state: LogState, time: LogTime): LogState | "missing" | "deleted" {
  if (state.status === "removed") return "missing";
  if (state.status === "live" && !isExpired(state, time)) return state;
  return absenceOf(state);
}

function absenceOf({ forks }: LogState): "missing" | "deleted" {
  return forks > 0 ? "deleted" : "missing";
}

/** Returns true if the draft has the log's configuration, and both are open or both are closed. */
function isSame(state: LogState, draft: LogDraft): boolean {
  const { contentType, ttlS, expiresAtMs, closed, origin } = draft;
  const { terms } = state;
  const isInherited = terms.origin !== undefined && !terms.origin.hasOwnExpiry;
  const expiry = isInherited ? NO_EXPIRY : terms;
  return (
    (contentType === undefined || isSameMediaType(contentType, terms.contentType)) &&
    expiry.ttlS === ttlS &&
    expiry.expiresAtMs === expiresAtMs &&
    (state.closed === undefined) === (closed === undefined) &&
    isSameOrigin(terms.origin, origin)
  );
}

const NO_EXPIRY = { ttlS: undefined, expiresAtMs: undefined };

function isSameOrigin(point: ForkPoint | undefined, origin: LogOrigin | undefined): boolean {
  if (point === undefined || origin === undefined) return point === origin;
  const { source, offset, subOffset } = origin;
  if (!isSameName(point.source, source) || point.subOffset !== subOffset) return false;
  if (point.offset === undefined || offset === undefined) return point.offset === offset;
  return isSameOffset(point.offset, offset);
}

function isSameName(a: LogName, b: LogName): boolean {
  if (a.kind === "free") return b.kind === "free" && a.path === b.path;
  return b.kind === "channel" && a.key === b.key && a.clientMsgNo === b.clientMsgNo;
}

function producerRefusal(
  { epoch, number }: LogProducer,
  newest: Pick<LogProducer, "epoch" | "number"> | undefined,
): LogAppendResult | undefined {
  if (newest !== undefined && epoch < newest.epoch)
    return { verdict: "stale_epoch", epoch: newest.epoch };
  if (newest !== undefined && epoch > newest.epoch)
    return number === 0 ? undefined : { verdict: "bad_start" };
  const expected = newest === undefined ? 0 : newest.number + 1;
  return number === expected ? undefined : { verdict: "gap", expected };
}

/** Returns true if `order` is higher than the last order in a bytewise comparison. */
function isLater(order: string, last: string | undefined): boolean {
  return last === undefined || Buffer.compare(Buffer.from(order), Buffer.from(last)) > 0;
}

function sizeOf(records: readonly Uint8Array[]): number {
  return records.reduce((sum, record) => sum + record.length, 0);
}
