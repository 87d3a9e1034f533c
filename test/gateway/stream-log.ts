// Streams as a store would keep them, for the gateway's tests. A channel has one active stream, and
// every change is published at once.

import {
  type ChannelEvent,
  type ChannelKey,
  type ChannelRef,
  channelKey,
  STREAM_CONTENT,
  STREAM_END,
  STREAM_START,
  type StreamNote,
  type StreamSnapshot,
} from "../../src/broker/model.ts";

const TOOL_CALL = "___ToolCallStart";

/** A sender and the channel it sends to. */
export interface Producer {
  readonly channel: ChannelRef;
  readonly fromUid: string;
}

interface Publish {
  /** Stores and publishes the message of the stream. */
  message(input: Producer & { readonly clientMsgNo: string }): void;
  event(event: ChannelEvent): void;
  seq(key: ChannelKey): number;
}

const nameOf = (key: ChannelKey, no: string): string => `${key}\n${no}`;

export class StreamLog {
  readonly #publish: Publish;
  readonly #all = new Map<string, StreamSnapshot>();
  readonly #active = new Map<ChannelKey, StreamSnapshot>();
  #count = 0;

  constructor(publish: Publish) {
    this.#publish = publish;
  }

  /** The streams of all channels, in the order in which they were started. */
  get all(): readonly StreamSnapshot[] {
    return [...this.#all.values()];
  }

  find(key: ChannelKey, clientMsgNo: string): StreamSnapshot | undefined {
    return this.#all.get(nameOf(key, clientMsgNo));
  }

  active(key: ChannelKey): StreamSnapshot | undefined {
    return this.#active.get(key);
  }

  ofUser(uid: string): readonly StreamSnapshot[] {
    return [...this.#active.values()].filter(
      ({ channel, fromUid }) => channel.type === 1 && (channel.id === uid || fromUid === uid),
    );
  }

  /**
   * Ends the active stream of the channel and starts a new one. Returns the name of the new stream.
   */
  start({ channel, fromUid }: Producer): string {
    const key = channelKey(channel, fromUid);
    this.end(key);
    this.#count += 1;
    const clientMsgNo = `stream ${this.#count}`;
    this.#keep({
      ...{ key, channel, fromUid, clientMsgNo },
      messageId: 0,
      messageSeq: this.#publish.seq(key) + 1,
      state: "active",
      ...{ text: "", nextIndex: 0, startData: "begin" },
      ...{ endData: undefined, notes: [] },
    });
    this.#publish.message({ channel, fromUid, clientMsgNo });
    this.#step(key, { type: STREAM_START, data: "begin" });
    return clientMsgNo;
  }

  content(key: ChannelKey, text: string): void {
    this.#step(key, { type: STREAM_CONTENT, data: text });
  }

  note(key: ChannelKey, data: string): void {
    this.#step(key, { type: TOOL_CALL, data });
  }

  /** Ends the active stream of the channel, if there is one. */
  end(key: ChannelKey): void {
    this.#step(key, { type: STREAM_END, data: "end" });
  }

  #step(key: ChannelKey, { type, data }: { readonly type: string; readonly data: string }): void {
    const before = this.#active.get(key);
    if (before === undefined) return;
    const { nextIndex: index, text } = before;
    const eventId = `${before.clientMsgNo} ${index}`;
    const isEnd = type === STREAM_END;
    const note: StreamNote = {
      ...{ index, eventId, type, data, timestampMs: 0 },
      textOffset: text.length,
    };
    const after: StreamSnapshot = {
      ...before,
      nextIndex: index + 1,
      text: type === STREAM_CONTENT ? text + data : text,
      state: isEnd ? "closed" : "active",
      endData: isEnd ? data : undefined,
      notes: type === TOOL_CALL ? [...before.notes, note] : before.notes,
    };
    this.#keep(after);
    const { channel, fromUid, clientMsgNo, messageSeq, state } = after;
    this.#publish.event({
      ...{ key, channel, fromUid, clientMsgNo, type, data, eventId },
      timestampMs: 0,
      stream: {
        ...{ messageSeq, index, nextIndex: index + 1, state },
        textOffset: text.length,
      },
    });
  }

  #keep(snapshot: StreamSnapshot): void {
    const { key, clientMsgNo, state } = snapshot;
    this.#all.set(nameOf(key, clientMsgNo), snapshot);
    if (state === "active") this.#active.set(key, snapshot);
    else this.#active.delete(key);
  }
}
