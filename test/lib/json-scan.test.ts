// Reading one field of a JSON document without building the document, compared with `JSON.parse`.
// JINDOU_TEST_DOCUMENTS sets the number of random documents.

import { integerField, jsonItems } from "../../src/lib/json-scan.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";

const DOCUMENTS = Number(process.env.JINDOU_TEST_DOCUMENTS ?? 30_000);
const SEED = Number(process.env.JINDOU_TEST_SEED ?? Date.now() % 1_000_000);

const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);

/** Returns the integer field `type` of a document, read with `JSON.parse`. */
function parsed(document: Uint8Array): number | undefined {
  try {
    const value = JSON.parse(decoder.decode(document));
    const isObject = typeof value === "object" && value !== null;
    if (!isObject || Array.isArray(value)) return undefined;
    return Number.isInteger(value.type) ? value.type : undefined;
  } catch {
    return undefined;
  }
}

const DOCUMENT_SEEDS: readonly string[] = [
  '{"type":1,"a":[1,2,{"b":null,"type":7}],"c":"x\\n\\u00e9"}',
  '{"\\u0074ype":-12,"a":true,"b":false}',
  '{"type":1e2,"type":3.0}',
  ' {"type" : 10 ,\t"x":{"type":2},\r\n"type":"a"} ',
  '{"a":"\\ud800 é漢😀","type":-0}',
  '{"type":[1],"b":{}}',
  '{"type":2,"type":{}}',
  "{}",
  '{"typ":1,"types":2,"type":12345678901234567890}',
  '{"type":1e999}',
  '{"t\\u0079pe":3,"\\u0054ype":4,"\\type":5,"\\u0074\\u0079\\u0070\\u0065":6}',
  '{"\\n\\"":1,"type\\n":2,"\\\\type":3}',
  '[{"type":1}]',
];
const PIECES = '{}[]",:\\tyrufalsen0123456789.eE+- \n\u0001';

t.test(
  `integerField and JSON.parse return the same value of a field for ${DOCUMENTS} random documents`,
  async (t) => {
    t.comment(`seed ${SEED}`);
    const random = new Random(SEED);
    const different: string[] = [];
    let validCount = 0;
    for (let i = 0; i < DOCUMENTS; i++) {
      const document = mutated(random);
      const expected = parsed(document);
      if (expected !== undefined) validCount += 1;
      if (integerField(document, "type") !== expected)
        different.push(new TextDecoder().decode(document));
    }
    t.same(different, []);
    t.ok(validCount > DOCUMENTS / 10, "more than a tenth of the documents are valid");
  },
);

t.test("a field is found in a document that is nested 9,000 levels deep", async (t) => {
  for (const [open, close] of [
    ["[", "]"],
    ['{"a":', "}"],
  ] as const) {
    const inner = `${open.repeat(9000)}1${close.repeat(9000)}`;
    t.equal(integerField(bytes(`{"a":${inner},"type":5}`), "type"), 5);
    t.equal(integerField(bytes(`{"a":${inner}],"type":5}`), "type"), undefined);
  }
});

t.test(
  "scanning a document that repeats one field takes at most three times as long as JSON.parse",
  async (t) => {
    const fields = ['"\\n":0,', '"\\u0074yp":0,', '"t\\u0079pe":12,'];
    for (const field of fields) {
      const text = `{${field.repeat(60_000 / field.length)}"type":-5}`;
      const document = bytes(text);
      t.equal(integerField(document, "type"), -5);
      const scan = fastestMs(() => integerField(document, "type"));
      const parse = fastestMs(() => JSON.parse(text));
      t.ok(scan <= 3 * parse, `${field}: scan ${scan} ms, JSON.parse ${parse} ms`);
    }
  },
);

/** Returns the milliseconds of the fastest of 30 runs. */
function fastestMs(run: () => unknown): number {
  let fastest = Number.POSITIVE_INFINITY;
  for (let i = 0; i < 30; i++) {
    const from = performance.now();
    run();
    fastest = Math.min(fastest, performance.now() - from);
  }
  return fastest;
}

/** Returns one of the documents with a few random changes. */
function mutated(random: Random): Uint8Array {
  const document = [...bytes(random.pick(DOCUMENT_SEEDS))];
  for (let changes = random.below(4); changes > 0; changes--) {
    const at = random.below(document.length + 1);
    const byte =
      random.below(20) === 0 ? random.below(256) : PIECES.charCodeAt(random.below(PIECES.length));
    const removed = random.below(2);
    const added = random.below(3) === 0 ? [] : [byte];
    document.splice(at, removed, ...added);
  }
  return Uint8Array.from(document);
}

/** Returns the items of a list, or any other value as the only item, read with `JSON.parse`. */
function parsedItems(document: Uint8Array): readonly unknown[] | undefined {
  try {
    const value: unknown = JSON.parse(decoder.decode(document));
    return Array.isArray(value) ? value : [value];
  } catch {
    return undefined;
  }
}

t.test(
  `jsonItems and JSON.parse return the same items for ${DOCUMENTS} random documents`,
  async (t) => {
    t.comment(`seed ${SEED}`);
    const random = new Random(SEED);
    const different: string[] = [];
    for (let i = 0; i < DOCUMENTS; i++) {
      const document = random.below(2) === 0 ? mutated(random) : inArray(mutated(random));
      const items = jsonItems(document)?.map((item) => JSON.parse(decoder.decode(item)));
      const text = new TextDecoder().decode(document);
      if (JSON.stringify(items) !== JSON.stringify(parsedItems(document))) different.push(text);
    }
    t.same(different, []);
  },
);

function inArray(document: Uint8Array): Uint8Array {
  return Buffer.concat([bytes(" [1.50, "), document, bytes(" ]\n")]);
}

t.test("the items of an array keep the text that they have in the document", async (t) => {
  const items = jsonItems(bytes(' [ 1.50 ,{"a" : 1,"a":2}, "\\u00e9é" ] ')) ?? [];
  t.same(
    items.map((item) => decoder.decode(item)),
    ["1.50", '{"a" : 1,"a":2}', '"\\u00e9é"'],
  );
  t.same(jsonItems(bytes("[]")), []);
  t.equal(jsonItems(bytes("")), undefined);
});
