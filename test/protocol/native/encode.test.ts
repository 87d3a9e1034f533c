// Frames of the native encoder: they can be kept, may have any size, and are never silently wrong.
// Their bytes are tested in test/wire.

import { ERRORS } from "../../../src/broker/errors.ts";
import { type Message, streamPayload } from "../../../src/broker/model.ts";
import { decodeServerFrame } from "../../../src/protocol/native/client-decode.ts";
import { encodeOperation } from "../../../src/protocol/native/client-encode.ts";
import { createEncoder } from "../../../src/protocol/native/encode.ts";
import { FrameWriter } from "../../../src/protocol/native/writer.ts";
import { t } from "../../support/suite.ts";
import { toHex } from "../../wire/native-codec.ts";
import { CHUNK, GROUPED, PERSONAL, RUNNING, STREAMED } from "../../wire/native-sample-values.ts";

const TEAM = { type: 2, id: "team" } as const;

/** Returns the push of a stream chunk with this data. */
function eventPush(data: string) {
  const channel = { type: 1, id: "alice" } as const;
  return { kind: "event", channel, event: { ...CHUNK, data } } as const;
}

t.test("a frame is not overwritten by thousands of later frames", async (t) => {
  const encoder = createEncoder();
  const frames = Array.from({ length: 5000 }, (_, ref) =>
    encoder.reply({ kind: "pong", ref, serverTimeMs: ref * 1000 }),
  );
  const overwritten = frames.findIndex((frame, ref) => {
    const pong = decodeServerFrame(frame, "bob");
    return pong.kind !== "pong" || pong.serverTimeMs !== ref * 1000;
  });
  t.equal(overwritten, -1);
});

t.test(
  "frames smaller and larger than the encoder's shared buffer are encoded correctly",
  async (t) => {
    const encoder = createEncoder();
    for (const size of [0, 255, 256, 4000, 16_383, 16_384, 65_535, 65_536, 300_000]) {
      const message: Message = {
        ...GROUPED,
        payload: new Uint8Array(size).fill(size % 251),
      };
      const push = { kind: "message", channel: TEAM, message } as const;
      const frame = encoder.push(push);
      t.same(decodeServerFrame(frame, "bob"), push, `a payload of ${size} bytes is unchanged`);
    }
  },
);

t.test("strings are encoded correctly at all lengths and character widths", async (t) => {
  const encoder = createEncoder();
  const widths = ["x", "é", "群", "😀"];
  const failures = widths.flatMap((character) =>
    [...Array(300).keys(), 21_845, 21_846, 65_535, 65_536, 400_000]
      .map((units) => character.repeat(Math.floor(units / character.length)))
      .filter((data) => {
        const push = eventPush(data);
        const decoded = decodeServerFrame(encoder.push(push), "bob");
        return decoded.kind !== "event" || decoded.event.data !== data;
      })
      .map((data) => `${data.length} of ${character}`),
  );
  t.same(failures, []);
});

t.test("a lone surrogate is replaced by U+FFFD", async (t) => {
  const encoder = createEncoder();
  for (const data of ["\ud83d", `${"x".repeat(40)}\ude00y`])
    t.match(decodeServerFrame(encoder.push(eventPush(data)), "bob"), {
      event: { data: Buffer.from(data).toString() },
    });
});

t.test("a stored frame does not keep a much larger buffer alive", async (t) => {
  const encoder = createEncoder();
  const frames = [1000, 30_000, 500_000, 3, 3].map((size) =>
    encoder.push(eventPush("x".repeat(size))),
  );
  const wasteful = frames.filter(
    ({ length, buffer }) => buffer.byteLength > 16_384 && buffer.byteLength > 2 * length,
  );
  t.same(
    wasteful.map(({ length }) => length),
    [],
  );
});

t.test("a stream with a text of 800,000 UTF-16 code units is encoded completely", async (t) => {
  const encoder = createEncoder();
  const snapshot = { ...RUNNING, text: "群x😀".repeat(200_000) };
  const channel = { type: 1, id: "alice" } as const;
  const push = { kind: "stream", channel, snapshot } as const;
  t.same(decodeServerFrame(encoder.push(push), "bob"), push);
});

t.test("the frame of a message with a stream contains the stream's text only once", async (t) => {
  const text = "needle";
  const stream = { ...RUNNING, text };
  const payload = streamPayload(text);
  const frame = createEncoder().push({
    kind: "message",
    channel: { type: 1, id: "alice" },
    message: { ...STREAMED, payload, stream },
  });
  t.equal(Buffer.from(frame).toString("latin1").split(text).length, 2);
  t.match(decodeServerFrame(frame, "bob"), { message: { stream } });
});

t.test("one frame can contain a range of 70,000 messages", async (t) => {
  const encoder = createEncoder();
  const messages = Array.from({ length: 70_000 }, (_, i) => ({
    ...GROUPED,
    messageSeq: i,
  }));
  const range = { channel: TEAM, afterSeq: 0, throughSeq: 70_000, messages };
  const frame = encoder.push({ kind: "messages", ...range });
  const decoded = decodeServerFrame(frame, "bob");
  t.match(decoded, { kind: "messages", messages: { length: 70_000 } });
});

t.test("a frame that cannot be encoded does not affect the next frame", async (t) => {
  const encoder = createEncoder();
  const bad = { ...PERSONAL, messageId: -1 };
  t.throws(() => encoder.push({ kind: "message", channel: TEAM, message: bad }), RangeError);
  t.equal(toHex(encoder.reply({ kind: "pong", ref: 1, serverTimeMs: 2 })), "93460102");
});

t.test(
  "encoding a number that is not an integer from 0 to 2^53 - 1 throws a RangeError",
  async (t) => {
    for (const ref of [-1, 0.5, Number.NaN, 2 ** 53, Number.POSITIVE_INFINITY])
      t.throws(() => encodeOperation({ kind: "ping", ref }), RangeError, String(ref));
  },
);

t.test("encoding a frame larger than its announced size throws a RangeError", async (t) => {
  const writer = new FrameWriter();
  writer.begin(5000);
  for (let i = 0; i < 5000; i++) writer.nil();
  t.equal(writer.end().length, 5000);
  writer.begin(5000);
  for (let i = 0; i < 5001; i++) writer.nil();
  t.throws(() => writer.end(), RangeError);
  for (const text of ["群".repeat(1667), "é".repeat(2500), "x".repeat(4998)]) {
    writer.begin(5000);
    writer.text(text);
    t.throws(
      () => writer.end(),
      RangeError,
      `a string of ${text.length} UTF-16 code units is too large`,
    );
  }
});

t.test("an error without a message gets the message of the error table", async (t) => {
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

t.test("a personal message is encoded with the channel id that its receiver uses", async (t) => {
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
});
