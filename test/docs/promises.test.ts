// Tests of the pages that list promises: each row of their tables names an existing test or says
// that the statement is not tested.

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import t from "tap";
import { prose, ROOT, readPage } from "./pages.ts";

const NOT_TESTED = "not tested";

/** Matches the header of a table whose last column names tests. */
const SHOWN_BY = /\| Shown by \|$/m;

/** Returns the last cell of each row of the tables that name tests. */
function lastCells(page: string): readonly string[] {
  const tables = prose(page).match(/(?:^\|.*\|\n?)+/gm) ?? [];
  return tables
    .filter((table) => SHOWN_BY.test(table))
    .flatMap((table) => table.trim().split("\n").slice(2))
    .map((row) => row.slice(1, -1).split("|").at(-1)?.trim() ?? "");
}

for (const [page, minRows] of [
  ["docs/compat/wukongim.md", 25],
  ["docs/SECURITY.md", 25],
  ["test/PROMISES.md", 25],
] as const)
  t.test(
    `every statement in ${page} names an existing test, or says that it is not tested`,
    async (t) => {
      const cells = lastCells(readPage(page));
      t.ok(cells.length > minRows, `the tables have ${cells.length} rows`);
      for (const cell of cells) {
        if (cell === NOT_TESTED) continue;
        const [file = "", title = ""] = cell.split(": ");
        const path = join(ROOT, file);
        if (!t.ok(existsSync(path), `${file} exists`)) continue;
        t.ok(
          readFileSync(path, "utf8").includes(title),
          `the file has a test with the title in ${cell}`,
        );
      }
    },
  );
