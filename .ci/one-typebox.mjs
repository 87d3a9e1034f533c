// For tests: typebox as four files instead of 683. Every test process loads it through tsx' hooks, which take a second of processor time for them.
// Use: node --import=tsx --import=./.ci/one-typebox.mjs. Makes the bundle where there is none of the installed version; changes nothing of what it does.

import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
} from "node:fs";
import { register } from "node:module";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { isMainThread } from "node:worker_threads";

const ROOT = fileURLToPath(new URL("../node_modules/", import.meta.url));
const CACHE = join(ROOT, ".cache/jindou-tests");
const ENTRIES = {
  typebox: "typebox",
  "typebox/compile": "compile",
  "typebox/value": "value",
};

async function bundle(folder) {
  const { build } = await import("esbuild");
  mkdirSync(CACHE, { recursive: true });
  const fresh = mkdtempSync(join(CACHE, "fresh-"));
  await build({
    entryPoints: Object.fromEntries(
      Object.entries(ENTRIES).map(([from, name]) => [name, from]),
    ),
    ...{
      bundle: true,
      splitting: true,
      format: "esm",
      platform: "node",
      target: "node20",
    },
    ...{
      outdir: fresh,
      outExtension: { ".js": ".mjs" },
      absWorkingDir: join(ROOT, ".."),
      logLevel: "error",
    },
  });
  try {
    renameSync(fresh, folder);
  } catch (error) {
    rmSync(fresh, { recursive: true });
    if (!existsSync(folder)) throw error; // else another process was quicker
  }
}

/** @type {Map<string, string>} */
let urls = new Map();

/** Runs in the thread of the hooks. */
export function initialize({ folder }) {
  urls = new Map(
    Object.entries(ENTRIES).map(([from, name]) => [
      from,
      pathToFileURL(join(folder, `${name}.mjs`)).href,
    ]),
  );
}

export function resolve(specifier, context, next) {
  const url = urls.get(specifier);
  return url === undefined
    ? next(specifier, context)
    : { url, format: "module", shortCircuit: true };
}

if (isMainThread) {
  const { version } = JSON.parse(
    readFileSync(join(ROOT, "typebox/package.json"), "utf8"),
  );
  const folder = join(CACHE, `typebox-${version}`);
  if (!existsSync(folder)) await bundle(folder);
  register(import.meta.url, { data: { folder } });
}
