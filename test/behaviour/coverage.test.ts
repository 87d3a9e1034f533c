// Compares the rows of the specification with the comments above the behaviour tests: each row has
// a test, and each row in a comment exists.

import { readdirSync, readFileSync } from "node:fs";
import t from "tap";
import { DECISION_ROWS, FEATURE_ROWS, SPEC_ROWS } from "./rows.ts";
import { SUITES } from "./suites.ts";

const FOLDER = new URL("./", import.meta.url);

/** Matches the rows in a comment, such as `[spec: POST /channel 409; decisions: Create again]`. */
const ROWS = /\[((?:spec|decisions|feature): [^\]]+)\]/g;

const all = [
  ...SPEC_ROWS.map((row) => `spec: ${row}`),
  ...DECISION_ROWS.map((row) => `decisions: ${row}`),
  ...FEATURE_ROWS.map((row) => `feature: ${row}`),
];

const named = new Set(
  readdirSync(FOLDER)
    .filter((name) => name.endsWith(".test.ts"))
    .filter((name) => !import.meta.url.endsWith(name))
    .map((name) => readFileSync(new URL(name, FOLDER), "utf8"))
    .flatMap((source) => [...source.matchAll(ROWS)])
    .flatMap(([, rows = ""]) => rows.split("; ")),
);

t.test("every row of the specification is covered by a behaviour test", async (t) => {
  t.ok(all.length > 100);
  t.equal(new Set(all).size, all.length, "each row is listed once");
  const uncovered = all.filter((row) => !named.has(row));
  t.same(uncovered, []);
});

t.test("every row that a comment of a behaviour test names is in the list of rows", async (t) => {
  const listed = new Set(all);
  const unknown = [...named].filter((row) => !listed.has(row));
  t.same(unknown, []);
});

t.test(
  "every behaviour test belongs to a subject whose tests run on one node and on three nodes",
  async (t) => {
    const listed = Object.values(SUITES).flat();
    const runners = Object.keys(SUITES).flatMap((subject) => [
      `embedded-${subject}`,
      `three-${subject}`,
    ]);
    const files = readdirSync(FOLDER)
      .filter((name) => name.endsWith(".test.ts"))
      .map((name) => name.slice(0, -".test.ts".length));
    t.same(files.sort(), [...listed, ...runners, "coverage", "portable", "wkproto-tcp"].sort());
  },
);
