// Tests the order of a linked map, and that its oldest entry is found quickly.

import { LinkedMap } from "../../src/lib/linked-map.ts";
import { t } from "../support/suite.ts";

const ofEntries = (...entries: readonly (readonly [string, number])[]) => {
  const map = new LinkedMap<string, number>();
  for (const [key, value] of entries) map.set(key, value);
  return map;
};

t.test("a new key is the newest, and a key that is set again keeps its place", async (t) => {
  const map = ofEntries(["a", 1], ["b", 2]);
  map.set("a", 3);
  t.same([...map], [["a", 3], ["b", 2]]); // biome-ignore format: one line
  t.match(map.oldest, { key: "a", value: 3 });
  t.equal(map.size, 2);
});

t.test("a renewed key is the newest, regardless of its earlier place", async (t) => {
  for (const key of ["a", "b", "c", "d"]) {
    const map = ofEntries(["a", 1], ["b", 2], ["c", 3]);
    map.renew(key, 9);
    const others = ["a", "b", "c"].filter((other) => other !== key);
    t.same([...map].map(([name]) => name), [...others, key]); // biome-ignore format: one line
    t.equal(map.get(key), 9);
    t.match(map.oldest, { key: others[0] });
  }
});

t.test("deleting a key does not change the order of the other keys", async (t) => {
  for (const key of ["a", "b", "c"]) {
    const map = ofEntries(["a", 1], ["b", 2], ["c", 3]);
    t.equal(map.delete(key), true);
    t.equal(map.delete(key), false);
    t.equal(map.has(key), false);
    const others = ["a", "b", "c"].filter((other) => other !== key);
    const dropped: string[] = [];
    for (let { oldest } = map; oldest !== undefined; oldest = map.oldest) {
      dropped.push(oldest.key);
      map.delete(oldest.key);
    }
    t.same(dropped, others);
    t.equal(map.size, 0);
    map.set(key, 4);
    t.match(map.oldest, { key, value: 4 });
  }
});

t.test("a cleared map is empty and can be filled again", async (t) => {
  const map = ofEntries(["a", 1], ["b", 2]);
  map.clear();
  t.equal(map.oldest, undefined);
  t.same([...map], []);
  map.set("b", 3);
  t.same([...map], [["b", 3]]);
});

t.test("entries can be added and deleted during an iteration", async (t) => {
  const map = ofEntries(["a", 1], ["b", 2], ["c", 3]);
  const visited: string[] = [];
  for (const [key] of map) {
    visited.push(key);
    map.delete(key);
    if (key === "a") {
      map.delete("b");
      map.set("d", 4);
    }
  }
  t.same(visited, ["a", "c", "d"]);
});

t.test("the oldest entry is found and deleted without a new iterator over the map", async (t) => {
  // A new iterator of a Map skips all entries that were deleted since V8 last rebuilt the table.
  const entries = 50_000;
  const map = new LinkedMap<number, number>();
  for (let key = 0; key < entries; key++) map.set(key, key);
  const iterators = countIterators(() => {
    for (let key = entries; key < entries + 20_000; key++) {
      map.set(key, key);
      if (map.oldest !== undefined) map.delete(map.oldest.key);
    }
  });
  t.equal(iterators, 0, "no iterator of a Map was created");
  t.match(map.oldest, { key: 20_000 });
});

/** Returns the number of Map iterators that `step` creates. */
function countIterators(step: () => void): number {
  const { prototype } = Map;
  const { entries, keys, values } = prototype;
  let created = 0;
  const counted = <Method extends (this: Map<unknown, unknown>) => unknown>(method: Method) =>
    function count(this: Map<unknown, unknown>) {
      created += 1;
      return method.call(this);
    };
  Object.assign(prototype, {
    ...{ entries: counted(entries), keys: counted(keys), values: counted(values) },
    [Symbol.iterator]: counted(entries),
  });
  try {
    step();
    return created;
  } finally {
    Object.assign(prototype, { entries, keys, values, [Symbol.iterator]: entries });
  }
}
