// A node freezes right after the CONNACK of a main device, while other devices of the same users
// connect, log in and log out on another node. When the node wakes up, the older main session is
// kicked and the device does not reconnect, even if the newer session is gone. JINDOU_TEST_FREEZES
// sets the number of freezes.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { connectNative } from "../support/native-client.ts";
import { type NativeClient, NativeClientError } from "../support/native-session.ts";
import { Random } from "../support/random.ts";
import { startRedis } from "../support/redis.ts";
import { ClusterNodes } from "./cluster-nodes.ts";
import { disconnectReasonOf, eventually, openSocket } from "./logins.ts";
import { SdkDevice } from "./sdk-device.ts";

const FREEZES = Number(process.env.JINDOU_TEST_FREEZES ?? 2);
const GROUPS = 20;
const TOKEN = "a-token";
const FROZEN = 0;
const OTHER = 1;
const RETRY_PAUSE_MS = 20;
const MAIN = 0;
const SECONDARY = 1;
const MIN_FREEZE_MS = 2000;
const MAX_FREEZE_MS = 6000;

t.setTimeout(120_000 + FREEZES * 30_000);

const random = new Random(FREEZES);
const redis = await startRedis(t);
const redisClient = redis.client();
const nodes = await ClusterNodes.start(t, {
  ...{ redisUrl: redis.url, random, count: 2 },
  settings: { JINDOU_AUTH_CLIENTS: "token" },
});

/** Registers a user with groups that can be resumed. Returns the user's devices on both nodes. */
async function makeUser(uid: string): Promise<SdkDevice[]> {
  for (const [device_flag, device_level] of [
    [MAIN, 1],
    [SECONDARY, 0],
  ])
    await nodes.ok("/user/token", {
      ...{ uid, token: TOKEN, device_flag, device_level },
    });
  const groups = Array.from({ length: GROUPS }, (_, at) => `${uid}-${at}`);
  for (const id of groups) await nodes.createGroup(id, [uid]);
  const cursors = groups.map((id) => ({
    ...{ channel: { type: 2, id } as const, lastSeq: 0 },
  }));
  return [FROZEN, OTHER].map((at) => {
    const port = () => nodes.clientPortOf(at);
    return new SdkDevice({ uid, token: TOKEN, port, cursors });
  });
}

/** Connects a device on the frozen node without naming a session to continue. */
async function connectNewSession(uid: string): Promise<NativeClient> {
  const clientPort = nodes.clientPortOf(FROZEN);
  const client = await openSocket({ clientPort }, { uid, token: TOKEN });
  await client.connect();
  return client;
}

/** Logs a device in and out on the node that is not frozen. */
async function visit(uid: string, flag: 0 | 1): Promise<void> {
  const device = await logInOnOtherNode(uid, flag);
  await device.ping();
  await device.disconnect();
}

/**
 * Logs in on the node that is not frozen. Retries while that node has lost its subscriptions and
 * accepts no clients.
 */
async function logInOnOtherNode(uid: string, flag: 0 | 1): Promise<NativeClient> {
  const port = nodes.clientPortOf(OTHER);
  for (;;)
    try {
      const device = { uid, token: TOKEN, flag, port };
      return await connectNative(undefined, device);
    } catch (error) {
      if (!(error instanceof NativeClientError)) throw error;
      if (!/unavailable|^closed_/.test(error.code)) throw error;
      await pause(RETRY_PAUSE_MS);
    }
}

async function onlineOf(uids: readonly string[]): Promise<string> {
  const records = await nodes.ok("/user/onlinestatus", uids);
  return records.map(({ online }: { online: number }) => online).join();
}

/**
 * Freezes the node while `meanwhile` runs and secondary devices of the users log in and out on the
 * other node. With `isCut` the node's subscriptions are cut as well, so that the node must read the
 * missed events from the store. Otherwise the node receives the events that end its sessions.
 */
async function freeze(
  uids: readonly string[],
  isCut: boolean,
  meanwhile: () => Promise<void>,
): Promise<{ readonly ms: number; readonly visits: number }> {
  const ms = MIN_FREEZE_MS + random.below(MAX_FREEZE_MS - MIN_FREEZE_MS);
  let visits = 0;
  let isOver = false;
  nodes.signal(FROZEN, "SIGSTOP");
  if (isCut) await redisClient.call("CLIENT", "KILL", "TYPE", "pubsub");
  const visiting = uids.map(async (uid) => {
    while (!isOver) {
      await visit(uid, SECONDARY);
      visits += 1;
      await pause(random.below(200));
    }
  });
  try {
    await Promise.all([meanwhile(), pause(ms)]);
  } finally {
    nodes.signal(FROZEN, "SIGCONT");
    isOver = true;
  }
  await Promise.all(visiting);
  return { ms, visits };
}

t.test(
  `a main session on a node that froze right after CONNACK is kicked if another main device of the user has logged in`,
  async (t) => {
    let visits = 0;
    for (let round = 0; round < FREEZES; round++) {
      const uid = `user-${round}`;
      const newSessionUid = `plain-${round}`;
      const loggedOutUid = `left-${round}`;
      const [older, newer] = (await makeUser(uid)) as [SdkDevice, SdkDevice];
      const [unused, winner] = (await makeUser(newSessionUid)) as [SdkDevice, SdkDevice];
      const [alone, spare] = (await makeUser(loggedOutUid)) as [SdkDevice, SdkDevice];
      await Promise.all([nodes.untilReady(), unused.close(), spare.close()]);
      const [client] = await Promise.all([
        connectNewSession(newSessionUid),
        older.logIn(),
        alone.logIn(),
      ]);
      const isCut = round % 2 === 1;
      const frozen = await freeze([uid, newSessionUid, loggedOutUid], isCut, async () => {
        await Promise.all([newer.logIn(), winner.logIn(), visit(loggedOutUid, MAIN)]);
      });
      visits += frozen.visits;
      const { code } = await client.closed;
      await eventually(
        "one of the two main sessions to end",
        () => older.endedBy !== undefined || newer.endedBy !== undefined,
      );
      await eventually(
        "the main session whose successor logged out to end",
        () => alone.endedBy !== undefined,
      );
      const when = `after a freeze of ${frozen.ms} ms${isCut ? " with cut subscriptions" : ""}`;
      t.equal(older.endedBy, "kicked", `the older session is kicked ${when}`);
      t.equal(
        alone.endedBy,
        "kicked",
        `the older session is kicked ${when} although the newer session is gone`,
      );
      t.equal(
        code,
        CLOSE_REASONS.kicked.code,
        `a session that cannot be continued is kicked ${when}`,
      );
      t.equal(disconnectReasonOf(client), "kicked");
      for (const device of [newer, winner]) {
        await device.ping();
        t.equal(device.endedBy, undefined);
      }
      await eventually(
        "only the newer sessions to be online",
        async () => (await onlineOf([uid, newSessionUid, loggedOutUid])) === "1,1,0",
      );
      for (const device of [older, newer, winner, alone]) device.close();
    }
    t.comment(`${visits} devices logged in and out in the meantime`);
  },
);
