// A node that freezes right after a main device's CONNACK, while the user logs in elsewhere: when it wakes, the older device is told that it is
// kicked, and does not come back, however it connects. JINDOU_TEST_FREEZES raises the number of freezes.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import type { NativeClient } from "../support/native-session.ts";
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

t.setTimeout(120_000 + FREEZES * 30_000);

const random = new Random(FREEZES);
const redis = await startRedis(t);
const nodes = await ClusterNodes.start(t, {
  ...{ redisUrl: redis.url, random, count: 2 },
  settings: { JINDOU_AUTH_CLIENTS: "token" },
});

/** A user with groups that have something to resume. */
async function makeUser(uid: string): Promise<SdkDevice[]> {
  await nodes.ok("/user/token", {
    ...{ uid, token: TOKEN, device_flag: 0, device_level: 1 },
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

/** Freezes the node while `meanwhile` goes on. */
async function freeze(meanwhile: () => Promise<void>): Promise<number> {
  const ms = 2500 + random.below(2500);
  nodes.signal(FROZEN, "SIGSTOP");
  try {
    await Promise.all([meanwhile(), pause(ms)]);
  } finally {
    nodes.signal(FROZEN, "SIGCONT");
  }
  return ms;
}

t.test(`${FREEZES} freezes right after the CONNACK`, async (t) => {
  for (let round = 0; round < FREEZES; round++) {
    const uid = `user-${round}`;
    const other = `plain-${round}`;
    const [old, late] = (await makeUser(uid)) as [SdkDevice, SdkDevice];
    const [unused, winner] = (await makeUser(other)) as [SdkDevice, SdkDevice];
    await Promise.all([nodes.untilReady(), unused.close()]);
    const [client] = await Promise.all([plain(other), old.logIn()]);
    const ms = await freeze(async () => {
      await Promise.all([late.logIn(), winner.logIn()]);
    });
    const { code } = await client.closed;
    await eventually(
      "one of the two to be ended",
      () => old.endedBy !== undefined || late.endedBy !== undefined,
    );
    const what = `after ${ms} ms`;
    t.equal(old.endedBy, "kicked", what);
    t.equal(code, CLOSE_REASONS.kicked.code, `${what}, without a name`);
    t.equal(farewellOf(client), "kicked");
    for (const device of [late, winner]) {
      await device.ping();
      t.equal(device.endedBy, undefined);
    }
    for (const device of [old, late, winner]) device.close();
  }
});
