// Frames as the native encoder hands them out: kept safely, of any size, and never silently wrong. Their bytes are in test/wire.

import t from "tap";
import { ERRORS } from "../../../src/broker/errors.ts";
import type { Message } from "../../../src/broker/model.ts";
import { decodeServerFrame } from "../../../src/protocol/native/client-decode.ts";
import { encodeOperation } from "../../../src/protocol/native/client-encode.ts";
import { createEncoder } from "../../../src/protocol/native/encode.ts";
import { FrameWriter } from "../../../src/protocol/native/writer.ts";
import { toHex } from "../../wire/native-codec.ts";
import { GROUPED, PERSONAL } from "../../wire/native-samples.ts";

const TEAM = { type: 2, id: "team" } as const;

t.test("frames stay as they are while thousands more are made", async (t) => {
  const encoder = createEncoder();
  const frames = Array.from({ length: 5000 }, (_, ref) =>
    encoder.reply({ kind: "pong", ref, serverTimeMs: ref * 1000 }),
  );
  const spoilt = frames.findIndex((frame, ref) => {
    const pong = decodeServerFrame(frame, "bob");
    return pong.kind !== "pong" || pong.serverTimeMs !== ref * 1000;
  });
  t.equal(spoilt, -1);
});

t.test("frames of every size around the slab's are whole", async (t) => {
  const encoder = createEncoder();
  for (const size of [
    0, 255, 256, 4000, 16_383, 16_384, 65_535, 65_536, 300_000,
  ]) {
    const message: Message = {
      ...GROUPED,
      payload: new Uint8Array(size).fill(size % 251),
    };
    const push = { kind: "message", channel: TEAM, message } as const;
    const frame = encoder.push(push);
    t.same(decodeServerFrame(frame, "bob"), push, `${size} bytes`);
  }
});

t.test("a run of many messages is one frame", async (t) => {
  const encoder = createEncoder();
  const messages = Array.from({ length: 70_000 }, (_, i) => ({
    ...GROUPED,
    messageSeq: i,
  }));
  const run = { channel: TEAM, afterSeq: 0, throughSeq: 70_000, messages };
  const frame = encoder.push({ kind: "messages", ...run });
  const back = decodeServerFrame(frame, "bob");
  t.match(back, { kind: "messages", messages: { length: 70_000 } });
});

t.test("a failed frame leaves no trace in the next", async (t) => {
  const encoder = createEncoder();
  const bad = { ...PERSONAL, messageId: -1 };
  t.throws(
    () => encoder.push({ kind: "message", channel: TEAM, message: bad }),
    RangeError,
  );
  t.equal(
    toHex(encoder.reply({ kind: "pong", ref: 1, serverTimeMs: 2 })),
    "93460102",
  );
});

t.test("numbers that have no encoding are refused", async (t) => {
  for (const ref of [-1, 0.5, Number.NaN, 2 ** 53, Number.POSITIVE_INFINITY])
    t.throws(
      () => encodeOperation({ kind: "ping", ref }),
      RangeError,
      String(ref),
    );
});

t.test("a frame larger than announced is refused", async (t) => {
  const writer = new FrameWriter();
  writer.begin(5000);
  for (let i = 0; i < 5000; i++) writer.nil();
  t.equal(writer.end().length, 5000);
  writer.begin(5000);
  for (let i = 0; i < 5001; i++) writer.nil();
  t.throws(() => writer.end(), RangeError);
});

t.test("an error without a message carries the table's", async (t) => {
  const error = {
    kind: "error",
    ref: 1,
    code: "not_connected",
    message: "",
    retryAfterMs: 0,
  } as const;
  t.match(decodeServerFrame(createEncoder().reply(error), "bob"), {
    code: "not_connected",
    message: ERRORS.not_connected.message,
  });
});

t.test(
  "a personal message names the channel as each of the two does",
  async (t) => {
    const encoder = createEncoder();
    const toBob = encoder.push({
      kind: "message",
      channel: { type: 1, id: "alice" },
      message: PERSONAL,
    });
    t.same(decodeServerFrame(toBob, "bob"), {
      kind: "message",
      channel: { type: 1, id: "alice" },
      message: PERSONAL,
    });
    const toAlicesOtherDevice = encoder.push({
      kind: "message",
      channel: { type: 1, id: "bob" },
      message: PERSONAL,
    });
    t.same(decodeServerFrame(toAlicesOtherDevice, "alice"), {
      kind: "message",
      channel: { type: 1, id: "bob" },
      message: PERSONAL,
    });
  },
);
