// Builds the package `jindou-server` from src/backend into dist-backend/: one ES module, the same
// code as CommonJS, and the types. Part of `npm run build` and `npm run pack:backend`.

import { execFileSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const OUT = join(ROOT, "dist-backend");
const ENTRY = "backend";

const read = (path) => readFileSync(join(ROOT, path), "utf8");
const put = (name, text) => writeFileSync(join(OUT, name), text);

rmSync(OUT, { recursive: true, force: true });
mkdirSync(OUT);
for (const [format, extension] of [
  ["esm", ".js"],
  ["cjs", ".cjs"],
])
  await build({
    absWorkingDir: ROOT,
    entryPoints: [`src/backend/${ENTRY}.ts`],
    outdir: OUT,
    bundle: true,
    platform: "node",
    target: "node20",
    format,
    outExtension: { ".js": extension },
  });

const tsc = join(ROOT, "node_modules/typescript/bin/tsc");
const args = ["-p", "tsconfig.backend.json", "--outDir", OUT];
execFileSync(process.execPath, [tsc, ...args], { cwd: ROOT, stdio: "inherit" });
for (const name of readdirSync(OUT).filter((file) => file.endsWith(".d.ts"))) {
  // TypeScript does not change the file extensions of imports in declarations. CommonJS needs its
  // own declarations.
  const types = readFileSync(join(OUT, name), "utf8");
  const withExtension = (extension) =>
    types.replaceAll(/(from "\.[^"]*)\.ts"/g, `$1.${extension}"`);
  put(name, withExtension("js"));
  put(name.replace(/\.d\.ts$/, ".d.cts"), withExtension("cjs"));
}

put("README.md", read("src/backend/README.md"));
put("LICENSE", read("LICENSE"));
const { version, license } = JSON.parse(read("package.json"));
const manifest = {
  name: "jindou-server",
  version,
  description:
    "Client of the HTTP interface of the Jindou messaging broker, for backends on Node.js",
  license,
  type: "module",
  engines: { node: ">=20" },
  exports: {
    ".": {
      import: { types: `./${ENTRY}.d.ts`, default: `./${ENTRY}.js` },
      require: { types: `./${ENTRY}.d.cts`, default: `./${ENTRY}.cjs` },
    },
    "./package.json": "./package.json",
  },
  main: `./${ENTRY}.cjs`,
  types: `./${ENTRY}.d.ts`,
  sideEffects: false,
  files: readdirSync(OUT),
};
put("package.json", `${JSON.stringify(manifest, undefined, 2)}\n`);
