// Holds the list of rows and the titles of the behaviour tests together: no row is forgotten, and
// no title names an unknown row.

import { readdirSync, readFileSync } from "node:fs";
import t from "tap";
import { DECISION_ROWS, ISSUE_ROWS, SPEC_ROWS } from "./rows.ts";
import { SUITES } from "./suites.ts";

const FOLDER = new URL("./", import.meta.url);

/** In a title: `[spec: POST /channel 409; decisions: Create again]`. */
const ROWS = /\[((?:spec|decisions|issue): [^\]]+)\]/g;

const all = [
  ...SPEC_ROWS.map((row) => `spec: ${row}`),
  ...DECISION_ROWS.map((row) => `decisions: ${row}`),
  ...ISSUE_ROWS.map((row) => `issue: ${row}`),
];

const named = new Set(
  readdirSync(FOLDER)
    .filter((name) => name.endsWith(".test.ts"))
    .filter((name) => !import.meta.url.endsWith(name))
    .map((name) => readFileSync(new URL(name, FOLDER), "utf8"))
    .flatMap((source) => [...source.matchAll(ROWS)])
    .flatMap(([, rows = ""]) => rows.split("; ")),
);

t.test("every row has a test that names it", async (t) => {
  t.ok(all.length > 100);
  t.equal(new Set(all).size, all.length, "no row is listed twice");
  const forgotten = all.filter((row) => !named.has(row));
  t.same(forgotten, []);
});

t.test("every row that a title names is on the list", async (t) => {
  const known = new Set(all);
  const unknown = [...named].filter((row) => !known.has(row));
  t.same(unknown, []);
});

t.test("every behaviour test runs on one node and on three", async (t) => {
  const listed = Object.values(SUITES).flat();
  const runners = Object.keys(SUITES).flatMap((about) => [`embedded-${about}`, `three-${about}`]);
  const there = readdirSync(FOLDER)
    .filter((name) => name.endsWith(".test.ts"))
    .map((name) => name.slice(0, -".test.ts".length));
  t.same(there.sort(), [...listed, ...runners, "coverage"].sort());
});
