// What passes as shown, and what does not.

import { shows } from "./shows.ts";
import { t } from "./suite.ts";

/** Whether it would pass. */
function passes(found: unknown, wanted: unknown): boolean {
  let isSame = false;
  const strictSame = (one: unknown, other: unknown) => {
    isSame = JSON.stringify(one) === JSON.stringify(other);
    return isSame;
  };
  shows({ strictSame }, found, wanted);
  return isSame;
}

t.test("properties that are not named do not matter, at any depth", async (t) => {
  t.ok(passes({ a: 1, b: 2 }, { a: 1 }));
  t.ok(passes({ a: [{ b: 1, c: 2 }] }, { a: [{ b: 1 }] }));
  shows(t, { a: { b: "text", c: 1 } }, { a: { b: "text" } });
});

t.test("texts, lists and what is missing are compared whole", async (t) => {
  t.notOk(passes({ a: "text" }, { a: "te" }));
  t.notOk(passes({ a: [1, 2] }, { a: [1] }));
  t.notOk(passes({ a: [1] }, { a: [] }));
  t.notOk(passes({ a: [1] }, { a: [1, 2] }));
  t.notOk(passes({ a: 1 }, { a: undefined }));
  t.notOk(passes(undefined, { a: 1 }));
  t.notOk(passes([{ a: 1 }, { a: 1 }], [{ a: 1 }]));
});
