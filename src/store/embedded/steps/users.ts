// The device classes of users. No state but the table's.

import type { Device, DeviceFlag, DeviceLevel } from "../../../broker/model.ts";
import type { UserStore } from "../../../broker/ports.ts";
import { fieldsOf, type Stored } from "../engine/tables.ts";
import type { ControlParts } from "../engine/transact.ts";
import type { NewestLogins } from "./newest-logins.ts";

export type DeviceStore = Omit<UserStore, "userStates">;

const VERSION = 1;

/** Under which what is read and written of a user happens one after the other. */
export const userLock = (uid: string): string => `user ${uid}`;

export function createUserTable(
  { tables, lock, transact }: ControlParts,
  logins: NewestLogins,
): DeviceStore {
  const read = (uid: string, flag: DeviceFlag): Device | undefined => {
    const stored = tables.devices.get([uid, flag]);
    return stored === undefined ? undefined : toDevice(uid, flag, stored);
  };
  return {
    async device(uid, flag) {
      return read(uid, flag);
    },

    async putDevice(device) {
      const { uid, flag, level, tokenHash } = device;
      // In turn with the user's logins: one that compared the token before is in when this is answered.
      return lock.run(userLock(uid), async () => {
        const before = read(uid, flag);
        const newest = logins.get(uid, flag);
        if (tokenHash.length === 0 && newest !== undefined)
          await logins.put(uid, flag, { ...newest, ended: "logged_out" });
        await transact(() => {
          const value = [VERSION, level, Buffer.from(tokenHash)];
          void tables.devices.put([uid, flag], value);
        });
        return before;
      });
    },
  };
}

function toDevice(uid: string, flag: DeviceFlag, stored: Stored): Device {
  const [level, tokenHash] = fieldsOf(stored, VERSION);
  return {
    uid,
    flag,
    level: level as DeviceLevel, // as written by putDevice
    tokenHash: Uint8Array.from(tokenHash as Uint8Array),
  };
}
