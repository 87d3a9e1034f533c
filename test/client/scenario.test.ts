// The scenarios in Node, against a broker process. The same ones run in a browser (browser.test.ts).

import t from "tap";
import { startWorld } from "./restartable.ts";
import { SCENARIOS } from "./scenario.ts";

for (const [name, scenario] of Object.entries(SCENARIOS))
  t.test(`Node: ${name}`, async (t) => {
    const facts = await scenario(await startWorld(t));
    for (const [what, seen, expected] of facts) t.same(seen, expected, what);
  });
