// Issue 4, line 3: main devices of one user that log in on different nodes at the same instant. One
// survives each time, the others are told that they are kicked, and the directory in Redis and what
// every node says of the user agree. JINDOU_TEST_ROUNDS sets the rounds.

import t from "tap";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { Keys } from "../../src/redis/keys.ts";
import { Random } from "../support/random.ts";
import { startRedis } from "../support/redis.ts";
import { volume } from "../support/volume.ts";
import { CALM, ClusterNodes } from "./cluster-nodes.ts";
import { type Contender, eventually, farewellOf, logInAtOnce } from "./logins.ts";

const ROUNDS = volume(500, "JINDOU_TEST_ROUNDS");
/** Users whose devices log in side by side. */
const LANES = 10;
const TOKEN = "a-token";
const OFFLINE = { online: 0, device_flag: 0 };
const ONLINE = { online: 1, device_flag: 0 };

const redis = await startRedis(t);
const client = redis.client();
const nodes = await ClusterNodes.start(t, {
  ...{ redisUrl: redis.url, random: new Random(1) },
  settings: { ...CALM, JINDOU_AUTH_CLIENTS: "token" },
});
const numbers = Array.from({ length: nodes.count }, (_, at) => at);
const uids = Array.from({ length: LANES }, (_, lane) => `user-${lane}`);

/** What every node says of the user, and how many sessions the directory holds. */
async function standing(uid: string) {
  const statuses = await Promise.all(
    numbers.map(async (at) => {
      const { body } = await nodes.callOf(at, "/user/onlinestatus", [uid]);
      const [{ online, device_flag }] = body;
      return { online, device_flag };
    }),
  );
  const entries = await client.hlen(new Keys("jd").user("sessions", uid));
  return { statuses, entries };
}

function isKicked({ client, closeCode }: Contender): boolean {
  return closeCode === CLOSE_REASONS.kicked.code && farewellOf(client) === "kicked";
}

/** One round after the other for one user; gives what was wrong. */
async function race(uid: string, rounds: number): Promise<readonly string[]> {
  const wrong: string[] = [];
  let turn = 0;
  const broker = {
    get clientPort() {
      return nodes.clientPortOf(turn++ % nodes.count);
    },
  };
  const all = { statuses: numbers.map(() => ONLINE), entries: 1 };
  for (let round = 0; round < rounds; round++) {
    const devices = numbers.map(() => ({ uid, token: TOKEN }));
    const impatient = round % 2 === 0;
    const { left, ended } = await logInAtOnce(broker, devices, { impatient });
    if (left.length !== 1) wrong.push(`${uid} ${round}: ${left.length} are left`);
    if (!ended.every(isKicked)) wrong.push(`${uid} ${round}: not all are kicked`);
    const found = await standing(uid);
    if (JSON.stringify(found) !== JSON.stringify(all))
      wrong.push(`${uid} ${round}: ${JSON.stringify(found)}`);
    await Promise.all(left.map((one) => one.disconnect()));
  }
  return wrong;
}

t.test(`${ROUNDS} simultaneous logins on three nodes`, async (t) => {
  for (const uid of uids)
    await nodes.ok("/user/token", {
      ...{ uid, token: TOKEN, device_flag: 0, device_level: 1 },
    });
  const rounds = Math.ceil(ROUNDS / LANES);
  const startedMs = performance.now();
  const wrong = await Promise.all(uids.map((uid) => race(uid, rounds)));
  t.comment(`${Math.round(performance.now() - startedMs)} ms`);
  t.same(wrong.flat().slice(0, 10), []);
  const none = { statuses: numbers.map(() => OFFLINE), entries: 0 };
  for (const uid of uids)
    await eventually(`${uid} is offline`, async () => {
      return JSON.stringify(await standing(uid)) === JSON.stringify(none);
    });
  for (const at of numbers) {
    const { body } = await nodes.callOf(at, "/metrics");
    const sessions = /^jindou_sessions\{device_flag="app"\} (\d+)$/m.exec(body);
    t.equal(sessions?.[1], "0", "no session is left over");
  }
});
