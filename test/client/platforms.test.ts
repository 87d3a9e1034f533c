// The built package in programs that lack parts of the platform or are bundled, against a real
// broker. `npm test` builds the package first; test/runtimes runs it in other runtimes.

import { join } from "node:path";
import { build } from "esbuild";
import { spawnBroker } from "../support/broker.ts";
import { run } from "../support/run.ts";
import { t } from "../support/suite.ts";
import { CLIENT_PACKAGE, registerTalkers, TALK } from "./talk.ts";

const broker = await spawnBroker(t);
await registerTalkers(broker);
const url = `ws://127.0.0.1:${broker.clientPort}`;

t.test(
  "the CommonJS build of the SDK sends and reads text without TextEncoder, TextDecoder, crypto and performance",
  async (t) => {
    const program = `
for (const name of ["TextEncoder", "TextDecoder", "crypto", "performance"])
  Object.defineProperty(globalThis, name, { value: undefined });
const { connect, group } = (await import("${CLIENT_PACKAGE}/index.cjs")).default;
${TALK}`;
    const { output, errors } = await run(t, "bare.mjs", program, [url]);
    t.equal(errors, "");
    t.equal(output, "works\n");
  },
);

t.test("`connect` of the ES module throws an error that names a missing TextDecoder", async (t) => {
  const program = `
globalThis.TextDecoder = undefined;
const { connect } = await import("${CLIENT_PACKAGE}/index.js");
try {
  connect({ url: process.argv[2], uid: "amy" });
} catch (error) {
  console.log(error.message);
}`;
  const { output } = await run(t, "missing.mjs", program, [url]);
  t.match(output, /TextDecoder/);
});

t.test(
  "a bundle of the SDK for Node.js finds `ws`, both as an ES module and as CommonJS",
  async (t) => {
    for (const format of ["cjs", "esm"] as const)
      for (const syntax of ["import", "require"]) {
        const load =
          syntax === "import"
            ? `import { connect, group } from "${CLIENT_PACKAGE}/index.js";`
            : `const { connect, group } = require("${CLIENT_PACKAGE}/index.cjs");`;
        if (format === "esm" && syntax === "require") continue; // such a bundle cannot load `net`
        const { outputFiles } = await build({
          stdin: { contents: `${load}\n(async () => {${TALK}})();`, resolveDir: CLIENT_PACKAGE },
          bundle: true,
          platform: "node",
          target: "node20",
          format,
          write: false,
          ...(format === "esm" && { banner: { js: REQUIRE } }),
        });
        const name = format === "esm" ? "bundle.mjs" : "bundle.cjs";
        const { output, errors } = await run(t, name, outputFiles[0]?.text ?? "", [url]);
        t.equal(errors, "");
        t.equal(output, "works\n", join(format, syntax));
      }
  },
);

/** Banner with which an ES module for Node.js can contain packages in CommonJS. */
const REQUIRE =
  'import { createRequire } from "node:module"; const require = createRequire(import.meta.url);';
