// Uses Jindou's HTTP API through types that openapi-typescript makes from the OpenAPI document:
//   npx openapi-typescript http://127.0.0.1:5001/openapi.json -o schema.d.ts
// The first argument is the address of the API, the second the password of the manager `admin`.

import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

declare const process: { readonly argv: readonly string[] };

const [, , baseUrl = "http://127.0.0.1:5001", password = ""] = process.argv;
const api = createClient<paths>({ baseUrl });
const lobby: components["schemas"]["ChannelTarget"] = { channel_id: "lobby", channel_type: 2 };

/** Returns the body of a successful reply, or throws the error of the reply. */
function bodyOf<T>(reply: { data?: T; error?: components["schemas"]["Error"] }): T {
  if (reply.data === undefined) throw new Error(reply.error?.error ?? "No reply");
  return reply.data;
}

function base64(content: object): string {
  return btoa(JSON.stringify(content));
}

const token = { uid: "alice", token: "alice-secret", device_flag: 1 } as const;
bodyOf(await api.POST("/user/token", { body: token }));
const online = bodyOf(await api.POST("/user/onlinestatus", { body: ["alice", "bob"] }));
bodyOf(await api.POST("/channel", { body: { ...lobby, subscribers: ["alice", "bob"] } }));

const payload = base64({ type: 1, content: "hello" });
const message = { ...lobby, from_uid: "bob", client_msg_no: "first", payload };
const sent = bodyOf(await api.POST("/message/send", { body: message }));

for (const [type, data] of [
  ["___TextMessageStart", ""],
  ["___TextMessageContent", "It is sunny."],
  ["___TextMessageEnd", ""],
] as const) {
  const event = { ...lobby, from_uid: "bob", client_msg_no: "answer", event: { type, data } };
  bodyOf(await api.POST("/event", { params: { query: { force: "1" } }, body: event }));
}
const path = { ...lobby, client_msg_no: "answer" };
const stream = bodyOf(
  await api.GET("/stream/{channel_type}/{channel_id}/{client_msg_no}", { params: { path } }),
);

const history = bodyOf(await api.GET("/channel/messages", { params: { query: lobby } }));
const chats = bodyOf(await api.POST("/conversation/sync", { body: { uid: "alice" } }));
const kept = bodyOf(
  await api.POST("/channel/subscriber_remove", {
    body: { ...lobby, subscribers: ["bob"] },
  }),
);
const refused = await api.POST("/message/send", {
  body: { ...message, client_msg_no: "second" },
});
const login = bodyOf(await api.POST("/manager/login", { body: { username: "admin", password } }));
const migration = bodyOf(await api.GET("/migrate/result"));

const result = {
  online: online.map((record) => record.online),
  seq: sent.message_seq,
  text: typeof stream === "string" ? stream : stream.text,
  history: history.messages.length,
  unread: chats.map((chat) => chat.unread),
  removed: kept.status,
  refused: refused.error?.code,
  role: login.user.role,
  migration: migration.status,
};
// biome-ignore lint/suspicious/noConsole: the story prints its result
console.log(JSON.stringify(result));
