// A node that freezes right after a main device's CONNACK, while devices of the same users join,
// log in and log out elsewhere: when it wakes, the older main session is ended as kicked and does
// not come back, even where the newer one is gone. JINDOU_TEST_FREEZES raises the number of
// freezes.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { connectNative } from "../support/native-client.ts";
import { type NativeClient, NativeClientError } from "../support/native-session.ts";
import { Random } from "../support/random.ts";
import { startRedis } from "../support/redis.ts";
import { ClusterNodes } from "./cluster-nodes.ts";
import { eventually, farewellOf, openSocket } from "./logins.ts";
import { SdkDevice } from "./sdk-device.ts";

const FREEZES = Number(process.env.JINDOU_TEST_FREEZES ?? 2);
const GROUPS = 20;
const TOKEN = "a-token";
const FROZEN = 0;
const ELSEWHERE = 1;
const AGAIN_MS = 20;
const MAIN = 0;
const SECONDARY = 1;
const LEAST_FREEZE_MS = 2000;
const MOST_FREEZE_MS = 6000;

t.setTimeout(120_000 + FREEZES * 30_000);

const random = new Random(FREEZES);
const redis = await startRedis(t);
const redisClient = redis.client();
const nodes = await ClusterNodes.start(t, {
  ...{ redisUrl: redis.url, random, count: 2 },
  settings: { JINDOU_AUTH_CLIENTS: "token" },
});

/** A user with groups that have something to resume. */
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
  return [FROZEN, ELSEWHERE].map((at) => {
    const port = () => nodes.clientPortOf(at);
    return new SdkDevice({ uid, token: TOKEN, port, cursors });
  });
}

/** What becomes of an older device that connects by hand, without a name for its session. */
async function plain(uid: string): Promise<NativeClient> {
  const clientPort = nodes.clientPortOf(FROZEN);
  const client = await openSocket({ clientPort }, { uid, token: TOKEN });
  await client.connect();
  return client;
}

/** A device logs in elsewhere, and out. */
async function visit(uid: string, flag: 0 | 1): Promise<void> {
  const device = await comeElsewhere(uid, flag);
  await device.ping();
  await device.disconnect();
}

/** While that node has lost its subscriptions, it takes nobody in. */
async function comeElsewhere(uid: string, flag: 0 | 1): Promise<NativeClient> {
  const port = nodes.clientPortOf(ELSEWHERE);
  for (;;)
    try {
      const device = { uid, token: TOKEN, flag, port };
      return await connectNative(undefined, device);
    } catch (error) {
      if (!(error instanceof NativeClientError)) throw error;
      if (!/unavailable|^closed_/.test(error.code)) throw error;
      await pause(AGAIN_MS);
    }
}

async function onlineOf(uids: readonly string[]): Promise<string> {
  const records = await nodes.ok("/user/onlinestatus", uids);
  return records.map(({ online }: { online: number }) => online).join();
}

/**
 * Freezes the node while `meanwhile` goes on, and devices of the users come and go elsewhere.
 * `isCut`: its subscriptions are cut before, so that it has to ask what it missed; else it reads
 * that its sessions were ended.
 */
async function freeze(
  uids: readonly string[],
  isCut: boolean,
  meanwhile: () => Promise<void>,
): Promise<{ readonly ms: number; readonly visits: number }> {
  const ms = LEAST_FREEZE_MS + random.below(MOST_FREEZE_MS - LEAST_FREEZE_MS);
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

t.test(`${FREEZES} freezes right after the CONNACK`, async (t) => {
  let visits = 0;
  for (let round = 0; round < FREEZES; round++) {
    const uid = `user-${round}`;
    const other = `plain-${round}`;
    const third = `left-${round}`;
    const [old, late] = (await makeUser(uid)) as [SdkDevice, SdkDevice];
    const [unused, winner] = (await makeUser(other)) as [SdkDevice, SdkDevice];
    const [left, spare] = (await makeUser(third)) as [SdkDevice, SdkDevice];
    await Promise.all([nodes.untilReady(), unused.close(), spare.close()]);
    const [client] = await Promise.all([plain(other), old.logIn(), left.logIn()]);
    const isCut = round % 2 === 1;
    const frozen = await freeze([uid, other, third], isCut, async () => {
      await Promise.all([late.logIn(), winner.logIn(), visit(third, MAIN)]);
    });
    visits += frozen.visits;
    const { code } = await client.closed;
    await eventually(
      "one of the two to be ended",
      () => old.endedBy !== undefined || late.endedBy !== undefined,
    );
    await eventually("the one whose follower left to be ended", () => left.endedBy !== undefined);
    const what = `after ${frozen.ms} ms${isCut ? ", cut" : ""}`;
    t.equal(old.endedBy, "kicked", what);
    t.equal(left.endedBy, "kicked", `${what}, the newer main session is gone`);
    t.equal(code, CLOSE_REASONS.kicked.code, `${what}, without a name`);
    t.equal(farewellOf(client), "kicked");
    for (const device of [late, winner]) {
      await device.ping();
      t.equal(device.endedBy, undefined);
    }
    await eventually(
      "the newer sessions to be online, and nobody else",
      async () => (await onlineOf([uid, other, third])) === "1,1,0",
    );
    for (const device of [old, late, winner, left]) device.close();
  }
  t.comment(`${visits} devices came and went meanwhile`);
});
