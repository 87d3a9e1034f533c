// How tests start processes: what runs TypeScript, and what ends with the test process however that
// ends (a test file that is killed because it took too long runs no teardown). Use:
// spawn(...tieToParent(command, args), options). State: none.

import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

/**
 * Before the name of a TypeScript file of this repository: Node.js runs the compiled form, without
 * a loader. The broker itself is dist/main.js.
 */
export const TYPESCRIPT_ARGS: readonly string[] = [
  `--require=${fileURLToPath(new URL("../../.ci/compiled.cjs", import.meta.url))}`,
];

/** What to import where the name of one of our sources is computed: `source` is its address. */
export function compiledUrl(source: URL): string {
  const root = new URL("../../", import.meta.url).href;
  const name = source.href.slice(root.length).replace(/\.ts$/, ".js");
  return `${root}.build/${name}`;
}

/** Of util-linux. */
const SETPRIV = "/usr/bin/setpriv";
const HAS_SETPRIV = process.platform === "linux" && existsSync(SETPRIV);

/**
 * The command and its arguments, to be run as a process that the kernel kills when this one is gone
 * (Linux; elsewhere as they are). The process keeps its id. What it starts in turn is not killed
 * with it.
 */
export function tieToParent(command: string, args: readonly string[]): [string, string[]] {
  if (!HAS_SETPRIV) return [command, [...args]];
  return [SETPRIV, ["--pdeathsig", "KILL", command, ...args]];
}
