// Arguments with which tests start child processes. A child started with
// `spawn(...tieToParent(command, args), options)` ends with the test process, even if the test
// process is killed after a timeout and runs no teardown.

import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

/**
 * Arguments for Node.js, to be followed by the path of a TypeScript file in this repository. They
 * make Node.js run the compiled form of the file. The broker itself is started from dist/main.js.
 */
export const TYPESCRIPT_ARGS: readonly string[] = [
  `--require=${fileURLToPath(new URL("../../.ci/compiled.cjs", import.meta.url))}`,
];

/** Returns the URL of the compiled form of a source file, for an import with a computed path. */
export function compiledUrl(source: URL): string {
  const root = new URL("../../", import.meta.url).href;
  const name = source.href.slice(root.length).replace(/\.ts$/, ".js");
  return `${root}.build/${name}`;
}

/** Path of `setpriv` from util-linux. */
const SETPRIV = "/usr/bin/setpriv";
const HAS_SETPRIV = process.platform === "linux" && existsSync(SETPRIV);

/**
 * Wraps a command so that the kernel kills its process when the calling process ends. Only this
 * process is killed, not the processes that it starts. Returns the command unchanged unless the
 * system is Linux with `setpriv`.
 */
export function tieToParent(command: string, args: readonly string[]): [string, string[]] {
  if (!HAS_SETPRIV) return [command, [...args]];
  return [SETPRIV, ["--pdeathsig", "KILL", command, ...args]];
}
