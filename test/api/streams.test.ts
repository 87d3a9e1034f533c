// Tests of GET /stream, which reads the state of a stream, and of who may call it: backends and
// viewers. stream-feed.test.ts tests how a stream is followed.

import { createViewers } from "../../src/api/viewers.ts";
import { createCredentials } from "../../src/broker/credentials.ts";
import { BrokerError } from "../../src/broker/errors.ts";
import { STREAM_CONTENT, STREAM_END, STREAM_START } from "../../src/broker/model.ts";
import { hashToken } from "../../src/broker/tokens.ts";
import { t } from "../support/suite.ts";
import { inject, startApi, type TestApi } from "./harness.ts";

const TARGET = "GET /stream/2/g1/answer";

/** Adds a start, two pieces of text and a tool call to the stream. */
function addEvents({ stream }: TestApi): void {
  stream.add(STREAM_START, "meta");
  stream.add(STREAM_CONTENT, "Hello ");
  stream.add("___ToolCallStart", "weather");
  stream.add(STREAM_CONTENT, "world");
}

t.test("GET /stream returns the state of a stream with its text and tool calls", async (t) => {
  const api = await startApi();
  addEvents(api);
  const { status, json } = await inject(api, TARGET);
  t.equal(status, 200);
  t.same(json, {
    state: "active",
    text: "Hello world",
    next_index: 4,
    start_data: "meta",
    end_data: null,
    events: [
      {
        index: 2,
        text_offset: 6,
        id: "e2",
        type: "___ToolCallStart",
        data: "weather",
        timestamp: api.stream.events[2]?.timestampMs,
      },
    ],
    log: "/v1/stream/channel/2/g/answer",
    client_msg_no: "answer",
    from_uid: "bot",
    message_id: api.stream.snapshot().messageId,
    message_seq: 7,
  });
  api.stream.add(STREAM_END, "", "interrupted");
  t.match((await inject(api, TARGET)).json, {
    state: "interrupted",
    end_data: "",
    next_index: 5,
  });
});

t.test("GET /stream decodes percent-encoded segments of its path", async (t) => {
  const api = await startApi();
  await inject(api, "GET /stream/1/J%C3%BCrgen/a%2Fb%3Ac?uid=alice");
  t.same(api.calls.at(-1), {
    call: "read",
    args: [{ channel: { id: "Jürgen", type: 1 }, uid: "alice" }, "a/b:c"],
  });
});

t.test(
  "GET /stream requires uid for a personal channel, and an error names the invalid parameter",
  async (t) => {
    const api = await startApi();
    for (const [target, path] of [
      ["GET /stream/1/bob/answer", "uid"],
      ["GET /stream/3/g1/answer", "channel_type"],
      ["GET /stream/two/g1/answer", "channel_type"],
      ["GET /stream/2/a%40b/answer", "channel_id"],
      [`GET /stream/2/g1/${"x".repeat(129)}`, "client_msg_no"],
      [`${TARGET}?from=-1`, "from"],
      [`${TARGET}?from=x`, "from"],
      [`${TARGET}?token=t`, "uid"],
      [`${TARGET}?token=t&uid=a&device_flag=3`, "device_flag"],
    ] as const) {
      const { status, json } = await inject(api, target);
      t.equal(status, 400, target);
      t.equal(json.details[0].path, path, target);
    }
    const headers = { "last-event-id": "nonsense" };
    t.equal((await inject(api, TARGET, { headers })).status, 400);
    t.same(api.calls, []);
  },
);

t.test("GET /stream returns 404 for an unknown stream", async (t) => {
  const api = await startApi();
  api.failure = new BrokerError("stream_unknown");
  t.match((await inject(api, TARGET)).json, {
    status: 404,
    code: "stream_unknown",
  });
});

t.test("GET /channel/messages returns a message together with its stream", async (t) => {
  const api = await startApi();
  addEvents(api);
  const stream = api.stream.snapshot();
  const { key, channel, fromUid, clientMsgNo, messageId, messageSeq } = stream;
  const message = {
    ...{ key, channel, fromUid, clientMsgNo, messageId, messageSeq, stream },
    timestampMs: 1,
    header: { noPersist: false, redDot: true },
    expireS: 0,
    streamNo: undefined,
    tagKey: undefined,
    payload: Buffer.from('{"type":1,"content":"Hello world"}'),
  };
  api.page = { messages: [message], headSeq: 7, more: false };
  const { json } = await inject(api, "GET /channel/messages?channel_id=g1&channel_type=2");
  t.match(json.messages[0].stream, { state: "active", text: "Hello world" });
});

// --- Viewers -------------------------------------------------------------------------------------

const UNLIMITED = { requirePaid: () => {}, begin: () => () => {} };
const CAROL = { uid: "carol", flag: 1 as const };
const viewers = createViewers({
  store: {
    isBanned: async () => false,
    device: async (uid, flag) =>
      uid === CAROL.uid && flag === CAROL.flag
        ? { uid, flag, level: 0, tokenHash: hashToken("carols") }
        : undefined,
    groupFacts: (id, uid) => ({
      info: undefined,
      isSubscriber: id === "g1" && uid === CAROL.uid,
      ...{ isDenied: false, hasAllowlist: false, isAllowed: false },
    }),
  },
  credentials: createCredentials("token"),
  allowsOrigin: (origin) => origin !== "https://evil.example",
  tokens: { attempt: (_bearer, check) => check() },
  budget: UNLIMITED,
  clock: Date.now,
});

/** Starts a control plane that requires a credential, with a stream that has events. */
const startProtected = () =>
  startApi({ requiresCredential: true }, {}, { viewers }).then((api) => {
    addEvents(api);
    return api;
  });

t.test(
  "a viewer can read a stream with the token of a device, in the query string or in headers",
  async (t) => {
    const api = await startProtected();
    const query = "uid=carol&token=carols";
    const origin = { origin: "https://app.example" };
    const headers = { "x-uid": "carol", "x-token": "carols" };
    for (const [target, callHeaders] of [
      [`${TARGET}?${query}`, {}],
      [`${TARGET}?${query}&device_flag=1`, origin],
      [TARGET, headers],
      [TARGET, { ...headers, "x-device-flag": "1" }],
      [`${TARGET}?uid=mallory&token=x`, headers],
      [`GET /stream/1/bob/answer?${query}`, {}],
    ] as const) {
      const answer = await inject(api, target, { headers: callHeaders });
      t.equal(
        answer.status,
        200,
        `${target} is served with the headers ${JSON.stringify(callHeaders)}`,
      );
      t.equal(answer.headers["access-control-allow-origin"], "*");
    }
    t.same(api.calls.at(-1)?.args, [{ channel: { id: "bob", type: 1 }, uid: "carol" }, "answer"]);
  },
);

t.test(
  "the headers x-uid* and x-token* in the form of RFC 8187 replace the plain headers, and are rejected if they are malformed",
  async (t) => {
    const api = await startProtected();
    for (const [headers, status] of [
      [{ "x-uid*": "UTF-8''c%61rol", "x-token*": "utf-8'en'carols" }, 200],
      [{ "x-uid*": "UTF-8''carol", "x-uid": "mallory", "x-token": "carols" }, 200],
      [{ "x-uid": "carol", "x-token*": "UTF-8''other" }, 401],
      [{ "x-uid*": "carol", "x-token": "carols" }, 400],
      [{ "x-uid*": "UTF-8''%C3%28", "x-token": "carols" }, 400],
      [{ "x-uid": "carol", "x-token*": "ISO-8859-1''carols" }, 400],
      [{ "x-uid": "carol", "x-token*": "UTF-8''%zz" }, 400],
    ] as const) {
      const answer = await inject(api, TARGET, { headers });
      t.equal(answer.status, status, JSON.stringify(headers));
    }
  },
);

t.test(
  "a caller who is not a viewer of the stream is rejected, and web pages can read the error",
  async (t) => {
    const api = await startProtected();
    for (const [target, status, code] of [
      [TARGET, 401, "unauthorized"],
      [`${TARGET}?uid=carol`, 401, "unauthorized"],
      [`${TARGET}?uid=carol&token=`, 401, "unauthorized"],
      [`${TARGET}?uid=carol&token=other`, 401, "unauthorized"],
      [`${TARGET}?uid=carol&token=carols&device_flag=0`, 401, "unauthorized"],
      [`${TARGET}?uid=dave&token=carols`, 401, "unauthorized"],
      [`${TARGET}?uid=____system&token=carols`, 401, "unauthorized"],
      ["GET /stream/2/g2/answer?uid=carol&token=carols", 404, "not_in_channel"],
      [`${TARGET}?uid=a%40b&token=carols`, 400, "bad_id"],
    ] as const) {
      const { json, headers } = await inject(api, target);
      t.match(json, { status, code }, target);
      t.equal(headers["access-control-allow-origin"], "*");
    }
    const headers = { origin: "https://evil.example" };
    const target = `${TARGET}?uid=carol&token=carols`;
    t.equal((await inject(api, target, { headers })).status, 403);
    t.same(api.calls, [], "the stream was not read");
  },
);

t.test(
  "the system uid cannot read a stream as a viewer, even if tokens are not checked",
  async (t) => {
    const anyToken = createViewers({
      store: {
        isBanned: async () => false,
        device: async () => undefined,
        groupFacts: () => ({
          ...{ info: undefined, isSubscriber: true },
          ...{ isDenied: false, hasAllowlist: false, isAllowed: false },
        }),
      },
      credentials: createCredentials("none"),
      allowsOrigin: () => true,
      tokens: { attempt: (_bearer, check) => check() },
      budget: UNLIMITED,
      clock: Date.now,
    });
    const api = await startApi({}, {}, { viewers: anyToken });
    const status = async (uid: string) => (await inject(api, `${TARGET}?token=&uid=${uid}`)).status;
    t.equal(await status("anybody"), 200);
    t.equal(await status("____system"), 401);
  },
);

t.test(
  "the reply to a preflight request for a stream lists the headers that a viewer may send",
  async (t) => {
    const api = await startApi();
    const { endpoint } = api;
    const request = (path: string) => ({
      ...{ method: "OPTIONS", path, query: "", remoteAddress: "", isProxied: false },
      ...{ headers: {}, params: [], body: new Uint8Array(), scheme: "http" as const },
      onAborted() {},
    });
    const stream = endpoint.wrongMethod(request("/stream/2/g1/answer"), "GET");
    t.equal(stream.status, 204);
    t.match(stream.headers, {
      "access-control-allow-origin": "*",
      "access-control-allow-headers": /^\*,last-event-id,x-uid,x-uid\*,x-token,/,
    });
    const send = endpoint.wrongMethod(request("/message/send"), "POST");
    t.equal(send.status, 405);
    t.equal(send.headers?.["access-control-allow-origin"], undefined);
  },
);
