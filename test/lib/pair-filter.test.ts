// The filter of pairs: never a false "no", seldom a needless "perhaps".

import { PairFilter } from "../../src/lib/pair-filter.ts";
import { t } from "../support/suite.ts";

t.test("what was added may be there, always", async (t) => {
  const filter = new PairFilter();
  for (let i = 0; i < 20_000; i++) filter.add(`user-${i % 100}`, `no-${i}`);
  let missing = 0;
  for (let i = 0; i < 20_000; i++) if (!filter.mayHave(`user-${i % 100}`, `no-${i}`)) missing++;
  t.equal(missing, 0);
});

t.test("what was not added is seldom suspected", async (t) => {
  const filter = new PairFilter();
  for (let i = 0; i < 200_000; i++) filter.add(`user-${i % 100}`, `no-${i}`);
  let suspected = 0;
  for (let i = 0; i < 20_000; i++) if (filter.mayHave(`user-${i % 100}`, `other-${i}`)) suspected++;
  t.ok(suspected < 200, `${suspected} of 20000`);
});

t.test("a pair is not its parts put together otherwise", async (t) => {
  const filter = new PairFilter();
  filter.add("ab", "c");
  t.ok(filter.mayHave("ab", "c"));
  t.notOk(filter.mayHave("a", "bc"));
  t.notOk(filter.mayHave("abc", ""));
});

t.test("an empty and a cleared filter have nothing", async (t) => {
  const filter = new PairFilter();
  t.notOk(filter.mayHave("a", "b"));
  filter.add("a", "b");
  filter.clear();
  t.notOk(filter.mayHave("a", "b"));
});
