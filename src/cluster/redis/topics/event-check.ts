// Validates received events. Any program can publish on a topic, so an event may have any shape. An
// event that passes is complete, belongs to its topic, and needs no further checks. Pure.

import { CLOSE_REASONS } from "../../../broker/errors.ts";
import { MAX_LOG_EVENT_BYTES } from "../../../broker/log-ports.ts";
import {
  type ChannelRef,
  channelKey,
  GROUP_CHANNEL,
  type Message,
  PERSON_CHANNEL,
  type Topic,
} from "../../../broker/model.ts";
import type { ClusterEvent } from "../../../broker/ports.ts";
import { topicsOf } from "../../../redis/keys.ts";
import { type EventList, type OrderedEvent, sourceOf } from "../../../redis/wire.ts";

type Check = (value: unknown) => boolean;

const isText: Check = (value) => typeof value === "string";
const isFlag: Check = (value) => typeof value === "boolean";
const isUint: Check = (value) => Number.isSafeInteger(value) && (value as number) >= 0;
const isBytes: Check = (value) => value instanceof Uint8Array;
const isReason: Check = (value) => isText(value) && Object.hasOwn(CLOSE_REASONS, value as string);

function oneOf(...values: readonly unknown[]): Check {
  return (value) => values.includes(value);
}

function absentOr(check: Check): Check {
  return (value) => value === undefined || check(value);
}

function listOf(check: Check): Check {
  return (value) => Array.isArray(value) && value.every(check);
}

function shape(fields: Readonly<Record<string, Check>>): Check {
  const checks = Object.entries(fields);
  return (value) => {
    if (typeof value !== "object" || value === null) return false;
    const fields = value as Readonly<Record<string, unknown>>; // checked above
    return checks.every(([name, check]) => check(fields[name]));
  };
}

const isChannel = shape({
  id: isText,
  type: oneOf(PERSON_CHANNEL, GROUP_CHANNEL),
});
const isState = oneOf("active", "closed", "cancelled", "interrupted");
const ORIGIN_FIELDS = {
  key: isText,
  channel: isChannel,
  fromUid: isText,
  clientMsgNo: isText,
};
const isNote = shape({
  ...{ index: isUint, textOffset: isUint, eventId: isText },
  ...{ type: isText, data: isText, timestampMs: isUint },
});
const isSnapshot = shape({
  ...ORIGIN_FIELDS,
  ...{ messageId: isUint, messageSeq: isUint, state: isState, text: isText },
  ...{ nextIndex: isUint, startData: isText, endData: absentOr(isText) },
  notes: listOf(isNote),
});
const isMessage = shape({
  ...ORIGIN_FIELDS,
  ...{ messageId: isUint, messageSeq: isUint, timestampMs: isUint },
  header: shape({ noPersist: isFlag, redDot: isFlag }),
  ...{ expireS: isUint, streamNo: absentOr(isText), tagKey: absentOr(isText) },
  ...{ payload: isBytes, stream: absentOr(isSnapshot) },
  passthrough: absentOr(shape({ setting: isUint, topic: isText })),
});
const isEvent = shape({
  ...ORIGIN_FIELDS,
  ...{ eventId: isText, type: isText, data: isText, timestampMs: isUint },
  stream: oneOf(undefined), // events of a stream are ordered
});
const isConversation = shape({
  ...{ channel: isChannel, headSeq: isUint, readSeq: isUint, unread: isUint },
  ...{ deletedSeq: isUint, changedAtMs: isUint, last: absentOr(isMessage) },
  large: absentOr(oneOf(true)),
});

const isOffset = shape({ position: isUint, check: isUint });
const isSmall: Check = (value) =>
  value instanceof Uint8Array && value.length <= MAX_LOG_EVENT_BYTES;

const CHECKS: Readonly<Record<ClusterEvent["kind"], Check>> = {
  message: shape({
    ...{ message: isMessage, origin: absentOr(isText) },
    recipients: absentOr(listOf(isText)),
  }),
  event: shape({ event: isEvent, origin: absentOr(isText) }),
  command: shape({
    ...{ message: isMessage, origin: absentOr(isText) },
    copies: listOf(shape({ uid: isText, inboxSeq: isUint })),
  }),
  conversation: shape({
    ...{ uid: isText, conversation: isConversation, origin: absentOr(isText) },
    change: oneOf("read", "unread", "delete"),
  }),
  // Any string passes, because a newer build may publish a cause that this build does not know.
  presence: shape({ uid: isText, cause: absentOr(isText) }),
  end_session: shape({ uid: isText, sessionId: isText, reason: isReason }),
  credential: shape({ uid: isText }),
  addition: shape({ uid: isText, channelId: isText }),
  log: shape({
    ...{ nameText: isText, incarnation: isUint, change: oneOf("appended", "deleted") },
    ...{ from: isOffset, tail: isOffset, frame: absentOr(isSmall) },
    closed: absentOr(oneOf("closed", "stopped", "cancelled", "interrupted")),
  }),
  removal: () => false, // removals are ordered publications
  // The next two kinds are created by the node itself and never published.
  missed: () => false,
  head: () => false,
};

export function isUnordered(event: ClusterEvent, topic: Topic): boolean {
  const kind: unknown = event?.kind; // the value may have any shape
  if (!isText(kind) || !Object.hasOwn(CHECKS, kind as string)) return false;
  if (!CHECKS[event.kind](event)) return false;
  if (event.kind === "message" && !hasMatchingKey(event.message)) return false;
  if (event.kind === "event" && !hasMatchingKey(event.event)) return false;
  return topicsOf(event).includes(topic);
}

export function isOrderedUnder(event: OrderedEvent | EventList, topic: Topic): boolean {
  if (event.kind === "removal") return topicsOf(event).includes(topic);
  const { channel, fromUid } = sourceOf(event);
  const id = topic.slice(2);
  if (channel.type === GROUP_CHANNEL) return channel.id === id && topic.startsWith("g:");
  return topic.startsWith("u:") && (channel.id === id || fromUid === id);
}

function hasMatchingKey({
  key,
  channel,
  fromUid,
}: Pick<Message, "key" | "fromUid"> & {
  readonly channel: ChannelRef;
}): boolean {
  return key === channelKey(channel, fromUid);
}
