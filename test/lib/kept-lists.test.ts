// Tests of lists that are kept until they change.

import { KeptLists } from "../../src/lib/kept-lists.ts";
import { t } from "../support/suite.ts";

t.test("a list is read only once until it changes", async (t) => {
  const lists = new KeptLists<number>(100);
  let reads = 0;
  const read = async () => [++reads];
  t.same(await lists.get("a", read), [1]);
  t.same(await lists.get("a", read), [1]);
  lists.forget("a");
  t.same(await lists.get("a", read), [2]);
  lists.clear();
  t.same(await lists.get("a", read), [3]);
});

t.test("a list that changes while it is read is returned but not cached", async (t) => {
  for (const change of ["forget", "clear"] as const) {
    const lists = new KeptLists<string>(100);
    let finish = (_list: string[]) => {};
    const slow = lists.get("a", () => new Promise<string[]>((resolve) => (finish = resolve)));
    lists[change]("a");
    t.same(
      await lists.get("a", async () => ["new"]),
      ["new"],
      "the list of the later read is kept",
    );
    finish(["old"]);
    t.same(await slow, ["old"]);
    t.same(
      await lists.get("a", async () => ["newer"]),
      ["new"],
      "the list of the slow read is not kept",
    );
  }
});

t.test("a failed read is not cached", async (t) => {
  const lists = new KeptLists<string>(100);
  const failure = new Error("unreadable");
  await t.rejects(async () => lists.get("a", () => Promise.reject(failure)), failure);
  t.same(await lists.get("a", async () => ["read"]), ["read"]);
});

t.test(
  "the least recently used list is dropped if the total length of all lists exceeds the limit",
  async (t) => {
    const lists = new KeptLists<number>(9); // each of these lists counts as 3
    const read = async () => [1, 2];
    for (const key of ["a", "b", "c", "a", "d"]) await lists.get(key, read);
    const isKept = async (key: string) => (await lists.get(key, async () => [])).length > 0;
    t.equal(await isKept("a"), true);
    t.equal(await isKept("d"), true);
    t.equal(await isKept("b"), false);
  },
);
