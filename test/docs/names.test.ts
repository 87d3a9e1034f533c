// Tests that everything the pages name exists: files, headings, settings, environment variables,
// metrics and error codes.

import { existsSync, statSync } from "node:fs";
import { join } from "node:path";
import t from "tap";
import { EDGE_ERRORS } from "../../src/api/errors.ts";
import { ERRORS } from "../../src/broker/errors.ts";
import { EXPIRING_EVENT } from "../../src/broker/model.ts";
import { CONFIG_KEYS } from "../../src/config/schema.ts";
import { IMPORT_TOKEN_ENV, TARGET_TOKEN_ENV, USER_TOKEN_ENV } from "../../src/config/sources.ts";
import { anchors, localLinks, namedRows, pages, ROOT, readPage, section } from "./pages.ts";

t.test("every link to a file or heading of the project has an existing target", async (t) => {
  let links = 0;
  for (const page of pages())
    for (const { file, anchor } of localLinks(page)) {
      links += 1;
      const path = join(ROOT, file);
      if (!existsSync(path)) t.fail(`${page} links to ${file}, which does not exist`);
      else if (anchor !== "" && statSync(path).isFile())
        t.ok(
          anchors(readPage(file)).includes(anchor),
          `the heading of the link in ${page} exists: ${file}#${anchor}`,
        );
    }
  t.ok(links > 50, "the pages have links");
});

t.test("every environment variable in the pages and the Dockerfile exists", async (t) => {
  const variables = new Set(["JINDOU_CONFIG"]);
  for (const name of [USER_TOKEN_ENV, IMPORT_TOKEN_ENV, TARGET_TOKEN_ENV])
    variables.add(name).add(`${name}_FILE`);
  for (const name of ["JINDOU_FAULT_SECONDS", "JINDOU_TEST_QUIET", "JINDOU_TEST_VOLUME"])
    variables.add(name); // used by tests only
  for (const { env, secret } of CONFIG_KEYS) {
    variables.add(env);
    if (secret) variables.add(`${env}_FILE`);
  }
  const mentions = new Map<string, string>();
  for (const page of [...pages(), "Dockerfile"])
    for (const [name] of readPage(page).matchAll(/\bJINDOU_[A-Z_]+/g)) mentions.set(name, page);
  t.ok(mentions.size > 20, "the pages name variables");
  t.same(
    [...mentions].filter(([name]) => !variables.has(name) && name !== "JINDOU_"),
    [],
  );
});

t.test("every configuration key in the pages exists", async (t) => {
  const keys = new Set(CONFIG_KEYS.map(({ name }) => name));
  const sections = new Set([...keys].map((key) => key.split(".")[0]));
  for (const page of pages())
    for (const [, key = ""] of readPage(page).matchAll(/`([a-z]+(?:\.[a-zA-Z]+)+)`/g))
      if (sections.has(key.split(".")[0]) && !key.endsWith(".ts"))
        t.ok(keys.has(key) || key === EXPIRING_EVENT, `the key in ${page} exists: ${key}`);
});

t.test("every metric in docs/operations.md is listed in docs/metrics.md", async (t) => {
  const listed = new Set(namedRows(readPage("docs/metrics.md")).keys());
  const text = readPage("docs/operations.md");
  const named = [...text.matchAll(/`(jindou_\w+)/g)].map(([, name = ""]) => name);
  t.ok(named.length > 8, "the page names metrics");
  t.same(
    named.filter((name) => !listed.has(name)),
    [],
  );
});

t.test("docs/operations.md has an instruction for every error code", async (t) => {
  const text = section(readPage("docs/operations.md"), "### Errors and what to do");
  const edge = Object.keys(EDGE_ERRORS).filter((code) => code !== "body_too_large");
  t.same([...namedRows(text).keys()].sort(), [...Object.keys(ERRORS), ...edge].sort());
});
