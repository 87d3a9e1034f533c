// Tests of the endpoints /message/send and /channel/messages.

import { BrokerError } from "../../src/broker/errors.ts";
import type { SendInput } from "../../src/broker/messages.ts";
import type { Message } from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";
import { inject, startApi, type TestApi } from "./harness.ts";

const TEXT = '{"type":1,"content":"hi"}';
const PAYLOAD = Buffer.from(TEXT).toString("base64");
const SEND = {
  payload: PAYLOAD,
  from_uid: "a",
  channel_id: "g1",
  channel_type: 2,
};
const TARGET = "POST /message/send";

/** Returns the input of the last send. */
function lastSend(api: TestApi): SendInput {
  const [input] = api.calls.at(-1)?.args ?? [];
  return input as SendInput;
}

t.test(
  "POST /message/send returns exactly message_id, message_seq and client_msg_no",
  async (t) => {
    const api = await startApi();
    api.sendResult = {
      messageId: 2 ** 53 - 1,
      messageSeq: 12,
      clientMsgNo: 'c"1\u2028',
      repeated: false,
    };
    const { status, json } = await inject(api, TARGET, { body: SEND });
    t.equal(status, 200);
    t.same(json, {
      message_id: 2 ** 53 - 1,
      message_seq: 12,
      client_msg_no: 'c"1\u2028',
    });
  },
);

t.test("POST /message/send uses defaults for absent fields", async (t) => {
  const api = await startApi();
  await inject(api, TARGET, { body: SEND });
  const input = lastSend(api);
  t.equal(Buffer.from(input.payload).toString(), TEXT);
  t.same(
    { ...input, payload: undefined },
    {
      fromUid: "a",
      channel: { id: "g1", type: 2 },
      clientMsgNo: undefined,
      header: { noPersist: false, redDot: false, syncOnce: false },
      expireS: 0,
      streamNo: undefined,
      tagKey: undefined,
      payload: undefined,
      subscribers: undefined,
      origin: undefined,
    },
  );
});

t.test("POST /message/send passes every field on to the broker", async (t) => {
  const api = await startApi();
  const header = { no_persist: 1, red_dot: 1, sync_once: 1 };
  const optionalFields = {
    client_msg_no: "c1",
    stream_no: "s1",
    expire: 60,
    subscribers: ["b"],
    tag_key: "k",
  };
  await inject(api, TARGET, { body: { ...SEND, header, ...optionalFields } });
  t.match(api.calls[0]?.args, [
    {
      clientMsgNo: "c1",
      header: { noPersist: true, redDot: true, syncOnce: true },
      expireS: 60,
      streamNo: "s1",
      tagKey: "k",
      subscribers: ["b"],
    },
  ]);
});

t.test(
  "POST /message/send treats an empty optional string or list like an absent one",
  async (t) => {
    const api = await startApi();
    const empty = { client_msg_no: "", stream_no: "", tag_key: "", subscribers: [] };
    await inject(api, TARGET, { body: { ...SEND, ...empty } });
    t.match(api.calls[0]?.args, [
      {
        ...{ clientMsgNo: undefined, streamNo: undefined, tagKey: undefined },
        subscribers: undefined,
      },
    ]);
  },
);

t.test(
  "POST /message/send rejects a payload that is not canonical standard base64 with 400",
  async (t) => {
    const api = await startApi();
    const invalid = [
      "a",
      "ab",
      "YQ",
      "YQ=",
      "YQ===",
      "YR==",
      "Y Q=",
      "YQ==\n",
      "_-8=",
      "YQ==YQ==",
      "=",
      "é+==",
      "\u0159\u0151==",
      "{}",
    ];
    for (const payload of invalid) {
      const { status, json } = await inject(api, TARGET, {
        body: { ...SEND, payload },
      });
      t.equal(status, 400, JSON.stringify(payload));
      t.match(json, { code: "bad_payload", details: [{ path: "payload" }] });
    }
    for (const payload of ["", null, 1, { type: 1 }])
      t.equal((await inject(api, TARGET, { body: { ...SEND, payload } })).status, 400);
    t.same(api.calls, []);
  },
);

t.test(
  "POST /message/send passes on every payload unchanged, whatever its bytes and length",
  async (t) => {
    const api = await startApi();
    for (let length = 1; length < 300; length++) {
      const bytes = Buffer.from(Array.from({ length }, (_, i) => (i * 7 + length) & 255));
      const body = { ...SEND, payload: bytes.toString("base64") };
      await inject(api, TARGET, { body });
      const input = lastSend(api);
      if (!bytes.equals(input.payload)) t.fail(`a payload of ${length} bytes was changed`);
    }
    t.equal(api.calls.length, 299);
  },
);

t.test("POST /message/send rejects an invalid field with 400 and names it", async (t) => {
  const api = await startApi();
  const cases: readonly [object, string][] = [
    [{ payload: undefined }, "payload"],
    [{ from_uid: undefined }, "from_uid"],
    [{ from_uid: "" }, "from_uid"],
    [{ from_uid: 5 }, "from_uid"],
    [{ channel_id: undefined }, "channel_id"],
    [{ channel_id: "a@b" }, "channel_id"],
    [{ channel_type: undefined }, "channel_type"],
    [{ channel_type: 3 }, "channel_type"],
    [{ channel_type: "2" }, "channel_type"],
    [{ header: [] }, "header"],
    [{ header: { no_persist: 2 } }, "header.no_persist"],
    [{ header: { red_dot: true } }, "header.red_dot"],
    [{ header: { sync_once: "1" } }, "header.sync_once"],
    [{ expire: -1 }, "expire"],
    [{ expire: 1.5 }, "expire"],
    [{ expire: "60" }, "expire"],
    [{ expire: 4_294_967_296 }, "expire"],
    [{ client_msg_no: "x".repeat(129) }, "client_msg_no"],
    [{ client_msg_no: 5 }, "client_msg_no"],
    [{ stream_no: "x".repeat(129) }, "stream_no"],
    [{ tag_key: "x".repeat(129) }, "tag_key"],
    [{ tag_key: {} }, "tag_key"],
    [{ subscribers: [""] }, "subscribers.0"],
    [{ subscribers: Array(10_001).fill("a") }, "subscribers"],
  ];
  for (const [change, path] of cases) {
    const { status, json } = await inject(api, TARGET, {
      body: { ...SEND, ...change },
    });
    t.equal(status, 400, path);
    t.match(json.details, [{ path }]);
  }
  t.same(api.calls, []);
});

t.test(
  "POST /message/send returns 403 if sending is not permitted, 400 for invalid content and exceeded limits, and 503 if the store is unreachable",
  async (t) => {
    const api = await startApi();
    for (const [code, status] of [
      ["channel_banned", 403],
      ["send_banned", 403],
      ["not_subscriber", 403],
      ["stranger_refused", 403],
      ["channel_disbanded", 403],
      ["bad_payload", 400],
      ["bad_id", 400],
      ["too_large", 400],
      ["bad_request", 400],
      ["unavailable", 503],
      ["overloaded", 503],
    ] as const) {
      api.failure = new BrokerError(code);
      const { json } = await inject(api, TARGET, { body: SEND });
      t.match(json, { code, status });
    }
  },
);

const MESSAGE: Message = {
  messageId: 9_007_199_254_740_991,
  messageSeq: 4,
  key: "1:a@b",
  channel: { id: "b", type: 1 },
  fromUid: "a",
  clientMsgNo: "c1",
  timestampMs: 1_700_000_000_999,
  header: { noPersist: false, redDot: true },
  expireS: 60,
  streamNo: undefined,
  tagKey: "k",
  payload: new Uint8Array(Buffer.from(`xx${TEXT}`)).subarray(2),
  stream: undefined,
};

t.test(
  "GET /channel/messages returns messages with all fields, the head seq, and whether there are more messages",
  async (t) => {
    const api = await startApi();
    api.page = { messages: [MESSAGE], headSeq: 9, more: true };
    const { json } = await inject(api, "GET /channel/messages?channel_id=b&channel_type=1&uid=a");
    t.same(json, {
      messages: [
        {
          message_id: 9_007_199_254_740_991,
          message_idstr: "9007199254740991",
          message_seq: 4,
          client_msg_no: "c1",
          from_uid: "a",
          channel_id: "b",
          channel_type: 1,
          timestamp: 1_700_000_000,
          timestamp_ms: 1_700_000_000_999,
          header: { no_persist: 0, red_dot: 1, sync_once: 0 },
          expire: 60,
          stream_no: "",
          tag_key: "k",
          payload: PAYLOAD,
        },
      ],
      head_seq: 9,
      more: 1,
    });
  },
);

t.test(
  "GET /channel/messages requires uid for a personal channel and returns the uid of the other user as the channel id",
  async (t) => {
    const api = await startApi();
    api.page = { messages: [MESSAGE], headSeq: 4, more: false };
    const asViewer = await inject(api, "GET /channel/messages?channel_id=a&channel_type=1&uid=b");
    t.match(asViewer.json, { messages: [{ channel_id: "a" }], more: 0 });
    const withoutUid = await inject(api, "GET /channel/messages?channel_id=a&channel_type=1");
    t.match(withoutUid.json, { status: 400, details: [{ path: "uid" }] });
    t.equal(api.calls.length, 1);
  },
);

t.test(
  "GET /channel/messages returns the 50 oldest messages of the channel by default",
  async (t) => {
    const api = await startApi();
    const group = "GET /channel/messages?channel_id=g%201&channel_type=2";
    const fullRange = { fromSeq: 1, toSeq: Number.MAX_SAFE_INTEGER };
    const historyArgs = async (more: string) => {
      await inject(api, group + more);
      return api.calls.at(-1)?.args;
    };
    const viewer = { channel: { id: "g 1", type: 2 }, uid: undefined };
    t.match(await historyArgs(""), [viewer, { ...fullRange, limit: 50, reverse: false }]);
    t.match(await historyArgs("&from_seq=0&to_seq=0&order=desc&limit=500"), [
      viewer,
      { fromSeq: 0, toSeq: fullRange.toSeq, limit: 500, reverse: true },
    ]);
    t.match(await historyArgs("&from_seq=5&to_seq=7&uid=a+b&order=asc&unknown=1"), [
      { ...viewer, uid: "a b" },
      { fromSeq: 5, toSeq: 7, reverse: false },
    ]);
  },
);

t.test("GET /channel/messages rejects an invalid parameter with 400 and names it", async (t) => {
  const api = await startApi();
  for (const [query, path] of [
    ["", "channel_id"],
    ["channel_id=g", "channel_type"],
    ["channel_type=2", "channel_id"],
    ["channel_id=&channel_type=2", "channel_id"],
    ["channel_id=a%40b&channel_type=2", "channel_id"],
    ["channel_id=g&channel_type=3", "channel_type"],
    ["channel_id=g&channel_type=2.0", "channel_type"],
    ["channel_id=g&channel_type=2&limit=0", "limit"],
    ["channel_id=g&channel_type=2&limit=501", "limit"],
    ["channel_id=g&channel_type=2&limit=", "limit"],
    ["channel_id=g&channel_type=2&limit=1e2", "limit"],
    ["channel_id=g&channel_type=2&from_seq=-1", "from_seq"],
    ["channel_id=g&channel_type=2&to_seq=9007199254740992", "to_seq"],
    ["channel_id=g&channel_type=2&to_seq=99999999999999999", "to_seq"],
    ["channel_id=g&channel_type=2&order=up", "order"],
    ["channel_id=g&channel_type=2&uid=%23", "uid"],
  ]) {
    const { json } = await inject(api, `GET /channel/messages?${query}`);
    t.match(json, { status: 400, details: [{ path }] });
  }
  const broken = "channel_id=%ff&channel_type=2";
  t.equal((await inject(api, `GET /channel/messages?${broken}`)).status, 400);
  t.same(api.calls, []);
});
