// The text of a field in random valid JSON, compared with `JSON.parse`.

import { fieldText } from "../../src/lib/json-field.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";

const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);
const NAMES = ["a", "b", "payload", '"', "\\", "é"];
const SCALARS = ["0", "-1.5e9", "true", "null", '""', '"}],:"', '"\\""', '"\\\\"', '"a,b"'];

function randomText(random: Random, levels: number): string {
  const space = () => random.pick(["", "", " ", "\n\t"]);
  const spaced = (text: string) => `${space()}${text}${space()}`;
  if (levels === 0 || random.below(3) === 0) return random.pick(SCALARS);
  const isObject = random.flip();
  const items = Array.from({ length: random.below(4) }, () => {
    const value = spaced(randomText(random, levels - 1));
    return isObject ? `${spaced(JSON.stringify(random.pick(NAMES)))}:${value}` : value;
  });
  return isObject ? `{${items.join(",") || space()}}` : `[${items.join(",") || space()}]`;
}

t.test("the text of a field parses to the value of the field in the document", async (t) => {
  t.comment(`seed ${SEED}`);
  const random = new Random(SEED);
  const different: string[] = [];
  for (let i = 0; i < 5000; i++) {
    const names = Array.from({ length: random.below(4) }, () => random.pick(NAMES));
    const fields = names.map((name) => ` ${JSON.stringify(name)} : ${randomText(random, 4)} `);
    const text = ` {${fields.join(",")}} `;
    const parsed = JSON.parse(text);
    for (const name of NAMES) {
      const field = fieldText(text, name);
      const value = field && JSON.stringify(JSON.parse(field.text));
      if (value !== (Object.hasOwn(parsed, name) ? JSON.stringify(parsed[name]) : undefined))
        different.push(`${name} in ${text}`);
    }
  }
  t.same(different, []);
});

t.test(
  "the depth of a field counts nested objects and arrays, even in values of duplicate keys",
  async (t) => {
    const depthOf = (value: string) => fieldText(`{"a":${value}}`, "a")?.depth;
    t.same(['"[["', "1", "{}", "[[]]", '{"b":[1],"b":0}', "[{}, [[]]]"].map(depthOf), [
      ...[0, 0, 1, 2, 2, 3],
    ]);
  },
);

t.test("a field is found by its name even if the document escapes the name", async (t) => {
  t.equal(fieldText('{"\\u0061":1,"b":2}', "a")?.text, "1");
  t.equal(fieldText('{"a":1,"\\u0061":[ 2 ]}', "a")?.text, "[ 2 ]");
});
