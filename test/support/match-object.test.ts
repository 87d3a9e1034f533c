// Tests which values `matchObject` accepts and which it rejects.

import { matchObject } from "./match-object.ts";
import { t } from "./suite.ts";

function passes(actual: unknown, expected: unknown): boolean {
  let isSame = false;
  const strictSame = (value: unknown, other: unknown) => {
    isSame = JSON.stringify(value) === JSON.stringify(other);
    return isSame;
  };
  matchObject({ strictSame }, actual, expected);
  return isSame;
}

t.test("properties that the expected value does not name are ignored at any depth", async (t) => {
  t.ok(passes({ a: 1, b: 2 }, { a: 1 }));
  t.ok(passes({ a: [{ b: 1, c: 2 }] }, { a: [{ b: 1 }] }));
  matchObject(t, { a: { b: "text", c: 1 } }, { a: { b: "text" } });
});

t.test("strings and arrays must match in full, and undefined matches no other value", async (t) => {
  t.notOk(passes({ a: "text" }, { a: "te" }));
  t.notOk(passes({ a: [1, 2] }, { a: [1] }));
  t.notOk(passes({ a: [1] }, { a: [] }));
  t.notOk(passes({ a: [1] }, { a: [1, 2] }));
  t.notOk(passes({ a: 1 }, { a: undefined }));
  t.notOk(passes(undefined, { a: 1 }));
  t.notOk(passes([{ a: 1 }, { a: 1 }], [{ a: 1 }]));
});
