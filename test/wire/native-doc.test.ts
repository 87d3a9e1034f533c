// Checks docs/protocol/native.md: its examples are decoded and encoded again, and its tables are
// compared with those in the code.

import { readFileSync } from "node:fs";
import { Packr } from "msgpackr";
import { CLOSE_REASONS, ERRORS } from "../../src/broker/errors.ts";
import { decodeServerFrame } from "../../src/protocol/native/client-decode.ts";
import { encodeOperation } from "../../src/protocol/native/client-encode.ts";
import { createEncoder } from "../../src/protocol/native/encode.ts";
import { WIRE_REASONS, wireCodeOf } from "../../src/protocol/native/errors.ts";
import {
  CLIENT_OPS,
  NATIVE_SUBPROTOCOL,
  PUSH_OPS,
  REPLY_OPS,
} from "../../src/protocol/native/ops.ts";
import { StreamViews } from "../support/stream-view.ts";
import { t } from "../support/suite.ts";
import { decodeClientFrame, fromHex, toHex } from "./native-codec.ts";

const page = readFileSync(new URL("../../docs/protocol/native.md", import.meta.url), "utf8");
const msgpackr = new Packr({ useRecords: false, int64AsType: "number" });
const encoder = createEncoder();

const FIRST_SERVER_OP = 64;
const examples = [...page.matchAll(/```frame\n(.+)\n([0-9a-f]+)\n```/g)].map(
  ([, text = "", hex = ""]) => ({ text, array: arrayOf(text), hex }),
);

t.test("docs/protocol/native.md has an example of each kind of frame", async (t) => {
  const ops = [CLIENT_OPS, REPLY_OPS, PUSH_OPS].flatMap(Object.values);
  t.same(new Set(examples.map(({ array }) => array[0])), new Set(ops));
  t.equal(page.match(/```frame/g)?.length, examples.length, "every example has the expected form");
});

t.test("each example in docs/protocol/native.md has the bytes of its array", async (t) => {
  for (const { text, array, hex } of examples)
    t.same(comparable(msgpackr.unpack(fromHex(hex))), comparable(array), text);
});

t.test("each example has the same bytes after it is decoded and encoded again", async (t) => {
  for (const { text, hex } of examples) t.equal(toHex(encodeAgain(fromHex(hex))), hex, text);
});

t.test("every frame of the sessions in docs/protocol/native.md decodes", async (t) => {
  const sessions = [...page.matchAll(/```session\n([^`]+)```/g)];
  const [resumed, streamed] = sessions.map(([, session = ""]) =>
    session.trim().split("\n").map(kindOf),
  );
  t.equal(sessions.length, 2);
  t.same(resumed, [
    "> connect",
    "< connack",
    "< messages",
    "> recvack",
    "> send",
    "< sendack",
    "< message",
    "> send",
    "< error",
    "> disconnect",
    "< disconnect",
  ]);
  t.same(streamed, [
    "> connect",
    "< connack",
    "< stream",
    "< command",
    "< event",
    "> commandack",
    "< commandack",
    "< event",
    "< event",
    "> cancel",
    "< cancel",
    "< event",
    "> stream",
    "< stream",
    "> conversation",
    "< conversation",
    "> conversations",
    "< conversations",
    "> watch",
    "< watch",
    "< presence",
    "> emit",
    "> emit",
    "< emit",
    "< event",
  ]);
});

t.test(
  "a viewer that follows the rules in docs/protocol/native.md gets the right text from the sample stream",
  async (t) => {
    const views = new StreamViews();
    const lines = page.split("```session")[2]?.split("```")[0] ?? "";
    for (const line of lines.split("\n"))
      if (line.startsWith("< "))
        views.applyFrame(decodeServerFrame(msgpackr.pack(arrayOf(line.slice(2))), "bob"));
    const view = views.of({ type: 1, id: "alice" }, "s-1");
    t.match(view, { text: "Hello, wor", state: "cancelled", merged: 1 });
    t.same(view?.problems, []);
  },
);

t.test("docs/protocol/native.md has a section for each frame, with its number", async (t) => {
  const sections = [...page.matchAll(/^### (\d+) ([A-Z]+)/gm)].map(
    ([, op, name = ""]) => `${op} ${name.toLowerCase()}`,
  );
  const frames = [CLIENT_OPS, REPLY_OPS, PUSH_OPS].flatMap((table) =>
    Object.entries(table).map(([name, op]) => `${op} ${name}`),
  );
  t.same(sections, frames.sort(byNumber));
});

t.test("docs/protocol/native.md lists all error codes and whether a retry may help", async (t) => {
  const rows = rowsOf("Error codes").map(([code, retry]) => [code, retry]);
  const codes = Object.entries(ERRORS).map(([code, { retry }]) => [
    `\`${wireCodeOf(code as keyof typeof ERRORS)}\``,
    retry ? "yes" : "no",
  ]);
  t.same(rows, codes);
});

t.test("docs/protocol/native.md lists all close codes", async (t) => {
  const rows = rowsOf("Close codes")
    .filter(([code = ""]) => /^\d{4}$/.test(code))
    .map(([code, name]) => `${code} ${name}`);
  const reasons = Object.entries(CLOSE_REASONS).map(
    ([reason, { code }]) => `${code} ${WIRE_REASONS[reason as keyof typeof CLOSE_REASONS]}`,
  );
  t.same(rows, reasons.sort(byNumber));
});

t.test("docs/protocol/native.md names the subprotocol", async (t) => {
  t.ok(page.includes(`\`${NATIVE_SUBPROTOCOL}\``));
});

/** Returns the direction and kind of the frame in a line of a session. */
function kindOf(line: string): string {
  const bytes = msgpackr.pack(arrayOf(line.slice(2)));
  return line.startsWith("> ")
    ? `> ${decodeClientFrame(bytes).kind}`
    : `< ${decodeServerFrame(bytes, "bob").kind}`;
}

/** Returns the array of an example, which is JSON except for nil and h'…'. */
function arrayOf(text: string): readonly unknown[] {
  const json = text.replace(/\bnil\b/g, "null").replace(/h'([0-9a-f]*)'/g, '{"bin":"$1"}');
  return JSON.parse(json, (_key, value) =>
    typeof value?.bin === "string" ? fromHex(value.bin) : value,
  );
}

/**
 * Returns the value with binary data as text, so that buffers of different types compare as equal.
 */
function comparable(value: unknown): unknown {
  if (value instanceof Uint8Array) return `h'${toHex(value)}'`;
  return Array.isArray(value) ? value.map(comparable) : value;
}

/** Decodes a frame and encodes the result. */
function encodeAgain(bytes: Uint8Array): Uint8Array {
  const op = bytes[1] ?? 0;
  if (op < FIRST_SERVER_OP) return encodeOperation(decodeClientFrame(bytes));
  const frame = decodeServerFrame(bytes, "bob");
  return "ref" in frame ? encoder.reply(frame) : encoder.push(frame);
}

/** Returns the cells of all table rows in a section. */
function rowsOf(section: string): readonly (readonly string[])[] {
  const [, text = ""] = page.split(new RegExp(`^## ${section}$`, "m"));
  const [body = ""] = text.split(/^## /m);
  return body
    .split("\n")
    .filter((line) => /^\| [`\d]/.test(line))
    .map((line) =>
      line
        .split("|")
        .slice(1, -1)
        .map((cell) => cell.trim()),
    );
}

function byNumber(a: string, b: string): number {
  return Number.parseInt(a, 10) - Number.parseInt(b, 10);
}
