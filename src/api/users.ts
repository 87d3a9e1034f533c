// Endpoints for users: device tokens, devices and their logout, online status, and system accounts.

import { type Static, Type } from "typebox";
import { DEVICE_FLAGS, MAX_TOKEN_LENGTH } from "../broker/model.ts";
import { MAX_SYSTEM_UIDS } from "../broker/ports.ts";
import type { SystemAccounts } from "../broker/system-accounts.ts";
import type { Users } from "../broker/users.ts";
import type { HttpReply } from "../transport/types.ts";
import { fitsHeader } from "./extended-value.ts";
import {
  deviceFlag,
  deviceLevel,
  id,
  MAX_LOOKUP_UIDS,
  uids,
  WELL_FORMED_PATTERN,
} from "./fields.ts";
import { jsonReply, OK_REPLY, okReply } from "./reply.ts";
import type { Outcome } from "./route.ts";

const ALL_FLAGS = -1;

export const userBodies = {
  token: Type.Object(
    {
      uid: id("User id"),
      token: Type.String({
        minLength: 1,
        maxLength: MAX_TOKEN_LENGTH,
        pattern: WELL_FORMED_PATTERN,
        description: "Token with which the user's client will connect",
      }),
      device_flag: deviceFlag("Type of the device: 0 app, 1 web, 2 desktop"),
      device_level: Type.Optional(
        deviceLevel(
          "0 or absent: secondary device. 1: main device. A user has at most one session on main devices of this type",
        ),
      ),
    },
    {
      title: "UserTokenRequest",
      description: "A user's token for a device type",
      examples: [
        {
          uid: "alice",
          token: "alice-secret",
          device_flag: 1,
          device_level: 1,
        },
      ],
    },
  ),
  deviceQuit: Type.Object(
    {
      uid: id("User id"),
      device_flag: Type.Enum([ALL_FLAGS, 0, 1, 2], {
        type: "integer",
        title: "DevicesToQuit",
        description: "0 app, 1 web, 2 desktop, -1 all of them",
        examples: [ALL_FLAGS],
        "x-enum-varnames": ["ALL", "APP", "WEB", "DESKTOP"],
      }),
    },
    {
      title: "DeviceQuitRequest",
      description: "Devices to log out",
      examples: [{ uid: "alice", device_flag: ALL_FLAGS }],
    },
  ),
  systemUids: Type.Object(
    { uids: uids("User ids of the accounts", MAX_SYSTEM_UIDS) },
    {
      title: "SystemUidsRequest",
      description: "System accounts to add or remove",
      examples: [{ uids: ["bot"] }],
    },
  ),
  onlineStatus: uids("Users to look up", MAX_LOOKUP_UIDS, {
    title: "OnlineStatusRequest",
    examples: [["alice", "bob"]],
  }),
};

const OK_WITH_WARNING: HttpReply = Object.freeze({
  ...OK_REPLY,
  headers: Object.freeze({
    ...OK_REPLY.headers,
    "jindou-warning":
      "The token has characters that a plain HTTP header cannot carry. Readers of /stream must send it in the x-token* header (RFC 8187) or in the query string.",
  }),
});

export function tokenReply(token: string): HttpReply {
  return fitsHeader(token) ? OK_REPLY : OK_WITH_WARNING;
}

export type SystemUids = Pick<SystemAccounts, "list" | "add" | "remove">;

type Body<Name extends keyof typeof userBodies> = Static<(typeof userBodies)[Name]>;

export const devicesQuery = Type.Object({ uid: id("User id") });

export function createUserCalls(users: Users, accounts: SystemUids) {
  return {
    async devices({ uid }: Static<typeof devicesQuery>) {
      const [devices, [sessions = []]] = await Promise.all([
        users.devices(uid),
        users.liveSessions([uid]),
      ]);
      const body = {
        devices: devices.map(({ flag, level, tokenHash }) => ({
          device_flag: flag,
          device_level: level,
          has_token: tokenHash.length > 0 ? 1 : 0,
        })),
        sessions: sessions.map((session) => ({
          session_id: session.sessionId,
          node_id: session.nodeId,
          device_flag: session.flag,
          device_level: session.level,
          device_id: session.deviceId,
        })),
      };
      return jsonReply(JSON.stringify(body));
    },

    async systemUids() {
      return jsonReply(JSON.stringify(await accounts.list()));
    },

    addSystemUids: ({ uids }: Body<"systemUids">) => accounts.add(uids).then(okReply),

    removeSystemUids: ({ uids }: Body<"systemUids">) => accounts.remove(uids).then(okReply),

    setToken(body: Body<"token">): Outcome {
      const { uid, token, device_flag: flag, device_level: level = 0 } = body;
      return users.setToken({ uid, token, flag, level }).then(() => tokenReply(token));
    },

    quitDevice({ uid, device_flag: flag }: Body<"deviceQuit">): Outcome {
      const flags = flag === ALL_FLAGS ? DEVICE_FLAGS : [flag];
      return users.quitDevice(uid, flags).then(okReply);
    },

    async onlineStatus(uids: Body<"onlineStatus">) {
      const presence = await users.onlineStatus(uids);
      const records = presence.map(({ uid, online, flag }) => ({
        uid,
        online: online ? 1 : 0,
        device_flag: flag,
      }));
      return jsonReply(JSON.stringify(records));
    },
  };
}
