// A reconnect is no login [decisions: resume is no login]: main devices whose networks come and go,
// on three nodes and on one that restarts. Whatever breaks, the device that logged in last stays,
// and the others are told that they are kicked. JINDOU_TEST_ROUNDS raises the number of rounds,
// JINDOU_TEST_SEED repeats one.

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
/** Rounds played side by side, each with a user of its own. */
const LANES = 8;
const STEPS = 14;
const TOKEN = "a-token";

t.setTimeout(120_000 + ROUNDS * 2000);

interface World {
  readonly port: (random: Random) => number;
  register(uid: string): Promise<unknown>;
  /** How many sessions the directory has of the user. */
  sessions(uid: string): Promise<number>;
  /** Something that befalls all connections of the world. */
  readonly disaster?: () => Promise<void>;
}

/** Plays a round; gives what was wrong at its end. */
async function play(world: World, seed: number): Promise<readonly string[]> {
  const random = new Random(seed);
  const uid = `user-${seed}`;
  await world.register(uid);
  const port = () => world.port(random);
  const isNamed = random.flip();
  const devices = ["phone", "tablet"].map((name) => {
    const deviceId = isNamed ? name : undefined;
    return new SdkDevice({ uid, token: TOKEN, port, deviceId });
  });
  const did: string[] = [];
  let last: SdkDevice | undefined;
  const act = async (at: number): Promise<void> => {
    const device = devices[at] as SdkDevice; // one of the two
    switch (random.below(8)) {
      case 0:
      case 1:
        did.push(`${at} logs in`);
        device.hasNetwork = true;
        await device.logIn();
        last = device;
        break;
      case 2:
        did.push(`${at} is cut`);
        device.cut();
        break;
      case 3:
        did.push(`${at} loses its connection`);
        device.lose();
        break;
      case 4:
        did.push(`${at} has no network`);
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
          did.push("disaster");
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
    const winner = last as SdkDevice; // both logged in
    const loser = devices.find((one) => one !== winner) as SdkDevice;
    await eventually(`round ${seed} to settle`, async () => {
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
      .filter(([, seen, expected]) => seen !== expected)
      .map(([what, seen]) => `seed ${seed}: ${what}: ${seen}; ${did.join(", ")}`);
  } finally {
    for (const device of devices) device.close();
  }
}

async function playAll(t: Test, world: World, rounds: number): Promise<void> {
  const seeds = Array.from({ length: rounds }, (_, at) => FIRST_SEED + at);
  t.comment(`seeds ${FIRST_SEED} to ${FIRST_SEED + rounds - 1}`);
  const wrong: string[] = [];
  const lane = async (): Promise<void> => {
    for (let seed = seeds.shift(); seed !== undefined; seed = seeds.shift())
      wrong.push(...(await play(world, seed)));
  };
  await Promise.all(Array.from({ length: LANES }, lane));
  t.same(wrong, [], "the last login stays, the other is kicked");
}

t.test(`three nodes, ${ROUNDS} rounds: the last login wins`, async (t) => {
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
});

/** One node that can be killed and started again on its ports and data. */
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
  if (status !== 200) throw new Error(`/user/token: ${status}`);
}

t.test("one node that is killed: the last login wins", async (t) => {
  const node = await startAlone(t);
  const port = () => node.clientPort;

  for (const first of ["older", "newer"] as const)
    t.test(`the ${first} device is back first`, async (t) => {
      const uid = `the-${first}`;
      await registerMain(node, uid);
      const [old, late] = [0, 1].map(() => new SdkDevice({ uid, token: TOKEN, port })) as [
        SdkDevice,
        SdkDevice,
      ];
      t.teardown(() => {
        for (const one of [old, late]) one.close();
      });
      await old.logIn();
      old.hasNetwork = false;
      old.lose();
      await late.logIn();
      late.hasNetwork = false;
      late.cut();
      await node.restart();
      const order = first === "older" ? [old, late] : [late, old];
      for (const device of order) {
        device.hasNetwork = true;
        await eventually("it to come back", () => device.isOnline || device.endedBy !== undefined);
      }
      t.equal(old.endedBy, "kicked");
      t.equal(late.endedBy, undefined);
      await late.ping();
      t.ok(late.isOnline);
    });

  t.test(`${RESTARTS} rounds with restarts`, async (t) => {
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
  });
});
