// Tests which entries a bounded map drops when it is full.

import { BoundedMap } from "../../src/lib/bounded-map.ts";
import { t } from "../support/suite.ts";

t.test(
  "a full map drops its oldest entry, and setting a key again does not renew the entry",
  async (t) => {
    const map = new BoundedMap<string, number>(2);
    map.set("a", 1);
    map.set("b", 2);
    map.set("a", 3);
    t.equal(map.get("a"), 3);
    map.set("c", 4);
    t.equal(map.get("a"), undefined);
    t.equal(map.get("b"), 2);
    t.equal(map.get("c"), 4);
    t.equal(map.size, 2);
  },
);

t.test("deleting a key of a full map makes room for another key", async (t) => {
  const map = new BoundedMap<string, number>(1);
  map.set("a", 1);
  map.delete("a");
  t.equal(map.get("a"), undefined);
  map.set("b", 2);
  t.equal(map.get("b"), 2);
});

t.test("a renewed key is dropped last", async (t) => {
  const map = new BoundedMap<string, number>(2);
  map.set("a", 1);
  map.set("b", 2);
  map.renew("a", 3);
  map.set("c", 4);
  t.equal(map.get("a"), 3);
  t.equal(map.get("b"), undefined);
  t.equal(map.get("c"), 4);
});
