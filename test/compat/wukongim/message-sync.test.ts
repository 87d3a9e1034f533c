// Tests of the endpoints with which backends serve clients that fetch their messages
// (/channel/messagesync, /messages, /channel/max_message_seq, /message/sync and /message/syncack),
// and of /message/sendbatch.

import { BrokerError } from "../../../src/broker/errors.ts";
import type { SendInput } from "../../../src/broker/messages.ts";
import type { Message, StreamState } from "../../../src/broker/model.ts";
import { inject, startApi } from "../../api/harness.ts";
import { t } from "../../support/suite.ts";

const TEXT = '{"type":1,"content":"hi"}';
const PAYLOAD = Buffer.from(TEXT).toString("base64");
const GROUP = { channel_id: "g1", channel_type: 2 };
const MAX_SEQ = Number.MAX_SAFE_INTEGER;

function message(seq: number, fields: Partial<Message> = {}): Message {
  return {
    messageId: 100 + seq,
    messageSeq: seq,
    key: "2:g1",
    channel: { id: "g1", type: 2 },
    fromUid: "a",
    clientMsgNo: `c${seq}`,
    timestampMs: 1_700_000_000_999,
    header: { noPersist: false, redDot: true },
    expireS: 0,
    streamNo: undefined,
    tagKey: undefined,
    payload: Buffer.from(TEXT),
    stream: undefined,
    ...fields,
  };
}

t.test(
  "POST /channel/messagesync reads the range between start_message_seq and end_message_seq in the direction of pull_mode",
  async (t) => {
    const cases = [
      [{}, { fromSeq: 1, toSeq: MAX_SEQ, reverse: true }],
      [{ pull_mode: 1 }, { fromSeq: 1, toSeq: MAX_SEQ, reverse: true }],
      [{ start_message_seq: 9 }, { fromSeq: 1, toSeq: 9, reverse: true }],
      [
        { start_message_seq: 9, end_message_seq: 4 },
        { fromSeq: 5, toSeq: 9, reverse: true },
      ],
      [{ end_message_seq: 4 }, { fromSeq: 5, toSeq: MAX_SEQ, reverse: true }],
      [
        { start_message_seq: 4, pull_mode: 1 },
        { fromSeq: 4, toSeq: MAX_SEQ, reverse: false },
      ],
      [
        { start_message_seq: 4, end_message_seq: 9, pull_mode: 1 },
        { fromSeq: 4, toSeq: 8, reverse: false },
      ],
    ] as const;
    for (const [fields, range] of cases) {
      const api = await startApi();
      const body = { ...GROUP, ...fields, limit: 7 };
      await inject(api, "POST /channel/messagesync", { body });
      t.match(api.calls[0]?.args[1], { ...range, limit: 7 });
    }
    const api = await startApi();
    const emptyRange = { ...GROUP, start_message_seq: 4, end_message_seq: 9 };
    const { json } = await inject(api, "POST /channel/messagesync", {
      body: emptyRange,
    });
    t.match(json, { messages: [], more: 0 }, "a range in the wrong direction is empty");
    t.same(api.calls, []);
  },
);

t.test(
  "POST /channel/messagesync returns messages in ascending order, with the fields that WuKongIM's SDKs read",
  async (t) => {
    const api = await startApi();
    const messages = [message(2), message(1)];
    api.page = { messages, headSeq: 2, more: true };
    const body = { ...GROUP, start_message_seq: 2, limit: 0 };
    const { json } = await inject(api, "POST /channel/messagesync", { body });
    t.match(json, { start_message_seq: 2, end_message_seq: 0, more: 1 });
    t.same(
      json.messages.map(({ message_seq }: Json) => message_seq),
      [1, 2],
    );
    t.match(json.messages[0], {
      header: { no_persist: 0, red_dot: 1, sync_once: 0 },
      setting: 0,
      message_id: 101,
      message_idstr: "101",
      timestamp: 1_700_000_000,
      ...GROUP,
      from_uid: "a",
      payload: PAYLOAD,
    });
    t.notOk("end" in json.messages[0]);
    t.match(api.calls[0]?.args[1], { limit: 100 });
  },
);

type Json = Readonly<Record<string, unknown>>;

t.test(
  "the message of an ended stream has `end` 1, and the reason if the stream was interrupted or cancelled",
  async (t) => {
    const cases: readonly (readonly [StreamState, Json])[] = [
      ["active", {}],
      ["closed", { end: 1 }],
      ["interrupted", { end: 1, end_reason: 1, error: "interrupted" }],
      ["cancelled", { end: 1, end_reason: 3, error: "cancelled" }],
    ];
    for (const [state, end] of cases) {
      const api = await startApi();
      const stream = { ...api.stream.snapshot(), state, text: "Hello" };
      const messages = [message(1, { stream })];
      api.page = { messages, headSeq: 1, more: false };
      const { json } = await inject(api, "POST /messages", {
        body: { ...GROUP, message_seqs: [1] },
      });
      const { setting, end: isOver, end_reason, error } = json.messages[0];
      t.match({ setting }, { setting: 2 });
      const actual = { end: isOver, end_reason, error };
      t.match(actual, { end: undefined, ...end });
      t.equal(json.messages[0].stream_data, btoa("Hello"));
      t.match(json.messages[0].stream, { state, text: "Hello" });
    }
  },
);

t.test(
  "the field `setting` of a message contains the sender's bits, and bits that mark a topic and a stream",
  async (t) => {
    const api = await startApi();
    const stream = api.stream.snapshot();
    const passthrough = { setting: 0x80, topic: "news" };
    const messages = [
      message(1, { passthrough }),
      message(2, { passthrough, stream }),
      message(3, { passthrough: { setting: 0x80, topic: "" } }),
    ];
    api.page = { messages, headSeq: 3, more: false };
    api.inbox = messages.map((message) => ({ inboxSeq: 1, message }));
    const body = { ...GROUP, uid: "a", start_message_seq: 1, pull_mode: 1 };
    for (const path of ["/channel/messagesync", "/messages", "/message/sync"]) {
      const { json } = await inject(api, `POST ${path}`, { body });
      const returned: readonly Json[] = json.messages ?? json;
      t.same(
        returned.map(({ setting, topic }) => [setting, topic]),
        [
          [0x88, "news"],
          [0x8a, "news"],
          [0x80, undefined],
        ],
      );
    }
  },
);

t.test(
  "the calls /channel/messagesync, /messages and /channel/max_message_seq require login_uid for a personal channel",
  async (t) => {
    const person = { channel_id: "b", channel_type: 1 };
    for (const path of ["/channel/messagesync", "/messages"]) {
      const api = await startApi();
      const { json } = await inject(api, `POST ${path}`, { body: person });
      t.match(json, { status: 400, details: [{ path: "login_uid" }] });
      const body = { ...person, login_uid: "a" };
      const { status } = await inject(api, `POST ${path}`, { body });
      t.equal(status, 200);
      t.match(api.calls[0]?.args[0], { uid: "a", channel: { type: 1 } });
    }
    const api = await startApi();
    api.page = { messages: [], headSeq: 8, more: false };
    const target = "GET /channel/max_message_seq?channel_id=b&channel_type=1";
    t.equal((await inject(api, target)).status, 400);
    const { json } = await inject(api, `${target}&login_uid=a`);
    t.same(json, { message_seq: 8 });
  },
);

t.test(
  "POST /messages finds messages by seq, id and client_msg_no, up to 100 of each",
  async (t) => {
    const api = await startApi();
    const messages = [message(3), message(5)];
    api.page = { messages, headSeq: 5, more: false };
    const { json } = await inject(api, "POST /messages", {
      body: {
        ...GROUP,
        message_seqs: [3],
        message_ids: [105],
        client_msg_nos: ["c"],
      },
    });
    t.match(json, { start_message_seq: 3, end_message_seq: 5, more: 0 });
    const criteria = { seqs: [3], ids: [105], clientMsgNos: ["c"] };
    t.match(api.calls[0]?.args[1], { ...criteria, maxBytes: 8 * 1024 * 1024 });
    api.page = { messages, headSeq: 5, more: true };
    const partial = await inject(api, "POST /messages", { body: GROUP });
    t.match(partial.json, { more: 1 });
    const message_seqs = Array.from({ length: 101 }, (_, at) => at);
    const { status } = await inject(api, "POST /messages", {
      body: { ...GROUP, message_seqs },
    });
    t.equal(status, 400);
  },
);

t.test(
  "POST /message/sync returns commands with their inbox seqs, and /message/syncack acknowledges all commands up to an inbox seq",
  async (t) => {
    const api = await startApi();
    api.inbox = [{ inboxSeq: 4, message: message(4) }];
    const body = { uid: "a", message_seq: 0, limit: 5 };
    const { json } = await inject(api, "POST /message/sync", { body });
    t.match(json, [{ message_seq: 4, header: { sync_once: 1 }, setting: 0 }]);
    await inject(api, "POST /message/sync", { body: { uid: "a" } });
    const ack = { uid: "a", last_message_seq: 4 };
    const acknowledged = await inject(api, "POST /message/syncack", { body: ack });
    t.same(acknowledged.json, { status: "ok" });
    t.same(
      api.calls.map(({ call, args }) => [call, ...args]),
      [
        ["unread", "a", 5],
        ["unread", "a", 200],
        ["acknowledgeThrough", "a", 4],
      ],
    );
    const zero = { uid: "a", last_message_seq: 0 };
    t.equal((await inject(api, "POST /message/syncack", { body: zero })).status, 400);
  },
);

t.test(
  "POST /message/sendbatch sends each user a personal message and returns the users to whom the send failed",
  async (t) => {
    const api = await startApi();
    const BATCH = { from_uid: "a", payload: PAYLOAD };
    const body = { ...BATCH, subscribers: ["b", "c", "b"] };
    const { json } = await inject(api, "POST /message/sendbatch", { body });
    t.same(json, { fail_uids: [], reason: [] });
    const inputs = api.calls.map(({ args: [input] }) => input as SendInput);
    t.same(
      inputs.map(({ channel }) => channel),
      [
        { id: "b", type: 1 },
        { id: "c", type: 1 },
      ],
    );
    t.match(inputs[0], { fromUid: "a", clientMsgNo: undefined });
    api.failure = new BrokerError("stranger_refused", { message: "no" });
    const rejected = await inject(api, "POST /message/sendbatch", { body });
    t.same(rejected.json, { fail_uids: ["b", "c"], reason: ["no", "no"] });
    api.failure = new BrokerError("bad_payload");
    t.match((await inject(api, "POST /message/sendbatch", { body })).json, {
      status: 400,
      code: "bad_payload",
    });
    const noSubscribers = { ...BATCH, subscribers: [] };
    const notBase64 = { ...body, payload: "%" };
    for (const invalid of [noSubscribers, notBase64]) {
      const answer = await inject(api, "POST /message/sendbatch", {
        body: invalid,
      });
      t.equal(answer.status, 400);
    }
  },
);
