// Golden frames of the native protocol: values of each kind, the same values as plain arrays, and
// their bytes. A change here is a change of the wire format, which deployed clients would not
// understand.

import type { Operation, Push, Reply } from "../../src/protocol/protocol.ts";
import { ALICE, GROUP, GROUPED, HI, PERSONAL, type Sample } from "./native-sample-values.ts";
import { STREAM_OPERATIONS, STREAM_PUSHES, STREAM_REPLIES } from "./native-stream-samples.ts";

export const OPERATIONS: readonly Sample<Operation>[] = [
  {
    value: {
      kind: "connect",
      session: "",
      ref: 1,
      version: 1,
      uid: "bob",
      token: "secret",
      flag: 2,
      deviceId: "laptop",
      level: undefined,
      resume: [
        { channel: GROUP, lastSeq: 41, lastId: 1_789_999_999_999_000 },
        { channel: ALICE, lastSeq: 0, lastId: 0 },
      ],
    },
    array: [
      1,
      1,
      1,
      "bob",
      "secret",
      2,
      "laptop",
      null,
      [
        [2, "team", 41, 1789999999999000],
        [1, "alice", 0, 0],
      ],
    ],
    hex: "99010101a3626f62a673656372657402a66c6170746f70c0929402a47465616d29cf00065bfeda25dc189401a5616c6963650000",
  },
  {
    value: {
      kind: "connect",
      session: "",
      ref: 1,
      version: 1,
      uid: "bob",
      token: "",
      flag: 0,
      deviceId: "",
      level: 1,
      resume: [],
    },
    array: [1, 1, 1, "bob", "", 0, "", 1, []],
    hex: "99010101a3626f62a000a00190",
  },
  {
    value: {
      kind: "connect",
      session: "n1-1~hmi2nbki68",
      ref: 1,
      version: 1,
      uid: "bob",
      token: "secret",
      flag: 2,
      deviceId: "laptop",
      level: undefined,
      resume: [],
    },
    array: [1, 1, 1, "bob", "secret", 2, "laptop", null, [], "n1-1~hmi2nbki68"],
    hex: "9a010101a3626f62a673656372657402a66c6170746f70c090af6e312d317e686d69326e626b693638",
  },
  {
    value: {
      kind: "send",
      ref: 2,
      channel: GROUP,
      clientMsgNo: "c-1",
      header: { noPersist: false, redDot: true, syncOnce: false },
      expireS: 0,
      streamNo: undefined,
      tagKey: undefined,
      payload: HI,
    },
    array: [2, 2, 2, "team", "c-1", HI, 2, 0, null, null],
    hex: "9a020202a47465616da3632d31c4197b2274797065223a312c22636f6e74656e74223a226869227d0200c0c0",
  },
  {
    value: {
      kind: "send",
      ref: 70_000,
      channel: ALICE,
      clientMsgNo: "",
      header: { noPersist: true, redDot: false, syncOnce: true },
      expireS: 3600,
      streamNo: "s-1",
      tagKey: "sale",
      payload: HI,
    },
    array: [2, 70000, 1, "alice", "", HI, 5, 3600, "s-1", "sale"],
    hex: "9a02ce0001117001a5616c696365a0c4197b2274797065223a312c22636f6e74656e74223a226869227d05cd0e10a3732d31a473616c65",
  },
  {
    value: {
      kind: "recvack",
      ref: 0,
      channel: GROUP,
      messageSeq: 42,
      messageId: 1_790_000_000_000_001,
    },
    array: [3, 0, 2, "team", 42, 1790000000000001],
    hex: "96030002a47465616d2acf00065bfeda25e001",
  },
  {
    value: {
      kind: "history",
      ref: 300,
      channel: ALICE,
      fromSeq: 1,
      toSeq: 0,
      limit: 50,
      reverse: true,
    },
    array: [4, 300, 1, "alice", 1, 0, 50, true],
    hex: "9804cd012c01a5616c696365010032c3",
  },
  {
    value: { kind: "presence", ref: 5, uids: ["alice", "carol"] },
    array: [5, 5, ["alice", "carol"]],
    hex: "93050592a5616c696365a56361726f6c",
  },
  { value: { kind: "ping", ref: 6 }, array: [6, 6], hex: "920606" },
  { value: { kind: "disconnect", ref: 7 }, array: [7, 7], hex: "920707" },
  ...STREAM_OPERATIONS,
];

export const REPLIES: readonly Sample<Reply>[] = [
  {
    value: {
      kind: "connack",
      ref: 1,
      version: 1,
      sessionId: "n1-1",
      nodeId: "n1",
      serverTimeMs: 1_790_000_000_000,
      limits: {
        maxFrameBytes: 131_072,
        maxPayloadBytes: 65_536,
        idleTimeoutS: 60,
        maxFramesPerSecond: 100,
      },
      resume: [
        { channel: GROUP, status: "ok", headSeq: 42 },
        { channel: ALICE, status: "denied", headSeq: 0 },
      ],
    },
    array: [
      65,
      1,
      1,
      "n1-1",
      "n1",
      1790000000000,
      [131072, 65536, 60, 100],
      [
        [2, "team", 0, 42],
        [1, "alice", 1, 0],
      ],
    ],
    hex: "98410101a46e312d31a26e31cf000001a0c4506c0094ce00020000ce000100003c64929402a47465616d002a9401a5616c6963650100",
  },
  {
    value: {
      kind: "sendack",
      ref: 2,
      messageId: 1_790_000_000_000_001,
      messageSeq: 42,
      clientMsgNo: "c-1",
    },
    array: [66, 2, 1790000000000001, 42, "c-1"],
    hex: "954202cf00065bfeda25e0012aa3632d31",
  },
  {
    value: {
      kind: "history",
      ref: 300,
      channel: ALICE,
      headSeq: 7,
      more: true,
      messages: [PERSONAL],
    },
    array: [
      68,
      300,
      1,
      "alice",
      7,
      true,
      [[1, "alice", 7, 1790000000000001, "alice", "c-1", 1790000000123, 2, 0, HI, null, null]],
    ],
    hex: "9744cd012c01a5616c69636507c3919c01a5616c69636507cf00065bfeda25e001a5616c696365a3632d31cf000001a0c4506c7b0200c4197b2274797065223a312c22636f6e74656e74223a226869227dc0c0",
  },
  {
    value: {
      kind: "presence",
      ref: 5,
      presence: [
        { uid: "alice", online: true, flag: 1 },
        { uid: "carol", online: false, flag: 0 },
      ],
    },
    array: [
      69,
      5,
      [
        ["alice", true, 1],
        ["carol", false, 0],
      ],
    ],
    hex: "9345059293a5616c696365c30193a56361726f6cc200",
  },
  {
    value: { kind: "pong", ref: 6, serverTimeMs: 1_790_000_000_000 },
    array: [70, 6, 1790000000000],
    hex: "934606cf000001a0c4506c00",
  },
  {
    value: {
      kind: "error",
      ref: 2,
      code: "rate_limited",
      message: "Too many frames; slow down",
      retryAfterMs: 1500,
    },
    array: [91, 2, "rate_limited", "Too many frames; slow down", true, 1500],
    hex: "965b02ac726174655f6c696d69746564ba546f6f206d616e79206672616d65733b20736c6f7720646f776ec3cd05dc",
  },
  ...STREAM_REPLIES,
];

export const PUSHES: readonly Sample<Push>[] = [
  {
    value: { kind: "message", channel: ALICE, message: PERSONAL },
    array: [
      80,
      0,
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
    ],
    hex: "9e500001a5616c69636507cf00065bfeda25e001a5616c696365a3632d31cf000001a0c4506c7b0200c4197b2274797065223a312c22636f6e74656e74223a226869227dc0c0",
  },
  {
    value: { kind: "message", channel: GROUP, message: GROUPED },
    array: [
      80,
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
    hex: "9e500002a47465616d00cd012ca56361726f6ca2c3a9cf000001a0c4506dc801ce00015180c400a3732d31a473616c65",
  },
  {
    value: {
      kind: "messages",
      channel: ALICE,
      afterSeq: 5,
      throughSeq: 7,
      messages: [PERSONAL],
    },
    array: [
      81,
      0,
      1,
      "alice",
      5,
      7,
      [[1, "alice", 7, 1790000000000001, "alice", "c-1", 1790000000123, 2, 0, HI, null, null]],
    ],
    hex: "97510001a5616c6963650507919c01a5616c69636507cf00065bfeda25e001a5616c696365a3632d31cf000001a0c4506c7b0200c4197b2274797065223a312c22636f6e74656e74223a226869227dc0c0",
  },
  {
    value: { kind: "disconnect", reason: "kicked" },
    array: [90, 0, 4200, "kicked", "Another main device logged in, or a backend ended the session"],
    hex: "955a00cd1068a66b69636b6564d93d416e6f74686572206d61696e20646576696365206c6f6767656420696e2c206f722061206261636b656e6420656e646564207468652073657373696f6e",
  },
  ...STREAM_PUSHES,
];
