// Parses the pages of the documentation: code blocks, links, headings and table rows. Pure except
// for reading files.

import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = fileURLToPath(new URL("../..", import.meta.url));

/** Returns the paths of all pages, relative to the root of the project. */
export function pages(): readonly string[] {
  const docs = readdirSync(join(ROOT, "docs"), {
    recursive: true,
    encoding: "utf8",
  });
  const others = ["README.md", "CHANGELOG.md", "test/PROMISES.md"];
  return [...others, ...docs.map((name) => join("docs", name))].filter((name) =>
    name.endsWith(".md"),
  );
}

/** Returns the text of a file, whose path is relative to the root of the project. */
export function readPage(name: string): string {
  return readFileSync(join(ROOT, name), "utf8");
}

/** A fenced code block. */
export interface Block {
  readonly language: string;
  readonly text: string;
}

/** Returns the fenced code blocks of the page, in order. */
export function blocks(page: string): readonly Block[] {
  return [...page.matchAll(/^```(\w*)\n(.*?)^```$/gms)].map(([, language = "", text = ""]) => ({
    language,
    text: text.trimEnd(),
  }));
}

/** Returns the page without its code blocks. */
export function prose(page: string): string {
  return page.replaceAll(/^```\w*\n.*?^```$/gms, "");
}

/**
 * Returns the table rows whose first cell is a name in backticks: the other cells by that name,
 * without the backticks.
 */
export function namedRows(page: string): ReadonlyMap<string, string[]> {
  const rows = [...page.matchAll(/^\| `([^`]+)` \|(.*)\|$/gm)];
  return new Map(
    rows.map(([, name = "", cells = ""]) => [name, cells.split(" | ").map((cell) => cell.trim())]),
  );
}

/**
 * Returns the part of the page below the heading, up to the next heading of the same or a higher
 * level.
 */
export function section(page: string, heading: string): string {
  const level = heading.indexOf(" ");
  const from = page.indexOf(`\n${heading}\n`);
  if (from < 0) throw new Error(`the page has no heading ${heading}`);
  const body = page.slice(from + heading.length + 2);
  const end = new RegExp(`^#{1,${level}} `, "m").exec(body);
  return end === null ? body : body.slice(0, end.index);
}

/**
 * Returns the links of the page to files of this project. Paths are relative to the root, and the
 * anchor is "" if the link has none.
 */
export function localLinks(
  name: string,
): readonly { readonly file: string; readonly anchor: string }[] {
  const targets = [...prose(readPage(name)).matchAll(/\]\(([^)\s]+)\)/g)];
  return targets
    .map(([, target = ""]) => target)
    .filter((target) => !/^[a-z]+:/.test(target))
    .map((target) => {
      const [path = "", anchor = ""] = target.split("#");
      const file = path === "" ? name : relative(ROOT, join(ROOT, dirname(name), path));
      return { file, anchor };
    });
}

/** Returns the anchors that GitHub generates for the headings of the page. */
export function anchors(page: string): readonly string[] {
  return [...prose(page).matchAll(/^#+ (.*)$/gm)].map(([, heading = ""]) =>
    heading
      .toLowerCase()
      .replaceAll(/[^\p{L}\p{N} _-]/gu, "")
      .replaceAll(" ", "-"),
  );
}
