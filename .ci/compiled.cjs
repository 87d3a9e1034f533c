// `node --require=./.ci/compiled.cjs some.ts` runs the JavaScript that compile-tests.mjs compiled
// from that file. `tap` starts every test file this way. This module also disables two features of
// tap:
// - the modules it preloads for coverage, which is not used: two loader threads and a patched
//   child_process cost a second of processor time in each process;
// - the hooks on promises and callbacks that attribute an error to a test, which cost a fifth of
//   the processor time. Without them, an error in a callback ends the process with its stack trace,
//   and an unhandled rejection fails the test file.

const asyncHooks = require("node:async_hooks");
const { existsSync } = require("node:fs");
const Module = require("node:module");
const { join, relative } = require("node:path");

const ROOT = join(__dirname, "..");

/**
 * Returns the compiled file of a TypeScript file of this repository, or `undefined` for other
 * files.
 */
function compiled(file) {
  const name = relative(ROOT, file);
  if (name.startsWith("..") || !name.endsWith(".ts")) return undefined;
  const built = join(ROOT, ".build", `${name.slice(0, -3)}.js`);
  if (existsSync(built)) return built;
  throw new Error(`${built} is missing. Run node .ci/compile-tests.mjs.`);
}

globalThis[Symbol.for("@tapjs/processinfo.ProcessInfoNodeData")] = {
  files: [],
  sources: {},
};
const noHook = { enable: () => noHook, disable: () => noHook };
asyncHooks.createHook = () => noHook;
Module.syncBuiltinESMExports();
delete process.env.NODE_OPTIONS; // child processes of tests must not inherit it
const { runMain } = Module;
Module.register = () => {};
Module.runMain = (main) => {
  runMain(compiled(main) ?? main);
};
