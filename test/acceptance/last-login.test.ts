// A reconnect is not a login [decisions: resume is no login]. Main devices lose and regain their
// networks, on three nodes and on one node that restarts. Whatever fails, the device that logged in
// last stays online and the others are kicked. JINDOU_TEST_ROUNDS sets the number of rounds, and
// JINDOU_TEST_SEED repeats one round.

import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { Keys } from "../../src/redis/keys.ts";
import { type ChildBroker, spawnBroker } from "../support/broker.ts";
import { Random } from "../support/random.ts";
import { freePort, startRedis } from "../support/redis.ts";
import { CALM, ClusterNodes } from "./cluster-nodes.ts";
import { eventually } from "./logins.ts";
import { SdkDevice } from "./sdk-device.ts";

const ROUNDS = Number(process.env.JINDOU_TEST_ROUNDS ?? 24);
const RESTARTS = Math.max(2, Math.ceil(ROUNDS / 8));
const FIRST_SEED = Number(process.env.JINDOU_TEST_SEED ?? 1);
/** Number of rounds that run in parallel, each with its own user. */
const PARALLEL_ROUNDS = 8;
const STEPS = 14;
const TOKEN = "a-token";

t.setTimeout(120_000 + ROUNDS * 2000);

interface World {
  readonly port: (random: Random) => number;
  register(uid: string): Promise<unknown>;
  /** Returns the number of the user's sessions in the session directory. */
  sessions(uid: string): Promise<number>;
  /** Causes a fault that affects every connection of the world. */
  readonly disaster?: () => Promise<void>;
}

/** Plays a round. Returns the problems at its end. */
async function play(world: World, seed: number): Promise<readonly string[]> {
  const random = new Random(seed);
  const uid = `user-${seed}`;
  await world.register(uid);
  const port = () => world.port(random);
  const hasDeviceIds = random.flip();
  const devices = ["phone", "tablet"].map((name) => {
    const deviceId = hasDeviceIds ? name : undefined;
    return new SdkDevice({ uid, token: TOKEN, port, deviceId });
  });
  const log: string[] = [];
  let last: SdkDevice | undefined;
  const act = async (at: number): Promise<void> => {
    const device = devices[at] as SdkDevice; // `at` is 0 or 1
    switch (random.below(8)) {
      case 0:
      case 1:
        log.push(`${at} logs in`);
        device.hasNetwork = true;
        await device.logIn();
        last = device;
        break;
      case 2:
        log.push(`${at} is disconnected`);
        device.cut();
        break;
      case 3:
        log.push(`${at} loses its connection silently`);
        device.lose();
        break;
      case 4:
        log.push(`${at} loses its network`);
        device.hasNetwork = false;
        if (random.flip()) device.cut();
        else device.lose();
        break;
      case 5:
        device.hasNetwork = true;
        break;
      case 6:
        await pause(random.below(60));
        break;
      default:
        if (random.below(6) === 0 && world.disaster !== undefined) {
          log.push("the node restarts");
          await world.disaster();
        }
    }
  };
  try {
    for (const device of devices) {
      await device.logIn();
      last = device;
    }
    for (let step = 0; step < STEPS; step++) await act(random.below(2));
    for (const device of devices) device.hasNetwork = true;
    const winner = last as SdkDevice; // both have logged in
    const loser = devices.find((device) => device !== winner) as SdkDevice;
    await eventually(`round ${seed} to end`, async () => {
      const isOver = loser.endedBy !== undefined;
      if (winner.endedBy !== undefined) return true;
      return isOver && winner.isOnline && (await world.sessions(uid)) === 1;
    });
    await winner.ping().catch(() => undefined);
    const facts = [
      ["the winner", winner.endedBy ?? "online", "online"],
      ["the loser", loser.endedBy, "kicked"],
    ] as const;
    return facts
      .filter(([, actual, expected]) => actual !== expected)
      .map(([name, actual]) => `seed ${seed}: ${name} is ${actual}; ${log.join(", ")}`);
  } finally {
    for (const device of devices) device.close();
  }
}

async function playAll(t: Test, world: World, rounds: number): Promise<void> {
  const seeds = Array.from({ length: rounds }, (_, at) => FIRST_SEED + at);
  t.comment(`seeds ${FIRST_SEED} to ${FIRST_SEED + rounds - 1}`);
  const problems: string[] = [];
  const worker = async (): Promise<void> => {
    for (let seed = seeds.shift(); seed !== undefined; seed = seeds.shift())
      problems.push(...(await play(world, seed)));
  };
  await Promise.all(Array.from({ length: PARALLEL_ROUNDS }, worker));
  t.same(problems, [], "the device that logged in last stays online, and the other one is kicked");
}

t.test(
  "the device that logged in last stays online in a cluster of three nodes when connections break at random",
  async (t) => {
    const redis = await startRedis(t);
    const client = redis.client();
    const nodes = await ClusterNodes.start(t, {
      ...{ redisUrl: redis.url, random: new Random(1) },
      settings: { ...CALM, JINDOU_AUTH_CLIENTS: "token" },
    });
    const keys = new Keys("jd");
    await playAll(
      t,
      {
        port: (random) => nodes.clientPortOf(random.below(nodes.count)),
        register: (uid) =>
          nodes.ok("/user/token", {
            ...{ uid, token: TOKEN, device_flag: 0, device_level: 1 },
          }),
        sessions: (uid) => client.hlen(keys.user("sessions", uid)),
      },
      ROUNDS,
    );
  },
);

/** Starts one node that can be killed and restarted on the same ports and data. */
async function startAlone(t: Test) {
  const [api, client] = [await freePort(), await freePort()];
  const settings = {
    JINDOU_API_LISTEN: `127.0.0.1:${api}`,
    JINDOU_CLIENT_LISTEN: `127.0.0.1:${client}`,
    JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
  };
  let broker: ChildBroker = await spawnBroker(t, settings);
  return {
    clientPort: client,
    call: (path: string, body?: unknown) => broker.call(path, body),
    async restart(): Promise<void> {
      await broker.kill();
      broker = await spawnBroker(t, settings, broker.dataPath);
    },
  };
}

async function registerMain(node: Pick<ChildBroker, "call">, uid: string): Promise<void> {
  const { status } = await node.call("/user/token", {
    ...{ uid, token: TOKEN, device_flag: 0, device_level: 1 },
  });
  if (status !== 200) throw new Error(`/user/token responded with ${status}`);
}

t.test(
  "the device that logged in last stays online when the only node is killed and restarted",
  async (t) => {
    const node = await startAlone(t);
    const port = () => node.clientPort;

    for (const first of ["older", "newer"] as const)
      t.test(
        `the device that logged in last stays online if the ${first} device reconnects first`,
        async (t) => {
          const uid = `the-${first}`;
          await registerMain(node, uid);
          const [older, newer] = [0, 1].map(() => new SdkDevice({ uid, token: TOKEN, port })) as [
            SdkDevice,
            SdkDevice,
          ];
          t.teardown(() => {
            for (const device of [older, newer]) device.close();
          });
          await older.logIn();
          older.hasNetwork = false;
          older.lose();
          await newer.logIn();
          newer.hasNetwork = false;
          newer.cut();
          await node.restart();
          const order = first === "older" ? [older, newer] : [newer, older];
          for (const device of order) {
            device.hasNetwork = true;
            await eventually(
              "the device to reconnect or to be ended",
              () => device.isOnline || device.endedBy !== undefined,
            );
          }
          t.equal(older.endedBy, "kicked");
          t.equal(newer.endedBy, undefined);
          await newer.ping();
          t.ok(newer.isOnline);
        },
      );

    t.test(
      `the device that logged in last stays online in each of ${RESTARTS} rounds with random restarts of the node`,
      async (t) => {
        let restarting: Promise<void> | undefined;
        const whenUp = async () => {
          while (restarting !== undefined) await restarting;
        };
        const sessions = async (uid: string): Promise<number> => {
          await whenUp();
          const { body } = await node.call("/user/onlinestatus", [uid]);
          return body[0].online;
        };
        await playAll(
          t,
          {
            port,
            async register(uid) {
              await whenUp();
              await registerMain(node, uid);
            },
            sessions: (uid) => sessions(uid).catch(() => 0),
            disaster() {
              restarting ??= node.restart().finally(() => {
                restarting = undefined;
              });
              return restarting;
            },
          },
          RESTARTS,
        );
      },
    );
  },
);
