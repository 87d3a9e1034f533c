// kill -9 under load, again and again on one growing data folder: what was acknowledged stays, what was not is sent again and stored once.
// JINDOU_TEST_ROUNDS raises the number of kills (give tap a longer --timeout with it), JINDOU_TEST_SEED repeats the choice of messages.

import t, { type Test } from "tap";
import type { Settings } from "../support/broker.ts";
import { Random } from "../support/random.ts";
import { volume } from "../support/volume.ts";
import { CrashWorld } from "./crash-world.ts";

const ROUNDS = volume(20, "JINDOU_TEST_ROUNDS");
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
const DISK_ROUNDS = volume(10);

/** Kills fall into checkpoints, sweeps and the deletion of journal files. */
const BUSY_STORE: Settings = {
  JINDOU_STORE_CHECKPOINT_MS: "10",
  JINDOU_STORE_SEGMENT_BYTES: "65536",
  JINDOU_STORE_SWEEP_INTERVAL_MS: "100",
};
/** Every write waits for the disk: many are written and not answered at a kill. */
const DISK: Settings = { JINDOU_STORE_DURABILITY: "disk" };

/** The starts of the broker take turns with the settings. */
async function crashRepeatedly(
  t: Test,
  rounds: number,
  settings: readonly [Settings, Settings],
): Promise<void> {
  t.comment(`seed ${SEED}`);
  const world = await CrashWorld.found(t, new Random(SEED), settings[0]);
  for (let round = 0; round < rounds; round++)
    await world.round(round % 2 === 0 ? settings[1] : settings[0]);
  await world.judgeAll();
  await world.close();
  const { interrupted, checker } = world;
  t.comment(`${checker.acknowledgedCount} acknowledged`);
  t.comment(`${interrupted} interrupted and sent again`);
  t.ok(interrupted > 0, "kills fell while messages were under way");
}

t.test(`${ROUNDS} kills under load lose and repeat nothing [DESIGN 2.5]`, (t) =>
  crashRepeatedly(t, ROUNDS, [{}, BUSY_STORE]),
);

t.test("kills while writes wait for the disk lose and repeat nothing", (t) =>
  crashRepeatedly(t, DISK_ROUNDS, [DISK, { ...DISK, ...BUSY_STORE }]),
);
