// Random steps over HTTP and sockets: sends, reads on two devices, changes of unread counts, joins,
// leaves, deletes, streams, expiry and SIGKILL. The broker must agree with a plain model.
// JINDOU_TEST_STEPS sets the number of steps, and JINDOU_TEST_SEED repeats a run.

import { isDeepStrictEqual } from "node:util";
import t, { type Test } from "tap";
import { Random } from "../support/random.ts";
import { volume } from "../support/volume.ts";
import { UnreadWorld } from "./unread-world.ts";

const STEPS = volume(400, "JINDOU_TEST_STEPS");
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
const KILLS = 3;
const KILL_EVERY = Math.ceil(STEPS / (KILLS + 1));
const STEPS_PER_CHECK = 5;

t.test(
  `conversation lists and unread counts agree with a plain model throughout ${STEPS} random steps`,
  async (t) => {
    t.comment(`seed ${SEED}`);
    const random = new Random(SEED);
    const world = await UnreadWorld.create(t, random);
    for (let step = 1; step <= STEPS; step++) {
      await takeStep(t, world, random);
      if (step % STEPS_PER_CHECK === 0 && !(await agrees(t, world, step))) return;
      if (step === STEPS || step % KILL_EVERY !== 0) continue;
      await world.restart();
      if (!(await agrees(t, world, step))) return;
    }
    await world.untilExpired();
    await agrees(t, world, STEPS);
    t.equal(world.kills, KILLS);
    t.comment(JSON.stringify(world.counts));
    t.notMatch(world.output(), /"level":"(error|fatal)"/, "no error was logged");
  },
);

async function takeStep(t: Test, world: UnreadWorld, random: Random): Promise<void> {
  const dice = random.below(100);
  if (dice < 50) await world.send();
  else if (dice < 54) await world.stream();
  else if (dice < 72) {
    const change = await world.changeOnDevice();
    if (change !== undefined && !isDeepStrictEqual(change.pushed, change.own))
      t.same(change.pushed, change.own, "the user's other device is pushed the change");
  } else if (dice < 88) await world.changeOverHttp();
  else await world.joinOrLeave();
}

/**
 * Returns false and reports a failure if the broker and the model differ. Later steps are then
 * pointless.
 */
async function agrees(t: Test, world: UnreadWorld, step: number): Promise<boolean> {
  const differences = await world.differences();
  if (differences.length === 0) return true;
  t.fail(`the broker differs from the model after step ${step} of seed ${SEED}`);
  t.same(differences, []);
  return false;
}
