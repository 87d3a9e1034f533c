// Golden frames of streams, events, commands, conversations and presence watches, in the form of
// native-samples.ts. A change here changes the wire format, so that deployed clients no longer
// understand it.

import type { ChannelEvent } from "../../src/broker/model.ts";
import type { Operation, Push, Reply } from "../../src/protocol/protocol.ts";
import {
  ALICE,
  CANCELLED,
  CHUNK,
  GROUP,
  GROUPED,
  HI,
  PERSONAL,
  QUIET,
  RUNNING,
  type Sample,
  STREAMED,
  TALK,
} from "./native-sample-values.ts";

/** A custom event from the system to the group. */
const CUSTOM: ChannelEvent = {
  key: "2:team",
  channel: GROUP,
  fromUid: "____system",
  clientMsgNo: "c-9",
  eventId: "e-1",
  type: "typing",
  data: "",
  timestampMs: 1_790_000_000_700,
  stream: undefined,
};

/** The last event that viewers receive of a stream that is too long. */
const LAST_SHOWN: ChannelEvent = {
  ...CHUNK,
  type: "record",
  data: "{}",
  stream: {
    ...{ messageSeq: 8, index: 3, nextIndex: 4, textOffset: 2, state: "active" },
    truncated: true,
  },
};
const LAST_PLACE = [8, 3, 4, 2, 0, true];

// Fields of the values in native-sample-values.ts, as any MessagePack library decodes them.
const PERSONAL_FIELDS = [
  1,
  "alice",
  7,
  1790000000000001,
  "alice",
  "c-1",
  1790000000123,
  2,
  0,
  HI,
  null,
  null,
];
const STREAM_FIELDS = [
  0,
  4,
  "{}",
  null,
  [[2, 2, "t-1", "___ToolCallStart", "search", 1790000000500]],
];
const RUNNING_FIELDS = [1, "alice", 8, 1790000000000002, "alice", "s-1", "Hé😀", STREAM_FIELDS];
const STREAMED_FIELDS = [
  1,
  "alice",
  8,
  1790000000000002,
  "alice",
  "s-1",
  1790000000123,
  2,
  0,
  STREAMED.payload,
  null,
  null,
  STREAM_FIELDS,
];
const TALK_FIELDS = [1, "alice", 7, 5, 2, 3, 1790000000123, PERSONAL_FIELDS];
const QUIET_FIELDS = [2, "team", 0, 0, 0, 0, 0, null];

export const STREAM_OPERATIONS: readonly Sample<Operation>[] = [
  {
    value: { kind: "stream", ref: 8, channel: ALICE, clientMsgNo: "s-1" },
    array: [8, 8, 1, "alice", "s-1"],
    hex: "95080801a5616c696365a3732d31",
  },
  {
    value: { kind: "cancel", ref: 9, channel: GROUP, clientMsgNo: "s-2" },
    array: [9, 9, 2, "team", "s-2"],
    hex: "95090902a47465616da3732d32",
  },
  {
    value: { kind: "conversations", ref: 10, limit: 500, cursor: undefined },
    array: [10, 10, 500, null],
    hex: "940a0acd01f4c0",
  },
  {
    value: { kind: "conversations", ref: 10, limit: 1, cursor: "AbC" },
    array: [10, 10, 1, "AbC"],
    hex: "940a0a01a3416243",
  },
  {
    value: {
      kind: "conversation",
      ref: 11,
      channel: ALICE,
      change: { kind: "read", seq: 7 },
    },
    array: [11, 11, 1, "alice", 0, 7],
    hex: "960b0b01a5616c6963650007",
  },
  {
    value: {
      kind: "conversation",
      ref: 11,
      channel: GROUP,
      change: { kind: "unread", unread: 3 },
    },
    array: [11, 11, 2, "team", 1, 3],
    hex: "960b0b02a47465616d0103",
  },
  {
    value: {
      kind: "conversation",
      ref: 11,
      channel: GROUP,
      change: { kind: "delete" },
    },
    array: [11, 11, 2, "team", 2, null],
    hex: "960b0b02a47465616d02c0",
  },
  {
    value: {
      kind: "conversation",
      ref: 11,
      channel: GROUP,
      change: { kind: "delete", seq: 8 },
    },
    array: [11, 11, 2, "team", 2, 8],
    hex: "960b0b02a47465616d0208",
  },
  {
    value: { kind: "conversations", ref: 10, limit: 1, cursor: undefined, sinceMs: 300 },
    array: [10, 10, 1, null, 300],
    hex: "950a0a01c0cd012c",
  },
  {
    value: { kind: "conversation", ref: 11, channel: GROUP, change: undefined },
    array: [11, 11, 2, "team"],
    hex: "940b0b02a47465616d",
  },
  {
    value: { kind: "members", ref: 14, channel: GROUP, limit: 1000, cursor: "bob" },
    array: [28, 14, 2, "team", 1000, "bob"],
    hex: "961c0e02a47465616dcd03e8a3626f62",
  },
  {
    value: { kind: "commandack", ref: 12, inboxSeqs: [1, 2, 300] },
    array: [12, 12, [1, 2, 300]],
    hex: "930c0c930102cd012c",
  },
  {
    value: { kind: "commandack", ref: 12, inboxSeqs: [] },
    array: [12, 12, []],
    hex: "930c0c90",
  },
  {
    value: { kind: "watch", ref: 13, uids: ["alice", "carol"] },
    array: [13, 13, ["alice", "carol"]],
    hex: "930d0d92a5616c696365a56361726f6c",
  },
  {
    value: { kind: "watch", ref: 13, uids: [] },
    array: [13, 13, []],
    hex: "930d0d90",
  },
  {
    value: { kind: "emit", ref: 0, channel: GROUP, type: "typing", data: "" },
    array: [15, 0, 2, "team", "typing", ""],
    hex: "960f0002a47465616da6747970696e67a0",
  },
  {
    value: { kind: "emit", ref: 16, channel: ALICE, type: "cursor", data: "3:7" },
    array: [15, 16, 1, "alice", "cursor", "3:7"],
    hex: "960f1001a5616c696365a6637572736f72a3333a37",
  },
  {
    value: { kind: "state", ref: 18, foreground: false },
    array: [14, 18, false],
    hex: "930e12c2",
  },
  {
    value: { kind: "refresh", ref: 17, token: "a.b.c" },
    array: [16, 17, "a.b.c"],
    hex: "931011a5612e622e63",
  },
];

export const STREAM_REPLIES: readonly Sample<Reply>[] = [
  {
    value: { kind: "stream", ref: 8, channel: ALICE, snapshot: RUNNING },
    array: [72, 8, ...RUNNING_FIELDS],
    hex: "9a480801a5616c69636508cf00065bfeda25e002a5616c696365a3732d31a748c3a9f09f9880950004a27b7dc091960202a3742d31b05f5f5f546f6f6c43616c6c5374617274a6736561726368cf000001a0c4506df4",
  },
  {
    value: { kind: "stream", ref: 8, channel: ALICE, snapshot: { ...RUNNING, truncated: true } },
    array: [72, 8, ...RUNNING_FIELDS.slice(0, -1), [...STREAM_FIELDS, true]],
    hex: "9a480801a5616c69636508cf00065bfeda25e002a5616c696365a3732d31a748c3a9f09f9880960004a27b7dc091960202a3742d31b05f5f5f546f6f6c43616c6c5374617274a6736561726368cf000001a0c4506df4c3",
  },
  {
    value: { kind: "cancel", ref: 9, state: "cancelled" },
    array: [73, 9, 2],
    hex: "93490902",
  },
  {
    value: {
      kind: "conversations",
      ref: 10,
      cursor: "AbC",
      conversations: [TALK, QUIET],
    },
    array: [74, 10, "AbC", [TALK_FIELDS, QUIET_FIELDS]],
    hex: "944a0aa3416243929801a5616c69636507050203cf000001a0c4506c7b9c01a5616c69636507cf00065bfeda25e001a5616c696365a3632d31cf000001a0c4506c7b0200c4197b2274797065223a312c22636f6e74656e74223a226869227dc0c09802a47465616d0000000000c0",
  },
  {
    value: { kind: "conversation", ref: 11, conversation: TALK },
    array: [75, 11, ...TALK_FIELDS],
    hex: "9a4b0b01a5616c69636507050203cf000001a0c4506c7b9c01a5616c69636507cf00065bfeda25e001a5616c696365a3632d31cf000001a0c4506c7b0200c4197b2274797065223a312c22636f6e74656e74223a226869227dc0c0",
  },
  {
    value: { kind: "conversation", ref: 11, conversation: QUIET },
    array: [75, 11, ...QUIET_FIELDS],
    hex: "9a4b0b02a47465616d0000000000c0",
  },
  {
    value: { kind: "conversation", ref: 11, conversation: { ...QUIET, large: true } },
    array: [75, 11, ...QUIET_FIELDS, true],
    hex: "9b4b0b02a47465616d0000000000c0c3",
  },
  {
    value: { kind: "members", ref: 14, cursor: "bob", uids: ["alice", "bob"] },
    array: [92, 14, "bob", ["alice", "bob"]],
    hex: "945c0ea3626f6292a5616c696365a3626f62",
  },
  {
    value: { kind: "members", ref: 14, cursor: undefined, uids: [] },
    array: [92, 14, null, []],
    hex: "945c0ec090",
  },
  {
    value: {
      ...{ kind: "connack", ref: 17, version: 1, sessionId: "n1-2", nodeId: "n1" },
      ...{ serverTimeMs: 1, resume: [], newestId: 7, expiresInS: 600 },
      limits: {
        ...{ maxFrameBytes: 1024, maxPayloadBytes: 512 },
        ...{ idleTimeoutS: 56, maxFramesPerSecond: 500 },
      },
    },
    array: [65, 17, 1, "n1-2", "n1", 1, [1024, 512, 56, 500], [], 7, 600],
    hex: "9a411101a46e312d32a26e310194cd0400cd020038cd01f49007cd0258",
  },
  {
    value: { kind: "state", ref: 18 },
    array: [78, 18],
    hex: "924e12",
  },
  {
    value: { kind: "emit", ref: 16 },
    array: [79, 16],
    hex: "924f10",
  },
  {
    value: { kind: "commandack", ref: 12, count: 2 },
    array: [76, 12, 2],
    hex: "934c0c02",
  },
  {
    value: {
      kind: "watch",
      ref: 13,
      presence: [{ uid: "alice", online: true, flag: 2 }],
    },
    array: [77, 13, [["alice", true, 2]]],
    hex: "934d0d9193a5616c696365c302",
  },
  {
    value: {
      kind: "history",
      ref: 14,
      channel: ALICE,
      headSeq: 8,
      more: false,
      messages: [PERSONAL, STREAMED],
    },
    array: [68, 14, 1, "alice", 8, false, [PERSONAL_FIELDS, STREAMED_FIELDS]],
    hex: "97440e01a5616c69636508c2929c01a5616c69636507cf00065bfeda25e001a5616c696365a3632d31cf000001a0c4506c7b0200c4197b2274797065223a312c22636f6e74656e74223a226869227dc0c09d01a5616c69636508cf00065bfeda25e002a5616c696365a3732d31cf000001a0c4506c7b0200c41e7b2274797065223a312c22636f6e74656e74223a2248c3a9f09f9880227dc0c0950004a27b7dc091960202a3742d31b05f5f5f546f6f6c43616c6c5374617274a6736561726368cf000001a0c4506df4",
  },
];

export const STREAM_PUSHES: readonly Sample<Push>[] = [
  {
    value: { kind: "message", channel: ALICE, message: STREAMED },
    array: [80, 0, ...STREAMED_FIELDS],
    hex: "9f500001a5616c69636508cf00065bfeda25e002a5616c696365a3732d31cf000001a0c4506c7b0200c41e7b2274797065223a312c22636f6e74656e74223a2248c3a9f09f9880227dc0c0950004a27b7dc091960202a3742d31b05f5f5f546f6f6c43616c6c5374617274a6736561726368cf000001a0c4506df4",
  },
  {
    value: { kind: "event", channel: ALICE, event: CHUNK },
    array: [
      82,
      0,
      1,
      "alice",
      "alice",
      "s-1",
      "e-3",
      "___TextMessageContent",
      "😀",
      1790000000600,
      [8, 3, 4, 2, 0],
    ],
    hex: "9b520001a5616c696365a5616c696365a3732d31a3652d33b55f5f5f546578744d657373616765436f6e74656e74a4f09f9880cf000001a0c4506e58950803040200",
  },
  {
    value: { kind: "event", channel: ALICE, event: LAST_SHOWN },
    array: [82, 0, 1, "alice", "alice", "s-1", "e-3", "record", "{}", 1790000000600, LAST_PLACE],
    hex: "9b520001a5616c696365a5616c696365a3732d31a3652d33a67265636f7264a27b7dcf000001a0c4506e58960803040200c3",
  },
  {
    value: { kind: "event", channel: GROUP, event: CUSTOM },
    array: [82, 0, 2, "team", "____system", "c-9", "e-1", "typing", "", 1790000000700, null],
    hex: "9b520002a47465616daa5f5f5f5f73797374656da3632d39a3652d31a6747970696e67a0cf000001a0c4506ebcc0",
  },
  {
    value: { kind: "stream", channel: ALICE, snapshot: RUNNING },
    array: [83, 0, ...RUNNING_FIELDS],
    hex: "9a530001a5616c69636508cf00065bfeda25e002a5616c696365a3732d31a748c3a9f09f9880950004a27b7dc091960202a3742d31b05f5f5f546f6f6c43616c6c5374617274a6736561726368cf000001a0c4506df4",
  },
  {
    value: { kind: "stream", channel: GROUP, snapshot: CANCELLED },
    array: [83, 0, 2, "team", 43, 301, "____system", "s-2", "", [2, 2, "", "", []]],
    hex: "9a530002a47465616d2bcd012daa5f5f5f5f73797374656da3732d32a0950202a0a090",
  },
  {
    value: { kind: "command", channel: ALICE, inboxSeq: 7, message: PERSONAL },
    array: [84, 0, 7, ...PERSONAL_FIELDS],
    hex: "9f54000701a5616c69636507cf00065bfeda25e001a5616c696365a3632d31cf000001a0c4506c7b0200c4197b2274797065223a312c22636f6e74656e74223a226869227dc0c0",
  },
  {
    value: { kind: "command", channel: GROUP, inboxSeq: 0, message: GROUPED },
    array: [
      84,
      0,
      0,
      2,
      "team",
      0,
      300,
      "carol",
      "é",
      1790000000456,
      1,
      86400,
      new Uint8Array(0),
      "s-1",
      "sale",
    ],
    hex: "9f54000002a47465616d00cd012ca56361726f6ca2c3a9cf000001a0c4506dc801ce00015180c400a3732d31a473616c65",
  },
  {
    value: { kind: "conversation", change: "unread", conversation: TALK },
    array: [85, 0, 1, ...TALK_FIELDS],
    hex: "9b55000101a5616c69636507050203cf000001a0c4506c7b9c01a5616c69636507cf00065bfeda25e001a5616c696365a3632d31cf000001a0c4506c7b0200c4197b2274797065223a312c22636f6e74656e74223a226869227dc0c0",
  },
  {
    value: {
      kind: "presence",
      presence: [{ uid: "alice", online: false, flag: 0 }],
    },
    array: [86, 0, [["alice", false, 0]]],
    hex: "9356009193a5616c696365c200",
  },
];
