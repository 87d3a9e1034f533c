// Implements the port's calls that change streams, and the state machine of streams: how an event,
// a viewer's cancellation and the silence of a producer change a stream [spec: Streaming text
// session; decisions: Messages and events]. A call is checked here. Its changes are computed when
// the call reaches the front of the queue, based on assigned events, committed or not.

import { BrokerError } from "../../../broker/errors.ts";
import {
  isJsonLog,
  isSameMediaType,
  type OpenFrame,
  openTimedFrame,
} from "../../../broker/log-frame.ts";
import { type LogEnding, MAX_OPEN_STREAMS } from "../../../broker/log-ports.ts";
import {
  type ChannelKey,
  isNoteType,
  MAX_EXPIRE_S,
  messageTimeMs,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
} from "../../../broker/model.ts";
import type {
  ChannelLogStore,
  Clock,
  StreamAppendDraft,
  StreamAppendResult,
  StreamCreation,
  StreamCreationDraft,
  StreamDraft,
  StreamResult,
  StreamStore,
} from "../../../broker/ports.ts";
import { isStreamType } from "../../../broker/stream-event.ts";
import { stateAfter } from "../../../broker/stream-fold.ts";
import { eventOfRecord } from "../../../broker/stream-record.ts";
import { eventMark, isRetry } from "../../event-ids.ts";
import { snapshotBytes } from "../../held-bytes.ts";
import { MAX_LABEL_UNITS } from "../engine/tables.ts";
import type { Appends } from "./append.ts";
import { eventBytes, type LiveStream } from "./live-stream.ts";
import { headOf, tailOf } from "./log-state.ts";
import { appendedTo, existing, type LogRules } from "./logs.ts";
import type { PermissionCheck } from "./permissions.ts";
import { createCalls } from "./queued-call.ts";
import { createStreamReads, type StreamReadsPorts } from "./stream-reads.ts";
import { type EndedStream, isStreamName } from "./stream-rows.ts";
import { type AppendTerms, NO_TERMS, type StreamCallPorts, StreamChanges } from "./stream-steps.ts";

interface StreamPorts extends StreamCallPorts, StreamReadsPorts {
  readonly appends: Appends;
  /**
   * Clock in Unix milliseconds that is not affected by adjustments of `clock`. It measures the idle
   * time of producers.
   */
  readonly idleClock: Clock;
  readonly checkPermission: PermissionCheck;
  readonly logRules: LogRules;
  readonly maxStreamBytes: number;
  readonly onError: (error: Error, what: string) => void;
}

export function createEmbeddedStreams(ports: StreamPorts): StreamStore & ChannelLogStore {
  const { appends, live, idleClock, maxStreamBytes } = ports;
  const rules = new StreamRules(ports);
  /** Time on the clock of `LiveStreams.now` at which the disk was last found to be full. */
  let fullMs = Number.NEGATIVE_INFINITY;
  const call = createCalls(appends, (nowMs) => new StreamChanges(ports, nowMs, idleClock()));

  return {
    ...createStreamReads(ports),

    streamEvent(draft) {
      const lackOfRoom = rules.isStored(draft) ? appends.lackOfRoom : undefined;
      const error = draftError(draft, maxStreamBytes) ?? lackOfRoom;
      if (error !== undefined) return Promise.reject(error);
      const bytes = draft.data.length + (draft.payload?.length ?? 0);
      return call((changes) => rules.event(draft, changes), bytes);
    },

    async createStream(draft) {
      assertFits(draft);
      if (appends.lackOfRoom !== undefined) throw appends.lackOfRoom;
      return call((changes) => rules.create(draft, changes), sizeOf(draft.records));
    },

    async appendToStream(draft) {
      if (!isStreamName(draft)) return { verdict: "missing" };
      if (appends.lackOfRoom !== undefined) throw appends.lackOfRoom;
      return call((changes) => rules.append(draft, changes), sizeOf(draft.records));
    },

    async cancelStream(key, clientMsgNo) {
      const name = { key, clientMsgNo };
      if (!isStreamName(name)) return { verdict: "missing", state: undefined };
      if (appends.lackOfRoom !== undefined) throw appends.lackOfRoom;
      return call((changes) => rules.cancel(name, changes), 0);
    },

    /**
     * Interrupts silent streams even if the memtable is full, because this frees memory. Ends no
     * stream if this method found the disk full within the last `silentMs` ms, because events
     * of the silent producers may have been rejected.
     */
    async interruptStreams(silentMs) {
      if (rules.silentStreams(silentMs).length === 0) return 0;
      if (appends.lackOfRoom?.code === "disk_full") fullMs = live.now();
      if (live.now() - silentMs < fullMs) return 0;
      return call((changes) => rules.interrupt(silentMs, changes), 0);
    },
  };
}

/**
 * Returns the error for an invalid draft. If such a draft were queued, the other calls of its batch
 * would fail too.
 */
function draftError(draft: StreamDraft, maxBytes: number): BrokerError | undefined {
  if (!isStreamType(draft.type)) return new BrokerError("bad_request");
  const { timestampMs, expireS = 0 } = draft;
  if (timestampMs !== undefined && !Number.isFinite(timestampMs))
    return new BrokerError("bad_request");
  if (!Number.isInteger(expireS) || expireS < 0 || expireS > MAX_EXPIRE_S)
    return new BrokerError("bad_request", {
      message: `\`expire\` must be an integer from 0 to ${MAX_EXPIRE_S}.`,
    });
  const fits =
    isStreamName(draft) &&
    draft.channel.id.length <= MAX_LABEL_UNITS &&
    draft.fromUid.length <= MAX_LABEL_UNITS &&
    (draft.eventId?.length ?? 0) <= MAX_LABEL_UNITS &&
    draft.type.length <= MAX_LABEL_UNITS &&
    draft.data.length <= maxBytes;
  return fits ? undefined : new BrokerError("too_large");
}

function assertFits(draft: StreamCreationDraft): void {
  const { channel, fromUid } = draft;
  const fits =
    isStreamName(draft) &&
    channel.id.length <= MAX_LABEL_UNITS &&
    fromUid.length <= MAX_LABEL_UNITS;
  if (!fits) throw new BrokerError("too_large");
}

function sizeOf(records: readonly Uint8Array[]): number {
  return records.reduce((sum, record) => sum + record.length, 0);
}

class StreamRules {
  readonly #ports: Pick<
    StreamPorts,
    | "live"
    | "logs"
    | "streamRows"
    | "assigner"
    | "checkPermission"
    | "logRules"
    | "retentionMs"
    | "onError"
  >;

  constructor(ports: StreamPorts) {
    this.#ports = ports;
  }

  /** Returns false if the event is a tool call or a custom event and its stream is not active. */
  isStored({ key, clientMsgNo, type }: StreamDraft): boolean {
    if (!isNoteType(type)) return true;
    const stream = this.#ports.live.find(key, clientMsgNo);
    return stream !== undefined && stream.ending === undefined;
  }

  event(draft: StreamDraft, changes: StreamChanges): StreamResult {
    const { live, streamRows: rows, checkPermission } = this.#ports;
    const refused = checkPermission(draft);
    if (refused !== undefined) return { verdict: "refused", state: undefined, refused };
    const stream = live.find(draft.key, draft.clientMsgNo);
    const isStart = draft.type === STREAM_START;
    if (stream?.ending === undefined && stream !== undefined) {
      if (!isStart && !isRepeated(draft, stream.markOf(draft.eventId))) {
        const isEnd = draft.type === STREAM_END;
        if (!isEnd && this.#isPast(stream, changes)) return lateResult(draft, stream);
        this.#assertRoom(stream, draft, changes);
        changes.add(stream, toEvent(draft));
      }
      return { verdict: "done", state: stateAfter(stream.ending) };
    }
    const ended = stream ?? rows.find(draft);
    if (ended !== undefined) return this.#late(draft, ended);
    if (isStart) return this.#start(draft, changes);
    return { verdict: "missing", state: undefined };
  }

  #assertRoom(stream: LiveStream, draft: StreamDraft, changes: StreamChanges): void {
    const { live, logRules } = this.#ports;
    if (stream.isTextSession) return live.assertRoom(draft, stream.snapshotBytes);
    if (draft.type === STREAM_END) return;
    const { position, records } = changes.logOf(stream).assigned;
    const grown = { position: position + draft.data.length, records: records + 1 };
    if (logRules.limitOf(grown, []) !== undefined) throw new BrokerError("too_large");
    live.assertMemory(eventBytes(draft));
  }

  create(draft: StreamCreationDraft, changes: StreamChanges): StreamCreation {
    const { live, logs, logRules, assigner, checkPermission } = this.#ports;
    const refused = checkPermission(draft);
    if (refused !== undefined) return { verdict: "refused", refused };
    const { key, clientMsgNo, contentType, records, isClosed } = draft;
    const log = logs.find({ kind: "channel", key, clientMsgNo });
    const state = log && existing(log.assigned, changes.logs);
    if (log !== undefined && state !== undefined && typeof state !== "string") {
      const isSame =
        isSameMediaType(contentType, state.terms.contentType) &&
        isClosed === (state.closed !== undefined) &&
        this.#senderOf(draft) === draft.fromUid;
      return isSame ? { verdict: "exists", head: headOf(state) } : { verdict: "conflict" };
    }
    if (assigner.findFirst(draft, changes.nowMs) !== undefined) return { verdict: "taken" };
    live.assertMemory(sizeOf(records));
    const frame = frameOf(draft, changes.nowMs);
    const limit = logRules.limitOf(NO_FRAMES, [frame]);
    if (limit !== undefined) return { verdict: "full", limit };
    if (!isClosed && live.countOpen(key) >= MAX_OPEN_STREAMS)
      return { verdict: "full", limit: "streams" };
    const stream = changes.begin({ ...draft, payload: undefined }, contentType);
    changes.add(stream, START);
    if (frame !== undefined) changes.addRecords(stream, records, frame, NO_TERMS);
    if (isClosed) endStream(stream, "closed", changes);
    return { verdict: "created", head: headOf(changes.logOf(stream).assigned) };
  }

  append(draft: StreamAppendDraft, changes: StreamChanges): StreamAppendResult {
    const { live, logs, logRules, checkPermission } = this.#ports;
    const { key, clientMsgNo, fromUid, order, close } = draft;
    const log = logs.find({ kind: "channel", key, clientMsgNo });
    if (log === undefined) return { verdict: "missing" };
    const state = existing(log.assigned, changes.logs);
    if (typeof state === "string") return { verdict: state };
    const sender = this.#senderOf(draft);
    if (sender === undefined) return { verdict: "missing" };
    if (sender !== fromUid) return { verdict: "other_sender" };
    const refused = checkPermission(draft);
    if (refused !== undefined) return { verdict: "refused", refused };
    const stream = live.find(key, clientMsgNo);
    const frame = frameOf(draft, changes.nowMs);
    const judgement = logRules.judge(log, draft, frame, changes.logs);
    if (judgement.verdict !== "accepted") return judgement;
    if (stream === undefined) return { verdict: "missing" }; // an open log has a stream in memory
    const { producer } = judgement;
    if (frame !== undefined && this.#isPast(stream, changes))
      return { verdict: "closed", tail: tailOf(log.assigned), closed: "interrupted" };
    if (frame !== undefined) this.#addRecords(stream, draft, frame, { changes, producer });
    if (close !== undefined) {
      // If the append has records, their WAL record already contains the producer and the order.
      const terms = frame === undefined ? { producer, order } : NO_TERMS;
      endStream(stream, close, changes, terms);
    }
    return appendedTo(log, producer);
  }

  #addRecords(
    stream: LiveStream,
    { records, contentType = "", order }: StreamAppendDraft,
    frame: OpenFrame,
    { changes, producer }: { readonly changes: StreamChanges } & Pick<AppendTerms, "producer">,
  ): void {
    const { live } = this.#ports;
    live.assertMemory(sizeOf(records));
    if (stream.isTextSession) {
      const isJson = isJsonLog(contentType);
      let bytes = stream.snapshotBytes;
      for (const record of records) {
        const event = eventOfRecord(record, changes.nowMs, isJson);
        live.assertRoom(event, bytes);
        bytes += snapshotBytes(event);
      }
    }
    changes.addRecords(stream, records, frame, { producer, order });
  }

  /** Returns a stream's sender, or `undefined` if the stream's message has been removed. */
  #senderOf({ key, clientMsgNo }: StreamAppendDraft | StreamCreationDraft): string | undefined {
    const { live, streamRows: rows } = this.#ports;
    const stream = live.find(key, clientMsgNo);
    if (stream !== undefined) return stream.head.fromUid;
    const ended = rows.find({ key, clientMsgNo });
    return ended && rows.messageOf(ended.log)?.fromUid;
  }

  cancel(
    name: { readonly key: ChannelKey; readonly clientMsgNo: string },
    changes: StreamChanges,
  ): StreamResult {
    const { live, streamRows: rows } = this.#ports;
    const stream = live.find(name.key, name.clientMsgNo);
    if (stream !== undefined) {
      if (stream.ending === undefined) endStream(stream, "stopped", changes);
      return { verdict: "done", state: stateAfter(stream.ending) };
    }
    const ended = rows.find(name);
    if (ended === undefined) return { verdict: "missing", state: undefined };
    return { verdict: "done", state: stateAfter(ended.ending) };
  }

  interrupt(silentMs: number, changes: StreamChanges): number {
    // All heads are read before the first change, because an error after the first change would
    // fail the batch.
    const silent = this.silentStreams(silentMs).filter((stream) => this.#canEnd(stream, changes));
    for (const stream of silent) endStream(stream, "interrupted", changes);
    return silent.length;
  }

  #canEnd(stream: LiveStream, changes: StreamChanges): boolean {
    try {
      changes.logOf(stream);
      return true;
    } catch (error) {
      this.#ports.onError(error as Error, "Could not interrupt a silent stream");
      return false;
    }
  }

  silentStreams(silentMs: number): LiveStream[] {
    const { live } = this.#ports;
    const sinceMs = live.now() - silentMs;
    return [...live].filter((s) => s.ending === undefined && s.lastEventMs < sinceMs);
  }

  #start(draft: StreamDraft, changes: StreamChanges): StreamResult {
    const { live, assigner } = this.#ports;
    // The sender may have used the clientMsgNo for a different message or for a command.
    if (assigner.findFirst(draft, changes.nowMs) !== undefined)
      return { verdict: "taken", state: undefined };
    const running = live.openSession(draft.key);
    if (running !== undefined && !draft.force) return { verdict: "running", state: undefined };
    live.assertRoom(draft, 0);
    if (running !== undefined) endStream(running, "cancelled", changes);
    changes.add(changes.begin(draft), toEvent(draft));
    return { verdict: "done", state: "active" };
  }

  #late(draft: StreamDraft, ended: LiveStream | EndedStream): StreamResult {
    const { ending } = ended;
    const state = stateAfter(ending);
    const { type } = draft;
    if (type === STREAM_START) return { verdict: "closed", state };
    if (type === STREAM_END || isRepeated(draft, this.#markOf(ended, draft)))
      return { verdict: "done", state };
    if (ending === "stopped") return { verdict: "stopped", state };
    return lateResult(draft, ended);
  }

  /**
   * Returns true if the age of an active stream's message is at least twice the retention time.
   * Such a stream accepts no events except its end, and is interrupted once it is silent.
   * Otherwise, its message and all later messages of the channel would be kept until it ends.
   */
  #isPast({ head }: LiveStream, { nowMs }: StreamChanges): boolean {
    return nowMs >= messageTimeMs(head.messageId) + 2 * this.#ports.retentionMs;
  }

  #markOf(
    ended: LiveStream | EndedStream,
    { clientMsgNo, eventId }: StreamDraft,
  ): string | undefined {
    if (eventId === undefined) return undefined;
    if ("markOf" in ended) return ended.markOf(eventId);
    return this.#ports.streamRows.markOf(ended, clientMsgNo, eventId);
  }
}

/** Returns the result of an event that a stream no longer accepts. */
function lateResult({ type }: StreamDraft, { ending }: Pick<LiveStream, "ending">): StreamResult {
  return { verdict: type === STREAM_CONTENT ? "closed" : "missing", state: stateAfter(ending) };
}

function isRepeated(draft: StreamDraft, remembered: string | undefined): boolean {
  const mark = remembered === undefined ? undefined : eventMark(draft);
  return remembered !== undefined && mark !== undefined && isRetry(remembered, mark);
}

/** Ends a stream without an event from its producer. */
function endStream(
  stream: LiveStream,
  ending: LogEnding,
  changes: StreamChanges,
  terms?: AppendTerms,
): void {
  const event = { type: STREAM_END, ending, eventId: undefined, data: "", isHidden: true };
  changes.add(stream, { ...event, timestampMs: undefined }, terms);
}

/** Start event of a stream that is created with the Durable Streams protocol. */
const START = {
  ...{ type: STREAM_START, data: "", eventId: undefined, timestampMs: undefined },
  ...{ ending: undefined, isHidden: true },
};
function frameOf(
  { records, contentType = "" }: Pick<StreamAppendDraft, "records" | "contentType">,
  nowMs: number,
): OpenFrame | undefined {
  if (records.length === 0) return undefined;
  return openTimedFrame(records, nowMs, isJsonLog(contentType));
}

const NO_FRAMES = { position: 0, records: 0 };

function toEvent({ type, eventId, data, timestampMs, isCancel }: StreamDraft) {
  const ending: LogEnding = isCancel ? "cancelled" : "closed";
  return {
    type,
    ending: type === STREAM_END ? ending : undefined,
    eventId,
    data,
    timestampMs,
    isHidden: false,
  };
}
