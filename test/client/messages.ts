// Messages, events and streams for tests that play the server.

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

/** Returns message number `messageSeq` of a channel. Its text is its number. */
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

/** Returns the messages with the seqs `from` to `through`. */
export function messages(from: number, through: number): Message[] {
  const count = Math.max(0, through - from + 1);
  return Array.from({ length: count }, (_, n) => message(from + n));
}

/** Returns the push of a live message. */
export const live = (message: Message) =>
  ({ kind: "message", channel: message.channel, message }) as const;

/** Returns the push of a range of TEAM. By default it contains all messages. */
export function range(afterSeq: number, throughSeq: number, content?: Message[]) {
  return {
    ...({ kind: "messages", channel: TEAM } as const),
    ...{ afterSeq, throughSeq, messages: content ?? messages(afterSeq + 1, throughSeq) },
  };
}

/** Returns the message of a stream in this state. */
export function messageOf(stream: StreamSnapshot): Message {
  const { messageId, messageSeq, fromUid, clientMsgNo } = stream;
  const payload = streamPayload(stream.text);
  const fields = { messageId, fromUid, clientMsgNo };
  return message(messageSeq, { ...fields, stream, payload });
}

/**
 * A stream with all its events: one content event per chunk, and a tool call for each chunk that is
 * `undefined`.
 */
export class SampleStream {
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

  /** Returns the text before the event at `index`. */
  text(index: number = this.events.length): string {
    return this.chunks.slice(0, Math.max(0, index - 1)).join("");
  }

  /** Returns the event at `index`. */
  at(index: number): ChannelEvent {
    const event = this.events[index];
    if (event === undefined) throw new RangeError(`there is no event ${index}`);
    return event;
  }

  /** Returns the content events from `from` up to, not including, `to` as one event. */
  merged(from: number, to: number): ChannelEvent {
    const event = this.at(from);
    const stream = event.stream && { ...event.stream, nextIndex: to };
    const data = this.text(to).slice(this.text(from).length);
    return { ...event, data, stream };
  }

  /** Returns the stream after the events before `nextIndex`. */
  snapshot(nextIndex: number): StreamSnapshot {
    const hasEnded = nextIndex === this.events.length;
    return {
      key: channelKey(this.channel, "me"),
      channel: this.channel,
      fromUid: "bot",
      clientMsgNo: "s",
      messageId: 77,
      messageSeq: 7,
      state: hasEnded ? "closed" : "active",
      text: this.text(nextIndex),
      nextIndex,
      startData: "begin",
      endData: hasEnded ? "end" : undefined,
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
