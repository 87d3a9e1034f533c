// What the pages name exists: files, headings, configuration keys, variables, metrics, error codes.

import { existsSync, statSync } from "node:fs";
import { join } from "node:path";
import t from "tap";
import { EDGE_ERRORS } from "../../src/api/errors.ts";
import { ERRORS } from "../../src/broker/errors.ts";
import { CONFIG_KEYS } from "../../src/config/schema.ts";
import { anchors, localLinks, namedRows, pages, ROOT, readPage, section } from "./pages.ts";

t.test("every link to a file or heading of the project leads there", async (t) => {
  let links = 0;
  for (const page of pages())
    for (const { file, anchor } of localLinks(page)) {
      links += 1;
      const path = join(ROOT, file);
      if (!existsSync(path)) t.fail(`${page}: no ${file}`);
      else if (anchor !== "" && statSync(path).isFile())
        t.ok(anchors(readPage(file)).includes(anchor), `${page}: ${file}#${anchor}`);
    }
  t.ok(links > 50);
});

t.test("every variable that the pages and the Dockerfile name is one", async (t) => {
  const known = new Set(["JINDOU_CONFIG"]);
  for (const name of ["JINDOU_FAULT_SECONDS", "JINDOU_TEST_VOLUME"]) known.add(name); // the tests'
  for (const { env, secret } of CONFIG_KEYS) {
    known.add(env);
    if (secret) known.add(`${env}_FILE`);
  }
  const found = new Map<string, string>();
  for (const page of [...pages(), "Dockerfile"])
    for (const [name] of readPage(page).matchAll(/\bJINDOU_[A-Z_]+/g)) found.set(name, page);
  t.ok(found.size > 20);
  t.same(
    [...found].filter(([name]) => !known.has(name) && name !== "JINDOU_"),
    [],
  );
});

t.test("every key in the pages is one", async (t) => {
  const keys = new Set(CONFIG_KEYS.map(({ name }) => name));
  const sections = new Set([...keys].map((key) => key.split(".")[0]));
  for (const page of pages())
    for (const [, key = ""] of readPage(page).matchAll(/`([a-z]+(?:\.[a-zA-Z]+)+)`/g))
      if (sections.has(key.split(".")[0]) && !key.endsWith(".ts"))
        t.ok(keys.has(key), `${page}: ${key}`);
});

t.test("every metric that operators are told to watch is one", async (t) => {
  const listed = new Set(namedRows(readPage("docs/metrics.md")).keys());
  const text = readPage("docs/operations.md");
  const named = [...text.matchAll(/`(jindou_\w+)/g)].map(([, name = ""]) => name);
  t.ok(named.length > 8);
  t.same(
    named.filter((name) => !listed.has(name)),
    [],
  );
});

t.test("operators are told what to do about every error", async (t) => {
  const text = section(readPage("docs/operations.md"), "### Errors and what to do");
  const edge = Object.keys(EDGE_ERRORS).filter((code) => code !== "body_too_large");
  t.same([...namedRows(text).keys()].sort(), [...Object.keys(ERRORS), ...edge].sort());
});
