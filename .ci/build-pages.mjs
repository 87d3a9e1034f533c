// Bundles the web pages in src/demo and src/console for browsers. Each page is one HTML file with
// one script and one style sheet, whose names contain a hash of their content. Part of
// build-server.mjs.

import { readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { build } from "esbuild";

export const PAGES = ["demo", "console"];

/** Leaves out the WebSocket of Node.js, as the package `jindou-client` does in browsers. */
const BROWSER_SOCKET = {
  name: "browser socket",
  setup(building) {
    building.onResolve({ filter: /\/find-socket\.ts$/ }, ({ resolveDir }) => ({
      path: join(resolveDir, "no-socket.ts"),
    }));
  },
};

/** Returns the files of a page by their paths relative to dist/, and the paths of its sources. */
export async function bundlePage(root, page) {
  const folder = join(root, "src", page);
  const { outputFiles, metafile } = await build({
    absWorkingDir: root,
    entryPoints: [join(folder, "main.tsx"), join(folder, "style.css")],
    outdir: join(root, "dist/pages", page),
    entryNames: "[name]-[hash]",
    bundle: true,
    minify: true,
    format: "esm",
    platform: "browser",
    target: ["es2022", "chrome115", "firefox115", "safari16.4"],
    jsx: "automatic",
    jsxImportSource: "preact",
    alias: { "jindou-client": join(root, "src/client/index.ts") },
    plugins: [BROWSER_SOCKET],
    legalComments: "none", // the licences are in LICENCES.txt
    metafile: true,
    write: false,
    logLevel: "warning",
  });
  const files = outputFiles.map(({ path, text }) => [`pages/${page}/${basename(path)}`, text]);
  const html = Object.entries(metafile.outputs).reduce(
    (text, [path, { entryPoint }]) =>
      text.replace(`"${basename(entryPoint)}"`, `"${basename(path)}"`),
    readFileSync(join(folder, "index.html"), "utf8"),
  );
  return {
    files: [...files, [`pages/${page}/index.html`, html]],
    inputs: Object.keys(metafile.inputs),
  };
}
