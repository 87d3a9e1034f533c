// For tests: `node --require=./.ci/compiled.cjs some.ts` runs what compile-tests.mjs made of it. `tap` starts every test file so.
// Also takes out what tap preloads for its coverage, which is switched off: two threads of loaders and a patched child_process, a second of
// processor time for each process; and the hooks on every promise and callback by which it finds the test that an error in a callback belongs to, a
// fifth of the processor time: such an error ends the process with its stack trace, a rejection that nobody handles fails the file with its line.

const asyncHooks = require("node:async_hooks");
const { existsSync } = require("node:fs");
const Module = require("node:module");
const { join, relative } = require("node:path");

const ROOT = join(__dirname, "..");

/** The JavaScript of a source of this repository; undefined for everything else. */
function compiled(file) {
  const name = relative(ROOT, file);
  if (name.startsWith("..") || !name.endsWith(".ts")) return undefined;
  const built = join(ROOT, ".build", `${name.slice(0, -3)}.js`);
  if (existsSync(built)) return built;
  throw new Error(`${built} is not there: node .ci/compile-tests.mjs`);
}

globalThis[Symbol.for("@tapjs/processinfo.ProcessInfoNodeData")] = {
  files: [],
  sources: {},
};
const noHook = { enable: () => noHook, disable: () => noHook };
asyncHooks.createHook = () => noHook;
Module.syncBuiltinESMExports();
delete process.env.NODE_OPTIONS; // for the processes that a test starts
const { runMain } = Module;
Module.register = () => {};
Module.runMain = (main) => {
  runMain(compiled(main) ?? main);
};
