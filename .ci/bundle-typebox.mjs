// Bundles typebox into four files in dist/ and makes the imports in dist/ use them. Loading its 683
// files would take most of the time of a start. Part of `npm run build`.

import { copyFileSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { build } from "esbuild";

const OUT = "dist/bundled";
const ENTRIES = ["typebox", "typebox/compile", "typebox/value"];
const nameOf = (entry) => entry.replace("/", "-");

await build({
  entryPoints: ENTRIES.map((entry) => ({ in: entry, out: nameOf(entry) })),
  ...{ bundle: true, splitting: true, outdir: OUT },
  ...{ format: "esm", platform: "node", target: "node20" },
  legalComments: "linked",
});

copyFileSync("node_modules/typebox/license", join(OUT, "typebox-license"));

for (const name of readdirSync("dist", { recursive: true, encoding: "utf8" })) {
  const file = join("dist", name);
  if (!name.endsWith(".js") || file.startsWith(OUT)) continue;
  const text = readFileSync(file, "utf8");
  const bundled = text.replaceAll(
    /(from ")(typebox(?:\/\w+)?)(";)/g,
    (_match, before, entry, after) => {
      if (!ENTRIES.includes(entry))
        throw new Error(`${file} imports ${entry}, which is not bundled`);
      return `${before}${relative(dirname(file), join(OUT, `${nameOf(entry)}.js`)).replace(/^(?!\.)/, "./")}${after}`;
    },
  );
  if (bundled !== text) writeFileSync(file, bundled);
}
