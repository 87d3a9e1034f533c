// Tests which payloads each kind of validation accepts. The table has a row for each field in the
// specification's payload tables.

import { COMMAND_TYPE, type ContentValidation, contentType } from "../../src/broker/content.ts";
import { t } from "../support/suite.ts";

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
const json = (value: unknown): Uint8Array => bytes(JSON.stringify(value));

const NOT_UTF8 = Uint8Array.from([...bytes('{"type":1,"content":"'), 0xc3, 0x28, ...bytes('"}')]);

const INVALID: readonly (readonly [what: string, payload: Uint8Array])[] = [
  ["no bytes", new Uint8Array()],
  ["a text that is not JSON", bytes("hello")],
  ["incomplete JSON", bytes('{"type":1')],
  ["two JSON documents", bytes('{"type":1}{"type":1}')],
  ["invalid UTF-8", NOT_UTF8],
  ["an array", json([{ type: 1 }])],
  ["a number", json(1)],
  ["a string", json("type")],
  ["null", json(null)],
  ["true", json(true)],
  ["an object without a type", json({ content: "x" })],
  ["a nested type only", json({ body: { type: 1 } })],
  ["a string as type", json({ type: "1" })],
  ["a fraction as type", json({ type: 1.5 })],
  ["an infinite type", bytes('{"type":1e999}')],
  ["null as type", json({ type: null })],
  ["a boolean as type", json({ type: true })],
  ["an object as type", json({ type: {} })],
];

for (const [what, payload] of INVALID)
  t.test(
    `an invalid payload is accepted only if content validation is opaque (${what})`,
    async (t) => {
      for (const validation of ["json", "strict"] as const)
        t.throws(() => contentType(payload, validation), { code: "bad_payload" });
      t.equal(contentType(payload, "opaque"), 0);
    },
  );

t.test("every kind of content validation returns the type of a valid payload", async (t) => {
  const command = json({ type: COMMAND_TYPE, cmd: "unreadClear", param: {} });
  for (const validation of ["json", "strict", "opaque"] as const)
    t.equal(contentType(command, validation), 99);
  t.equal(contentType(bytes(' \n{"type": 7}\t'), "json"), 7);
  t.equal(contentType(bytes('{"type":1e2}'), "json"), 100);
});

t.test("strict content validation accepts deeply nested payloads", async (t) => {
  const deep = `{"type":5,"a":${"[".repeat(500)}${"]".repeat(500)}}`;
  t.equal(contentType(bytes(deep), "strict"), 5);
});

/** A valid payload of a type, with further valid values and invalid values of its fields. */
interface Rule {
  readonly base: Readonly<Record<string, unknown>>;
  readonly valid?: Readonly<Record<string, readonly unknown[]>>;
  readonly invalid: Readonly<Record<string, readonly unknown[]>>;
}

const ABSENT = undefined;
const NOT_STRINGS = [ABSENT, 1, null, {}, []];
const NOT_INTEGERS = [ABSENT, "1", 1.5, null, {}];
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
    valid: {
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
    invalid: {
      content: NOT_STRINGS,
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
    invalid: { url: NOT_STRINGS, width: NOT_INTEGERS, height: NOT_INTEGERS },
  })),
  {
    base: { type: 4, url: "u", timeTrad: 10 },
    invalid: { url: NOT_STRINGS, timeTrad: NOT_INTEGERS },
  },
  {
    base: { type: 8, url: "u", name: "n", size: 1 },
    invalid: { url: NOT_STRINGS, name: NOT_STRINGS, size: NOT_INTEGERS },
  },
  {
    base: { type: 99, cmd: "cmd", param: {} },
    valid: { param: [{ group_no: "g" }] },
    invalid: { cmd: NOT_STRINGS, param: [null, [], "x", 1] },
  },
  ...[1001, 1002, 1003, 1010, 1005, 1006, 70_000].map((type) => ({
    base: { type, content: "{0} invited {1}", extra: NAMED },
    valid: { extra: [[], ABSENT] },
    invalid: {
      content: NOT_STRINGS,
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

for (const { base, valid, invalid } of STRICT_RULES) {
  const typeWith = (field: string, value: unknown, validation: ContentValidation): number =>
    contentType(json({ ...base, [field]: value }), validation);

  t.test(`strict validation accepts payloads of type ${base.type} with valid fields`, async (t) => {
    t.equal(contentType(json(base), "strict"), base.type);
    for (const [field, values] of Object.entries(valid ?? {}))
      for (const value of values) t.equal(typeWith(field, value, "strict"), base.type, field);
  });

  t.test(
    `strict validation rejects payloads of type ${base.type} with an invalid field`,
    async (t) => {
      for (const [field, values] of Object.entries(invalid))
        for (const value of values) {
          const what = `${field}: ${JSON.stringify(value)}`;
          t.throws(
            () => typeWith(field, value, "strict"),
            { code: "bad_payload", details: [{ path: `payload.${field}` }] },
            what,
          );
          t.equal(typeWith(field, value, "json"), base.type, `json: ${what}`);
          t.equal(typeWith(field, value, "opaque"), base.type, `opaque: ${what}`);
        }
    },
  );
}

t.test("strict validation does not check the fields of unknown types", async (t) => {
  for (const type of [0, -1, 5, 100, 1000]) t.equal(contentType(json({ type }), "strict"), type);
});
