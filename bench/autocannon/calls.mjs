// HTTP API calls, as autocannon requests. autocannon replaces `[<id>]` with a new id in each
// request. If a call has several requests, each connection sends them in turn.

const GROUP = { channel_id: "bench", channel_type: 2 };
const PAYLOAD = btoa(JSON.stringify({ type: 1, content: "x".repeat(178) })); // 200 bytes

const post = (path, body) => ({
  method: "POST",
  path,
  headers: { "content-type": "application/json" },
  body: JSON.stringify(body),
});

/** Requests that create the user and the group that the calls use. 409 means the group exists. */
export const PREPARE = [
  post("/user/token", { uid: "alice", token: "alice-secret", device_flag: 0 }),
  post("/channel", { ...GROUP, subscribers: ["alice"] }),
];

/** A complete stream with ten chunks. Each connection sends its streams to a channel of its own. */
const STREAM = [
  "___TextMessageStart",
  ...Array(10).fill("___TextMessageContent"),
  "___TextMessageEnd",
];

export const CALLS = {
  "user-token": [post("/user/token", { uid: "user-[<id>]", token: "secret", device_flag: 0 })],
  "user-onlinestatus": [post("/user/onlinestatus", ["alice", "bob"])],
  channel: [post("/channel", { channel_id: "[<id>]", channel_type: 2, subscribers: ["alice"] })],
  "channel-subscriber_remove": [
    post("/channel/subscriber_add", { ...GROUP, subscribers: ["{connection}"] }),
    post("/channel/subscriber_remove", { ...GROUP, subscribers: ["{connection}"] }),
  ],
  "message-send": [
    post("/message/send", {
      ...GROUP,
      from_uid: "alice",
      client_msg_no: "[<id>]",
      payload: PAYLOAD,
    }),
  ],
  event: STREAM.map((type) =>
    post("/event", {
      ...{ channel_id: "{connection}", channel_type: 1, from_uid: "alice" },
      ...{ client_msg_no: "{stream}", event: { type, data: "about 12 letters" } },
    }),
  ),
  "migrate-result": [{ method: "GET", path: "/migrate/result" }],
};
