// Frames that the native decoder rejects, with the error code and whether the connection can
// continue. Valid frames are tested in test/wire.

import { Packr } from "msgpackr";
import type { Test } from "tap";
import type { ErrorCode } from "../../../src/broker/errors.ts";
import { createDecoder } from "../../../src/protocol/native/decode.ts";
import type { Operation } from "../../../src/protocol/protocol.ts";
import { t } from "../../support/suite.ts";
import { frameErrorOf, fromHex } from "../../wire/native-codec.ts";

const msgpackr = new Packr({ useRecords: false });
const pack = (fields: readonly unknown[]): Uint8Array => msgpackr.pack(fields);
const decode = createDecoder({
  maxIdLength: 128,
  maxPayloadBytes: 100,
  maxResumePoints: 2,
  maxPresenceUids: 3,
  maxWatchedUids: 2,
  maxCommandAcks: 4,
});

const BODY = new TextEncoder().encode("{}");
const REF = 77;

type Field = unknown;
const SEND: readonly Field[] = [2, REF, 2, "team", "no-1", BODY, 0, 0];
const CONNECT: readonly Field[] = [1, REF, 1, "bob", "secret", 0, "", null, []];
const HISTORY: readonly Field[] = [4, REF, 2, "team", 1, 0, 10, false];
const RECVACK: readonly Field[] = [3, REF, 2, "team", 1, 2];
const STREAM: readonly Field[] = [8, REF, 2, "team", "s-1"];
const CANCEL: readonly Field[] = [9, REF, 1, "bob", "s-1"];
const CONVERSATIONS: readonly Field[] = [10, REF, 20, "c"];
const READ: readonly Field[] = [11, REF, 2, "team", 0, 7];
const UNREAD: readonly Field[] = [11, REF, 2, "team", 1, 7];
const MEMBERS: readonly Field[] = [28, REF, 2, "team", 20, "c"];

/** Returns `fields` with the value at `index` replaced. */
const withField = (fields: readonly Field[], index: number, value: unknown) =>
  fields.map((field, i) => (i === index ? value : field));

/**
 * Asserts that the frame is rejected with `code` and the ref of the request, and that the
 * connection can continue.
 */
function assertRefused(t: Test, fields: readonly Field[], code: ErrorCode): void {
  t.match(
    frameErrorOf(() => decode(pack(fields))),
    { code, ref: REF, fatal: false },
    JSON.stringify(fields).slice(0, 60),
  );
}

t.test("bytes that are not a MessagePack array end the connection", async (t) => {
  const foreign = {
    empty: "",
    "an integer": "06",
    "a map": "820106",
    "a string": "a26869",
    nil: "c0",
    "a never used byte": "c1",
    "JSON text": Buffer.from('{"op":1}').toString("hex"),
    "an array header only": "92",
    "an array32 longer than the frame": "ddffffffff0101",
    "a string longer than the frame": "94010101dbffffffff61",
    "a bin longer than the frame": "96020102a474656d70a0c6ffffffff00",
  };
  for (const [description, hex] of Object.entries(foreign))
    t.match(
      frameErrorOf(() => decode(fromHex(hex))),
      { code: "malformed_frame", fatal: true },
      description,
    );
});

t.test("extension types and maps end the connection, wherever they appear", async (t) => {
  const foreign = {
    fixext1: "d40000",
    "a record definition": "d47201",
    fixext4: "d60000000000",
    "a timestamp": "d6ff00000000",
    ext8: "c7010000",
    ext32: "c900000001ff00",
    map: "8161c0",
    map16: "de0000",
  };
  for (const [description, hex] of Object.entries(foreign)) {
    for (const frame of [`9206${hex}`, `930601${hex}`, `96030102${hex}`])
      t.match(
        frameErrorOf(() => decode(fromHex(frame))),
        { code: "malformed_frame", fatal: true },
        `the frame ${frame} with ${description} ends the connection`,
      );
  }
});

t.test("an unknown operation is rejected, and the connection continues", async (t) => {
  for (const op of [0, 17, 27, 63, 66, 80, 127]) assertRefused(t, [op, REF], "malformed_frame");
  for (const op of ["send", -1, 1.5, null, 4096])
    t.match(
      frameErrorOf(() => decode(pack([op, REF]))),
      { code: "malformed_frame", ref: 0, fatal: false },
      String(op),
    );
});

t.test(
  "a ref that is neither nil nor an unsigned 32-bit integer is rejected, and the error has ref 0",
  async (t) => {
    for (const ref of ["1", -1, 2 ** 32, 1.5, true, [1]])
      t.match(
        frameErrorOf(() => decode(pack([6, ref]))),
        { code: "malformed_frame", ref: 0, fatal: false },
        String(ref),
      );
    t.same(decode(pack([6])), { kind: "ping", ref: 0 });
    t.same(decode(pack([6, null])), { kind: "ping", ref: 0 });
  },
);

t.test(
  "a CONNECT with a different version is rejected before its other fields are read",
  async (t) => {
    assertRefused(t, [1, REF, 2], "unsupported_version");
    assertRefused(t, [1, REF, 0, { a: 1 }], "unsupported_version");
  },
);

t.test(
  "an id that is empty or too long, or has an invalid character, is rejected with `bad_id`",
  async (t) => {
    const bad = ["", "x".repeat(129), "群".repeat(129), "x".repeat(5000)];
    for (const c of ["@", "#", "&", "\0", "\n", "\x1f", "\x7f", "\x85", "\x9f"]) bad.push(`a${c}b`);
    for (const id of bad) {
      assertRefused(t, withField(SEND, 3, id), "bad_id");
      assertRefused(t, withField(RECVACK, 3, id), "bad_id");
      assertRefused(t, withField(HISTORY, 3, id), "bad_id");
      assertRefused(t, withField(CONNECT, 3, id), "bad_id");
      assertRefused(t, [5, REF, ["alice", id]], "bad_id");
      assertRefused(t, [13, REF, ["alice", id]], "bad_id");
      for (const fields of [STREAM, CANCEL, READ])
        assertRefused(t, withField(fields, 3, id), "bad_id");
      assertRefused(t, withField(CONNECT, 8, [[2, id, 0]]), "bad_id");
      if (id !== "") assertRefused(t, withField(CONNECT, 6, id), "bad_id");
    }
    for (const id of ["x", "群".repeat(128), "😀".repeat(64), "a b%", "\u{feff}x"])
      t.match(decode(pack(withField(SEND, 3, id))), { channel: { id } });
  },
);

t.test("a string that is not valid UTF-8 is rejected", async (t) => {
  const overlong = "93" + "05" + "4d" + "91" + "a2c0af";
  t.match(
    frameErrorOf(() => decode(fromHex(overlong))),
    { code: "bad_request", ref: REF, fatal: false },
  );
});

t.test("a field that has the wrong type or is out of range is rejected", async (t) => {
  const wrong: readonly (readonly [readonly Field[], number, unknown[]])[] = [
    [SEND, 2, [0, 3, "2", null, 2.5, true]],
    [SEND, 3, [7, null, BODY, ["team"]]],
    [SEND, 4, [7, BODY, "x".repeat(129)]],
    [SEND, 5, ["{}", null, 7, [1]]],
    [SEND, 6, [8, 255, -1, "1", true]],
    [SEND, 7, [-1, 2 ** 32, 0.5, "60"]],
    [[...SEND, null], 8, [7, "x".repeat(129), BODY]],
    [[...SEND, null, null], 9, [7, "x".repeat(129)]],
    [RECVACK, 4, [-1, 2 ** 53, 1.5, null, "1"]],
    [RECVACK, 5, [-1, 2 ** 64, Number.NaN, null]],
    [HISTORY, 4, [-1, null, "1"]],
    [HISTORY, 5, [-1, null, Number.POSITIVE_INFINITY]],
    [HISTORY, 6, [0, -1, 2 ** 32, null]],
    [HISTORY, 7, [0, 1, "true"]],
    [CONNECT, 2, ["1", null, -1]],
    [CONNECT, 4, [7, null, "x".repeat(4097)]],
    [CONNECT, 5, [3, -1, 255, null, "0", true]],
    [CONNECT, 6, [7, ["d"]]],
    [CONNECT, 7, [2, -1, "0", true]],
    [CONNECT, 8, [7, "x", [7], [[2, "team"]], [[3, "team", 0]], [[2, "t", -1]]]],
    [[5, REF, []], 2, [7, null, "bob", [7]]],
    [STREAM, 2, [0, 3, null, "2"]],
    [STREAM, 4, ["", 7, null, BODY, "x".repeat(129)]],
    [CANCEL, 4, ["", 7, null, BODY, "x".repeat(129)]],
    [CONVERSATIONS, 2, [0, 501, -1, null, "1"]],
    [CONVERSATIONS, 3, [-1, 0, true]],
    [READ, 4, [3, -1, 255, "read"]],
    [READ, 5, [-1, 2 ** 53, null, "7", 0.5]],
    [UNREAD, 5, [-1, 2 ** 32, null, "7", 0.5]],
    [MEMBERS, 2, [0, 3, null, "2"]],
    [MEMBERS, 4, [0, 1001, -1, null, "1"]],
    [MEMBERS, 5, [-1, 0, true]],
    [[12, REF, []], 2, [7, null, [-1], ["1"], [null], [2 ** 53], [[1]]]],
    [[13, REF, []], 2, [7, null, "bob", [7]]],
  ];
  for (const [fields, index, values] of wrong)
    for (const value of values) assertRefused(t, withField(fields, index, value), "bad_request");
});

t.test("a frame that lacks a required field is rejected", async (t) => {
  const required = {
    SEND: [SEND, 6],
    CONNECT: [CONNECT, 6],
    RECVACK: [RECVACK, 6],
    HISTORY: [HISTORY, 7],
    STREAM: [STREAM, 5],
    CANCEL: [CANCEL, 5],
    CONVERSATIONS: [CONVERSATIONS, 3],
    MEMBERS: [MEMBERS, 5],
  } as const;
  for (const [fields, count] of Object.values(required))
    for (let length = 2; length < count; length++)
      assertRefused(t, fields.slice(0, length), "bad_request");
  // Without a change, CONVERSATION only reads.
  for (const change of [READ, UNREAD])
    for (const length of [2, 3, 5]) assertRefused(t, change.slice(0, length), "bad_request");
  for (const op of [5, 12, 13]) assertRefused(t, [op, REF], "bad_request");
});

t.test("optional fields may be missing or nil", async (t) => {
  const send = {
    kind: "send",
    ref: REF,
    channel: { type: 2, id: "team" },
    clientMsgNo: "",
    header: { noPersist: false, redDot: false, syncOnce: false },
    expireS: 0,
    streamNo: undefined,
    tagKey: undefined,
    payload: BODY,
  };
  const short = [2, REF, 2, "team", null, BODY];
  t.same(decode(pack(short)), send);
  t.same(decode(pack([...short, null, null, null, null])), send);
  t.same(decode(pack([...short, 0, 0, "", ""])), send);
  const connect = {
    kind: "connect",
    ref: REF,
    version: 1,
    uid: "bob",
    token: "secret",
    flag: 0,
    deviceId: "",
    level: undefined,
    resume: [],
    sessionName: "",
  };
  t.same(decode(pack(CONNECT.slice(0, 6))), connect);
  t.same(decode(pack([...CONNECT.slice(0, 6), null, null, null, null])), connect);
  for (const point of [
    [2, "team", 41],
    [2, "team", 41, null],
    [2, "team", 41, 0],
  ])
    t.match(decode(pack([...CONNECT.slice(0, 6), null, null, [point]])), {
      resume: [{ lastSeq: 41, lastId: 0 }],
    });
  t.match(decode(pack(HISTORY.slice(0, 7))), { limit: 10, reverse: false });
  t.match(decode(pack(CONVERSATIONS.slice(0, 3))), { limit: 20, cursor: undefined });
  const forget = [11, REF, 2, "team", 2];
  for (const fields of [forget, [...forget, null]])
    t.match(decode(pack(fields)), { change: { kind: "delete", seq: undefined } });
  t.match(decode(pack([...forget, 7])), { change: { kind: "delete", seq: 7 } });
});

t.test("a payload or list over its limit is rejected with `too_large`", async (t) => {
  assertRefused(t, withField(SEND, 5, new Uint8Array(101)), "too_large");
  assertRefused(t, withField(SEND, 5, new Uint8Array(70_000)), "too_large");
  assertRefused(t, [5, REF, ["a", "b", "c", "d"]], "too_large");
  assertRefused(t, [13, REF, ["a", "b", "c"]], "too_large");
  t.match(decode(pack([13, REF, ["a", "b"]])), { uids: ["a", "b"] });
  assertRefused(t, [12, REF, [1, 2, 3, 4, 5]], "too_large");
  t.match(decode(pack([12, REF, [1, 2, 3, 4]])), { inboxSeqs: [1, 2, 3, 4] });
  t.match(decode(pack([10, REF, 500])), { limit: 500 });
  const point = [2, "team", 0];
  assertRefused(t, withField(CONNECT, 8, [point, point, point]), "too_large");
  t.match(decode(pack(withField(SEND, 5, new Uint8Array(100)))), { kind: "send" });
  t.match(decode(pack([5, REF, ["a", "b", "c"]])), { uids: ["a", "b", "c"] });
});

t.test("an integer is read in every MessagePack encoding", async (t) => {
  const six = ["06", "cc06", "cd0006", "ce00000006", "cf0000000000000006"];
  six.push("d006", "d10006", "d200000006", "d30000000000000006");
  six.push("ca40c00000", "cb4018000000000000");
  for (const hex of six) t.match(decode(fromHex(`9206${hex}`)), { kind: "ping", ref: 6 }, hex);
  const below = ["ff", "d0ff", "d1ffff", "d2ffffffff", "d3ffffffffffffffff"];
  for (const hex of below)
    t.match(
      frameErrorOf(() => decode(fromHex(`9206${hex}`))),
      { ref: 0 },
      hex,
    );
});

t.test("the decoder accepts the system uid", async (t) => {
  t.match(decode(pack(withField(CONNECT, 3, "____system"))), {
    uid: "____system",
  });
});

t.test("a decoded operation does not share memory with its frame", async (t) => {
  for (const size of [5, 64, 65, 100]) {
    const frame = pack(withField(SEND, 5, new Uint8Array(size).fill(7)));
    const operation = decode(frame);
    frame.fill(0xee);
    t.match(operation, { channel: { id: "team" }, clientMsgNo: "no-1" });
    t.same(
      payloadOf(operation),
      new Uint8Array(size).fill(7),
      `a payload of ${size} bytes is unchanged`,
    );
  }
});

t.test("decoded payloads are not overwritten by later payloads", async (t) => {
  const payloads = Array.from({ length: 300 }, (_, i) =>
    payloadOf(decode(pack(withField(SEND, 5, new Uint8Array(90).fill(i))))),
  );
  const overwritten = payloads.findIndex((bytes, i) => bytes.some((b) => b !== i % 256));
  t.equal(overwritten, -1);
});

function payloadOf(operation: Operation): Uint8Array {
  if (operation.kind !== "send") throw new Error(`the operation is a ${operation.kind}`);
  return operation.payload;
}
