// Payloads in each validation mode: the payloads of the specification arrive unchanged, and other
// payloads are refused.

import { t } from "../support/suite.ts";
import { person, startWorld, type World } from "./world.ts";

const base64 = (text: string) => Buffer.from(text).toString("base64");
const json = (content: unknown) => base64(JSON.stringify(content));
const extra = [{ uid: "u1", name: "Alice" }];

/** A payload with all its fields, by type. */
const KINDS: Readonly<Record<string, object>> = {
  // Covers [spec: payload type 1]
  "type 1": {
    type: 1,
    content: "hello",
    mention: { all: 0, uids: ["u1"] },
    reply: {
      root_mid: "1",
      message_id: "2",
      message_seq: 2,
      from_uid: "u1",
      from_name: "Alice",
      payload: { type: 1, content: "before" },
    },
  },
  // Covers [spec: payload type 2]
  "type 2": { type: 2, url: "u", width: 1, height: 2 },
  // Covers [spec: payload type 3]
  "type 3": { type: 3, url: "u", width: 1, height: 2 },
  // Covers [spec: payload type 4]
  "type 4": { type: 4, url: "u", timeTrad: 3 },
  // Covers [spec: payload type 8]
  "type 8": { type: 8, url: "u", name: "n", size: 9 },
  // Covers [spec: payload type >1000]
  "type >1000": { type: 1010, content: "{0} left", extra },
};

const world = await startWorld(t);
const strict = await startWorld(t, {
  JINDOU_CONTENT_VALIDATION: "strict",
});
const opaque = await startWorld(t, {
  JINDOU_CONTENT_VALIDATION: "opaque",
});

/** Sends a payload. Returns `<status> <code>`, or `200 undefined` if it is accepted. */
async function post(target: World, payload: string): Promise<string> {
  const { status, body } = await target.send("alice", person("bob"), "", {
    payload,
  });
  return `${status} ${body.code}`;
}

/** Invalid payloads, with the causes that the errors name. */
const CAUSES: readonly (readonly [payload: unknown, cause: RegExp])[] = [
  [base64(""), /must not have fewer than 1 characters/],
  [base64(" "), /^payload is empty;/],
  [base64("hello"), /^payload is not valid JSON;/],
  [base64('{"type":1'), /^payload is not valid JSON;/],
  [base64('{"type":1}{"type":1}'), /^payload is not valid JSON;/],
  [Buffer.from([0x7b, 0xc3, 0x28]).toString("base64"), /^payload is not valid UTF-8;/],
  [base64(base64('{"type":1}')), /^payload was encoded twice/],
  [json([{ type: 1 }]), /^payload is JSON, but not an object;/],
  [json("hello"), /^payload is JSON, but not an object;/],
  [json(null), /^payload is JSON, but not an object;/],
  [json({ content: "x" }), /^payload has no field "type";/],
  [json({ body: { type: 1 } }), /^payload has no field "type";/],
  [json({ type: "1" }), /^The field "type" of payload is not an integer;/],
  [json({ type: 1.5 }), /^The field "type" of payload is not an integer;/],
  [json({ type: { a: 1 } }), /^The field "type" of payload is not an integer;/],
  [json({ type: null }), /^The field "type" of payload is not an integer;/],
  ["{}", /^payload must be standard base64/],
  [{ type: 1, content: "hello" }, /^payload must be a string: the JSON content in standard base64/],
];

t.test("over HTTP, the error for an invalid payload names the cause", async (t) => {
  const target = { from_uid: "alice", channel_id: "bob", channel_type: 1 };
  for (const [payload, cause] of CAUSES) {
    for (const [path, recipients] of [
      ["/message/send", {}],
      ["/message/sendbatch", { subscribers: ["bob"] }],
    ] as const) {
      const { status, body } = await world.call(path, { ...target, ...recipients, payload });
      t.equal(status, 400, String(payload));
      t.match(body.error, cause);
      t.match(body.code, /^bad_(payload|request)$/);
    }
  }
});

t.test("on a socket, the error for an invalid payload names the cause", async (t) => {
  const client = await world.join(t, world.name("alice"));
  for (const [payload, cause] of CAUSES) {
    if (typeof payload !== "string" || payload === "" || !cause.source.startsWith("^payload is"))
      continue;
    const bytes = Buffer.from(payload, "base64");
    const named = new RegExp(`^bad_payload: ${cause.source.slice(1)}`);
    await t.rejects(client.send(person("bob"), bytes), { message: named }, payload);
  }
});

for (const [type, content] of Object.entries(KINDS))
  t.test(`a payload of ${type} with all its fields arrives unchanged`, async (t) => {
    for (const target of [world, strict]) {
      const bob = target.name("bob");
      const client = await target.join(t, bob);
      const payload = json(content);
      await target.send("alice", person(bob), "", { payload });
      const message = await client.nextMessage();
      t.equal(Buffer.from(message.payload).toString("base64"), payload);
    }
  });

// Covers [spec: payload type 1]
t.test(
  "a mention of everyone must not list any uids if payloads are validated strictly",
  async (t) => {
    const sendMention = (mention: object) => post(strict, json({ type: 1, content: "x", mention }));
    t.equal(await sendMention({ all: 1, uids: [] }), "200 undefined");
    t.equal(await sendMention({ all: 1, uids: ["u1"] }), "400 bad_payload");
  },
);

// Covers [spec: payload type 99; spec: header sync_once; spec: System and command types]
t.test(
  "a command, which has payload type 99 or sync_once, gets message_seq 0 and is not in history",
  async (t) => {
    const bob = world.name("bob");
    const client = await world.join(t, bob);
    const command = { type: 99, cmd: "memberUpdate", param: { group_no: "g" } };
    const system = { type: 1002, content: "{0} joined", extra };
    const header = { no_persist: 0, red_dot: 0, sync_once: 1 };
    for (const content of [command, system]) {
      const payload = json(content);
      const options = { payload, header };
      const response = await world.send("alice", person(bob), "", options);
      t.match(response, { status: 200, body: { message_seq: 0 } });
      const push = await client.nextPush(({ kind }) => kind === "command");
      if (push.kind !== "command") throw new Error(push.kind);
      const bytes = Buffer.from(push.message.payload);
      t.equal(bytes.toString("base64"), payload);
    }
    const bare = await world.send("alice", person(bob), "", {
      payload: json(command),
    });
    t.equal(bare.body.message_seq, 0, "type 99 alone makes a message a command");
    const { messages, headSeq } = await client.history(person("alice"));
    t.same([messages, headSeq], [[], 0]);
  },
);

// Covers [spec: System and command types]
t.test(
  "a system message without sync_once is stored like any message, with its red dot",
  async (t) => {
    const bob = world.name("bob");
    const client = await world.join(t, bob);
    const content = { type: 1010, content: "{0} was kicked", extra };
    await world.send("____system", person(bob), "", {
      payload: json(content),
      header: { no_persist: 0, red_dot: 1, sync_once: 0 },
    });
    const { messages } = await client.history(person("____system"));
    t.match(messages, [{ messageSeq: 1, header: { redDot: true } }]);
  },
);

// Covers [decisions: payload]
t.test(
  "by default, a payload must be base64 of a JSON object whose type is an integer",
  async (t) => {
    for (const [payload, problem] of [
      ["%%%", "not base64"],
      ["e30", "base64 without its padding"],
      [`${json({ type: 1 })}\n`, "base64 with a line break"],
      [base64("hello"), "not JSON"],
      [json([1]), "an array"],
      [json("text"), "a string"],
      [json(null), "null"],
      [json({}), "no type"],
      [json({ type: "1" }), "a type that is a string"],
      [json({ type: 1.5 }), "a type that is not an integer"],
      [Buffer.from([0x7b, 0xff, 0x7d]).toString("base64"), "not UTF-8"],
    ] as const)
      t.equal(
        await post(world, payload),
        "400 bad_payload",
        `a payload with ${problem} is refused`,
      );
    t.equal(await post(world, ""), "400 bad_request", "an empty payload is refused");
    for (const content of [{ type: 1 }, { type: 77, anything: [] }])
      t.equal(await post(world, json(content)), "200 undefined");
  },
);

// Covers [decisions: payload]
t.test(
  "a payload of a known type must have the type's fields, with valid values, if content.validation is strict",
  async (t) => {
    for (const content of [
      { type: 1 },
      { type: 2, url: "u", width: "1", height: 2 },
      { type: 3, url: "u" },
      { type: 4, url: "u" },
      { type: 8, url: "u", name: "n" },
      { type: 99 },
      { type: 1001 },
      { type: 1001, content: "c", extra: [{ uid: "u1" }] },
    ])
      t.equal(
        await post(strict, json(content)),
        "400 bad_payload",
        `${JSON.stringify(content)} is refused`,
      );
    t.equal(await post(strict, json({ type: 77 })), "200 undefined");
    t.equal(await post(strict, json([1])), "400 bad_payload");
  },
);

// Covers [decisions: payload]
t.test("a payload may be any bytes in base64 if content.validation is opaque", async (t) => {
  const bytes = Buffer.from([0, 255, 1]).toString("base64");
  t.equal(await post(opaque, bytes), "200 undefined");
  t.equal(await post(opaque, "%%%"), "400 bad_payload");
});

// Covers [decisions: Limits]
t.test(
  "a payload of 65,536 decoded bytes is accepted, and a larger one is refused with too_large",
  async (t) => {
    const ofSize = (bytes: number) => {
      const frame = JSON.stringify({ type: 1, content: "" }).length;
      const content = "x".repeat(bytes - frame);
      return JSON.stringify({ type: 1, content });
    };
    t.equal(await post(world, base64(ofSize(65_536))), "200 undefined");
    t.equal(await post(world, base64(ofSize(65_537))), "400 too_large");
    const alice = await world.join(t, world.name("alice"));
    const send = (bytes: number) => alice.send(person("bob"), Buffer.from(ofSize(bytes)));
    t.equal((await send(65_536)).kind, "sendack");
    await t.rejects(send(65_537), { code: "too_large" });
  },
);
