// Users in Redis: their devices, in one HASH per user (field: flag; value: format, level, last
// logout and token hash), their bans (field `ban` of the same HASH), and reads of their group
// indexes and newest inboxSeqs. State: the reads in progress.

import { BrokerError } from "../../../broker/errors.ts";
import type { Device, DeviceFlag, DeviceLevel } from "../../../broker/model.ts";
import { LOGOUT_TTL_MS, type UserState, type UserStore } from "../../../broker/ports.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import { loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { SESSION_CHANGES, SESSION_RULES } from "./sessions.ts";
import { createUserEvents } from "./user-events.ts";

const FORMAT = 2;
const REVOKED_BYTES = 6;
export const BAN_FIELD = "ban";
const PUT = loadScript(lua("device_put"), ...SESSION_CHANGES);
const PUT_BAN = loadScript(lua("ban_put"), ...SESSION_RULES);

const STATES = loadScript(lua("user_states"));

/**
 * Maximum number of users per script. With this number, a script delays other calls by less than a
 * millisecond.
 */
const STATES_PER_CALL = 50;
/**
 * Maximum number of calls in flight. The limit matters after a lost connection, when the states of
 * all users are read.
 */
const STATES_IN_FLIGHT = 256;

export function createRedisUsers({
  link,
  waitForReplicas,
  demand,
  judgesBans = false,
  logoutMs = LOGOUT_TTL_MS,
}: Pick<
  RedisStorePorts,
  "link" | "waitForReplicas" | "demand" | "judgesBans" | "logoutMs"
>): UserStore {
  const { bucketOfUser, eventArgs, runFor, flush } = createUserEvents({
    ...{ link, demand, waitForReplicas },
  });
  const perCall = link.isCluster ? 1 : STATES_PER_CALL; // each user is in a different slot
  const reads = new Semaphore(STATES_IN_FLIGHT);

  async function statesOf(uids: readonly string[]): Promise<UserState[]> {
    const keys = uids.flatMap((uid) =>
      ["groups", "inbox"].map((part) => link.keys.user(part, uid)),
    );
    const reply = await link.run(STATES, keys, []);
    const states = reply as readonly (readonly [readonly Buffer[], number])[];
    return states.map(([groups, inboxSeq]) => ({
      groups: groups.map(String),
      inboxSeq,
    }));
  }

  return {
    async device(uid, flag) {
      const reply = await link.call("hget", link.keys.user("devices", uid), flag);
      return deviceOf(uid, flag, reply);
    },

    async putDevice(device) {
      const { uid, flag, tokenHash } = device;
      const key = link.keys.user("sessions", uid);
      const [counter] = eventArgs();
      const events = [uid, bucketOfUser(uid), counter];
      const args = [flag, device.level, Buffer.from(tokenHash), logoutMs, ...events];
      const oldDevice = await runFor(uid, (isAnnounced) =>
        link.run(PUT, [key], [...args, isAnnounced]),
      );
      await waitForReplicas(key);
      await flush(uid);
      return deviceOf(uid, flag, oldDevice);
    },

    async isBanned(uid) {
      if (!judgesBans) return false;
      return (await link.call("hexists", link.keys.user("devices", uid), BAN_FIELD)) === 1;
    },

    async putBan(uid, isBanned) {
      const key = link.keys.user("sessions", uid);
      await link.run(PUT_BAN, [key], [isBanned ? 1 : 0, logoutMs]);
      await waitForReplicas(key);
    },

    async userStates(uids) {
      const calls: Promise<UserState[]>[] = [];
      for (let at = 0; at < uids.length; at += perCall) {
        const batch = uids.slice(at, at + perCall);
        calls.push(reads.run(() => statesOf(batch)));
      }
      return (await Promise.all(calls)).flat();
    },
  };
}

/** Encodes a device in the same format as `write_device` in `lua/session_rules.lua`. */
export function encodeDevice({
  level,
  tokenHash,
  revokedS = 0,
}: Pick<Device, "level" | "tokenHash" | "revokedS">): Buffer {
  const revoked = Buffer.alloc(REVOKED_BYTES);
  revoked.writeUIntBE(revokedS, 0, REVOKED_BYTES);
  return Buffer.concat([Buffer.from([FORMAT, level]), revoked, tokenHash]);
}

function deviceOf(uid: string, flag: DeviceFlag, reply: unknown): Device | undefined {
  if (reply === null) return undefined;
  const stored = reply as Buffer; // a value of the HASH
  if (stored[0] !== FORMAT)
    throw new BrokerError("internal", {
      message: `Redis holds a device of format ${stored[0]}, but this build reads only format ${FORMAT}. Start the build that wrote it`,
    });
  const level = stored[1] as DeviceLevel; // as `putDevice` wrote it
  const revokedS = stored.readUIntBE(2, REVOKED_BYTES);
  const tokenHash = new Uint8Array(stored.subarray(2 + REVOKED_BYTES));
  return { uid, flag, level, tokenHash, ...(revokedS > 0 ? { revokedS } : {}) };
}
