// What a payload must be under each validation, one row per field of the specification's payload
// tables.

import { COMMAND_TYPE, type ContentValidation, contentType } from "../../src/broker/content.ts";
import { t } from "../support/suite.ts";

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
const json = (value: unknown): Uint8Array => bytes(JSON.stringify(value));

const NOT_UTF8 = Uint8Array.from([...bytes('{"type":1,"content":"'), 0xc3, 0x28, ...bytes('"}')]);

const NO_CONTENT: readonly (readonly [what: string, payload: Uint8Array])[] = [
  ["nothing", new Uint8Array()],
  ["no JSON", bytes("hello")],
  ["cut JSON", bytes('{"type":1')],
  ["two documents", bytes('{"type":1}{"type":1}')],
  ["invalid UTF-8", NOT_UTF8],
  ["an array", json([{ type: 1 }])],
  ["a number", json(1)],
  ["a string", json("type")],
  ["null", json(null)],
  ["true", json(true)],
  ["no type", json({ content: "x" })],
  ["a nested type only", json({ body: { type: 1 } })],
  ["a string as type", json({ type: "1" })],
  ["a fraction as type", json({ type: 1.5 })],
  ["an infinite type", bytes('{"type":1e999}')],
  ["null as type", json({ type: null })],
  ["a boolean as type", json({ type: true })],
  ["an object as type", json({ type: {} })],
];

for (const [what, payload] of NO_CONTENT)
  t.test(`${what} is no content, but opaque bytes`, async (t) => {
    for (const validation of ["json", "strict"] as const)
      t.throws(() => contentType(payload, validation), { code: "bad_payload" });
    t.equal(contentType(payload, "opaque"), 0);
  });

t.test("the type is read under every validation", async (t) => {
  const command = json({ type: COMMAND_TYPE, cmd: "unreadClear", param: {} });
  for (const validation of ["json", "strict", "opaque"] as const)
    t.equal(contentType(command, validation), 99);
  t.equal(contentType(bytes(' \n{"type": 7}\t'), "json"), 7);
  t.equal(contentType(bytes('{"type":1e2}'), "json"), 100);
});

t.test("deep nesting is read, not refused", async (t) => {
  const deep = `{"type":5,"a":${"[".repeat(500)}${"]".repeat(500)}}`;
  t.equal(contentType(bytes(deep), "strict"), 5);
});

/** A good content of each known type, and what may stand in each field instead, or may not. */
interface Rule {
  readonly base: Readonly<Record<string, unknown>>;
  readonly good?: Readonly<Record<string, readonly unknown[]>>;
  readonly bad: Readonly<Record<string, readonly unknown[]>>;
}

const ABSENT = undefined;
const NO_STRINGS = [ABSENT, 1, null, {}, []];
const NO_INTEGERS = [ABSENT, "1", 1.5, null, {}];
const REPLY = {
  root_mid: "1",
  message_id: "2",
  message_seq: 3,
  from_uid: "u",
  from_name: "U",
  payload: { type: 1, content: "x" },
};
const NAMED = [
  { uid: "a", name: "A" },
  { uid: "b", name: "B" },
];

const STRICT_RULES: readonly Rule[] = [
  {
    base: { type: 1, content: "hi" },
    good: {
      content: ["", "long"],
      extra_field: [1],
      mention: [
        ABSENT,
        { all: 0, uids: ["a", "b"] },
        { all: 0, uids: [] },
        { all: 1, uids: [] },
        { all: 1 },
        { uids: ["a"] },
      ],
      reply: [ABSENT, REPLY, { ...REPLY, root_mid: "" }],
    },
    bad: {
      content: NO_STRINGS,
      mention: [
        null,
        [],
        "all",
        { all: 1, uids: ["a"] },
        { all: 1, uids: "a" },
        { all: 2 },
        { all: true },
        { all: 0, uids: "a" },
        { all: 0, uids: [1] },
      ],
      reply: [
        null,
        [],
        "1",
        {},
        { ...REPLY, root_mid: 1 },
        { ...REPLY, message_id: 2 },
        { ...REPLY, message_seq: "3" },
        { ...REPLY, message_seq: 3.5 },
        { ...REPLY, from_uid: ABSENT },
        { ...REPLY, from_name: 1 },
        { ...REPLY, payload: "x" },
        { ...REPLY, payload: [] },
      ],
    },
  },
  ...[2, 3].map((type) => ({
    base: { type, url: "u", width: 1, height: 2 },
    bad: { url: NO_STRINGS, width: NO_INTEGERS, height: NO_INTEGERS },
  })),
  {
    base: { type: 4, url: "u", timeTrad: 10 },
    bad: { url: NO_STRINGS, timeTrad: NO_INTEGERS },
  },
  {
    base: { type: 8, url: "u", name: "n", size: 1 },
    bad: { url: NO_STRINGS, name: NO_STRINGS, size: NO_INTEGERS },
  },
  {
    base: { type: 99, cmd: "cmd", param: {} },
    good: { param: [{ group_no: "g" }] },
    bad: { cmd: NO_STRINGS, param: [null, [], "x", 1] },
  },
  ...[1001, 1002, 1003, 1010, 1005, 1006, 70_000].map((type) => ({
    base: { type, content: "{0} invited {1}", extra: NAMED },
    good: { extra: [[], ABSENT] },
    bad: {
      content: NO_STRINGS,
      extra: [
        null,
        {},
        "a",
        ["a"],
        [{ uid: "a" }],
        [{ name: "A" }],
        [{ uid: 1, name: "A" }],
        [...NAMED, null],
      ],
    },
  })),
];

for (const { base, good, bad } of STRICT_RULES) {
  const judge = (field: string, value: unknown, validation: ContentValidation): number =>
    contentType(json({ ...base, [field]: value }), validation);

  t.test(`strict: type ${base.type} with its fields is accepted`, async (t) => {
    t.equal(contentType(json(base), "strict"), base.type);
    for (const [field, values] of Object.entries(good ?? {}))
      for (const value of values) t.equal(judge(field, value, "strict"), base.type, field);
  });

  t.test(`strict: type ${base.type} with a wrong field is not`, async (t) => {
    for (const [field, values] of Object.entries(bad))
      for (const value of values) {
        const what = `${field}: ${JSON.stringify(value)}`;
        t.throws(
          () => judge(field, value, "strict"),
          { code: "bad_payload", details: [{ path: `payload.${field}` }] },
          what,
        );
        t.equal(judge(field, value, "json"), base.type, `json: ${what}`);
        t.equal(judge(field, value, "opaque"), base.type, `opaque: ${what}`);
      }
  });
}

t.test("strict: types without a table are left alone", async (t) => {
  for (const type of [0, -1, 5, 100, 1000]) t.equal(contentType(json({ type }), "strict"), type);
});
