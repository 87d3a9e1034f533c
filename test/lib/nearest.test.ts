// Finding the name somebody probably meant.

import { nearest } from "../../src/lib/nearest.ts";
import { t } from "../support/suite.ts";

const names = ["client.listen", "api.listen", "store.path", "log.level"];

t.test("a letter wrong, missing, added or swapped still finds the name", async (t) => {
  const cases = ["api.lisen", "api.listten", "api.lisetn", "api.lizten"];
  for (const name of cases) t.equal(nearest(name, names), "api.listen", name);
});

t.test("case and separators do not matter", async (t) => {
  t.equal(nearest("STORE_PATH", names), "store.path");
});

t.test("a swap of neighbours is one mistake, not two", async (t) => {
  t.equal(nearest("ab", ["ba"]), "ba");
  t.equal(nearest("abxyz", ["baxyz", "abcde"]), "baxyz");
});

t.test("nothing is offered when nothing is close", async (t) => {
  t.equal(nearest("webhooks.retries", names), undefined);
  t.equal(nearest("x", []), undefined);
});
