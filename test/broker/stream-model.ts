// A model of streams for tests: a stream as a list of events, random streams, and a reader that
// checks the events it gets.

import {
  type ChannelEvent,
  channelKey,
  firstMessageId,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamSnapshot,
  type StreamState,
  TOOL_CALL_EVENTS,
} from "../../src/broker/model.ts";
import type { Random } from "../support/random.ts";
import { group } from "./node-names.ts";

/** Time at which the streams start. */
export const STARTED_MS = Date.UTC(2026, 0, 1);
const CHANNEL = group("g");
const NAMES = {
  key: channelKey(CHANNEL, "bot"),
  channel: CHANNEL,
  fromUid: "bot",
  clientMsgNo: "answer",
} as const;

/** An event that belongs to a stream. */
export type PlacedEvent = ChannelEvent & {
  readonly stream: NonNullable<ChannelEvent["stream"]>;
};

/** A stream that keeps all its events and can return the snapshot after any of them. */
export class ModelStream {
  readonly events: PlacedEvent[] = [];
  readonly messageSeq: number;
  text = "";

  constructor(messageSeq = 7) {
    this.messageSeq = messageSeq;
  }

  get state(): StreamState {
    return this.events.at(-1)?.stream.state ?? "active";
  }

  add(type: string, data: string, state: StreamState = "active"): PlacedEvent {
    const index = this.events.length;
    const textOffset = this.text.length;
    const event: PlacedEvent = {
      ...NAMES,
      eventId: `e${index}`,
      type,
      data,
      timestampMs: STARTED_MS + index,
      stream: {
        messageSeq: this.messageSeq,
        ...{ index, nextIndex: index + 1, textOffset, state },
      },
    };
    this.events.push(event);
    if (type === STREAM_CONTENT) this.text += data;
    return event;
  }

  /** Returns the length of the text before the event at `index`, in UTF-16 code units. */
  offsetOf(index: number): number {
    return this.events[index]?.stream.textOffset ?? this.text.length;
  }

  /** Returns the snapshot of the stream after its first `count` events. */
  snapshot(count = this.events.length): StreamSnapshot {
    const shown = this.events.slice(0, count);
    const last = shown.at(-1);
    return {
      ...NAMES,
      messageId: firstMessageId(STARTED_MS),
      messageSeq: this.messageSeq,
      state: last?.stream.state ?? "active",
      text: this.text.slice(0, this.offsetOf(count)),
      nextIndex: count,
      startData: shown[0]?.data ?? "",
      endData: last?.type === STREAM_END ? last.data : undefined,
      notes: shown
        .filter(({ type }) => TOOL_CALL_EVENTS.has(type))
        .map(({ eventId, type, data, timestampMs, stream }) => ({
          ...{ eventId, type, data, timestampMs },
          ...{ index: stream.index, textOffset: stream.textOffset },
        })),
    };
  }

  /** Adds a random event: first a start, then content (sometimes empty) and tool calls. */
  grow(random: Random): PlacedEvent {
    if (this.events.length === 0) return this.add(STREAM_START, random.text(9));
    if (random.below(4) > 0) return this.add(STREAM_CONTENT, random.text(12));
    return this.add(random.pick([...TOOL_CALL_EVENTS]), random.text(9));
  }

  /** Adds a random end. */
  end(random: Random): PlacedEvent {
    const states = ["closed", "cancelled", "interrupted"] as const;
    return this.add(STREAM_END, random.text(5), random.pick(states));
  }
}

/** Returns a random stream of up to `maxEvents` events, which may have ended. */
export function randomStream(random: Random, maxEvents: number): ModelStream {
  const stream = new ModelStream();
  const count = 1 + random.below(maxEvents);
  while (stream.events.length < count) stream.grow(random);
  if (random.flip()) stream.end(random);
  return stream;
}

/**
 * A reader of a stream that collects the text and tool calls of the events it gets. Throws if an
 * event is missing, repeated or misplaced.
 */
export class ModelReader {
  text: string;
  index: number;
  readonly notes: ChannelEvent[] = [];
  state: StreamState = "active";
  startData: string | undefined;
  endData: string | undefined;

  constructor(index = 0, text = "") {
    this.index = index;
    this.text = text;
  }

  apply(event: ChannelEvent): void {
    const { stream: place, type, data } = event;
    if (place === undefined) throw new Error("the event has no place in a stream");
    const at = `${type} ${place.index}-${place.nextIndex}`;
    if (this.state !== "active") throw new Error(`${at} comes after the end`);
    if (place.index !== this.index) throw new Error(`${at} is not at index ${this.index}`);
    if (place.textOffset !== this.text.length)
      throw new Error(`${at} is at the wrong offset ${place.textOffset}`);
    if (place.nextIndex <= place.index) throw new Error(`${at} has no length`);
    if (type !== STREAM_CONTENT && place.nextIndex !== place.index + 1)
      throw new Error(`${at} merges events that are not content`);
    if (type === STREAM_START) this.startData = data;
    else if (type === STREAM_CONTENT) this.text += data;
    else if (type === STREAM_END) this.endData = data;
    else this.notes.push(event);
    if ((place.state !== "active") !== (type === STREAM_END))
      throw new Error(`${at} has the wrong state ${place.state}`);
    this.state = place.state;
    this.index = place.nextIndex;
  }
}
