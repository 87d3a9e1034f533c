// Posts events to channels: text streams, tool calls and custom events [spec: Event, Streaming text
// session; decisions: Messages and events]. The store decides the next state of a stream.

import { nearest } from "../lib/nearest.ts";
import type { ChannelActivity } from "./channel-activity.ts";
import { COMMAND_TYPE, type ContentRules, checkPayload } from "./content.ts";
import { BrokerError } from "./errors.ts";
import { assertId, assertLabel, type ChannelView, viewedKey } from "./ids.ts";
import {
  type ChannelRef,
  channelKey,
  isCustomType,
  isEmptyStreamPayload,
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
import { checkOf, type SendTerms } from "./permissions.ts";
import type {
  ChannelStore,
  Clock,
  Publisher,
  StreamDraft,
  StreamResult,
  StreamStore,
} from "./ports.ts";
import { createSendRule } from "./send-rule.ts";

/** An event as a producer posts it. If `fromUid` is empty, the system is the producer. */
export type EventInput = Omit<StreamDraft, "key" | "permission">;

export interface Streams {
  /**
   * Applies an event and returns the state of its stream, or `undefined` for an event without a
   * stream. Content is not added if the state is `cancelled`. Resolves when the event is durable,
   * or when it is published if it is not stored. Throws `event_type_empty`, `stream_running`,
   * `stream_not_found`, `stream_closed`, `client_msg_no_reused`, `bad_request`, `bad_id`,
   * `bad_payload`, `too_large`, a `SendRefusal` code, `overloaded`, `disk_full` or `unavailable`.
   */
  post(input: EventInput): Promise<{ readonly state: StreamState | undefined }>;
  /**
   * Cancels a stream on behalf of a viewer, who must be allowed to send. Throws a `SendRefusal`
   * code, `stream_unknown`, `bad_id`, `bad_request`, `overloaded`, `disk_full` or `unavailable`.
   */
  cancel(uid: string, channel: ChannelRef, clientMsgNo: string): Promise<StreamState>;
  /**
   * Reads a stream without checking permissions. Throws `stream_unknown`, `bad_id` or
   * `unavailable`.
   */
  read(view: ChannelView, clientMsgNo: string): Promise<StreamSnapshot>;
  start(): void;
  close(): Promise<void>;
}

interface StreamPorts extends SendTerms {
  readonly store: ChannelStore & StreamStore;
  readonly publisher: Publisher;
  readonly clock: Clock;
  readonly nodeId: string;
  readonly activity?: Pick<ChannelActivity, "event">;
  readonly onError: (error: unknown, what: string) => void;
  readonly limits: {
    readonly idleTimeoutMs: number;
    readonly maxDataBytes: number;
  };
  /** Rules for the payload of a stream's message. */
  readonly content: ContentRules;
}

const MAX_SWEEP_MS = 1000;

const KNOWN_TYPES = [STREAM_START, STREAM_CONTENT, STREAM_END, ...TOOL_CALL_EVENTS];
/** Maximum number of characters of an unknown type that are compared with the known types. */
const MAX_NEAREST_LENGTH = 64;

export function createStreams(ports: StreamPorts): Streams {
  const { store, publisher, clock, limits, content } = ports;
  const rule = createSendRule(store, ports);
  let eventCount = 0;
  let timer: NodeJS.Timeout | undefined;
  let sweeping: Promise<void> | undefined;

  function newEventId(): string {
    eventCount += 1;
    return `${clock().toString(36)}-${eventCount.toString(36)}-${ports.nodeId}`;
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
      await store.interruptStreams(limits.idleTimeoutMs);
    } catch (error) {
      ports.onError(error, "Could not interrupt streams that exceeded the idle timeout");
    }
  }

  return {
    async post(input) {
      const kind = classify(input, limits.maxDataBytes);
      if (input.payload !== undefined && checkPayload(input.payload, content) === COMMAND_TYPE)
        throw notAllowed("payload", "must not be a command, because the message begins a stream");
      const draft = toDraft(input, ports);
      const result = await store.streamEvent(draft);
      if (result.refused !== undefined) throw new BrokerError(result.refused);
      const reply = kind === "stream" ? outcome(result) : { state: result.state };
      // Tool calls and custom events without an active stream are only pushed. Custom events are
      // pushed even after a viewer has stopped the stream, because they need not belong to the
      // stream.
      const { verdict } = result;
      const isOnlyPushed = kind === "custom" ? verdict !== "done" : verdict === "missing";
      if (isOnlyPushed) publish(draft);
      ports.activity?.event(draft.key);
      return reply;
    },

    async cancel(uid, channel, clientMsgNo) {
      assertStreamName(channel, clientMsgNo);
      const code = await rule.refusal({ fromUid: uid, isBackend: false }, channel, undefined);
      if (code !== undefined) throw new BrokerError(code);
      const key = channelKey(channel, uid);
      const { state } = await store.cancelStream(key, clientMsgNo);
      if (state === undefined) throw new BrokerError("stream_unknown");
      return state;
    },

    async read(view, clientMsgNo) {
      const snapshot = await store.stream(viewedKey(view), clientMsgNo);
      if (snapshot === undefined) throw new BrokerError("stream_unknown");
      return snapshot;
    },

    start() {
      if (timer !== undefined) return;
      const sweepMs = Math.min(MAX_SWEEP_MS, limits.idleTimeoutMs / 4);
      timer = setInterval(() => {
        sweeping ??= endSilent().finally(() => {
          sweeping = undefined;
        });
      }, sweepMs);
      timer.unref();
    },

    async close() {
      clearInterval(timer);
      timer = undefined;
      await sweeping;
    },
  };
}

type EventClass = "stream" | "tool_call" | "custom";

export function classify(input: EventInput, maxDataBytes: number): EventClass {
  const { type, data } = input;
  if (type === "") throw new BrokerError("event_type_empty");
  const eventClass = classOf(type);
  if (eventClass === undefined) throw notAllowed("event.type", unknownType(type));
  assertStreamName(input.channel, input.clientMsgNo);
  if (input.fromUid !== "") assertId(input.fromUid, "from_uid");
  if (input.eventId !== undefined) assertLabel(input.eventId, "event.id");
  if (eventClass === "custom") assertLabel(type, "event.type");
  if (!isWellFormed(data)) throw notAllowed("event.data", "must be well-formed Unicode");
  if (Buffer.byteLength(data) > maxDataBytes)
    throw new BrokerError("too_large", {
      message: `event.data must be at most ${maxDataBytes} bytes long`,
      details: [{ path: "event.data", message: "is too large" }],
    });
  return eventClass;
}

export function assertStreamName(channel: ChannelRef, clientMsgNo: string): void {
  assertId(channel.id, "channel_id");
  assertLabel(clientMsgNo, "client_msg_no");
}

function classOf(type: string): EventClass | undefined {
  if (type === STREAM_CONTENT || type === STREAM_START || type === STREAM_END) return "stream";
  if (TOOL_CALL_EVENTS.has(type)) return "tool_call";
  return isCustomType(type) ? "custom" : undefined;
}

function unknownType(type: string): string {
  const suggestion = nearest(type.slice(0, MAX_NEAREST_LENGTH), KNOWN_TYPES);
  const remedy = suggestion === undefined ? "" : `did you mean ${suggestion}? `;
  return `is not a known type (${remedy}a custom type must not begin with ${RESERVED_EVENT_PREFIX})`;
}

function notAllowed(path: string, message: string): BrokerError {
  return new BrokerError("bad_request", {
    message: `${path} ${message}`,
    details: [{ path, message }],
  });
}

function toDraft(input: EventInput, terms: SendTerms): StreamDraft {
  const { channel, clientMsgNo, eventId, type, data, timestampMs } = input;
  const fromUid = input.fromUid || SYSTEM_UID;
  const key = channelKey(channel, fromUid);
  const { force, isCancel } = input;
  const isOwnPayload = input.payload !== undefined && !isEmptyStreamPayload(input.payload);
  const payload = isOwnPayload ? input.payload : undefined;
  const expireS = type === STREAM_START ? input.expireS : undefined;
  // The draft is written field by field. A draft is created for every chunk, and spreads would cost
  // a microsecond or two.
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
    payload,
    expireS,
    isCancel,
    permission: checkOf(fromUid, channel, terms, true),
  };
}

/**
 * Returns the reply, or throws the error that corresponds to the verdict [spec: Error messages of
 * /event].
 */
function outcome({ verdict, state }: StreamResult): {
  readonly state: StreamState | undefined;
} {
  switch (verdict) {
    case "refused": // thrown by the caller
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
      throw new BrokerError("client_msg_no_reused", {
        message:
          "The client_msg_no belongs to a message that is not a stream; start the stream with a new client_msg_no",
        details: [{ path: "client_msg_no", message: "belongs to a message that is not a stream" }],
      });
  }
}
