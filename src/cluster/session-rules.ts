// What follows from sessions being in the directory together: whom a login ends, what a user's online state is. Pure; `redis/lua/rules.lua` says
// the first again, because there it must happen inside Redis.

import {
  DEVICE_FLAGS,
  MAIN_DEVICE,
  type Presence,
  type SessionRecord,
} from "../broker/model.ts";

/** What the rules look at. */
export type Standing = Pick<SessionRecord, "flag" | "level" | "deviceId">;

/** Whether `next` ends `old` when it logs in [decisions: Kick rule]. */
export function ends(next: Standing, old: Standing): boolean {
  if (old.flag !== next.flag) return false;
  if (isSameDevice(next, old)) return true;
  return next.level === MAIN_DEVICE && old.level === MAIN_DEVICE;
}

/** What a session hears that `next` ended. */
export function endReason(
  next: Standing,
  old: Standing,
): "replaced" | "kicked" {
  return isSameDevice(next, old) ? "replaced" : "kicked";
}

/** The flag of the main session if there is one, else the lowest [decisions: Online status]. */
export function presenceOf(
  uid: string,
  sessions: readonly Standing[],
): Presence {
  if (sessions.length === 0) return { uid, online: false, flag: 0 };
  const mains = sessions.filter((one) => one.level === MAIN_DEVICE);
  const candidates = mains.length > 0 ? mains : sessions;
  const flag =
    DEVICE_FLAGS.find((one) => candidates.some(({ flag }) => flag === one)) ??
    0;
  return { uid, online: true, flag };
}

function isSameDevice(next: Standing, old: Standing): boolean {
  return next.deviceId !== "" && old.deviceId === next.deviceId;
}
