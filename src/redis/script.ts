// A step that runs inside Redis: one Lua file, with what all steps share in front. Read once, when its room is loaded.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

/** What commands and steps are given. */
export type Arg = string | number | Buffer;

export interface Script {
  readonly name: string;
  readonly source: string;
  /** SHA-1 of the source, which is what Redis calls it. */
  readonly sha: string;
}

const shared = readFileSync(
  new URL("./lua/shared.lua", import.meta.url),
  "utf8",
);

/**
 * The script of a Lua file, behind what it shares with others of its room: files, or text that was made. Its header says what KEYS, ARGV and the
 * reply are.
 */
export function loadScript(
  file: URL,
  ...before: readonly (URL | string)[]
): Script {
  const parts = [...before, file].map((part) =>
    typeof part === "string" ? part : readFileSync(part, "utf8"),
  );
  const source = [shared, ...parts].join("\n");
  const sha = createHash("sha1").update(source).digest("hex");
  return { name: file.pathname.split("/").at(-1) ?? "", source, sha };
}
