// What an app pays for the SDK in a browser, and that nothing of Node comes along. Measures what
// the package ships: `npm test` builds it first.

import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";
import { readPage } from "../docs/pages.ts";
import { t } from "../support/suite.ts";

/** The bound; the README tells the size itself. */
const MAX_GZIP_BYTES = 16 * 1024;

const ROOT = fileURLToPath(new URL("../..", import.meta.url));

t.test("the SDK in a browser bundle is within its bound, and has nothing of Node", async (t) => {
  const { outputFiles, metafile } = await build({
    stdin: {
      contents: "export { connect } from './dist-client/index.js'",
      resolveDir: ROOT,
    },
    absWorkingDir: ROOT,
    bundle: true,
    minify: true,
    format: "esm",
    platform: "browser",
    metafile: true,
    write: false,
  });
  const bytes = outputFiles.reduce(
    (sum, { contents }) => sum + gzipSync(contents, { level: 9 }).length,
    0,
  );
  t.comment(`${bytes} bytes, minified and gzipped`);
  t.ok(bytes <= MAX_GZIP_BYTES, `${bytes} of ${MAX_GZIP_BYTES} bytes`);
  const said = /takes ([\d.]+) KiB/.exec(readPage("README.md"))?.[1];
  t.ok(Math.abs(Number(said) - bytes / 1024) <= 0.1, `the README says ${said} KiB`);
  const inputs = Object.keys(metafile.inputs).filter((path) => path !== "<stdin>");
  t.same(inputs.sort(), ["dist-client/index.js", "dist-client/no-socket.js"], "nothing for `ws`");
});
