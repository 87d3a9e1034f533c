// Values of the native protocol's golden frames, as the client of user bob sees them.

import {
  type ChannelEvent,
  type Conversation,
  type Message,
  STREAM_CONTENT,
  type StreamSnapshot,
  streamPayload,
} from "../../src/broker/model.ts";

/** A value, and its encoded form. */
export interface Sample<T> {
  readonly value: T;
  /** The frame as any MessagePack library decodes it. */
  readonly array: readonly unknown[];
  readonly hex: string;
}

/** Uid of the user whose client reads the server's frames. */
export const READER_UID = "bob";

export const bytes = (text: string) => new TextEncoder().encode(text);
export const HI = bytes('{"type":1,"content":"hi"}');
export const GROUP = { type: 2, id: "team" } as const;
export const ALICE = { type: 1, id: "alice" } as const;

/** A message from alice to bob. */
export const PERSONAL: Message = {
  messageId: 1_790_000_000_000_001,
  messageSeq: 7,
  key: "1:alice@bob",
  channel: { type: 1, id: "bob" },
  fromUid: "alice",
  clientMsgNo: "c-1",
  timestampMs: 1_790_000_000_123,
  header: { noPersist: false, redDot: true },
  expireS: 0,
  streamNo: undefined,
  tagKey: undefined,
  payload: HI,
  stream: undefined,
};

/** A message from carol to the group, with all optional fields. */
export const GROUPED: Message = {
  messageId: 300,
  messageSeq: 0,
  key: "2:team",
  channel: GROUP,
  fromUid: "carol",
  clientMsgNo: "é",
  timestampMs: 1_790_000_000_456,
  header: { noPersist: true, redDot: false },
  expireS: 86_400,
  streamNo: "s-1",
  tagKey: "sale",
  payload: new Uint8Array(0),
  stream: undefined,
};

/** An active stream from alice to bob: two chunks with a tool call between them. */
export const RUNNING: StreamSnapshot = {
  key: "1:alice@bob",
  channel: { type: 1, id: "bob" },
  fromUid: "alice",
  clientMsgNo: "s-1",
  messageId: 1_790_000_000_000_002,
  messageSeq: 8,
  state: "active",
  text: "Hé😀",
  nextIndex: 4,
  startData: "{}",
  endData: undefined,
  notes: [
    {
      index: 2,
      textOffset: 2,
      eventId: "t-1",
      type: "___ToolCallStart",
      data: "search",
      timestampMs: 1_790_000_000_500,
    },
  ],
};

/** A stream in the group that a viewer cancelled before its first chunk. */
export const CANCELLED: StreamSnapshot = {
  key: "2:team",
  channel: GROUP,
  fromUid: "____system",
  clientMsgNo: "s-2",
  messageId: 301,
  messageSeq: 43,
  state: "cancelled",
  text: "",
  nextIndex: 2,
  startData: "",
  endData: "",
  notes: [],
};

/** The message that started the stream RUNNING. */
export const STREAMED: Message = {
  ...PERSONAL,
  messageId: RUNNING.messageId,
  messageSeq: RUNNING.messageSeq,
  clientMsgNo: RUNNING.clientMsgNo,
  payload: streamPayload(RUNNING.text),
  stream: RUNNING,
};

/** A chunk of the stream RUNNING. */
export const CHUNK: ChannelEvent = {
  key: "1:alice@bob",
  channel: { type: 1, id: "bob" },
  fromUid: "alice",
  clientMsgNo: "s-1",
  eventId: "e-3",
  type: STREAM_CONTENT,
  data: "😀",
  timestampMs: 1_790_000_000_600,
  stream: {
    messageSeq: 8,
    index: 3,
    nextIndex: 4,
    textOffset: 2,
    state: "active",
  },
};

/** Bob's conversation with alice. */
export const TALK: Conversation = {
  channel: ALICE,
  headSeq: 7,
  readSeq: 5,
  unread: 2,
  deletedSeq: 3,
  changedAtMs: 1_790_000_000_123,
  last: PERSONAL,
};

/** Bob's conversation in a group without visible messages. */
export const QUIET: Conversation = {
  channel: GROUP,
  headSeq: 0,
  readSeq: 0,
  unread: 0,
  deletedSeq: 0,
  changedAtMs: 0,
  last: undefined,
};
