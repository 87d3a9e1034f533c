// Issue 3, line 5: over HTTP and sockets, random sends, reads on two devices, unread set up and
// down, joins, leaves, deletes, streams, expiry and kill -9 agree with a plain model after every
// step. JINDOU_TEST_STEPS lengthens it, JINDOU_TEST_SEED repeats its choices.

import { isDeepStrictEqual } from "node:util";
import t, { type Test } from "tap";
import { Random } from "../support/random.ts";
import { volume } from "../support/volume.ts";
import { UnreadWorld } from "./unread-world.ts";

const STEPS = volume(400, "JINDOU_TEST_STEPS");
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
const KILLS = 3;
const KILL_EVERY = Math.ceil(STEPS / (KILLS + 1));
const STEPS_PER_LOOK = 5;

t.test(`${STEPS} random steps agree with a plain model`, async (t) => {
  t.comment(`seed ${SEED}`);
  const random = new Random(SEED);
  const world = await UnreadWorld.found(t, random);
  for (let step = 1; step <= STEPS; step++) {
    await takeStep(t, world, random);
    if (step % STEPS_PER_LOOK === 0 && !(await agrees(t, world, step))) return;
    if (step === STEPS || step % KILL_EVERY !== 0) continue;
    await world.restart();
    if (!(await agrees(t, world, step))) return;
  }
  await world.everythingExpires();
  await agrees(t, world, STEPS);
  t.equal(world.kills, KILLS);
  t.comment(JSON.stringify(world.counts));
  t.notMatch(world.output(), /"level":"(error|fatal)"/, "no error was logged");
});

async function takeStep(t: Test, world: UnreadWorld, random: Random): Promise<void> {
  const dice = random.below(100);
  if (dice < 50) await world.send();
  else if (dice < 54) await world.stream();
  else if (dice < 72) {
    const heard = await world.changeOnDevice();
    if (heard !== undefined && !isDeepStrictEqual(heard.other, heard.own))
      t.same(heard.other, heard.own, "the user's other device is told");
  } else if (dice < 88) await world.changeOverHttp();
  else await world.joinOrLeave();
}

/** Says where the broker and the model differ; then further steps tell nothing. */
async function agrees(t: Test, world: UnreadWorld, step: number): Promise<boolean> {
  const differences = await world.differences();
  if (differences.length === 0) return true;
  t.fail(`after step ${step} of seed ${SEED}`);
  t.same(differences, []);
  return false;
}
