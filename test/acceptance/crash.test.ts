// kill -9 under load, again and again on one growing data folder: what was acknowledged stays, what
// was not is sent again and stored once. JINDOU_TEST_ROUNDS raises the number of kills (give tap a
// longer --timeout with it), JINDOU_TEST_SEED repeats the choice of messages.

import t, { type Test } from "tap";
import { BUSY_STORE, type Settings } from "../support/broker.ts";
import { Random } from "../support/random.ts";
import { volume } from "../support/volume.ts";
import { CrashWorld } from "./crash-world.ts";

const ROUNDS = volume(20, "JINDOU_TEST_ROUNDS");
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
const DISK_ROUNDS = volume(10);

/** Kills fall into sweeps too. */
const SWEEPING: Settings = { JINDOU_STORE_SWEEP_INTERVAL_MS: "100" };
/** Every write waits for the disk: many are written and not answered at a kill. */
const DISK: Settings = { JINDOU_STORE_DURABILITY: "disk" };

/** Every second start of the broker is with a store that is always busy. */
async function crashRepeatedly(
  t: Test,
  rounds: number,
  settings: Settings,
): Promise<void> {
  t.comment(`seed ${SEED}`);
  const world = await CrashWorld.found(t, new Random(SEED), settings);
  const busy = { ...settings, ...SWEEPING };
  for (let round = 0; round < rounds; round++)
    if (round % 2 === 0) await world.round(busy, BUSY_STORE);
    else await world.round(settings);
  await world.judgeAll();
  await world.close();
  const { interrupted, checker } = world;
  t.comment(`${checker.acknowledgedCount} acknowledged`);
  t.comment(`${interrupted} interrupted and sent again`);
  t.ok(interrupted > 0, "kills fell while messages were under way");
}

t.test(`${ROUNDS} kills under load lose and repeat nothing [DESIGN 2.5]`, (t) =>
  crashRepeatedly(t, ROUNDS, {}),
);

t.test("kills while writes wait for the disk lose and repeat nothing", (t) =>
  crashRepeatedly(t, DISK_ROUNDS, DISK),
);
