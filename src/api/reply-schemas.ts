// What each call answers: the schemas of reply bodies in the OpenAPI document; tests hold every reply against them. State: none.

import { Type } from "typebox";

const flag = Type.Enum([0, 1], { type: "integer" });
const deviceFlag = Type.Enum([0, 1, 2], { type: "integer" });
const channelType = Type.Enum([1, 2], { type: "integer" });
const count = Type.Integer({ minimum: 0 });

export const errorBody = Type.Object({
  error: Type.String({ description: "An English sentence" }),
  code: Type.String({ description: "Stable name of the error" }),
  status: Type.Integer({ description: "The HTTP status" }),
  details: Type.Optional(
    Type.Array(Type.Object({ path: Type.String(), message: Type.String() }), {
      description: "The places in the request that are refused",
    }),
  ),
});

export const statusBody = Type.Object({ status: Type.String() });

export const presenceBody = Type.Array(
  Type.Object({ uid: Type.String(), online: flag, device_flag: deviceFlag }),
  { description: "One record per uid, in the order asked" },
);

export const sentBody = Type.Object(
  {
    message_id: count,
    message_seq: count,
    client_msg_no: Type.String(),
  },
  { additionalProperties: false },
);

export const historyBody = Type.Object({
  messages: Type.Array(
    Type.Object({
      message_id: count,
      message_idstr: Type.String(),
      message_seq: count,
      client_msg_no: Type.String(),
      from_uid: Type.String(),
      channel_id: Type.String(),
      channel_type: channelType,
      timestamp: Type.Integer({ description: "Unix seconds" }),
      timestamp_ms: Type.Integer({ description: "Unix milliseconds" }),
      header: Type.Object({
        no_persist: flag,
        red_dot: flag,
        sync_once: flag,
      }),
      expire: Type.Integer({ description: "Seconds; 0: never" }),
      stream_no: Type.String(),
      tag_key: Type.String(),
      payload: Type.String({ contentEncoding: "base64" }),
    }),
  ),
  head_seq: Type.Integer({ description: "The channel's newest sequence" }),
  more: Type.Enum([0, 1], {
    type: "integer",
    description: "1: the range holds more messages than were returned",
  }),
});

export const loginBody = Type.Object({
  token: Type.String(),
  expire: Type.Integer({ description: "Seconds" }),
  user: Type.Object({
    username: Type.String(),
    role: Type.Enum(["admin", "operator", "viewer"], { type: "string" }),
    permissions: Type.Array(Type.String()),
  }),
});

export const migrationBody = Type.Object({
  status: Type.Enum(["running", "completed", "migrated", "failed"], {
    type: "string",
  }),
  step: Type.String(),
  last_err: Type.Union([Type.String(), Type.Null()]),
  try_count: count,
});
