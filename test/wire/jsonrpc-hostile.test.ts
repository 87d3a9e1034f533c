// JSON-RPC with hostile messages: each request becomes an operation or is refused with a response
// in valid JSON. The tests are seeded, and a failure names the seed that repeats it.

import { JSONRPC_FORMS } from "../../src/compat/wukongim/jsonrpc-view.ts";
import { createJsonRpcProtocol } from "../../src/protocol/jsonrpc/jsonrpc.ts";
import {
  type Codec,
  FrameError,
  type Frames,
  type Operation,
} from "../../src/protocol/protocol.ts";
import type { Json } from "../support/jsonrpc-client.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import { LIMITS } from "./native-codec.ts";

const protocol = createJsonRpcProtocol(LIMITS, JSONRPC_FORMS);
const MAX_MESSAGE_BYTES = 131_072;

const CONNECT = {
  ...{ uid: "ann", token: "t", deviceId: "d", deviceFlag: 1 },
  clientTimestamp: 1700000000000,
};
const CHANNEL = { channelId: "ben", channelType: 1 };
/** Number of randomly damaged messages. */
const ROUNDS = 5000;

const REQUESTS: readonly (readonly [method: string, params: Json])[] = [
  [
    "send",
    {
      ...CHANNEL,
      clientMsgNo: "c-1",
      payload: "eyJ0eXBlIjoxfQ==",
      header: { redDot: true, noPersist: false, syncOnce: false },
      setting: { receipt: true, topic: true },
      ...{ topic: "x", expire: 60, expireS: 60, streamNo: "s", tagKey: "g" },
    },
  ],
  ["recvack", { ...CHANNEL, messageId: "7", messageSeq: 7, header: { syncOnce: true } }],
  ["ping", {}],
  ["history", { ...CHANNEL, fromSeq: 1, toSeq: 0, limit: 9, reverse: true }],
  ["conversations", { limit: 9, cursor: "x", sinceMs: 5 }],
  ["conversation", { ...CHANNEL }],
  ["members", { ...CHANNEL, limit: 9, cursor: "x" }],
  ["conversation", { ...CHANNEL, change: "read", seq: 3 }],
  ["conversation", { ...CHANNEL, change: "unread", unread: 3 }],
  ["presence", { uids: ["ann", "ben"] }],
  ["watch", { uids: ["ann"] }],
  ["stream", { ...CHANNEL, clientMsgNo: "s-1" }],
  ["cancel", { ...CHANNEL, clientMsgNo: "s-1" }],
  ["commandack", { inboxSeqs: [1, 2] }],
  ["state", { foreground: false }],
  ["refresh", { token: "a.b.c" }],
  ["emit", { ...CHANNEL, type: "typing", data: "x" }],
  ["disconnect", {}],
];
const EXTENDED_CONNECT = {
  ...{ ...CONNECT, protocol: 1, deviceLevel: 0, session: "s" },
  resume: [{ ...CHANNEL, lastSeq: 4, lastId: 5 }],
};
const ALL: typeof REQUESTS = [...REQUESTS, ["connect", CONNECT], ["connect", EXTENDED_CONNECT]];

/** Returns a codec whose client has connected in the form that `params` selects. */
function connected(params: Json = EXTENDED_CONNECT): Codec {
  const codec = protocol.open();
  read(codec, { method: "connect", params, id: "c" });
  return codec;
}

function bytesOf(message: Json): Uint8Array {
  const text = typeof message === "string" ? message : JSON.stringify(message);
  return new Uint8Array(Buffer.from(text));
}

/**
 * Decodes a message. Returns its operations and, for each refusal, the response that the gateway
 * would send.
 */
function read(codec: Codec, message: Json): readonly (Operation | Json)[] {
  return decodeAll(codec, bytesOf(message));
}

function decodeAll(codec: Codec, data: Uint8Array): readonly (Operation | Json)[] {
  return [...codec.decode(data, true)].flatMap((request) => {
    if (!(request instanceof FrameError)) return request;
    if (request.fatal) throw new Error("a JSON-RPC error must not be fatal");
    const { code, ref, message } = request;
    const reply = { kind: "error", ref, code, message } as const;
    const response = codec.encodeReply({ ...reply, retryAfterMs: 0 });
    return response.length === 0 ? [] : parseResponse(response); // [] while a batch is incomplete
  });
}

/** Decodes a message while the rate limit refuses every request. */
function refusedBy(codec: Codec, message: Json): readonly (Operation | FrameError)[] {
  return [...codec.decode(bytesOf(message), true, () => false)];
}

function parseResponse(frames: Frames): Json {
  if (typeof frames !== "string") throw new Error("a response must be one text frame");
  return JSON.parse(frames);
}

/** Returns the error code of the last response. */
const codeOf = (read: readonly Json[]) => read.at(-1)?.error?.code;

t.test("every valid request decodes to the operation of its method", async (t) => {
  for (const [method, params] of ALL) {
    const codec = method === "connect" ? protocol.open() : connected();
    const [operation] = read(codec, { method, params, id: "1" });
    t.equal(operation?.kind, method, method);
  }
});

t.test("a message that is truncated at any byte is answered with a parse error", async (t) => {
  for (const [method, params] of ALL) {
    const message = bytesOf({ jsonrpc: "2.0", method, params, id: "1" });
    const codec = connected();
    const accepted = [...message.keys()].filter(
      (end) => codeOf(decodeAll(codec, message.subarray(0, end))) !== -32700,
    );
    t.same(accepted, [], method);
  }
});

t.test("a malformed request is refused with the matching JSON-RPC error code", async (t) => {
  const nested = (n: number) => `${"[".repeat(n)}${"]".repeat(n)}`;
  const rows: readonly (readonly [number, Json])[] = [
    [-32700, ""],
    [-32700, " \r\n\t"],
    [-32700, "{nope"],
    [-32700, "[".repeat(10_000)],
    [-32700, `{"a":${"{".repeat(10_000)}`],
    [-32600, "[".repeat(65_536)],
    [-32700, '{"method":"ping","id":"1"} trailing'],
    [-32600, nested(60_000)],
    [-32600, []],
    [-32600, [1]],
    [-32600, Array(101).fill({ method: "ping", id: "1" })],
    [-32700, '[{"method":"ping","id":"1"},]'],
    [-32700, '[{"method":"ping","id":"1"} {"method":"ping","id":"2"}]'],
    [-32700, '[{"method":"ping","id":"1"}]]'],
    [-32600, '"ping"'],
    [-32600, "null"],
    [-32600, "1e400"],
    [-32600, {}],
    [-32600, { id: "1" }],
    [-32600, { id: "1", method: null }],
    [-32600, { id: "1", method: 7 }],
    [-32600, { id: "1", method: "ping", jsonrpc: "1.0" }],
    [-32600, { id: "1", method: "ping", jsonrpc: 2 }],
    [-32600, { id: true, method: "ping" }],
    [-32600, { id: null, method: "ping" }],
    [-32600, { id: "", method: "ping" }],
    [-32600, { id: {}, method: "ping" }],
    [-32600, { id: "x".repeat(129), method: "ping" }],
    [-32600, { method: "ping" }],
    [-32601, { id: "1", method: "subscribe" }],
    [-32601, { id: "1", method: "__proto__" }],
    [-32601, { id: "1", method: "toString" }],
    [-32602, { id: "1", method: "ping", params: [] }],
    [-32602, { id: "1", method: "send", params: null }],
    [-32602, { id: "1", method: "ping", params: "x" }],
    [
      -32602,
      `{"id":"1","method":"send","params":{"channelId":"ben","channelType":1,"payload":{"a":${nested(10_000)}}}}`,
    ],
    [-32602, { id: "1", method: "send" }],
  ];
  const codec = connected();
  for (const [code, message] of rows) {
    const text = JSON.stringify(message).slice(0, 60);
    t.equal(codeOf(read(codec, message)), code, text);
    t.equal(read(codec, { method: "ping", id: "1" })[0]?.kind, "ping", "the connection continues");
  }
});

t.test(
  "null is treated as missing in jsonrpc, in params and in the id of a notification",
  async (t) => {
    const codec = connected();
    const unset = { jsonrpc: null, params: null };
    t.match(read(codec, { id: "1", method: "ping", ...unset }), [{ kind: "ping" }]);
    const params = { ...CHANNEL, messageSeq: 1, messageId: 1 };
    t.match(read(codec, { id: null, method: "recvack", params }), [{ kind: "recvack" }]);
    const emit = { ...CHANNEL, type: "typing" };
    t.match(read(codec, [{ id: null, method: "emit", params: emit }]), [{ kind: "emit" }]);
    t.match(read(codec, { id: null, method: "disconnect", ...unset }), [{ kind: "disconnect" }]);
    for (const method of ["ping", "history", "send"])
      t.equal(codeOf(read(codec, { id: null, method })), -32600, `${method} needs an id`);
  },
);

t.test("invalid UTF-8 in an id is answered with a parse error", async (t) => {
  const codec = connected();
  for (const bytes of [[0xff], [0xc0, 0x80], [0xed, 0xa0, 0x80], [0xf5]]) {
    const data = Buffer.concat([
      bytesOf('{"method":"ping","id":"'),
      Buffer.from(bytes),
      bytesOf('"}'),
    ]);
    t.equal(codeOf(decodeAll(codec, new Uint8Array(data))), -32700);
  }
});

t.test(
  "lone surrogates are refused in channel ids and labels, and accepted in the id of a request",
  async (t) => {
    const codec = connected();
    const send = (params: object) => codeOf(read(codec, { id: "1", method: "send", params }));
    const good = { ...CHANNEL, payload: "e30=" };
    t.equal(
      send({ ...good, channelId: "\ud800" }),
      16,
      "a channel id with a lone surrogate is refused",
    );
    t.equal(send({ ...good, clientMsgNo: "\udc00x" }), -32602);
    const [response] = read(codec, { id: "\ud800", method: "nope" });
    t.equal(response.id, "\ud800", "the response has the same id in valid UTF-8");
  },
);

t.test("a value of the wrong type is refused in every field that the protocol reads", async (t) => {
  const wrong: readonly Json[] = [[], {}, -1, 1.5, 2 ** 53, true, "\u0000@", [[]]];
  for (const [method, params] of ALL)
    for (const field of Object.keys(params)) {
      const kinds = new Set<string>();
      for (const value of wrong) {
        const codec = method === "connect" ? protocol.open() : connected();
        const changed = { ...params, [field]: value };
        const [result] = read(codec, { method, params: changed, id: "1" });
        kinds.add(result?.kind ?? "refused");
      }
      t.ok(
        kinds.has("refused") || isIgnored(method, field),
        `a wrong ${field} of ${method} is refused`,
      );
    }
});

/** Returns true if a form of JSON-RPC ignores the field in a request with this method. */
function isIgnored(method: string, field: string): boolean {
  const fields: Readonly<Record<string, readonly string[]>> = {
    send: ["setting", "topic", "expire"],
    recvack: ["header"],
    connect: ["clientTimestamp", "deviceLevel"],
  };
  return fields[method]?.includes(field) ?? false;
}

t.test(
  "the first 100 requests in a message are decoded, and the other requests get a single refusal",
  async (t) => {
    const codec = connected(CONNECT);
    const ping = (n: number) => JSON.stringify({ method: "ping", id: `${n}` });
    const two = read(codec, `${ping(1)} \n${ping(2)}`);
    t.same(
      two.map(({ kind }) => kind),
      ["ping", "ping"],
    );
    const mixed = read(codec, `${ping(1)}{bad}${ping(2)}`);
    t.same(
      mixed.map((request) => request.kind ?? request.error.code),
      ["ping", -32700],
    );
    const many = read(codec, ping(1).repeat(5000));
    t.equal(
      many.length,
      101,
      "100 requests are decoded, and all further requests get a single refusal",
    );
    t.equal(codeOf(many), -32700);
    t.equal(read(codec, "{}".repeat(MAX_MESSAGE_BYTES / 2)).length, 101);
  },
);

t.test("two open requests with the same id each get a response", async (t) => {
  const codec = connected(CONNECT);
  const refs = [1, 2].map(() => read(codec, { method: "ping", id: "same" })[0]?.ref);
  for (const ref of refs) {
    const frames = codec.encodeReply({ kind: "pong", ref, serverTimeMs: 1 });
    t.same(parseResponse(frames), { jsonrpc: "2.0", id: "same", result: {} });
  }
});

t.test("the refusal of a request over the rate limit has the id of the request", async (t) => {
  const codec = connected(CONNECT);
  const send = { method: "send", id: "s", params: { ...CHANNEL } };
  const answers = refusedBy(codec, send).map(({ ref }) =>
    parseResponse(
      codec.encodeReply({
        ...{ kind: "error", ref, code: "rate_limited" },
        ...{ message: "", retryAfterMs: 5 },
      }),
    ),
  );
  t.match(answers, [{ id: "s", result: { reasonCode: 22, messageSeq: 0 } }]);
  t.same(refusedBy(codec, "{nope"), []);
});

t.test("randomly damaged messages cause no errors except refusals", async (t) => {
  let refused = 0;
  for (let seed = 1; seed <= ROUNDS; seed++) {
    const random = new Random(seed);
    const codec = connected(random.pick([CONNECT, EXTENDED_CONNECT]));
    const [method, params] = random.pick(ALL);
    const bytes = bytesOf({ jsonrpc: "2.0", method, params, id: "1" });
    for (let i = 0; i <= random.below(3); i++)
      bytes[random.below(bytes.length)] = random.flip()
        ? random.below(256)
        : random.pick([...'{}[]":,0-9etfn\\']).charCodeAt(0);
    try {
      if (decodeAll(codec, bytes).some((request) => request.error ?? request.result)) refused++;
      for (const _ of codec.decode(bytes, true, () => false));
    } catch (error) {
      t.fail(`seed ${seed}: ${error}`);
      return;
    }
  }
  t.ok(refused > ROUNDS / 4 && refused < ROUNDS, `${refused} of ${ROUNDS} messages were refused`);
});

t.test(
  "a request over the rate limit is refused even if the value of `method` is not a string",
  async (t) => {
    for (const method of ['{"toString":null}', "[".repeat(5000) + "]".repeat(5000)]) {
      const codec = protocol.open();
      t.equal(refusedBy(codec, `{"id":"x","method":${method}}`).length, 1);
    }
  },
);

t.test("the id of a request is forgotten after the first response to the request", async (t) => {
  const requests: readonly (readonly [Json, boolean])[] = [
    [{ method: "ping", id: "1" }, true],
    [{ method: "send", id: "1", params: { ...CHANNEL, payload: "eyJ0eXBlIjoxfQ==" } }, true],
    [{ method: "nothing", id: "1" }, true],
    [{ method: "send", id: "1", params: [] }, true],
    [{ method: "presence", id: "1", params: { uids: 1 } }, true],
    [{ method: "ping", id: "1" }, false],
    ["{nope", true],
  ];
  for (const connect of [CONNECT, EXTENDED_CONNECT])
    for (const [request, isAdmitted] of requests) {
      const codec = connected(connect);
      const [decoded] = [...codec.decode(bytesOf(request), true, () => isAdmitted)];
      const ref = decoded?.ref ?? 0;
      const code = decoded instanceof FrameError ? decoded.code : "unavailable";
      const error = { kind: "error", ref, code, message: "", retryAfterMs: 0 } as const;
      const hasId = typeof request !== "string";
      const answer = parseResponse(codec.encodeReply(error));
      const noId = connect === CONNECT ? undefined : null; // WuKongIM's form has no null
      t.equal(answer.id, hasId ? "1" : noId, "the first reply has the id of the request");
      t.same(
        codec.encodeReply({ kind: "pong", ref, serverTimeMs: 1 }),
        [],
        "the request is forgotten",
      );
      const repeated = parseResponse(codec.encodeReply(error));
      t.equal(repeated.id, noId, "a second reply does not have the id");
    }
});
