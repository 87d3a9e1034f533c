// Main devices of one user log in on different nodes at the same time. In each round one device
// stays online and the others are kicked. The session directory in Redis and the online status on
// every node agree. JINDOU_TEST_ROUNDS sets the number of rounds.

import t from "tap";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { Keys } from "../../src/redis/keys.ts";
import { Random } from "../support/random.ts";
import { startRedis } from "../support/redis.ts";
import { volume } from "../support/volume.ts";
import { CALM, ClusterNodes } from "./cluster-nodes.ts";
import { type Contender, disconnectReasonOf, eventually, logInAtOnce } from "./logins.ts";

const ROUNDS = volume(500, "JINDOU_TEST_ROUNDS");
/** Number of users whose devices log in in parallel. */
const PARALLEL_USERS = 10;
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
const uids = Array.from({ length: PARALLEL_USERS }, (_, number) => `user-${number}`);

/** Returns the user's online status on every node and the number of sessions in the directory. */
async function stateOf(uid: string) {
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
  return closeCode === CLOSE_REASONS.kicked.code && disconnectReasonOf(client) === "kicked";
}

/** Runs all rounds of one user, one after the other. Returns the problems. */
async function race(uid: string, rounds: number): Promise<readonly string[]> {
  const problems: string[] = [];
  let next = 0;
  const broker = {
    get clientPort() {
      return nodes.clientPortOf(next++ % nodes.count);
    },
  };
  const expected = { statuses: numbers.map(() => ONLINE), entries: 1 };
  for (let round = 0; round < rounds; round++) {
    const devices = numbers.map(() => ({ uid, token: TOKEN }));
    const connectAtOnce = round % 2 === 0;
    const { survivors, ended } = await logInAtOnce(broker, devices, { connectAtOnce });
    if (survivors.length !== 1) problems.push(`${uid} ${round}: ${survivors.length} devices stay`);
    if (!ended.every(isKicked)) problems.push(`${uid} ${round}: some of the others are not kicked`);
    const state = await stateOf(uid);
    if (JSON.stringify(state) !== JSON.stringify(expected))
      problems.push(`${uid} ${round}: ${JSON.stringify(state)}`);
    await Promise.all(survivors.map((client) => client.disconnect()));
  }
  return problems;
}

t.test(
  "if main devices of one user with the same flag log in concurrently on three nodes, exactly one of them stays online",
  async (t) => {
    for (const uid of uids)
      await nodes.ok("/user/token", {
        ...{ uid, token: TOKEN, device_flag: 0, device_level: 1 },
      });
    const rounds = Math.ceil(ROUNDS / PARALLEL_USERS);
    const startedMs = performance.now();
    const problems = await Promise.all(uids.map((uid) => race(uid, rounds)));
    t.comment(`the rounds took ${Math.round(performance.now() - startedMs)} ms`);
    t.same(problems.flat().slice(0, 10), []);
    const offline = { statuses: numbers.map(() => OFFLINE), entries: 0 };
    for (const uid of uids)
      await eventually(`${uid} is offline`, async () => {
        return JSON.stringify(await stateOf(uid)) === JSON.stringify(offline);
      });
    for (const at of numbers) {
      const { body } = await nodes.callOf(at, "/metrics");
      const sessions = /^jindou_sessions\{device_flag="app"\} (\d+)$/m.exec(body);
      t.equal(sessions?.[1], "0", "the metrics report no session");
    }
  },
);
