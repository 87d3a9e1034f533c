// Tests of `docs/architecture.md` and `docs/adr/README.md`: the files that the page names exist,
// and the pages list every table, key and record.

import { readdirSync } from "node:fs";
import { join } from "node:path";
import t from "tap";
import { blocks, prose, ROOT, readPage, section } from "./pages.ts";

const PAGE = readPage("docs/architecture.md");
const SOURCES = readdirSync(join(ROOT, "src"), { recursive: true, encoding: "utf8" });

t.test("every file in the drawings of docs/architecture.md exists", async (t) => {
  const drawings = blocks(PAGE).filter(({ language }) => language === "mermaid");
  t.equal(drawings.length, 4);
  const files = drawings.flatMap(({ text }) => text.match(/[\w./-]+\.(?:ts|lua)\b/g) ?? []);
  t.ok(files.length > 40, "the drawings name files");
  t.same(
    files.filter((file) => !SOURCES.includes(file)),
    [],
  );
});

t.test("every file in the text and the tables of docs/architecture.md exists", async (t) => {
  const files = [...prose(PAGE).matchAll(/`([\w./-]+\.(?:ts|lua))`/g)].map(([, name = ""]) => name);
  const paths = [...SOURCES, ...readdirSync(join(ROOT, "bench")).map((name) => `bench/${name}`)];
  const isKnown = (file: string) =>
    paths.some((name) => name === file || name.endsWith(`/${file}`)) ||
    ["src/", "test/"].some((folder) => file.startsWith(folder)); // links, which another test checks
  t.same(
    files.filter((file) => !isKnown(file)),
    [],
  );
});

t.test("docs/architecture.md names all tables and the format of the data folder", async (t) => {
  const tables = readPage("src/store/embedded/engine/tables.ts");
  const [, format] = /DATA_FORMAT = (\d+)/.exec(tables) ?? [];
  const text = section(PAGE, "## The data folder");
  t.ok(text.includes(`has the number ${format}.`), `the page names format ${format}`);
  const opened = tables.matchAll(/(?:binary|keyed)\("(\w+)"\)|openDB\(\{ name: "(\w+)" \}\)/g);
  const names = [...opened].map(([, binary, other]) => binary ?? other);
  t.ok(names.length > 25);
  t.same(
    names.filter((name) => !text.includes(`\`${name}\``)),
    [],
  );
});

t.test("docs/architecture.md names all keys and the format of the data in Redis", async (t) => {
  const [, format] = /const FORMAT = (\d+)/.exec(readPage("src/redis/format.ts")) ?? [];
  const text = section(PAGE, "## Keys in Redis");
  t.ok(text.includes(`has the number ${format}.`), `the page names format ${format}`);
  const layout = readPage("src/store/redis/ports.ts");
  const keys = [
    ...layout.matchAll(/^\/\/ {3}(\w+(?::<\w+>)?) +(?:HASH|STREAM|ZSET|STRING|SET) /gm),
  ].map(([, name = ""]) => name);
  t.ok(keys.length > 30);
  t.ok(keys.includes("lease:<task>"));
  const shared = SOURCES.filter((file) => file.endsWith(".ts"))
    .flatMap((file) => [...readPage(`src/${file}`).matchAll(/\bshared\(\s*["`](\w+)/g)])
    .map(([, name = ""]) => name);
  t.ok(shared.includes("migrating"));
  const isNamed = (name: string) => new RegExp(`\`${name}(?:[\`:])`).test(text);
  t.same(
    [...keys, ...shared].filter((name) => !isNamed(name)),
    [],
  );
});

t.test("docs/adr/README.md lists every decision record", async (t) => {
  const index = readPage("docs/adr/README.md");
  const records = readdirSync(join(ROOT, "docs/adr")).filter((name) => /^\d/.test(name));
  t.ok(records.length > 10);
  t.same(
    records.filter((name) => !index.includes(`\n| [${Number(name.slice(0, 4))}](${name}) |`)),
    [],
  );
});

t.test("docs/README.md links to every page for users", async (t) => {
  const index = readPage("docs/README.md");
  const pages = readdirSync(join(ROOT, "docs"), { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".md") && !/^(?:adr|upstream)\//.test(name))
    .filter((name) => name !== "README.md");
  t.same(
    pages.filter((name) => !index.includes(`](${name}`)),
    [],
  );
});
