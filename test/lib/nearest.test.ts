// Suggestions for mistyped names.

import { nearest } from "../../src/lib/nearest.ts";
import { t } from "../support/suite.ts";

const names = ["client.listen", "api.listen", "store.path", "log.level"];

t.test(
  "a known name is suggested for a name with a wrong, missing or added letter, or with two swapped letters",
  async (t) => {
    const cases = ["api.lisen", "api.listten", "api.lisetn", "api.lizten"];
    for (const name of cases) t.equal(nearest(name, names), "api.listen", name);
  },
);

t.test(
  "a known name is suggested for a name in upper case with a different separator",
  async (t) => {
    t.equal(nearest("STORE_PATH", names), "store.path");
  },
);

t.test("two swapped letters count as one mistake", async (t) => {
  t.equal(nearest("ab", ["ba"]), "ba");
  t.equal(nearest("abxyz", ["baxyz", "abcde"]), "baxyz");
});

t.test("no name is suggested if no known name is similar", async (t) => {
  t.equal(nearest("webhooks.retries", names), undefined);
  t.equal(nearest("x", []), undefined);
});
