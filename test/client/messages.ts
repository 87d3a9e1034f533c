// Messages, events and streams as a server would have them, for tests that play one.

import {
  type ChannelEvent,
  type ChannelRef,
  channelKey,
  type Message,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamNote,
  type StreamSnapshot,
  streamPayload,
} from "../../src/broker/model.ts";
import { group } from "../../src/client/index.ts";

export const TEAM = group("team");

/** Message number `messageSeq` of the channel; its text is its number. */
export function message(messageSeq: number, changes: Partial<Message> = {}): Message {
  const channel = changes.channel ?? TEAM;
  return {
    messageId: 1000 + messageSeq,
    messageSeq,
    key: channelKey(channel, "me"),
    channel,
    fromUid: "you",
    clientMsgNo: `c${messageSeq}`,
    timestampMs: 2000 + messageSeq,
    header: { noPersist: false, redDot: true },
    expireS: 0,
    streamNo: undefined,
    tagKey: undefined,
    payload: new TextEncoder().encode(`{"type":1,"content":"${messageSeq}"}`),
    stream: undefined,
    ...changes,
  };
}

export function messages(from: number, through: number): Message[] {
  const count = Math.max(0, through - from + 1);
  return Array.from({ length: count }, (_, n) => message(from + n));
}

/** It comes live. */
export const live = (one: Message) =>
  ({ kind: "message", channel: one.channel, message: one }) as const;

/** A run of TEAM; all there is between, unless told. */
export function run(afterSeq: number, throughSeq: number, given?: Message[]) {
  const inside = given ?? messages(afterSeq + 1, throughSeq);
  return {
    ...({ kind: "messages", channel: TEAM } as const),
    ...{ afterSeq, throughSeq, messages: inside },
  };
}

/** The message of a stream that stands so. */
export function messageOf(stream: StreamSnapshot): Message {
  const { messageId, messageSeq, fromUid, clientMsgNo } = stream;
  const payload = streamPayload(stream.text);
  const place = { messageId, fromUid, clientMsgNo };
  return message(messageSeq, { ...place, stream, payload });
}

/**
 * A stream of which every event's text is known: the chunks, and a tool call where a chunk is
 * undefined.
 */
export class Script {
  readonly events: readonly ChannelEvent[];
  readonly chunks: readonly (string | undefined)[];
  readonly channel: ChannelRef;

  constructor(chunks: readonly (string | undefined)[], channel: ChannelRef = TEAM) {
    this.chunks = chunks;
    this.channel = channel;
    const last = chunks.length + 1;
    this.events = [
      this.#event(0, STREAM_START, "begin"),
      ...chunks.map((chunk, n) =>
        chunk === undefined
          ? this.#event(n + 1, "___ToolCallStart", `tool ${n}`)
          : this.#event(n + 1, STREAM_CONTENT, chunk),
      ),
      this.#event(last, STREAM_END, "end"),
    ];
  }

  /** The text before the event at `index`. */
  text(index: number = this.events.length): string {
    return this.chunks.slice(0, Math.max(0, index - 1)).join("");
  }

  at(index: number): ChannelEvent {
    const event = this.events[index];
    if (event === undefined) throw new RangeError(`${index}`);
    return event;
  }

  /** The content events of [from, to) as one. */
  merged(from: number, to: number): ChannelEvent {
    const event = this.at(from);
    const place = event.stream && { ...event.stream, nextIndex: to };
    const data = this.text(to).slice(this.text(from).length);
    return { ...event, data, stream: place };
  }

  /** The stream with the events before `nextIndex`. */
  snapshot(nextIndex: number): StreamSnapshot {
    const isOver = nextIndex === this.events.length;
    return {
      key: channelKey(this.channel, "me"),
      channel: this.channel,
      fromUid: "bot",
      clientMsgNo: "s",
      messageId: 77,
      messageSeq: 7,
      state: isOver ? "closed" : "active",
      text: this.text(nextIndex),
      nextIndex,
      startData: "begin",
      endData: isOver ? "end" : undefined,
      notes: this.events.slice(0, nextIndex).flatMap(noteOf),
    };
  }

  #event(index: number, type: string, data: string): ChannelEvent {
    return {
      key: channelKey(this.channel, "me"),
      channel: this.channel,
      fromUid: "bot",
      clientMsgNo: "s",
      eventId: `e${index}`,
      type,
      data,
      timestampMs: index,
      stream: {
        messageSeq: 7,
        index,
        nextIndex: index + 1,
        textOffset: this.text(index).length,
        state: type === STREAM_END ? "closed" : "active",
      },
    };
  }
}

function noteOf(event: ChannelEvent): readonly StreamNote[] {
  const { stream, eventId, type, data, timestampMs } = event;
  if (stream === undefined || !type.startsWith("___Tool")) return [];
  const { index, textOffset } = stream;
  return [{ index, textOffset, eventId, type, data, timestampMs }];
}
