// kill -9 under load, again and again on one growing data folder: what was acknowledged stays, what was not is sent again and stored once.
// JINDOU_TEST_ROUNDS raises the number of kills, JINDOU_TEST_SEED repeats the choice of messages.

import t, { type Test } from "tap";
import type { Settings } from "../support/broker.ts";
import { Random } from "../support/random.ts";
import { CrashWorld } from "./crash-world.ts";

const ROUNDS = Number(process.env.JINDOU_TEST_ROUNDS ?? 20);
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
const DISK_ROUNDS = 3;
const TINY_ROUNDS = 5;
const MOST_MS_PER_ROUND = 15_000;

t.setTimeout((ROUNDS + DISK_ROUNDS + TINY_ROUNDS) * MOST_MS_PER_ROUND);

async function crashRepeatedly(
  t: Test,
  rounds: number,
  settings: Settings = {},
): Promise<void> {
  t.setTimeout(rounds * MOST_MS_PER_ROUND);
  t.comment(`seed ${SEED}`);
  const world = await CrashWorld.found(t, new Random(SEED), settings);
  for (let round = 0; round < rounds; round++) await world.round();
  await world.judgeAll();
  await world.close();
  const { interrupted, checker } = world;
  t.comment(`${checker.acknowledgedCount} acknowledged`);
  t.comment(`${interrupted} interrupted and sent again`);
  t.ok(interrupted >= rounds, "kills fell while messages were under way");
}

t.test(`${ROUNDS} kills under load lose and repeat nothing [DESIGN 2.5]`, (t) =>
  crashRepeatedly(t, ROUNDS),
);

t.test("kills while every write waits for the disk", (t) =>
  crashRepeatedly(t, DISK_ROUNDS, { JINDOU_STORE_DURABILITY: "disk" }),
);

t.test(
  "kills that fall into checkpoints, sweeps and the deletion of journal files",
  (t) =>
    crashRepeatedly(t, TINY_ROUNDS, {
      JINDOU_STORE_CHECKPOINT_MS: "10",
      JINDOU_STORE_SEGMENT_BYTES: "65536",
      JINDOU_STORE_SWEEP_INTERVAL_MS: "100",
    }),
);
