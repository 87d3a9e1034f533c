// The id and the method that are read from a request without parsing it, compared with JSON.parse.

import { readRequestName } from "../../../src/protocol/jsonrpc/request-name.ts";
import { Random } from "../../support/random.ts";
import { t } from "../../support/suite.ts";

const REQUESTS = 5000;
const nameIn = (text: string) => readRequestName(Buffer.from(text));

/** Returns JSON text of a string whose characters are escaped at random. */
function escaped(random: Random, text: string): string {
  return JSON.stringify(text).replace(/[a-z]/g, (letter) => {
    if (random.below(5) > 0) return letter;
    const digits = letter.charCodeAt(0).toString(16).padStart(4, "0");
    return `\\u${random.flip() ? digits.toUpperCase() : digits}`;
  });
}

function valueText(random: Random, depth: number): string {
  const texts = ["id", "method", 'x"id":5', "\\", "é", "", '{"id":', "z".repeat(900)];
  const scalars = ["null", "true", "0", "-1", "1.5e3", "9", "12345678901234567890"];
  if (depth === 0 || random.below(10) < 7)
    return random.flip() ? random.pick(scalars) : escaped(random, random.pick(texts));
  return random.flip()
    ? `[${valueText(random, depth - 1)} ,${valueText(random, depth - 1)}]`
    : objectText(random, depth - 1);
}

function objectText(random: Random, depth: number): string {
  const names = ["id", "method", "i", "idx", "params", "jsonrpc", "me\\thod", 'id"', "ID"];
  const blank = () => random.pick(["", "", " ", "\n\t"]);
  const fields = Array.from(
    { length: random.below(6) },
    () =>
      `${blank()}${escaped(random, random.pick(names))}${blank()}:${blank()}${valueText(random, depth)}${blank()}`,
  );
  return `{${fields.join(",")}}`;
}

t.test("the id and the method of any request are those that JSON.parse returns", (t) => {
  const random = new Random(REQUESTS);
  let idCount = 0;
  for (let at = 0; at < REQUESTS; at++) {
    const text = objectText(random, 3);
    const { id, method } = JSON.parse(text);
    const isValid =
      typeof id === "number" || (typeof id === "string" && id !== "" && id.length <= 128);
    const name = nameIn(text);
    const isSame =
      name.method === (typeof method === "string" && method.length < 128 ? method : "") &&
      (name.id === undefined ? !isValid : isValid && JSON.parse(name.id) === id);
    if (isValid) idCount += 1;
    if (!isSame) t.fail(text, { name });
  }
  t.ok(idCount > REQUESTS / 10, `${idCount} requests have a valid id`);
  t.end();
});

t.test("a large number is returned with its own digits", (t) => {
  t.equal(nameIn('{"id":12345678901234567890}').id, "12345678901234567890");
  t.equal(nameIn(`{"id":${"1".repeat(129)}}`).id, undefined);
  t.end();
});

t.test(
  "a request that is cut off, a list, and bytes that are not JSON are read without an error",
  (t) => {
    const text = '{"method":"ping","id":"abc"}';
    for (let length = 0; length < text.length; length++) nameIn(text.slice(0, length));
    t.match(nameIn(text.slice(0, -3)), { id: undefined, method: "ping" });
    t.match(nameIn(`[${text}]`), { id: undefined, method: "" });
    for (const invalid of [
      "",
      "}",
      '{"id"',
      '{"id":',
      '{"\\',
      '{"\\u00',
      '"id":1',
      '{"id":}',
      '{"id":12',
      '["id":7]',
    ])
      t.equal(nameIn(invalid).id, undefined, invalid);
    t.equal(nameIn('\ufeff {"id":1}{"id":2}').id, "1", "the first request is read");
    t.equal(nameIn('{"method":"x"}{"id":2}').id, undefined, "only the first request is read");
    t.end();
  },
);
