// `OrderedLookup` returns what its map has, whatever was looked up before.

import { OrderedLookup } from "../../src/lib/ordered-lookup.ts";
import { t } from "../support/suite.ts";

t.test("a lookup returns the map's value, whatever was looked up before", async (t) => {
  const long = "n".repeat(100);
  const values = new Map([...["a", "b", "c", "d"].entries()].map(([at, name]) => [name, at]));
  values.set(long, 9);
  const names = [...values.keys(), "unknown", `${long}x`, "__proto__"];
  const lookup = new OrderedLookup(values, 3);
  const wrong: string[] = [];
  let seed = 1;
  const random = (below: number) => {
    seed = (seed * 48_271) % 2_147_483_647;
    return seed % below;
  };
  for (let i = 0; i < 10_000; i++) {
    const name = names[random(names.length)] ?? "";
    const place = random(5);
    // The second lookup is answered from memory.
    for (const value of [lookup.get(name, place), lookup.get(name, place)])
      if (value !== values.get(name)) wrong.push(`${name} at ${place}: ${value}`);
  }
  t.same(wrong, []);
});
