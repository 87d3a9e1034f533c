// The scenarios in Node, one after the other against one broker process. The same ones run in a
// browser (browser.test.ts).

import { t } from "../support/suite.ts";
import { startWorld } from "./restartable.ts";
import { SCENARIOS } from "./scenario.ts";

const world = await startWorld(t);

for (const [name, scenario] of Object.entries(SCENARIOS))
  t.test(`Node: ${name}`, async (t) => {
    const facts = await scenario(world);
    for (const [what, seen, expected] of facts) t.same(seen, expected, what);
  });
