// Stores users' devices and bans, and the newest main login for each device flag. A login outlives
// its session and the process.

import type { CloseReason } from "../../../broker/errors.ts";
import {
  type Device,
  type DeviceFlag,
  type DeviceLevel,
  userTopic,
} from "../../../broker/model.ts";
import {
  type Clock,
  LOGIN_TTL_MS,
  type NewestLogin,
  type UserStore,
} from "../../../broker/ports.ts";
import type { KeyedLock } from "../../../lib/keyed-lock.ts";
import { fieldsOf, type Stored, transact } from "../engine/database.ts";
import type { Tables } from "../engine/tables.ts";
import type { EventOutbox } from "./event-outbox.ts";

const VERSION = 1;
export const DEVICE_VERSION = 2;
/** Maximum number of rows that one sweep examines. The next sweep continues after them. */
const ROWS_PER_SWEEP = 2000;

/** Last part of a ban's key in the table `devices`. A device's key ends with the device flag. */
export const BAN = "ban";

/** Returns the name of the lock that serialises reads and writes of a user's devices and logins. */
export const userLock = (uid: string): string => `user ${uid}`;

/** Read access to users' devices and bans. */
export interface DeviceTable {
  get(uid: string, flag: DeviceFlag): Device | undefined;
  isBanned(uid: string): boolean;
}

export function createDeviceTable(
  tables: Pick<Tables, "devices">,
  judgesBans: boolean,
): DeviceTable {
  return {
    get(uid, flag) {
      const stored = tables.devices.get([uid, flag]);
      return stored === undefined ? undefined : toDevice(uid, flag, stored);
    },

    isBanned: (uid) => judgesBans && tables.devices.get([uid, BAN]) !== undefined,
  };
}

export function createEmbeddedUsers({
  tables,
  devices,
  lock,
  logins,
  outbox,
  clock,
}: {
  readonly tables: Tables;
  readonly devices: DeviceTable;
  readonly lock: KeyedLock;
  readonly logins: NewestLogins;
  readonly outbox: Pick<EventOutbox, "transact">;
  readonly clock: Clock;
}): Omit<UserStore, "userStates"> {
  return {
    device: async (uid, flag) => devices.get(uid, flag),
    isBanned: async (uid) => devices.isBanned(uid),

    // This call is serialised with the user's logins. When it returns, `sessionsOf` therefore
    // includes the session of every login that was accepted before the ban.
    putBan: (uid, isBanned) =>
      lock.run(userLock(uid), () =>
        transact(
          tables,
          () => {
            if (isBanned) void tables.devices.put([uid, BAN], [VERSION]);
            else void tables.devices.remove([uid, BAN]);
          },
          isBanned ? "store" : "reclaim",
        ),
      ),

    async putDevice(device) {
      const { uid, flag, level, tokenHash } = device;
      // This call is serialised with the user's logins. When it returns, `sessionsOf` therefore
      // includes the session of every login that was checked against the old token.
      return lock.run(userLock(uid), () =>
        outbox.transact(
          (emit) => {
            const before = devices.get(uid, flag);
            const newest = logins.get(uid, flag);
            if (tokenHash.length === 0 && newest !== undefined)
              logins.put(uid, flag, { ...newest, ended: "logged_out" }, clock());
            const isLogout = tokenHash.length === 0;
            const revokedS = isLogout ? Math.floor(clock() / 1000) : (before?.revokedS ?? 0);
            const value = [DEVICE_VERSION, level, Buffer.from(tokenHash), revokedS];
            void tables.devices.put([uid, flag], value);
            if (hasChanged(device, before))
              emit?.({
                ...{ type: "user.token_changed", key: userTopic(uid), messageSeq: 0 },
                fields: { device_flag: flag, device_level: level },
              });
            return before;
          },
          tokenHash.length === 0 ? "reclaim" : "store",
        ),
      );
    },
  };
}

function hasChanged({ level, tokenHash }: Device, before: Device | undefined): boolean {
  if (before === undefined) return tokenHash.length > 0;
  return level !== before.level || Buffer.compare(tokenHash, before.tokenHash) !== 0;
}

function toDevice(uid: string, flag: DeviceFlag, stored: Stored): Device {
  const [level, tokenHash, revokedS] = fieldsOf(stored, DEVICE_VERSION);
  return {
    uid,
    flag,
    level: level as DeviceLevel, // as written by `putDevice`
    tokenHash: new Uint8Array(tokenHash as Uint8Array), // a copy: lmdb reuses its memory
    ...(Number(revokedS) > 0 ? { revokedS: Number(revokedS) } : {}),
  };
}

export interface NewestLogins {
  get(uid: string, flag: DeviceFlag): NewestLogin | undefined;
  /** Must be called inside a transaction. */
  put(uid: string, flag: DeviceFlag, login: NewestLogin, nowMs: number): void;
}

export function createNewestLogins(tables: Tables, clock: Clock): NewestLogins {
  return {
    get(uid, flag) {
      const stored = tables.logins.get([uid, flag]);
      if (stored === undefined || keptUntilMs(stored) <= clock()) return undefined;
      return toLogin(stored);
    },

    put(uid, flag, login, nowMs) {
      const { order, since, deviceId, label, ended = "", past } = login;
      const until = nowMs + LOGIN_TTL_MS;
      const fields = [until, order, since, deviceId, label, ended, past];
      void tables.logins.put([uid, flag], [VERSION, ...fields]);
    },
  };
}

export function createLoginSweep(tables: Tables): (nowMs: number) => Promise<void> {
  return sweepOf(tables, "logins", (stored, nowMs) => keptUntilMs(stored) <= nowMs);
}

/** Creates a sweep that removes devices that logged out at least `keptMs` ago. */
export function createDeviceSweep(
  tables: Tables,
  keptMs: number,
): (nowMs: number) => Promise<void> {
  return sweepOf(tables, "devices", (stored, nowMs, [, flag]) => {
    if (flag === BAN) return false;
    const [, tokenHash, revokedS] = fieldsOf(stored, DEVICE_VERSION);
    const isLoggedOut = (tokenHash as Uint8Array).length === 0; // as written by `putDevice`
    return isLoggedOut && Number(revokedS) * 1000 + keptMs <= nowMs;
  });
}

/**
 * Returns a function that removes expired rows of a table. One call examines up to `ROWS_PER_SWEEP`
 * rows.
 */
function sweepOf(
  tables: Tables,
  name: "logins" | "devices",
  isExpired: (stored: Stored, nowMs: number, key: readonly (string | number)[]) => boolean,
): (nowMs: number) => Promise<void> {
  const table = tables[name];
  let lastKey: (string | number)[] | undefined;
  return async (nowMs) => {
    const start = lastKey ?? [""];
    const rows = [...table.getRange({ start, limit: ROWS_PER_SWEEP })];
    lastKey = rows.length < ROWS_PER_SWEEP ? undefined : rows.at(-1)?.key;
    const expired = rows.filter(({ key, value }) => isExpired(value, nowMs, key));
    if (expired.length === 0) return;
    await transact(
      tables,
      () => {
        for (const { key } of expired) {
          const stored = table.get(key); // the row may have been replaced since it was read
          if (stored !== undefined && isExpired(stored, nowMs, key)) void table.remove(key);
        }
      },
      "reclaim",
    );
  };
}

function keptUntilMs(stored: Stored): number {
  return Number(fieldsOf(stored, VERSION)[0]);
}

function toLogin(stored: Stored): NewestLogin {
  const [, order, since, deviceId, label, ended, past] = fieldsOf(stored, VERSION);
  return {
    order: Number(order),
    since: Number(since),
    deviceId: String(deviceId),
    label: String(label),
    ended: ended === "" ? undefined : (ended as CloseReason), // as written by `put`
    past: past as readonly string[],
  };
}
