// Runs the scenarios in Node, one after the other against one broker process. browser.test.ts runs
// the same scenarios in a browser.

import { t } from "../support/suite.ts";
import { startWorld } from "./restartable.ts";
import { SCENARIOS } from "./scenario.ts";

const world = await startWorld(t);

for (const [name, scenario] of Object.entries(SCENARIOS))
  t.test(`the SDK passes the scenario ${name} in Node`, async (t) => {
    const facts = await scenario(world);
    for (const [description, actual, expected] of facts) t.same(actual, expected, description);
  });
