// The newest main login of each device class: it outlives the session, and the process. No state but the table's.

import type { CloseReason } from "../../../broker/errors.ts";
import type { DeviceFlag } from "../../../broker/model.ts";
import { LOGIN_TTL_MS, type NewestLogin } from "../../../broker/ports.ts";
import type { Tables } from "../engine/database.ts";
import { commit, fieldsOf, type Stored } from "../engine/tables.ts";
import type { ControlParts } from "../engine/transact.ts";

const VERSION = 1;
/** Rows looked at in one sweep: the next one goes on behind them. */
const ROWS_A_SWEEP = 2000;

export interface NewestLogins {
  get(uid: string, flag: DeviceFlag): NewestLogin | undefined;
  /** Durable when it resolves; kept for `LOGIN_TTL_MS`. Throws `unavailable`. */
  put(uid: string, flag: DeviceFlag, login: NewestLogin): Promise<void>;
}

export function createNewestLogins(
  { tables, transact }: ControlParts,
  clock: () => number,
): NewestLogins {
  return {
    get(uid, flag) {
      const stored = tables.logins.get([uid, flag]);
      if (stored === undefined || keptUntil(stored) <= clock())
        return undefined;
      return toLogin(stored);
    },

    async put(uid, flag, login) {
      const { order, since, deviceId, label, ended = "", past } = login;
      const until = clock() + LOGIN_TTL_MS;
      const fields = [until, order, since, deviceId, label, ended, past];
      await transact(
        () => void tables.logins.put([uid, flag], [VERSION, ...fields]),
      );
    },
  };
}

/** Removes what is forgotten, a part of the table with each call. Throws `unavailable`. */
export function createLoginSweep(
  tables: Tables,
): (nowMs: number) => Promise<void> {
  let last: (string | number)[] | undefined;
  return async (nowMs) => {
    const start = last ?? [""];
    const rows = [...tables.logins.getRange({ start, limit: ROWS_A_SWEEP })];
    last = rows.length < ROWS_A_SWEEP ? undefined : rows.at(-1)?.key;
    const old = rows.filter(({ value }) => keptUntil(value) <= nowMs);
    if (old.length === 0) return;
    await commit(tables, () => {
      for (const { key } of old) void tables.logins.remove(key);
    });
  };
}

function keptUntil(stored: Stored): number {
  return Number(fieldsOf(stored, VERSION)[0]);
}

function toLogin(stored: Stored): NewestLogin {
  const [, order, since, deviceId, label, ended, past] = fieldsOf(
    stored,
    VERSION,
  );
  return {
    order: Number(order),
    since: Number(since),
    deviceId: String(deviceId),
    label: String(label),
    ended: ended === "" ? undefined : (ended as CloseReason), // as written by put
    past: past as readonly string[],
  };
}
