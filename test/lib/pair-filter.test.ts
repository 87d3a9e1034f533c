// The Bloom filter of pairs: no false negatives, and few false positives.

import { PairFilter } from "../../src/lib/pair-filter.ts";
import { t } from "../support/suite.ts";

t.test("every pair that was added to the filter is found", async (t) => {
  const filter = new PairFilter();
  for (let i = 0; i < 20_000; i++) filter.add(`user-${i % 100}`, `no-${i}`);
  let missing = 0;
  for (let i = 0; i < 20_000; i++) if (!filter.mayHave(`user-${i % 100}`, `no-${i}`)) missing++;
  t.equal(missing, 0);
});

t.test("fewer than 1 percent of the pairs that were not added are found", async (t) => {
  const filter = new PairFilter();
  for (let i = 0; i < 200_000; i++) filter.add(`user-${i % 100}`, `no-${i}`);
  let falsePositives = 0;
  for (let i = 0; i < 20_000; i++)
    if (filter.mayHave(`user-${i % 100}`, `other-${i}`)) falsePositives++;
  t.ok(falsePositives < 200, `${falsePositives} of 20,000 pairs that were not added are found`);
});

t.test("two pairs with the same concatenation are distinct", async (t) => {
  const filter = new PairFilter();
  filter.add("ab", "c");
  t.ok(filter.mayHave("ab", "c"));
  t.notOk(filter.mayHave("a", "bc"));
  t.notOk(filter.mayHave("abc", ""));
});

t.test("an empty filter and a cleared filter find nothing", async (t) => {
  const filter = new PairFilter();
  t.notOk(filter.mayHave("a", "b"));
  filter.add("a", "b");
  filter.clear();
  t.notOk(filter.mayHave("a", "b"));
});
