// For tests: TypeScript to JavaScript once, before all test processes, which then need no loader (how they find it: compiled.cjs).
// `tap` runs it first. .build/ mirrors src/, test/, bench/ and .ci/; only what changed is compiled anew. Types are not checked.

import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { build, version } from "esbuild";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const OUT = join(ROOT, ".build");
const STAMP = join(OUT, "made-by.json");
const FOLDERS = ["src", "test", "bench", ".ci"];
/** As four files instead of 683, which every test process would read. */
const BUNDLED = ["typebox", "typebox/compile", "typebox/value"];
const COMMON = { format: "esm", platform: "node", target: "node20" };

const bundleOf = (name) => join(OUT, "bundled", `${name.replace("/", "-")}.mjs`);
const outputOf = (source) => join(OUT, `${source.slice(0, -3)}.js`);
/** In whole milliseconds: no more can be set. */
const mtimeOf = (file) => Math.floor(statSync(file, { throwIfNoEntry: false })?.mtimeMs ?? 0);

/** Another run may be reading: a file is there as a whole or not at all. */
function put(file, contents) {
  mkdirSync(dirname(file), { recursive: true });
  const fresh = `${file}.${process.pid}`;
  writeFileSync(fresh, contents);
  renameSync(fresh, file);
}

async function bundleBig() {
  const { outputFiles } = await build({
    ...COMMON,
    entryPoints: BUNDLED.map((name) => ({
      in: name,
      out: name.replace("/", "-"),
    })),
    bundle: true,
    splitting: true,
    outdir: join(OUT, "bundled"),
    outExtension: { ".js": ".mjs" },
    absWorkingDir: ROOT,
    write: false,
  });
  for (const { path, contents } of outputFiles) put(path, contents);
}

/** Imports stay imports; they name what is compiled, and what is bundled. */
const imports = {
  name: "imports",
  setup(building) {
    building.onResolve({ filter: /./ }, ({ kind, path, resolveDir }) => {
      if (kind === "entry-point") return undefined;
      if (BUNDLED.includes(path)) {
        const from = join(OUT, relative(ROOT, resolveDir));
        return { path: relative(from, bundleOf(path)), external: true };
      }
      const isOurs = path.startsWith(".") && path.endsWith(".ts");
      return {
        path: isOurs ? `${path.slice(0, -3)}.js` : path,
        external: true,
      };
    });
  },
};

/** Files beside the sources are found where the sources are: for the code, its address is its source's. */
const ADDRESS = {
  define: { "import.meta.url": "__source" },
  banner: {
    js: 'const __source = import.meta.url.replace(/^(.*)\\/\\.build\\/(.*)\\.js(\\?.*)?$/s, "$1/$2.ts");',
  },
};

async function compile(sources) {
  const { outputFiles } = await build({
    ...COMMON,
    ...ADDRESS,
    entryPoints: sources,
    bundle: true,
    plugins: [imports],
    outdir: OUT,
    outbase: ROOT,
    absWorkingDir: ROOT,
    sourcemap: true,
    write: false,
  });
  for (const { path, contents } of outputFiles) put(path, contents);
  for (const source of sources) {
    const changed = new Date(mtimeOf(join(ROOT, source)));
    utimesSync(outputOf(source), changed, changed);
  }
}

function sourcesOf(folder) {
  return readdirSync(join(ROOT, folder), { recursive: true })
    .filter((name) => name.endsWith(".ts") && !name.endsWith(".d.ts"))
    .map((name) => join(folder, name));
}

function removeOrphans(sources) {
  const wanted = new Set(sources.map(outputOf));
  for (const folder of FOLDERS.filter((name) => existsSync(join(OUT, name))))
    for (const name of readdirSync(join(OUT, folder), { recursive: true })) {
      const file = join(OUT, folder, name);
      if (file.endsWith(".js") && !wanted.has(file)) rmSync(file);
    }
}

function madeBy() {
  const typebox = join(ROOT, "node_modules/typebox/package.json");
  return JSON.stringify({
    esbuild: version,
    typebox: JSON.parse(readFileSync(typebox, "utf8")).version,
    by: mtimeOf(fileURLToPath(import.meta.url)),
  });
}

if (!existsSync(STAMP) || readFileSync(STAMP, "utf8") !== madeBy()) {
  rmSync(OUT, { recursive: true, force: true });
  await bundleBig();
}
const sources = FOLDERS.flatMap(sourcesOf);
const stale = sources.filter((source) => mtimeOf(outputOf(source)) !== mtimeOf(join(ROOT, source)));
if (stale.length > 0) await compile(stale);
removeOrphans(sources);
if (!existsSync(STAMP)) put(STAMP, madeBy());
