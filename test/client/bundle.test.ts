// Size of the SDK in a browser bundle, and the absence of Node code in it. Measures the published
// files, which `npm test` builds first.

import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";
import { readPage } from "../docs/pages.ts";
import { t } from "../support/suite.ts";

/** Maximum size of the compressed bundle. The README names the actual size. */
const MAX_GZIP_BYTES = 22_800;

const ROOT = fileURLToPath(new URL("../..", import.meta.url));

t.test(
  "the gzipped SDK has at most 22,800 bytes in a browser bundle and contains no code for Node",
  async (t) => {
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
    t.comment(`the minified and gzipped bundle has ${bytes} bytes`);
    t.ok(bytes <= MAX_GZIP_BYTES, `the bundle has ${bytes} bytes, at most ${MAX_GZIP_BYTES}`);
    const documentedKib = /takes ([\d.]+) KiB/.exec(readPage("README.md"))?.[1];
    t.ok(
      Math.abs(Number(documentedKib) - bytes / 1024) <= 0.1,
      `the size in the README (${documentedKib} KiB) is up to date`,
    );
    const inputs = Object.keys(metafile.inputs).filter((path) => path !== "<stdin>");
    t.same(
      inputs.sort(),
      ["dist-client/index.js", "dist-client/no-socket.js"],
      "the bundle does not contain `ws`",
    );
  },
);
