// Where a behaviour file adds its tests, and with whose end what it starts goes away: the process, when the file runs alone, or one suite of a
// process that runs many files (suites.ts). State: which of them it is.

import root, { type Test } from "tap";

export let t: Test = root;

/** What `load` loads belongs to `suite`. */
export async function within(
  suite: Test,
  load: () => Promise<unknown>,
): Promise<void> {
  t = suite;
  await load();
}
