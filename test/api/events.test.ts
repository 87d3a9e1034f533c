// Tests of the endpoint /event: how its body is read, and its replies [spec: POST /event, Event,
// Error messages of /event]. The effect of events is tested with the broker.

import { BrokerError, ERRORS } from "../../src/broker/errors.ts";
import type { EventInput } from "../../src/broker/streams.ts";
import { t } from "../support/suite.ts";
import { inject, startApi, type TestApi } from "./harness.ts";

const TARGET = "POST /event";
const EVENT = {
  client_msg_no: "s1",
  channel_id: "g1",
  channel_type: 2,
  event: { type: "___TextMessageContent" },
};

/** Returns the input of the last posted event. */
function lastInput(api: TestApi): EventInput {
  const [input] = api.calls.at(-1)?.args ?? [];
  return input as EventInput;
}

t.test("POST /event uses defaults for absent fields, with the system as the sender", async (t) => {
  const api = await startApi();
  const { status, json } = await inject(api, TARGET, { body: EVENT });
  t.equal(status, 200);
  t.same(json, { status: "ok" });
  t.same(lastInput(api), {
    channel: { id: "g1", type: 2 },
    fromUid: "",
    clientMsgNo: "s1",
    eventId: undefined,
    type: "___TextMessageContent",
    data: "",
    timestampMs: undefined,
    expireS: undefined,
    force: false,
  });
});

t.test("POST /event passes every field on to the broker", async (t) => {
  const api = await startApi();
  const event = {
    type: "weather",
    data: '{"t":21,"s":"☀️"}',
    timestamp: 1_700_000_000_123,
    id: "e-1",
  };
  const body = { ...EVENT, channel_type: 1, from_uid: "bot", expire: 60, event };
  await inject(api, `${TARGET}?force=1`, { body });
  t.same(lastInput(api), {
    channel: { id: "g1", type: 1 },
    fromUid: "bot",
    clientMsgNo: "s1",
    eventId: "e-1",
    type: "weather",
    data: '{"t":21,"s":"☀️"}',
    timestampMs: 1_700_000_000_123,
    expireS: 60,
    force: true,
  });
});

t.test("POST /event can end the channel's active stream only if force is 1", async (t) => {
  const api = await startApi();
  for (const [query, force] of [
    ["", false],
    ["?force=0", false],
    ["?force=1", true],
    ["?x=1", false],
    ["?force=", false],
    ["?force=true", false],
    ["?force=2", false],
  ] as const) {
    await inject(api, `${TARGET}${query}`, { body: EVENT });
    t.equal(lastInput(api).force, force, query);
  }
  const { json } = await inject(api, `${TARGET}?force=%zz`, { body: EVENT });
  t.match(json, { code: "bad_request" });
});

t.test("POST /event returns the state of the stream to which the event belongs", async (t) => {
  const api = await startApi();
  for (const state of ["active", "closed", "cancelled", "interrupted"] as const) {
    api.state = state;
    const { json } = await inject(api, TARGET, { body: EVENT });
    t.same(json, { status: "ok", stream: { state } });
  }
});

t.test("POST /event reports an empty event type before all other errors", async (t) => {
  const api = await startApi();
  for (const body of [
    {},
    { event: {} },
    { event: { type: "" } },
    { event: { type: null } },
    { ...EVENT, event: { data: "x" } },
    { channel_type: 9, event: { type: "", data: 5 } },
  ]) {
    const target = `${TARGET}?force=nonsense`;
    const { status, json } = await inject(api, target, { body });
    t.equal(status, 400);
    t.equal(json.error, "Event type cannot be empty");
    t.equal(json.code, "event_type_empty");
  }
  t.same(api.calls, []);
});

t.test("POST /event responds with 400 and the error messages of the specification", async (t) => {
  const api = await startApi();
  for (const [code, error] of [
    ["event_type_empty", "Event type cannot be empty"],
    ["stream_running", "Stream already running in channel"],
    ["stream_not_found", "Stream does not exist"],
    ["stream_closed", "Stream is already closed"],
  ] as const) {
    t.equal(ERRORS[code].message, error);
    api.failure = new BrokerError(code);
    const { json } = await inject(api, TARGET, { body: EVENT });
    t.same(json, { error, code, status: 400 });
  }
});

t.test(
  "POST /event returns 403 if sending is not permitted, 400 for exceeded limits, and 503 if the broker is overloaded or the store unreachable",
  async (t) => {
    const api = await startApi();
    for (const [code, status] of [
      ["not_subscriber", 403],
      ["channel_banned", 403],
      ["send_banned", 403],
      ["stranger_refused", 403],
      ["channel_disbanded", 403],
      ["too_large", 400],
      ["bad_request", 400],
      ["bad_id", 400],
      ["overloaded", 503],
      ["unavailable", 503],
    ] as const) {
      api.failure = new BrokerError(code);
      const { json } = await inject(api, TARGET, { body: EVENT });
      t.match(json, { code, status });
    }
  },
);

t.test("POST /event rejects an invalid field of a body and names it", async (t) => {
  const api = await startApi();
  const detailsOf = async (change: object) =>
    (await inject(api, TARGET, { body: { ...EVENT, ...change } })).json.details;
  const { event } = EVENT;
  for (const [change, path] of [
    [{ client_msg_no: undefined }, "client_msg_no"],
    [{ client_msg_no: "" }, "client_msg_no"],
    [{ client_msg_no: "x".repeat(129) }, "client_msg_no"],
    [{ channel_id: "a@b" }, "channel_id"],
    [{ channel_type: 3 }, "channel_type"],
    [{ channel_type: "2" }, "channel_type"],
    [{ from_uid: "a#b" }, "from_uid"],
    [{ from_uid: 7 }, "from_uid"],
    [{ event: "start" }, "event"],
    [{ event: [] }, "event"],
    [{ event: { type: 5 } }, "event.type"],
    [{ event: { ...event, data: { a: 1 } } }, "event.data"],
    [{ event: { ...event, timestamp: -1 } }, "event.timestamp"],
    [{ event: { ...event, timestamp: 1.5 } }, "event.timestamp"],
    [{ event: { ...event, timestamp: "1" } }, "event.timestamp"],
    [{ event: { ...event, id: "x".repeat(129) } }, "event.id"],
    [{ event: { ...event, id: 1 } }, "event.id"],
  ] as const)
    t.equal((await detailsOf(change))?.[0]?.path, path, JSON.stringify(change));
  t.same(api.calls, []);
});
