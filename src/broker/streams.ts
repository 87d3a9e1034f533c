// Events of channels: streaming text, tool calls, custom events [spec: Event, Streaming text
// session; decisions: Messages and events]. State: the timer that ends silent streams, the count of
// event ids, that of the send rule. The store's atomic step decides the next state of a stream.

import { BrokerError } from "./errors.ts";
import { assertId, assertLabel, type ChannelView, viewedKey } from "./ids.ts";
import {
  type ChannelRef,
  channelKey,
  isWellFormed,
  RESERVED_EVENT_PREFIX,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamSnapshot,
  type StreamState,
  SYSTEM_UID,
  TOOL_CALL_EVENTS,
} from "./model.ts";
import type { SendTerms } from "./permissions.ts";
import type {
  ChannelStore,
  Clock,
  Publisher,
  StreamDraft,
  StreamResult,
  StreamStore,
} from "./ports.ts";
import { createSendRule } from "./send-rule.ts";

/** An event as a producer posts it. `fromUid` empty: the system. */
export type EventInput = Omit<StreamDraft, "key">;

export interface Streams {
  /**
   * Applies one event. Resolves once it is durable (a custom event: published to online sessions),
   * with the state of its stream, if any: `cancelled` means that a viewer stopped the stream and
   * nothing was added. Throws `event_type_empty`, `stream_running`, `stream_not_found`,
   * `stream_closed`, `bad_request`, `bad_id`, `too_large`, a `SendRefusal` code, `overloaded`,
   * `unavailable`.
   */
  post(input: EventInput): Promise<{ readonly state: StreamState | undefined }>;
  /**
   * A viewer's stop button; the viewer must be allowed to send. Resolves to the stream's state.
   * Throws `stream_unknown`, a `SendRefusal` code.
   */
  cancel(uid: string, channel: ChannelRef, clientMsgNo: string): Promise<StreamState>;
  /** Checks no permission: callers do. Throws `stream_unknown`, `bad_id`. */
  read(view: ChannelView, clientMsgNo: string): Promise<StreamSnapshot>;
  /** Begins to end silent streams. */
  start(): void;
  /** Safe to call twice. */
  close(): Promise<void>;
}

interface StreamParts extends SendTerms {
  readonly store: ChannelStore & StreamStore;
  readonly publisher: Publisher;
  readonly clock: Clock;
  /** Makes event ids unique in the cluster. */
  readonly nodeId: string;
  readonly onError: (error: unknown, what: string) => void;
  readonly limits: {
    readonly idleTimeoutMs: number;
    readonly maxDataBytes: number;
  };
}

const MAX_LOOK_MS = 500;

export function createStreams(parts: StreamParts): Streams {
  const { store, publisher, clock, limits } = parts;
  const rule = createSendRule(store, parts);
  let eventCount = 0;
  let timer: NodeJS.Timeout | undefined;
  let looking: Promise<void> | undefined;

  /** Unique, and in order for one node. */
  function newEventId(): string {
    eventCount += 1;
    return `${clock().toString(36)}-${eventCount.toString(36)}-${parts.nodeId}`;
  }

  function publish(draft: StreamDraft): void {
    const { key, channel, fromUid, clientMsgNo, type, data } = draft;
    publisher.publish({
      kind: "event",
      event: {
        key,
        channel,
        fromUid,
        clientMsgNo,
        type,
        data,
        eventId: draft.eventId ?? newEventId(),
        timestampMs: draft.timestampMs ?? clock(),
        stream: undefined,
      },
    });
  }

  async function endSilent(): Promise<void> {
    try {
      await store.interruptStreams(clock() - limits.idleTimeoutMs);
    } catch (error) {
      parts.onError(error, "Silent streams could not be ended");
    }
  }

  return {
    async post(input) {
      const kind = classify(input, limits.maxDataBytes);
      const draft = toDraft(input);
      const lane = `${draft.key} ${draft.clientMsgNo}`;
      const refused = rule.refusal(draft.fromUid, draft.channel, lane);
      const code = refused instanceof Promise ? await refused : refused;
      if (code !== undefined) throw new BrokerError(code);
      if (kind === "custom") {
        publish(draft);
        return { state: undefined };
      }
      const step = await store.streamEvent(draft);
      if (kind === "stream") return outcome(step);
      if (step.verdict === "missing") publish(draft); // of no active stream
      return { state: step.state };
    },

    async cancel(uid, channel, clientMsgNo) {
      assertStreamName(channel, clientMsgNo);
      const code = await rule.refusal(uid, channel, undefined);
      if (code !== undefined) throw new BrokerError(code);
      const key = channelKey(channel, uid);
      const { state } = await store.cancelStream(key, clientMsgNo);
      if (state === undefined) throw new BrokerError("stream_unknown");
      return state;
    },

    async read(view, clientMsgNo) {
      const found = await store.stream(viewedKey(view), clientMsgNo);
      if (found === undefined) throw new BrokerError("stream_unknown");
      return found;
    },

    start() {
      if (timer !== undefined) return;
      const lookMs = Math.min(MAX_LOOK_MS, limits.idleTimeoutMs / 4);
      timer = setInterval(() => {
        looking ??= endSilent().finally(() => {
          looking = undefined;
        });
      }, lookMs);
      timer.unref();
    },

    async close() {
      clearInterval(timer);
      timer = undefined;
      await looking;
    },
  };
}

type EventClass = "stream" | "tool_call" | "custom";

/** Throws `event_type_empty`, `bad_request`, `bad_id`, `too_large`. */
export function classify(input: EventInput, maxDataBytes: number): EventClass {
  const { type, data } = input;
  if (type === "") throw new BrokerError("event_type_empty");
  const found = classOf(type);
  if (found === undefined) throw notAllowed("event.type", "a reserved type");
  assertStreamName(input.channel, input.clientMsgNo);
  if (input.fromUid !== "") assertId(input.fromUid, "from_uid");
  if (input.eventId !== undefined) assertLabel(input.eventId, "event.id");
  if (found === "custom") assertLabel(type, "event.type");
  if (!isWellFormed(data)) throw notAllowed("event.data", "Unicode with half of a character");
  if (Buffer.byteLength(data) > maxDataBytes)
    throw new BrokerError("too_large", {
      message: `event.data exceeds ${maxDataBytes} bytes`,
      details: [{ path: "event.data", message: "too large" }],
    });
  return found;
}

/** Throws `bad_id`, `bad_request`. */
export function assertStreamName(channel: ChannelRef, clientMsgNo: string): void {
  assertId(channel.id, "channel_id");
  assertLabel(clientMsgNo, "client_msg_no");
}

function classOf(type: string): EventClass | undefined {
  if (type === STREAM_CONTENT || type === STREAM_START || type === STREAM_END) return "stream";
  if (TOOL_CALL_EVENTS.has(type)) return "tool_call";
  return type.startsWith(RESERVED_EVENT_PREFIX) ? undefined : "custom";
}

function notAllowed(path: string, message: string): BrokerError {
  return new BrokerError("bad_request", {
    message: `${path} is ${message}`,
    details: [{ path, message: `is ${message}` }],
  });
}

function toDraft(input: EventInput): StreamDraft {
  const { channel, clientMsgNo, eventId, type, data, timestampMs } = input;
  const fromUid = input.fromUid || SYSTEM_UID;
  const key = channelKey(channel, fromUid);
  const { force } = input;
  // one literal: it is made for every chunk, and spreads cost a microsecond or two
  return {
    key,
    channel,
    fromUid,
    clientMsgNo,
    eventId,
    type,
    data,
    timestampMs,
    force,
  };
}

/** The verdict as the producer's reply [spec: Error messages of /event]. */
function outcome({ verdict, state }: StreamResult): {
  readonly state: StreamState | undefined;
} {
  switch (verdict) {
    case "done":
    case "stopped":
      return { state };
    case "running":
      throw new BrokerError("stream_running");
    case "missing":
      throw new BrokerError("stream_not_found");
    case "closed":
      throw new BrokerError("stream_closed");
    case "taken":
      throw new BrokerError("bad_request", {
        message: "client_msg_no is that of a message",
        details: [{ path: "client_msg_no", message: "is taken" }],
      });
  }
}
