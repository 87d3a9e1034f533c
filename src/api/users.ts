// The calls about users: their tokens, logging devices out, online status. State: none.

import { DEVICE_FLAGS, type DeviceFlag } from "../broker/model.ts";
import type { Users } from "../broker/users.ts";
import { jsonReply, okReply } from "./reply.ts";
import type { Outcome } from "./route.ts";
import type { Body } from "./schemas.ts";

const ALL_FLAGS = -1;

export interface UserParts {
  readonly users: Users;
}

export interface UserCalls {
  setToken(body: Body<"userToken">): Outcome;
  quitDevice(body: Body<"deviceQuit">): Outcome;
  onlineStatus(uids: Body<"onlineStatus">): Outcome;
}

export function createUserCalls({ users }: UserParts): UserCalls {
  return {
    setToken({ uid, token, device_flag: flag, device_level: level = 0 }) {
      return users.setToken({ uid, token, flag, level }).then(okReply);
    },

    quitDevice({ uid, device_flag: flag }) {
      const flags: readonly DeviceFlag[] =
        flag === ALL_FLAGS ? DEVICE_FLAGS : [flag];
      return users.quitDevice(uid, flags).then(okReply);
    },

    async onlineStatus(uids) {
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
