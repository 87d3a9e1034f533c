// The device classes of users in Redis: a hash per user, flag → format, level, hash of the token.
// And the groups and newest commands of users. State: the reads of those that are under way.

import { BrokerError } from "../../../broker/errors.ts";
import type { Device, DeviceFlag, DeviceLevel } from "../../../broker/model.ts";
import type { UserState, UserStore } from "../../../broker/ports.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import { loadScript } from "../../../redis/script.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { SESSION_RULES } from "./sessions.ts";

const FORMAT = 1;
const PUT = loadScript(lua("device_put"), ...SESSION_RULES);

const STATES = loadScript(lua("user_states"));

/** Users read by one script: it keeps others from their turn for less than a millisecond. */
const STATES_PER_CALL = 50;
/**
 * Such scripts under way at once: after a cut a node asks about all its users, and sends go on
 * meanwhile.
 */
const STATES_AT_ONCE = 256;

/** The users of a store on Redis. */
export function createRedisUsers({
  link,
  written,
}: Pick<RedisStorePorts, "link" | "written">): UserStore {
  const perCall = link.isCluster ? 1 : STATES_PER_CALL; // users are in slots of their own
  const reads = new Semaphore(STATES_AT_ONCE);

  async function statesOf(uids: readonly string[]): Promise<UserState[]> {
    const keys = uids.flatMap((uid) =>
      ["groups", "inbox"].map((part) => link.keys.user(part, uid)),
    );
    const reply = await link.run(STATES, keys, []);
    const states = reply as readonly (readonly [readonly Buffer[], number])[]; // as its header says
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
      const hasNoToken = tokenHash.length === 0 ? 1 : 0;
      const args = [flag, encodeDevice(device), hasNoToken];
      const before = await link.run(PUT, [key], args);
      await written(key);
      return deviceOf(uid, flag, before);
    },

    async userStates(uids) {
      const calls: Promise<UserState[]>[] = [];
      for (let at = 0; at < uids.length; at += perCall) {
        const some = uids.slice(at, at + perCall);
        calls.push(reads.run(() => statesOf(some)));
      }
      return (await Promise.all(calls)).flat();
    },
  };
}

/** A device as a value of its user's hash `dev`. */
export function encodeDevice({ level, tokenHash }: Pick<Device, "level" | "tokenHash">): Buffer {
  return Buffer.from([FORMAT, level, ...tokenHash]);
}

function deviceOf(uid: string, flag: DeviceFlag, reply: unknown): Device | undefined {
  if (reply === null) return undefined;
  const stored = reply as Buffer; // a hash's value
  if (stored[0] !== FORMAT)
    throw new BrokerError("internal", {
      message: `Redis holds a device of format ${stored[0]}; this build reads ${FORMAT}`,
    });
  const level = stored[1] as DeviceLevel; // as written by putDevice
  return { uid, flag, level, tokenHash: new Uint8Array(stored.subarray(2)) };
}
